"""POST /v1/pipelines: several operators on one image. POST /v1/batch: several images through one operator or pipeline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app import results
from app.decoders import Decoded
from app.frame import Trace
from app.intake import Picture
from app.ledger import Claim
from app.parameters import Fields, find_operator, parse_operator, parse_steps, refusal
from app.problems import Problem, TooManyImages
from app.routes import Plan, Planner, WorkEndpoint, execution, image_endpoint, make_plan, place
from app.service import Analysis, Caller, Service, image_object, unless_gone
from cuda_ops import Chain, Operator

Outcome = Analysis | Problem


def pipeline_endpoint(service: Service) -> WorkEndpoint:
    """The endpoint of /v1/pipelines."""

    def make(fields: Fields, accept: str) -> Plan:
        if fields.op is not None:
            raise refusal("op", "`op` is for /v1/batch; a pipeline has `steps`.", "")
        chain, options = parse_steps(fields.steps, fields.values, service.operators, service.settings.max_steps)
        return make_plan(chain, options, results.choose(chain, options, accept))

    return image_endpoint(service, Planner(make), _steps)


def batch_endpoint(service: Service) -> WorkEndpoint:
    """The endpoint of /v1/batch."""

    async def answer(request: Request, caller: Caller, claim: Claim) -> Response:
        trace: Trace = request.scope["vision.trace"]
        accept = request.headers.get("accept", "")

        def plan(fields: Fields) -> _BatchPlan:
            return _plan(fields, service.operators, service.settings.max_steps, accept)

        planned, pictures = await service.intake.take(request, plan, many=True)
        trace.phases["receive"] = time.perf_counter() - trace.started
        with service.work(caller, len(pictures)):
            async with unless_gone(request.receive):
                outcomes = await _run(service, planned.plan, pictures, caller, claim)
                began = time.perf_counter()
                body = await _encode(service, planned, outcomes, trace)
        trace.phases["encode"] = time.perf_counter() - began
        trace.fields |= {"operator": "+".join(step.operator.path for step in planned.plan.chain)}
        trace.fields |= {"backend": service.backend.name, "images": len(outcomes)}
        timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in trace.phases.items())
        headers = {"Content-Type": "application/json", "Vary": "Accept", "Server-Timing": timing}
        return Response(body, headers={**headers, "X-Backend": service.backend.name})

    return WorkEndpoint(service, answer)


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    plan: Plan
    head: dict[str, Any]


def _steps(chain: Chain) -> dict[str, Any]:
    """The chain as it was understood, defaults filled in."""
    return {"steps": [{"op": step.operator.path, "params": step.params.model_dump(), "keep": step.keep} for step in chain]}


def _plan(fields: Fields, known: Mapping[str, Operator], most_steps: int, accept: str) -> _BatchPlan:
    """One operator (`op`) or a pipeline (`steps`); the answer of a batch is always JSON."""
    if (fields.op is None) == (fields.steps is None):
        raise refusal("op", "A batch has either `op` (one operator, with `params`) or `steps` (a pipeline).", "")
    if fields.op is not None:
        operator = find_operator(str(fields.op) if isinstance(fields.op, str) else fields.op, known)
        chain, options = parse_operator(operator, fields.values)
        head: dict[str, Any] = {"operator": operator.path, "params": chain[0].params.model_dump()}
    else:
        chain, options = parse_steps(fields.steps, fields.values, known, most_steps)
        head = _steps(chain)
    return _BatchPlan(make_plan(chain, options, results.choose(chain, options, accept, ("json",))), head)


async def _run(service: Service, plan: Plan, pictures: Sequence[Picture], caller: Caller, claim: Claim) -> list[Outcome]:
    """Decode every image, then queue all that could be, and wait; each image gets its own outcome.

    TooManyImages when the images have too many pixels together; the service's own refusal when it took none of them.
    """
    claim.hold("body", sum(len(picture) for picture in pictures if isinstance(picture, bytes)))
    held = 0

    async def decode(picture: Picture) -> Decoded | Problem:
        nonlocal held
        if isinstance(picture, Problem):
            return picture
        try:
            decoded = await service.decode(picture, plan.chain, plan.options, caller)
        except Problem as problem:
            return problem
        held += decoded.pixels.nbytes
        claim.hold("decoded", held, decoded.info.width * decoded.info.height)
        if claim.pixels > service.settings.max_batch_pixels:
            raise _too_many_pixels(claim.pixels, service.settings.max_batch_pixels)
        return decoded

    async def run(decoded: Decoded | Problem) -> Outcome:
        if isinstance(decoded, Problem):
            return decoded
        try:
            return await service.run(decoded, plan.chain, caller)
        except Problem as problem:
            return problem

    try:
        async with asyncio.TaskGroup() as group:
            decoding = [group.create_task(decode(picture)) for picture in pictures]
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(run(task.result())) for task in decoding]
    except* Problem as refused:
        raise refused.exceptions[0] from None
    outcomes = [task.result() for task in running]
    if all(isinstance(outcome, Problem) and outcome.status >= 500 for outcome in outcomes):
        raise next(outcome for outcome in outcomes if isinstance(outcome, Problem))
    return outcomes


async def _encode(service: Service, planned: _BatchPlan, outcomes: Sequence[Outcome], trace: Trace) -> bytes:
    options = planned.plan.options
    items = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Problem):
            items.append({"index": index, "status": outcome.status, "problem": outcome.document(trace.request_id)})
            continue
        began = time.perf_counter()
        parts = await service.encode_json(outcome, options)
        items.append(
            {
                "index": index,
                "status": 200,
                "image": image_object(outcome.info),
                **place(planned.plan.chain, parts),
                "execution": execution(service.backend.name, outcome, time.perf_counter() - began),
            }
        )
    succeeded = sum(1 for item in items if item["status"] == 200)
    counts = {"count": len(items), "succeeded": succeeded, "failed": len(items) - succeeded}
    return results.dumps({**planned.head, **counts, "items": items, "request_id": trace.request_id})


def _too_many_pixels(measured: int, limit: int) -> TooManyImages:
    return TooManyImages(
        f"The images of one batch may have {limit} pixels together; these have at least {measured}. Send fewer at once.",
        limit=limit,
        measured=measured,
        setting="VISION_MAX_BATCH_PIXELS",
        errors=[{"pointer": "/images", "detail": f"at most {limit} pixels together"}],
    )
