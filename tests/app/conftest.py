"""A real server on a real socket, in a thread of the test process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from app.main import create_app
from app.settings import Settings
from cuda_ops import operators
from cuda_ops.cpu_backend import CpuBackend


class ColdBackend(CpuBackend):
    """Compiles nothing in advance: compiling everything would outlast a test's time limit."""

    def warm_up(self, operators: Any) -> None:
        pass


def warm(*paths: str) -> None:
    """Compile these operators. Otherwise the service would learn from its first request that they take many seconds."""
    known = operators()
    CpuBackend(1).warm_up([known[path] for path in paths])


@dataclass(frozen=True)
class Live:
    """A running service and a client of it."""

    app: FastAPI
    client: httpx.Client

    def post(self, path: str, **kwargs: Any) -> httpx.Response:
        return self.client.post(path, **kwargs)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self.client.get(path, **kwargs)


def serve(settings: Settings, backend: CpuBackend | None = None) -> Iterator[Live]:
    """Serve until the generator is closed."""
    app = create_app(settings, backend=backend or ColdBackend(2))
    server = uvicorn.Server(uvicorn.Config(app, port=0, http="httptools", loop="uvloop", lifespan="on", log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 30
    while not server.started and thread.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    assert server.started
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=50) as client:
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield Live(app, client)
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def warmed() -> Callable[..., None]:
    """Compile operators before the service runs them."""
    return warm


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """The service with its default settings."""
    yield from serve(Settings())


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[..., Live]]:
    """Serve with another backend or other settings, as keyword arguments."""
    running: list[Iterator[Live]] = []

    def start(backend: CpuBackend | None = None, **settings: Any) -> Live:
        running.append(serve(Settings(**settings), backend))
        return next(running[-1])

    yield start
    for each in running:
        next(each, None)
