"""JSON Schemas of what is sent back: one per kind of result, the objects around it, and the problems."""

from __future__ import annotations

from typing import Any

from app.problems import Problem, catalog

Schema = dict[str, Any]

KINDS = {
    "image": "ImageResult",
    "mask": "MaskResult",
    "histogram": "HistogramResult",
    "keypoints": "KeypointsResult",
    "descriptor": "DescriptorResult",
    "scalar": "ScalarResult",
}


def integer(text: str, least: int = 0) -> Schema:
    """A whole number of at least `least`."""
    return {"type": "integer", "minimum": least, "description": text}


def number(text: str) -> Schema:
    """A number that is never negative."""
    return {"type": "number", "minimum": 0, "description": text}


def string(text: str) -> Schema:
    """A string."""
    return {"type": "string", "description": text}


def array(items: Schema, text: str = "") -> Schema:
    """A list."""
    return {"type": "array", "items": items, **({"description": text} if text else {})}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None, text: str = "") -> Schema:
    """An object with these properties."""
    schema: Schema = {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}
    return {**schema, "description": text} if text else schema


def ref(name: str) -> Schema:
    """A reference to a component schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _encoded(text: str, **more: Schema) -> Schema:
    return record({**more, "encoding": {"type": "string", "enum": ["base64"]}, "data": string("Base64.")}, text=text)


def _result(kind: str, required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return record({"kind": {"type": "string", "enum": [kind]}, **required}, optional)


def result_schemas() -> dict[str, Schema]:
    """Component schemas of results by name; operators add scalars of their own to them."""
    size = {"width": integer("Pixels.", 1), "height": integer("Pixels.", 1)}
    floats = array({"type": ["number", "null"]})
    array_fields = {"dtype": string("NumPy's name of the element type."), "shape": array(integer("Elements."))}
    picture = ref("Picture")
    return {
        "Picture": record(
            {
                "encoding": {"type": "string", "enum": ["png", "rle"]},
                "data": {
                    "oneOf": [string("A PNG in base64; masks have 1 bit a pixel."), array(integer("Pixels."))],
                },
            },
            text="Pixels. `rle` lists the lengths of row-major runs, beginning with zeros.",
        ),
        "Packed": _encoded("Little-endian numbers in base64.", **array_fields),
        "ImageResult": _result("image", size, {"image": picture}),
        "MaskResult": _result("mask", size, {"mask": picture}),
        "HistogramResult": _result(
            "histogram",
            {
                "bins": integer("Bins a channel.", 1),
                "counts": {"type": "object", "additionalProperties": array(integer("Pixels."))},
            },
            {"statistics": {"type": "object"}},
        ),
        "KeypointsResult": _result(
            "keypoints",
            {"count": integer("Keypoints."), "truncated": {"type": "boolean"}, "x": floats, "y": floats},
            {"response": floats, "size": floats, "angle": floats, "octave": floats, "descriptors": ref("Packed")},
        ),
        "DescriptorResult": _result(
            "descriptor",
            {**array_fields, "encoding": {"type": "string", "enum": ["base64"]}, "data": string("Base64.")},
        ),
        "ScalarResult": _result("scalar", {}, {"mask": picture}),
    }


def answer_schemas() -> dict[str, Schema]:
    """Component schemas of the objects around results, and of problems."""
    errors = array(record({"pointer": string("JSON pointer."), "detail": string("What to change.")}))
    return {
        "Image": record(
            {
                "format": string("What the bytes are, sniffed."),
                "width": integer("Pixels, after orientation.", 1),
                "height": integer("Pixels, after orientation.", 1),
                "mode": string("Pixel layout before conversion."),
                "depth": integer("Bits a sample.", 1),
                "frames": integer("Frames; the first is used.", 1),
                "orientation": {"type": "integer", "minimum": 1, "maximum": 8, "description": "As found in EXIF or XMP."},
                "oriented": {"type": "boolean", "description": "Whether it was applied."},
            },
            {"converted": array({"type": "string"}, "Every conversion that was done.")},
            "How the pixels were made.",
        ),
        "Execution": record(
            {
                "backend": {"type": "string", "enum": ["cpu", "cuda"]},
                "batch_size": integer("Jobs of the launch.", 1),
                "decode_ms": number("Milliseconds."),
                "queue_ms": number("Milliseconds."),
                "compute_ms": number("Milliseconds."),
                "encode_ms": number("Milliseconds."),
            },
            text="How it was computed, and where the time went.",
        ),
        "Problem": record(
            {
                "type": string("A stable URI reference that explains the problem."),
                "title": string("The same for every problem of this code."),
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "detail": string("What happened, and what to do."),
                "code": {"type": "string", "enum": list(catalog()), "description": "Stable; branch on this."},
                "request_id": string("Quote it when you report something."),
            },
            {
                "errors": errors,
                "limit": number("The bound that was hit."),
                "measured": number("What the request had."),
                "setting": string("The variable that sets the bound."),
                "reason": string("Tells refusals of one code apart."),
                "retry_after_s": number("Seconds after which to try again."),
            },
            "RFC 9457.",
        ),
        "ImageSource": {
            "oneOf": [
                record({"base64": string("Base64, or a base64 data URI.")}) | {"additionalProperties": False},
                record({"url": string("https only; off unless enabled.")}) | {"additionalProperties": False},
            ]
        },
    }


def problem_responses(request_id: str) -> dict[int, dict[str, Any]]:
    """One response per status, with an example per code; the body's `code` is one of these."""
    by_status: dict[int, list[type[Problem]]] = {}
    for problem in catalog().values():
        by_status.setdefault(problem.status, []).append(problem)
    return {
        status: {
            "description": " / ".join(kind.title for kind in kinds),
            "headers": _problem_headers(status),
            "content": {
                "application/problem+json": {
                    "schema": {"allOf": [ref("Problem"), {"properties": {"code": {"enum": [kind.code for kind in kinds]}}}]},
                    "examples": {kind.code: {"value": _example(kind, request_id)} for kind in kinds},
                }
            },
        }
        for status, kinds in by_status.items()
        if status != 499
    }


def _problem_headers(status: int) -> dict[str, Any]:
    headers = {"X-Request-ID": {"$ref": "#/components/headers/X-Request-ID"}}
    if status in (429, 503):
        headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
    return headers


def _example(kind: type[Problem], request_id: str) -> dict[str, Any]:
    meaning = " ".join((kind.__doc__ or "").split())
    retry_after_s = 1.0 if kind.status in (429, 503) else None
    return kind(meaning, retry_after_s=retry_after_s).document(request_id)
