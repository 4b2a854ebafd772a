"""The HTTP protocol of a connection, with the patience that uvicorn lacks: deadlines for what comes in and what goes out, and limits.

- A request has `receive_timeout_s` for headers and body, and its body must keep a least rate; otherwise 408. Time in which the service
  itself has stopped reading does not count. The connection is closed either way: nothing that follows could be trusted to be a request.
- Headers are limited in bytes and number, connections in number; a peer that does not read its answer is cut off.
- An answer sent before the body has arrived (413, say) is followed by a lingering close: reading goes on for a moment, because closing a
  socket with unread bytes would reset it and lose the answer.
- What the parser refuses gets a problem document like every other error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.frame import mint_request_id
from app.problems import MalformedRequest, Overloaded, Problem, ReceiveTimeout, respond

RATE_GRACE_S = 2.0  # a request may be slow to begin
CHECK_S = 0.5
LINGER_S = 2.0
MOST_HEADERS = 100


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of one connection. `refused` is told of what is turned away below the application: problem and peer."""

    receive_timeout_s: float
    min_receive_rate: int
    send_timeout_s: float
    max_header_bytes: int
    max_connections: int
    refused: Callable[[Problem, str], None]


class LingeringTransport:
    """A transport whose `close` keeps reading for a moment when the peer is still sending."""

    def __init__(self, transport: asyncio.Transport, protocol: PatientProtocol) -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close, or begin to linger."""
        if not self._protocol.linger():
            self._transport.close()


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; `patience` is set by `protocol_class`."""

    patience: Patience

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._begun = 0.0
        self._arrived = 0  # bytes of this request, headers included
        self._chunk = 0
        self._header_bytes = 0
        self._in_headers = True
        self._complete = True
        self._lingering = False
        self._watch: asyncio.TimerHandle | None = None
        self._send_watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take the connection, or turn it away when there are too many."""
        super().connection_made(LingeringTransport(transport, self))  # type: ignore[arg-type]  # quacks like one
        if len(self.connections) > self.patience.max_connections:
            problem = Overloaded(
                "The service has as many connections as it takes. Try again shortly, and reuse connections.",
                limit=self.patience.max_connections,
                setting="VISION_MAX_CONNECTIONS",
                retry_after_s=1.0,
                reason="connections",
            )
            self._refuse(problem)
        else:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the watches."""
        self._rest()
        if self._send_watch is not None:
            self._send_watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count, then parse. What comes while lingering is thrown away."""
        if self._lingering or self.transport.is_closing():
            return
        self._chunk = len(data)
        self._arrived += self._chunk
        super().data_received(data)
        if self._in_headers and not self._complete and self._arrived > self.patience.max_header_bytes:
            self._refuse(self._header_problem())

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """The answer to what is no HTTP."""
        self._refuse(MalformedRequest("This is not HTTP/1.1, or its headers are malformed."))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._header_bytes = 0
        self._begin(self._chunk)  # of which it is a part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the headers; a parser error stops the request."""
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self.patience.max_header_bytes or len(self.headers) >= MOST_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The application starts; the body is still watched."""
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All has arrived."""
        self._complete = True
        self._rest()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The peer reads too slowly: from now on it has `send_timeout_s` to catch up."""
        super().pause_writing()
        if self._send_watch is None:
            self._send_watch = self.loop.call_later(self.patience.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        if self._send_watch is not None:
            self._send_watch.cancel()
            self._send_watch = None
        super().resume_writing()

    def linger(self) -> bool:
        """Half-close and go on reading when the peer is still sending; False where a plain close will do."""
        if self._lingering:
            return True
        if self._complete or self.transport.is_closing() or not self.transport.can_write_eof():
            return False
        self._lingering = True
        self._rest()
        self.transport.write_eof()
        self.flow.resume_reading()
        self._watch = self.loop.call_later(LINGER_S, self.transport.abort)
        return True

    def eof_received(self) -> None:
        """The peer has nothing more to say."""
        if self._lingering:
            self.transport.abort()

    def _begin(self, arrived: int = 0) -> None:
        self._begun, self._arrived = self.loop.time(), arrived
        self._in_headers, self._complete = True, False
        self._rest()
        self._watch = self.loop.call_later(min(CHECK_S, self.patience.receive_timeout_s), self._judge)

    def _rest(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _judge(self) -> None:
        """Called twice a second while a request is arriving."""
        patience = self.patience
        self._watch = None
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self._begun += CHECK_S  # the wait is the service's own
        elapsed = self.loop.time() - self._begun
        expected = 0.0 if self._in_headers else patience.min_receive_rate * (elapsed - RATE_GRACE_S)
        if elapsed >= patience.receive_timeout_s or self._arrived < expected:
            self._expire()
        else:
            self._watch = self.loop.call_later(min(CHECK_S, patience.receive_timeout_s - elapsed + 0.001), self._judge)

    def _expire(self) -> None:
        """Too slow: the application answers when it has the request, the protocol itself when there is none yet."""
        if self._in_headers:
            if self._arrived:
                self._refuse(late(self.patience))
            else:
                self.transport.abort()  # it never said anything
            return
        cycle = self.cycle
        if cycle.response_complete:
            self.transport.abort()
            return
        cycle.scope["vision.late"] = late(self.patience)  # type: ignore[typeddict-unknown-key]  # read by intake
        cycle.more_body = False
        cycle.keep_alive = False
        cycle.message_event.set()
        self._watch = self.loop.call_later(LINGER_S, self.transport.abort)

    def _header_problem(self) -> Problem:
        most = self.patience.max_header_bytes
        return MalformedRequest(
            f"The headers have more than {most} bytes. Put parameters that are long into a form or JSON.",
            limit=most,
            setting="VISION_MAX_HEADER_BYTES",
        )

    def _refuse(self, problem: Problem) -> None:
        """Write a problem without the application, and close."""
        self.patience.refused(problem, self.client[0] if self.client else "")
        answer = respond(problem, mint_request_id())
        head = b"".join(name + b": " + value + b"\r\n" for name, value in [*answer.raw_headers, (b"connection", b"close")])
        self.transport.write(STATUS_LINE[problem.status] + head + b"\r\n" + bytes(answer.body))
        self.transport.close()


def late(patience: Patience) -> ReceiveTimeout:
    """The problem of a request that came too slowly."""
    timeout_s, rate = patience.receive_timeout_s, patience.min_receive_rate
    return ReceiveTimeout(
        f"A request must arrive within {timeout_s:g} s and at {rate} bytes a second or more. Send a smaller image, or check the network.",
        limit=timeout_s,
        setting="VISION_RECEIVE_TIMEOUT_S",
    )


def protocol_class(patience: Patience) -> type[PatientProtocol]:
    """A protocol class for uvicorn with these limits."""
    return type("Protocol", (PatientProtocol,), {"patience": patience})
