"""One serving process: uvicorn, with draining in place of its abrupt stop, and a greeting once the service is ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from app.runtime import Runtime
from app.settings import Settings
from app.telemetry import configure_logging
from app.transport import Patience, protocol_class
from cuda_ops import BackendMissing

FAILED_START = 3
CreateApp = Callable[[Settings], FastAPI]

BACKLOG = 2048
LINGER_S = 1.0  # for the requests of connections that were made before the listener was closed


class Server(uvicorn.Server):
    """uvicorn's server; the first SIGTERM or SIGINT drains, a second one stops at once."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime, listener: socket.socket, greeting: str) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._listener = listener.dup()
        self._greeting = greeting
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.clean = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then greet when the service is warm."""
        self._loop = asyncio.get_running_loop()
        self._runtime.service.lifecycle.on_failure(self._drain)
        await super().startup(sockets)
        if self._greeting and self._runtime.warming is not None:
            self._runtime.warming.add_done_callback(self._greet)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Called by the signal handler; not remembered as uvicorn does, so that the exit status tells how it went."""
        if self._draining is not None or self._loop is None:
            self.should_exit = self.force_exit = True
            self.clean = False
            return
        self._loop.call_soon_threadsafe(self._drain)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening without a reset for anyone: whoever is connected by then still gets an answer."""
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for connection in _accept_all(self._listener):
            await loop.connect_accepted_socket(self._protocol, connection)
        until = loop.time() + LINGER_S
        while self.server_state.connections and loop.time() < until:  # noqa: ASYNC110 - uvicorn gives no event
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]  # a union of classes
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def _drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drained())

    async def _drained(self) -> None:
        try:
            self.clean = await self._runtime.drain()
        finally:
            self.should_exit = True

    def _greet(self, warming: asyncio.Task[None]) -> None:
        if not warming.cancelled() and not self._runtime.service.lifecycle.exit_code:
            sys.stdout.write(self._greeting)
            sys.stdout.flush()


def _accept_all(listener: socket.socket) -> list[socket.socket]:
    """Close the listener, and return what the kernel had connected to it: closing alone would reset those connections."""
    accepted = []
    listener.setblocking(False)
    with listener, contextlib.suppress(BlockingIOError):
        while True:
            accepted.append(listener.accept()[0])
    return accepted


def serve_one(settings: Settings, create_app: CreateApp, listener: socket.socket | None = None, *, first: bool = True) -> int:
    """Serve on this process's main thread until it has drained; the exit status.

    The first process answers probes while it warms up, and greets; any further one listens when it is warm.
    """
    configure_logging(settings.log_level)
    try:
        app = create_app(settings)
    except BackendMissing as error:
        sys.stderr.write(f"visionbatch does not start: {error}\n")
        return FAILED_START
    runtime: Runtime = app.state.runtime
    runtime.listen_warm = not first
    try:
        listener = listener or listen(settings)
    except OSError as error:
        sys.stderr.write(f"visionbatch does not start: {settings.host}:{settings.port}: {error.strerror}\n")
        return FAILED_START
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_class(_patience(settings, runtime)),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=int(settings.keep_alive_s),
        timeout_graceful_shutdown=5,
    )
    server = Server(config, runtime, listener, greeting(settings, listener) if first else "")
    server.run([listener])
    status = runtime.service.lifecycle.exit_code or (0 if server.started and server.clean else 1)
    if any(thread.daemon for thread in threading.enumerate()):
        # A compiler or a stuck kernel still runs; it must not outlive the interpreter that it works on.
        sys.stdout.flush()
        os._exit(status)
    return status


def _patience(settings: Settings, runtime: Runtime) -> Patience:
    """The limits of one connection."""
    service = runtime.service
    return Patience(
        receive_timeout_s=settings.receive_timeout_s,
        min_receive_rate=settings.min_receive_rate,
        send_timeout_s=settings.send_timeout_s,
        max_header_bytes=settings.max_header_bytes,
        max_connections=settings.share(settings.max_connections),
        refused=lambda problem, _client: service.metrics.refusals.labels(problem.code, problem.reason or "").inc(),
    )


def listen(settings: Settings) -> socket.socket:
    """The listening socket. OSError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def greeting(settings: Settings, listener: socket.socket) -> str:
    """Where the service is, where its docs are, and one line to try."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - shown, not bound
        host = "127.0.0.1"
    base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    workers = f" with {settings.workers} workers" if settings.workers > 1 else ""
    return (
        f"visionbatch listens on {base}{workers}\n"
        f"documentation        {base}/docs\n"
        f"playground           {base}/\n"
        f"try                  curl -s {base}/static/sample.jpg | curl -s -H 'Content-Type: image/jpeg' "
        f"--data-binary @- '{base}/v1/edges/canny?low=100&high=200&mask_encoding=none'\n"
    )
