"""Connections that are slow, endless, malformed or too many, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from app import transport
from app.frame import Frame
from app.intake import _receive
from app.problems import Problem
from app.telemetry import Metrics
from app.transport import Patience, protocol_class


class Quiet:
    """A request log that keeps nothing."""

    def write(self, fields: Any) -> None: ...


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads up to 1000 bytes as the service does, then answers with what it got; /large answers with 64 MB."""
    if scope["type"] != "http":
        return
    got: list[bytes] = []
    if scope["method"] == "POST":
        await _receive(Request(scope, receive), got.append, 1000, "VISION_MAX_BODY_BYTES")
    body = b"x" * 64_000_000 if scope["path"] == "/large" else b"got %d" % sum(map(len, got))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[tuple[int, list[Problem]]]:
    """A server on a free port; gives the port and the problems that were answered below the application."""
    refused: list[Problem] = []
    limits: dict[str, Any] = {
        "receive_timeout_s": 0.5,
        "min_receive_rate": 0,
        "send_timeout_s": 0.3,
        "max_header_bytes": 2048,
        "max_connections": 20,
        "refused": lambda problem, _client: refused.append(problem),
        **changes,
    }
    framed = Frame(application, Metrics(), Quiet(), {})  # type: ignore[arg-type]  # quacks like a log
    config = uvicorn.Config(framed, port=0, http=protocol_class(Patience(**limits)), lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1], refused
    finally:
        server.should_exit = server.force_exit = True
        await task


async def exchange(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    """Send the parts, then read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def problem(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    found: dict[str, Any] = json.loads(body)
    assert found["request_id"]
    return found


async def test_an_ordinary_request_and_the_next_on_the_same_connection() -> None:
    async with serving() as (port, _):
        one = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
        answer = await exchange(port, one, one.replace(b"Host", b"Connection: close\r\nHost"), pause=0.05)
    assert answer.count(b"got 3") == 2


async def test_slow_headers_are_answered_with_408() -> None:
    async with serving() as (port, refused):
        answer = await exchange(port, b"GET / HTTP/1.1\r\n", b"X: y\r\n", pause=0.4)
    assert problem(answer)["code"] == "receive-timeout"
    assert [each.code for each in refused] == ["receive-timeout"]


async def test_a_silent_connection_is_closed() -> None:
    async with serving() as (port, _):
        assert await exchange(port) == b""


async def test_slow_body_is_answered_with_408() -> None:
    async with serving() as (port, _):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        found = problem(await exchange(port, head, *[b"x"] * 3, pause=0.25))
    assert (found["status"], found["code"], found["setting"]) == (408, "receive-timeout", "VISION_RECEIVE_TIMEOUT_S")


async def test_least_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "RATE_GRACE_S", 0.1)
    monkeypatch.setattr(transport, "CHECK_S", 0.1)
    async with serving(receive_timeout_s=30, min_receive_rate=1000) as (port, _):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n"
        begin = asyncio.get_running_loop().time()
        found = problem(await exchange(port, head, *[b"x" * 10] * 8, pause=0.1))
        assert asyncio.get_running_loop().time() - begin < 5
    assert found["code"] == "receive-timeout"


async def test_a_hundred_slow_bodies_delay_nobody() -> None:
    async with serving(receive_timeout_s=1.0, max_connections=200) as (port, _):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n"
        slow = [asyncio.create_task(exchange(port, head, *[b"x"] * 4, pause=0.4)) for _ in range(100)]
        await asyncio.sleep(0.2)
        begin = asyncio.get_running_loop().time()
        answer = await exchange(port, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"got 0" in answer
        assert asyncio.get_running_loop().time() - begin < 0.5
        answers = await asyncio.gather(*slow)
    assert all(problem(each)["status"] == 408 for each in answers)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 5000,
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 150 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"Name: " + b"v" * 3000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["endless header", "endless path", "many headers", "large header", "tls", "no colon", "negative length", "smuggling"],
)
async def test_what_is_no_request(data: bytes) -> None:
    async with serving() as (port, _):
        found = problem(await exchange(port, data))
    assert (found["status"], found["code"]) == (400, "malformed-request")


async def test_an_early_answer_arrives_although_the_body_does_not_end() -> None:
    async with serving() as (port, _):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n"
        found = problem(await exchange(port, head + b"x" * 200_000))
    assert (found["status"], found["limit"]) == (413, 1000)


async def test_counted_while_streaming_when_no_length_is_declared() -> None:
    async with serving() as (port, _):
        head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        found = problem(await exchange(port, head, *[b"258\r\n" + b"x" * 600 + b"\r\n"] * 3))
    assert found["code"] == "body-too-large"


async def test_connections_are_limited() -> None:
    async with serving(max_connections=3) as (port, _):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await asyncio.sleep(0.05)
        answer = await exchange(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        found = problem(answer)
        assert (found["status"], found["reason"], found["retry_after_s"]) == (503, "connections", 1.0)
        assert b"retry-after: 1" in answer.lower()
        for _, writer in held:
            writer.close()


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(1.0)
        with contextlib.suppress(ConnectionError):
            got = 0
            while chunk := await reader.read(65_536):
                got += len(chunk)
            assert got < 64_000_000
        writer.close()
