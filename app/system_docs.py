"""The documentation of the GET endpoints."""

from __future__ import annotations

from typing import Any

from app.schemas import Schema, array, record, string


def system_paths() -> dict[str, Any]:
    """Path items of the endpoints that do no work."""
    operator = record(
        {
            **{name: string(text) for name, text in _OPERATOR.items()},
            "params": {"type": "object", "description": "JSON Schema of the parameters."},
        }
    )
    limit = record(
        {
            "value": {"type": "number"},
            "unit": string("Unit of the value."),
            "setting": string("The variable that sets it."),
            "description": string("What it limits."),
        }
    )
    problem = record({name: string(text) for name, text in _PROBLEM.items()} | {"status": {"type": "integer"}})
    family, name, code = _path("family"), _path("name"), _path("code")
    not_found = {"404": {"$ref": "#/components/responses/Problem404"}}
    status = record({"status": {"type": "string"}})
    return {
        "/v1/operators": _get("list_operators", "Every operator", record({"operators": array(operator)})),
        "/v1/operators/{family}/{name}": _get("get_operator", "One operator", operator, [family, name], not_found),
        "/v1/limits": _get(
            "list_limits",
            "Every limit a client can hit",
            record({"limits": {"type": "object", "additionalProperties": limit}}),
        ),
        "/problems": _get("list_problems", "Every problem", record({"problems": array(problem)})),
        "/problems/{code}": _get("get_problem", "What a problem means", problem, [code], not_found),
        "/livez": _get("livez", "Whether the process is alive", status),
        "/readyz": _get(
            "readyz",
            "Whether to send work: warm, not draining, queue below its mark",
            status,
            errors={"503": {"$ref": "#/components/responses/Problem503"}},
        ),
        "/metrics": _get("metrics", "Prometheus metrics", {"type": "string"}, media_type="text/plain"),
    }


_OPERATOR = {
    "family": "Family of the operator.",
    "name": "Name within the family.",
    "path": "Endpoint.",
    "summary": "One line.",
    "description": "Definition, border, rounding.",
    "kind": "Kind of result.",
    "exactness": "How near to the reference library.",
    "cost": "Time and memory.",
}
_PROBLEM = {
    "type": "URI reference.",
    "code": "Stable code.",
    "title": "Short text.",
    "meaning": "What it means, and what to do.",
}


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _get(
    operation_id: str,
    summary: str,
    schema: Schema,
    parameters: list[dict[str, Any]] | None = None,
    errors: dict[str, Any] | None = None,
    media_type: str = "application/json",
) -> dict[str, Any]:
    answer = {
        "description": "The answer.",
        "headers": {"X-Request-ID": {"$ref": "#/components/headers/X-Request-ID"}},
        "content": {media_type: {"schema": schema}},
    }
    return {
        "get": {
            "tags": ["service"],
            "operationId": operation_id,
            "summary": summary,
            "parameters": parameters or [],
            "responses": {"200": answer, **(errors or {})},
        }
    }
