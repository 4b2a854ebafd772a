"""The wiring: operators from elsewhere, clients that vanish, warm-up that fails."""

from __future__ import annotations

import asyncio
import socket
import textwrap
import threading
import time

import httpx
import numpy as np
import pytest

from app.main import create_app
from app.settings import Settings
from cuda_ops.cpu_backend import CpuBackend
from cuda_ops.operator import load_file, unregister

NEGATIVE = '''
"""Negative of a grey image: threshold - v, at least 0."""

import numpy as np
from pydantic import Field

from cuda_ops.operator import ArraySpec, ErrorSample, Layout, Operator, Params, Result, Sample, register


class NegativeParams(Params):
    """Parameters of `edges/negative`."""

    top: int = Field(255, ge=0, le=255, description="Level that becomes 0.")


def layout(height, width, params):
    return Layout({"image": ArraySpec((height, width), "uint8")})


def cpu(image):
    np.copyto(image.arrays["image"], np.maximum(image.params.top - image.source.astype(np.int16), 0), casting="unsafe")


def cuda(batch):
    raise NotImplementedError


def finish(arrays, params, height, width):
    return Result("image", height, width, {"image": arrays["image"]})


def reference(image, params):
    pixels = np.maximum(params.top - image.astype(np.int16), 0).astype(np.uint8)
    return Result("image", image.shape[0], image.shape[1], {"image": pixels})


register(
    Operator(
        family="edges", name="negative", summary="Negative", description="Each level v becomes max(top - v, 0), exactly.",
        params=NegativeParams, kind="image", exactness="exact", cost="one pass", layout=layout, cpu=cpu, cuda=cuda, finish=finish,
        reference=reference, oracle=reference, structural=("top",),
        samples=lambda: [Sample("ramp", np.arange(64, dtype=np.uint8).reshape(8, 8))],
        errors=lambda: [ErrorSample("top", {"top": 256}, "top")],
    )
)
'''


@pytest.fixture
def negative(tmp_path):
    file = tmp_path / "negative.py"
    file.write_text(textwrap.dedent(NEGATIVE))
    (operator,) = load_file(file)
    yield operator
    unregister(operator.path)


def test_one_file_is_all_that_a_new_operator_takes(negative, serving):
    live = serving()
    ramp = np.arange(64, dtype=np.uint8).reshape(8, 8)
    answer = live.post("/v1/edges/negative?top=50&output=npy", content=b"P5 8 8 255\n" + ramp.tobytes())
    assert answer.status_code == 200, answer.text
    assert np.array_equal(np.frombuffer(answer.content[-64:], np.uint8), np.maximum(50 - ramp.ravel().astype(int), 0))
    assert live.post("/v1/edges/negative?top=256", content=b"x").json()["errors"][0]["pointer"] == "/params/top"
    assert live.get("/v1/operators/edges/negative").json()["summary"] == "Negative"
    document = live.get("/openapi.json").json()
    operation = document["paths"]["/v1/edges/negative"]["post"]
    assert operation["responses"]["200"]["content"]["application/json"]["example"]["result"]["kind"] == "image"
    assert "top" in {parameter["name"] for parameter in operation["parameters"]}
    steps = document["components"]["schemas"]["Steps"]["items"]["oneOf"]
    assert "edges/negative" in {step["properties"]["op"]["const"] for step in steps}


class GatedBackend(CpuBackend):
    """Runs nothing until it is let go; counts what it ran."""

    def __init__(self):
        super().__init__(1)
        self.gate = threading.Event()
        self.started = threading.Event()
        self.ran = 0

    def warm_up(self, operators):
        pass

    def run(self, items, deliver):
        self.started.set()
        assert self.gate.wait(30)
        self.ran += len(items)
        return super().run(items, deliver)


PICTURE = b"P5 8 8 255\n" + bytes(64)


def raw_request(path="/v1/edges/negative"):
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: image/x-portable-graymap\r\nContent-Length: {len(PICTURE)}\r\n\r\n"
    return head.encode() + PICTURE


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_nothing_is_run_for_clients_that_hang_up_while_queued(negative, serving):
    backend = GatedBackend()
    live = serving(backend=backend)
    batcher = live.app.state.runtime.service.batcher
    address = (live.client.base_url.host, live.client.base_url.port)
    first = socket.create_connection(address)
    first.sendall(raw_request())
    assert backend.started.wait(20)
    clients = [socket.create_connection(address) for _ in range(40)]
    for client in clients:
        client.sendall(raw_request())
    until(lambda: batcher.waiting == 40)
    for client in clients:
        client.close()
    until(lambda: batcher.waiting == 0)
    backend.gate.set()
    assert first.recv(4096).startswith(b"HTTP/1.1 200")
    first.close()
    assert backend.ran == 1
    metrics = live.get("/metrics").text
    assert 'vision_dropped_jobs_total{kind="cancelled"' in metrics
    assert 'vision_requests_total{route="/v1/edges/negative",status="499"} 40.0' in metrics
    assert live.app.state.runtime.service.ledger.bytes == 0


class FailingBackend(CpuBackend):
    def warm_up(self, operators):
        raise RuntimeError("no compiler")


async def test_a_warm_up_that_fails_ends_the_process():
    app = create_app(Settings(), backend=FailingBackend(1))
    runtime = app.state.runtime
    ended = asyncio.Event()
    runtime.service.lifecycle.on_failure(ended.set)
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(ended.wait(), 20)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            ready = await client.get("/readyz")
            work = await client.post("/v1/edges/canny", content=PICTURE)
            alive = await client.get("/livez")
    assert (ready.status_code, ready.json()["errors"][0]["detail"]) == (503, "warm-up failed")
    assert (work.status_code, work.json()["code"]) == (503, "backend-unavailable")
    assert alive.status_code == 200
    assert runtime.service.lifecycle.exit_code == 70
