"""The operator endpoints, one for each operator of the registry: POST /v1/{family}/{name}."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app import results
from app.etags import etag, fingerprint, not_modified
from app.frame import Trace
from app.intake import LONGEST_REMEMBERED, query_fields
from app.ledger import Claim
from app.parameters import Fields, Options, parse_operator, refusal
from app.problems import Problem
from app.service import Analysis, Caller, Service, image_object, phases, unless_gone
from cuda_ops import Chain, Operator

Answer = Callable[[Request, Caller, Claim], Awaitable[Response]]

SKIPPED_BYTES = 256 * 1024
SKIPPING_S = 0.05


class WorkEndpoint:
    """An ASGI endpoint that does work: admitted before its body is read, accounted for until its answer is sent."""

    def __init__(self, service: Service, answer: Answer) -> None:
        self._service = service
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        service = self._service
        try:
            caller = service.caller(request)
            with service.lifecycle.request(), service.admit(request, caller) as claim:
                response = await self._answer(request, caller, claim)
                await response(scope, receive, send)
        except Problem:
            await _skip(request)
            raise


async def _skip(request: Request) -> None:
    """Take in a small body that nobody will read: under overload that is cheaper than a new connection for the client's next request."""
    trace: Trace = request.scope["vision.trace"]
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 8 and int(length) <= SKIPPED_BYTES:
        with suppress(TimeoutError):
            async with asyncio.timeout(SKIPPING_S):
                while not (trace.whole or trace.status):
                    await request.receive()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request asks for, wholly checked."""

    chain: Chain
    options: Options
    form: str
    fingerprint: bytes


def make_plan(chain: Chain, options: Options, form: str) -> Plan:
    """The plan with its fingerprint, which is half of the answer's ETag."""
    return Plan(chain, options, form, fingerprint(chain, options, form))


class Planner:
    """Makes plans from fields and the Accept header, and remembers those that a query string alone decides."""

    def __init__(self, make: Callable[[Fields, str], Plan]) -> None:
        self._make = make
        self._remembered = lru_cache(maxsize=256)(lambda query, accept: make(query_fields(query), accept))

    def plan(self, fields: Fields, accept: str) -> Plan:
        """The plan; raises what is wrong with the fields, or NotAcceptable."""
        if fields.query is None or len(accept) > LONGEST_REMEMBERED:
            return self._make(fields, accept)
        return self._remembered(fields.query, accept)


def operator_endpoint(service: Service, operator: Operator) -> WorkEndpoint:
    """The endpoint of one operator."""

    def make(fields: Fields, accept: str) -> Plan:
        for name in ("op", "steps"):
            if getattr(fields, name) is not None:
                raise refusal(name, f"`{name}` is for /v1/pipelines and /v1/batch; this is {operator.path}.")
        chain, options = parse_operator(operator, fields.values)
        return make_plan(chain, options, results.choose(chain, options, accept))

    def describe(chain: Chain) -> dict[str, Any]:
        return {"operator": operator.path, "params": chain[0].params.model_dump()}

    return image_endpoint(service, Planner(make), describe)


def image_endpoint(service: Service, planner: Planner, describe: Callable[[Chain], dict[str, Any]]) -> WorkEndpoint:
    """Takes one image, runs the plan's chain on it, and answers in the plan's form; `describe` says what was run."""

    async def answer(request: Request, caller: Caller, claim: Claim) -> Response:
        trace: Trace = request.scope["vision.trace"]
        accept = request.headers.get("accept", "")
        plan, pictures = await service.intake.take(request, lambda fields: planner.plan(fields, accept))
        trace.phases["receive"] = time.perf_counter() - trace.started
        (picture,) = pictures
        if isinstance(picture, Problem):
            raise picture
        tag = etag(picture, plan.fingerprint)
        if not_modified(request.headers, tag):
            return Response(status_code=304, headers={"Vary": "Accept", "ETag": tag})
        with service.work(caller):
            async with unless_gone(request.receive):
                analysis = await service.analyze(picture, plan.chain, plan.options, caller, claim)
                began = time.perf_counter()
                body = await _encode(service, plan, analysis, describe(plan.chain), trace, began)
        trace.phases |= {**phases(analysis), "encode": time.perf_counter() - began}
        trace.fields |= {"operator": "+".join([step.operator.path for step in plan.chain])}
        trace.fields |= {"backend": service.backend.name, "batch_size": analysis.done.batch_size}
        return Response(body, headers={**_headers(plan, trace, service.backend.name), "ETag": tag})

    return WorkEndpoint(service, answer)


async def _encode(service: Service, plan: Plan, analysis: Analysis, head: dict[str, Any], trace: Trace, began: float) -> bytes:
    """The response body."""
    if plan.form != "json":
        return await service.encode_bytes(analysis, plan.form)
    parts = await service.encode_json(analysis, plan.options)
    return results.dumps(
        {
            **head,
            "image": image_object(analysis.info),
            **place(plan.chain, parts),
            "execution": execution(service.backend.name, analysis, time.perf_counter() - began),
            "request_id": trace.request_id,
        }
    )


def place(chain: Chain, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where results go in an answer: the last step's is `result`, those of earlier kept steps are listed in `kept`."""
    if len(parts) == 1:
        return {"result": parts[0]}
    steps = [(index, step) for index, step in enumerate(chain) if step.keep]
    kept = [{"step": index, "op": step.operator.path, "result": part} for (index, step), part in zip(steps[:-1], parts, strict=False)]
    return {"kept": kept, "result": parts[-1]}


def execution(backend: str, analysis: Analysis, encode_s: float) -> dict[str, Any]:
    """The contract's `execution` object; times in milliseconds."""
    done = analysis.done
    return {
        "backend": backend,
        "batch_size": done.batch_size,
        "decode_ms": round(analysis.decode_s * 1000, 3),
        "queue_ms": round((done.queue_s + done.form_s) * 1000, 3),
        "compute_ms": round(done.compute_s * 1000, 3),
        "encode_ms": round(encode_s * 1000, 3),
    }


def _headers(plan: Plan, trace: Trace, backend: str) -> dict[str, str]:
    timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in trace.phases.items())
    headers = {
        "Content-Type": results.MEDIA_TYPES[plan.form],
        "Vary": "Accept",
        "Server-Timing": timing,
        "X-Backend": backend,
    }
    if plan.form != "json":
        name = plan.chain[-1].operator.name
        headers["Content-Disposition"] = f'inline; filename="{name}.{plan.form}"'
    return headers
