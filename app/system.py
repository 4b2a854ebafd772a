"""Everything but work: probes, metrics, limits, the operators, the problems, and the pages. Never queued."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from app.lifecycle import Phase
from app.problems import BackendUnavailable, Draining, NotFound, Problem, catalog
from app.service import Service
from app.settings import Settings, describe
from cuda_ops import Operator

STATIC = Path(__file__).parent / "static"
Document = Callable[[], Awaitable[bytes]]

_STRICT = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; script-src 'self'; "
# Both libraries set style attributes and inline SVG images; Redoc searches in a worker made from a blob.
POLICIES = {
    "index.html": _STRICT + "style-src 'self'; img-src 'self' data: blob:; connect-src 'self'",
    "docs.html": _STRICT + "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'",
    "redoc.html": _STRICT + "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; worker-src blob:; font-src 'self'",
}


def system_router(service: Service, document: Document) -> APIRouter:
    """All GET endpoints (HEAD too). `document` gives the OpenAPI document as JSON text."""
    operators = service.operators
    router = APIRouter(default_response_class=Response)

    def get(path: str, endpoint: Callable[..., Any]) -> None:
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None, include_in_schema=False)

    async def livez() -> Response:
        return _json({"status": "alive"})

    async def readyz() -> Response:
        troubles = service.lifecycle.troubles()
        if troubles:
            raise _not_ready(service.lifecycle.phase, troubles)
        return _json({"status": "ready"})

    async def exposition() -> Response:
        service.sample()
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def limits() -> Response:
        return _json({"limits": published(service.settings)})

    async def list_operators() -> Response:
        return _json({"operators": [declaration(operator) for operator in operators.values()]})

    async def one_operator(family: str, name: str) -> Response:
        operator = operators.get(f"{family}/{name}")
        if operator is None:
            raise NotFound("There is no such operator. /v1/operators lists them.")
        return _json(declaration(operator))

    async def problems() -> Response:
        return _json({"problems": [explanation(problem) for problem in catalog().values()]})

    async def one_problem(code: str) -> Response:
        if code not in catalog():
            raise NotFound("There is no such problem. /problems lists them.")
        return _json(explanation(catalog()[code]))

    async def openapi() -> Response:
        return Response(await document(), media_type="application/json")

    get("/livez", livez)
    get("/readyz", readyz)
    get("/metrics", exposition)
    get("/v1/limits", limits)
    get("/v1/operators", list_operators)
    get("/v1/operators/{family}/{name}", one_operator)
    get("/problems", problems)
    get("/problems/{code}", one_problem)
    get("/openapi.json", openapi)
    for path, name in (("/", "index.html"), ("/docs", "docs.html"), ("/redoc", "redoc.html")):
        get(path, _page(name))
    return router


def published(settings: Settings) -> dict[str, Any]:
    """Every limit that a client can hit, by name."""
    return {
        row["name"]: {
            "value": row["value"],
            "unit": row["unit"],
            "setting": row["variable"],
            "description": row["description"],
        }
        for row in describe(settings)
        if row["published"]
    }


def declaration(operator: Operator) -> dict[str, Any]:
    """An operator as /v1/operators shows it."""
    return {
        "family": operator.family,
        "name": operator.name,
        "path": f"/v1/{operator.path}",
        "summary": operator.summary,
        "description": operator.description,
        "kind": operator.kind,
        "exactness": operator.exactness,
        "cost": operator.cost,
        "params": operator.params.model_json_schema(),
    }


def explanation(problem: type[Problem]) -> dict[str, Any]:
    """A kind of problem as /problems shows it."""
    meaning = " ".join((problem.__doc__ or "").split())
    return {
        "type": f"/problems/{problem.code}",
        "code": problem.code,
        "status": problem.status,
        "title": problem.title,
        "meaning": meaning,
    }


def _not_ready(phase: Phase, troubles: list[str]) -> Problem:
    errors = [{"pointer": "", "detail": trouble} for trouble in troubles]
    detail = f"Send no work here: {'; '.join(troubles)}. Ask again later."
    kind = Draining if phase >= Phase.DRAINING else BackendUnavailable
    return kind(detail, errors=errors, retry_after_s=1.0, reason="not-ready")


def _json(body: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {"Content-Security-Policy": POLICIES[name], "Referrer-Policy": "no-referrer"}
    text = (STATIC / name).read_bytes()

    async def page(_request: Request) -> Response:
        return Response(text, media_type="text/html", headers=headers)

    return page
