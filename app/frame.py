"""What surrounds every request: its id, the problem for whatever fails, safe headers, its metrics and its one log line.

Pure ASGI. POST endpoints are found in a table of exact paths; everything else goes through the framework's router, which
costs as much as all the rest of a small request (docs/performance-log.md).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from random import getrandbits
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.problems import ClientGone, InternalError, Problem, respond
from app.telemetry import Metrics, RequestLog, logger

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in _CROCKFORD for low in _CROCKFORD]


@dataclass(slots=True)
class Trace:
    """What is known about one request; `phases` are seconds, `fields` go into its log line and `headers` into its answer."""

    request_id: str
    started: float
    phases: dict[str, float] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    received: int = 0
    whole: bool = False
    sent: int = 0
    status: int = 0
    answered: float = 0.0


def mint_request_id() -> str:
    """A ULID: 26 characters that sort by the millisecond they were made in."""
    number = (int(time.time() * 1000) << 80) | getrandbits(80)
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


class Frame:
    """The outermost application."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        log: RequestLog,
        direct: Mapping[str, ASGIApp],
        closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._closing = closing
        self._log = log
        self._metrics = metrics
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = Trace(_request_id(scope), time.perf_counter())
        scope["vision.trace"] = trace
        scope["vision.request_id"] = trace.request_id

        async def counted_receive() -> Message:
            message = await receive()
            trace.received += len(message.get("body", b""))
            trace.whole = not message.get("more_body", False)
            return message

        async def framed_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status, trace.answered = message["status"], time.perf_counter()
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", trace.request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    *((name.lower().encode(), value.encode()) for name, value in trace.headers.items()),
                ]
                # Answered before the body was read: the rest of it must not be taken for the next request. And while the process
                # drains, the next request had better go to another one.
                if (scope["method"] == "POST" and not trace.whole) or self._closing():
                    message["headers"].append((b"connection", b"close"))
            else:
                trace.sent += len(message.get("body", b""))
            await send(message)

        direct = self._direct.get(scope["path"]) if scope["method"] == "POST" else None
        try:
            await (direct or self._app)(scope, counted_receive, framed_send)
        except Exception as error:
            await _answer(error, scope, trace, counted_receive, framed_send)
        finally:
            self._record(scope, trace, scope["path"] if direct else _route(scope))

    def _record(self, scope: Scope, trace: Trace, route: str) -> None:
        now = time.perf_counter()
        problem: Problem | None = scope.get("vision.problem")
        status = problem.status if isinstance(problem, ClientGone) else trace.status or ClientGone.status
        self._metrics.request(route, status, now - trace.started)
        self._metrics.received_bytes.inc(trace.received)
        self._metrics.sent_bytes.inc(trace.sent)
        if problem is not None:
            self._metrics.refusals.labels(problem.code, problem.reason or "").inc()
        if trace.phases:
            trace.phases["send"] = now - trace.answered
        for phase, seconds in trace.phases.items():
            self._metrics.phase(phase, seconds)
        self._log.write(
            {
                "request_id": trace.request_id,
                "method": scope["method"],
                "route": route,
                "path": scope["path"][:200],
                "status": status,
                "code": problem.code if problem else None,
                "client": (scope.get("client") or ("",))[0],
                "duration_ms": round((now - trace.started) * 1000, 3),
                "received_bytes": trace.received,
                "sent_bytes": trace.sent,
                "phases_ms": {name: round(seconds * 1000, 3) for name, seconds in trace.phases.items()},
                **trace.fields,
            }
        )


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            return text if REQUEST_ID.fullmatch(text) else mint_request_id()
    return mint_request_id()


def _route(scope: MutableMapping[str, Any]) -> str:
    """The template of the route that was found, so that a client cannot make up metric labels."""
    return str(getattr(scope.get("route"), "path", "other"))


async def _answer(error: Exception, scope: Scope, trace: Trace, receive: Receive, send: Send) -> None:
    if not isinstance(error, Problem):
        logger.error("unexpected exception", exc_info=error, extra={"fields": {"request_id": trace.request_id}})
        error = InternalError("The service failed in a way it should not. Report this with the request id.")
    scope["vision.problem"] = error
    if not trace.status and not isinstance(error, ClientGone):
        await respond(error, trace.request_id)(scope, receive, send)
