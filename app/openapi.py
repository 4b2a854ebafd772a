"""The OpenAPI document, made from the registry: a new operator is documented by being there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import orjson
from pydantic import BaseModel

from app import examples, schemas
from app.etags import release
from app.parameters import Options
from app.results import MEDIA_TYPES, forms
from app.schemas import Schema, array, record, ref, string
from app.settings import Settings
from app.system_docs import system_paths
from cuda_ops import Operator, Step

TITLE = "visionbatch"
DESCRIPTION = """Classical computer vision over HTTP, with OpenCV's answers, batched onto a GPU or the CPU's cores.

Send the image in one of three forms; the answer is the same: as the body (`image/*` or `application/octet-stream`) with
parameters in the query string; as `multipart/form-data` in the field `file`; or as JSON with base64. A parameter in the
body wins over one of the same name in the query string. Every error is `application/problem+json`, and its `detail` says
what to do. `GET /v1/limits` lists every limit."""

TAGS = {
    "edges": "Edge operators: gradients and contours, as images and masks.",
    "histograms": "Histogram operators: counts, equalization and thresholds.",
    "features": "Feature operators: corners, keypoints, descriptors and textures.",
    "pipelines": "Several operators on one image, or several images in one request.",
    "service": "Probes, metrics, limits and the list of operators.",
}
WORK_ERRORS = (400, 401, 403, 406, 408, 413, 415, 422, 429, 500, 502, 503, 504)
BINARY: Schema = {"type": "string", "format": "binary"}


class Document:
    """The document of one application."""

    def __init__(self, settings: Settings, operators: Mapping[str, Operator]) -> None:
        self._settings = settings
        self._operators = operators

    async def text(self) -> bytes:
        """The document as JSON text; made on a thread at the first call, for the examples are computed."""
        return await asyncio.to_thread(lambda: self._text)

    def build(self) -> dict[str, Any]:
        """The document."""
        document: dict[str, Any] = orjson.loads(self._text)
        return document

    @cached_property
    def _text(self) -> bytes:
        paths = {f"/v1/{path}": {"post": operation(operator)} for path, operator in self._operators.items()}
        paths["/v1/pipelines"] = {"post": self._pipeline()}
        paths["/v1/batch"] = {"post": self._batch()}
        return orjson.dumps(
            {
                "openapi": "3.1.0",
                "info": {
                    "title": TITLE,
                    "version": release(),
                    "description": DESCRIPTION,
                    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                },
                "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
                "paths": {**paths, **system_paths()},
                "components": self._components(),
            },
            option=orjson.OPT_INDENT_2,
        )

    def _components(self) -> dict[str, Any]:
        params = {_component(operator): _params_schema(operator.params) for operator in self._operators.values()}
        responses = schemas.problem_responses(examples.REQUEST_ID)
        return {
            "schemas": {
                **schemas.answer_schemas(),
                **schemas.result_schemas(),
                **params,
                "Options": _params_schema(Options),
                "Steps": self._steps_schema(),
            },
            "responses": {f"Problem{status}": response for status, response in responses.items()},
            "headers": {
                "X-Request-ID": _header("The request's id: the one that was sent, or a new one."),
                "Server-Timing": _header("Milliseconds of each phase."),
                "X-Backend": _header("Where it was computed: cpu or cuda."),
                "Vary": _header("Always Accept."),
                "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}},
            },
        }

    def _steps_schema(self) -> Schema:
        steps = [
            {
                "type": "object",
                "title": operator.path,
                "required": ["op"],
                "additionalProperties": False,
                "properties": {
                    "op": {"type": "string", "const": operator.path, "description": operator.summary},
                    "params": ref(_component(operator)),
                    "keep": {"type": "boolean", "default": False, "description": "Return this step's result too."},
                },
            }
            for operator in self._operators.values()
        ]
        most = self._settings.max_steps
        return {"type": "array", "minItems": 1, "maxItems": most, "items": {"oneOf": steps}}

    def _pipeline(self) -> dict[str, Any]:
        operators = self._example_operators()
        steps = [{"op": operator.path} for operator in operators]
        chain = [Step(operator, operator.params(), keep=True) for operator in operators]
        answer = {
            "steps": [{"op": step.operator.path, "params": step.params.model_dump(), "keep": False} for step in chain],
            **_rest(operators[-1]),
        }
        shown = record({"steps": array({"type": "object"}), **_around({"$ref": _result(operators[-1])})})
        shown["properties"]["result"] = {"oneOf": [ref(name) for name in schemas.KINDS.values()]}
        shown["properties"]["kept"] = array(_kept(), "Results of earlier steps with `keep`.")
        return {
            "tags": ["pipelines"],
            "operationId": "pipelines",
            "summary": "Run several operators on one image",
            "description": "The image is decoded once, and the pictures between the steps never leave the backend. Steps "
            "are checked before the image is read. A step that returns a picture feeds the next one; any other step "
            "measures and passes its input on, and must be marked `keep`.",
            "parameters": [*_common_parameters(), _steps_parameter(steps), *_query(Options)],
            "requestBody": _body(
                {"steps": ref("Steps"), "params": ref("Options")},
                {"steps": {**string("JSON list of steps."), "examples": [orjson.dumps(steps).decode()]}},
                {"image": {"base64": examples.request_json(operators)}, "steps": steps},
                required=["steps"],
            ),
            "responses": _responses(shown, answer, ("json", "png", "webp", "npy")),
        }

    def _batch(self) -> dict[str, Any]:
        operator = self._example_operators()[-1]
        image = {"base64": examples.request_json([operator])}
        item = record(
            {"index": schemas.integer("Place in the request."), "status": schemas.integer("As of a request of its own.")},
            {
                "image": ref("Image"),
                "result": {"oneOf": [ref(name) for name in schemas.KINDS.values()]},
                "kept": array(_kept()),
                "execution": ref("Execution"),
                "problem": ref("Problem"),
            },
        )
        counts = {name: schemas.integer("Images.") for name in ("count", "succeeded", "failed")}
        shown = record(
            {**counts, "items": array(item), "request_id": string("See X-Request-ID.")},
            {"operator": string("With `op`."), "params": {"type": "object"}, "steps": array({"type": "object"})},
        )
        rest = _rest(operator)
        answer = {
            "operator": operator.path,
            "params": operator.params().model_dump(),
            "count": 1,
            "succeeded": 1,
            "failed": 0,
            "items": [{"index": 0, "status": 200, **{key: rest[key] for key in ("image", "result", "execution")}}],
            "request_id": rest["request_id"],
        }
        return {
            "tags": ["pipelines"],
            "operationId": "batch",
            "summary": "Run one operator or pipeline on several images",
            "description": "Up to `max_images` images. Each has its own status, result or problem, in the order they were "
            "sent; one bad image harms no other. Say `op` (with that operator's parameters in `params`, or as fields) or "
            "`steps`.",
            "parameters": [*_common_parameters(), *_query(Options)],
            "requestBody": _batch_body(list(self._operators), {"op": operator.path, "images": [image]}),
            "responses": _responses(shown, answer, ("json",)),
        }

    def _example_operators(self) -> list[Operator]:
        wanted = [self._operators.get(path) for path in ("histograms/equalize", "edges/canny")]
        found = [operator for operator in wanted if operator is not None]
        return found or list(self._operators.values())[:1]


def operation(operator: Operator) -> dict[str, Any]:
    """The documentation of one operator's endpoint."""
    params = operator.params()
    answer = {"operator": operator.path, "params": params.model_dump(), **_rest(operator)}
    shown = record({"operator": {"type": "string", "enum": [operator.path]}, "params": ref(_component(operator))})
    around = _around({"$ref": _result(operator)})
    shown["required"] += list(around)
    shown["properties"] |= around
    merged = {**_params_schema(operator.params)["properties"], **_params_schema(Options)["properties"]}
    body = {"image": {"base64": examples.request_json([operator])}}
    return {
        "tags": [operator.family],
        "operationId": _component(operator),
        "summary": operator.summary,
        "description": f"{operator.description}\n\n**Exactness:** {operator.exactness}\n\n**Cost:** {operator.cost}",
        "parameters": [*_common_parameters(), *_query(operator.params), *_query(Options)],
        "requestBody": _body(
            {"params": {"type": "object", "properties": merged, "additionalProperties": False}},
            {name: _without_default(schema) for name, schema in merged.items()},
            body,
        ),
        "responses": _responses(shown, answer, forms((Step(operator, params, keep=True),))),
    }


def _component(operator: Operator) -> str:
    return f"{operator.family}_{operator.name}"


def _result(operator: Operator) -> str:
    return f"#/components/schemas/{schemas.KINDS[operator.kind]}"


def _around(result: Schema) -> dict[str, Schema]:
    return {
        "image": ref("Image"),
        "result": result,
        "execution": ref("Execution"),
        "request_id": string("See X-Request-ID."),
    }


def _kept() -> Schema:
    results = {"oneOf": [ref(name) for name in schemas.KINDS.values()]}
    return record({"step": schemas.integer("Index."), "op": string("Operator."), "result": results})


def _rest(operator: Operator) -> dict[str, Any]:
    """An answer's other members, for the example picture."""
    return {
        "image": examples.image_object(examples.picture_for(operator)),
        "result": examples.result_json(operator, operator.params()),
        "execution": examples.EXECUTION,
        "request_id": examples.REQUEST_ID,
    }


def _params_schema(model: type[BaseModel]) -> Schema:
    schema = model.model_json_schema()
    properties = {
        name: {key: value for key, value in field.items() if key != "title"} for name, field in schema.get("properties", {}).items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _without_default(schema: Schema) -> Schema:
    """Swagger UI sends a form field that has a default, though the query parameter of that name was changed."""
    return {key: value for key, value in schema.items() if key != "default"}


def _query(model: type[BaseModel]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "query",
            "description": schema.get("description", ""),
            "schema": {key: value for key, value in schema.items() if key != "description"},
        }
        for name, schema in _params_schema(model)["properties"].items()
    ]


def _steps_parameter(example: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": "steps",
        "in": "query",
        "description": "The steps as JSON, where the image is the body.",
        "content": {"application/json": {"schema": ref("Steps"), "example": example}},
    }


def _common_parameters() -> list[dict[str, Any]]:
    return [
        {
            "name": "X-Deadline-Ms",
            "in": "header",
            "description": "Milliseconds after which the answer is of no use; the work is then dropped.",
            "schema": {"type": "integer", "minimum": 1, "maximum": Settings.model_fields["deadline_ms"].default},
        },
        {
            "name": "X-Request-ID",
            "in": "header",
            "description": "An id of your own, echoed and logged.",
            "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
        },
    ]


def _body(
    json_fields: dict[str, Schema], form_fields: dict[str, Schema], example: dict[str, Any], required: list[str] | None = None
) -> dict[str, Any]:
    """A request body in all three forms, with one image."""
    required = required or []
    json_schema = record({"image": ref("ImageSource")}, json_fields)
    form_schema = record({"file": {**BINARY, "description": "The image."}}, form_fields)
    for schema in (json_schema, form_schema):
        schema["required"] += required
        schema["additionalProperties"] = False
    return {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": form_schema},
            "application/octet-stream": {"schema": BINARY},
            "image/*": {"schema": BINARY},
            "application/json": {"schema": json_schema, "example": example},
        },
    }


def _batch_body(paths: list[str], example: dict[str, Any]) -> dict[str, Any]:
    op = {"type": "string", "enum": paths, "description": "One operator; or say `steps`."}
    options = {name: _without_default(schema) for name, schema in _params_schema(Options)["properties"].items()}
    json_schema = record(
        {"images": {**array(ref("ImageSource")), "minItems": 1}},
        {"op": op, "params": {"type": "object"}, "steps": ref("Steps")},
    )
    form_schema = record(
        {"files": {**array(BINARY, "The images."), "minItems": 1}},
        {"op": op, "steps": string("JSON list of steps; or say `op`."), **options},
    )
    for schema in (json_schema, form_schema):
        schema["additionalProperties"] = False
        schema["oneOf"] = [{"required": ["op"]}, {"required": ["steps"]}]
    return {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": form_schema},
            "application/json": {"schema": json_schema, "example": example},
        },
    }


def _responses(shown: Schema, example: dict[str, Any], possible: tuple[str, ...]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": shown, "example": example}}
    content |= {MEDIA_TYPES[form]: {"schema": BINARY} for form in possible if form != "json"}
    headers = ("X-Request-ID", "Server-Timing", "X-Backend", "Vary")
    return {
        "200": {
            "description": "The answer.",
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers},
            "content": content,
        },
        **{str(status): {"$ref": f"#/components/responses/Problem{status}"} for status in WORK_ERRORS},
    }


def _header(text: str) -> dict[str, Any]:
    return {"description": text, "schema": {"type": "string"}}
