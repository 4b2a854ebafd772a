"""An operator's result -> JSON, PNG, WebP or npy, and the choice between them.

JSON is the contract's, per kind of result; NaN and infinity never reach it (orjson writes null).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from app import codec
from app.parameters import Options, refusal
from app.problems import NotAcceptable
from cuda_ops import Chain, Result, Step
from cuda_ops.chain import PICTURES

MEDIA_TYPES = {
    "json": "application/json",
    "png": "image/png",
    "webp": "image/webp",
    "npy": "application/x-npy",
}
COLUMNS = ("x", "y", "response", "size", "angle", "octave")
_PICTURE_FORMS = ("json", "png", "webp", "npy")


def forms(chain: Chain) -> tuple[str, ...]:
    """The forms that can hold the answer of a chain; only JSON holds more than one result."""
    kept = [step for step in chain if step.keep]
    if len(kept) > 1:
        return ("json",)
    kind = kept[0].operator.kind
    if kind in ("image", "mask") or (kind == "scalar" and _has_mask(kept[0])):
        return _PICTURE_FORMS
    return ("json", "npy") if kind in ("histogram", "descriptor") else ("json",)


def choose(chain: Chain, options: Options, accept: str, offered: tuple[str, ...] = ()) -> str:
    """The form to answer in, of those `offered` (by default all that can hold the answer).

    NotAcceptable lists what can be sent; run lengths of an image are an InvalidParameter.
    """
    offered = offered or forms(chain)
    if options.mask_encoding == "rle" and any(step.keep and step.operator.kind == "image" for step in chain):
        raise refusal("mask_encoding", "`mask_encoding` rle is for masks; this answer holds an image: use png or none.")
    form = negotiate(accept, offered) if options.output == "auto" else options.output
    if form not in offered:
        possible = ", ".join(MEDIA_TYPES[each] for each in offered)
        raise NotAcceptable(f"This answer can be sent as {possible}. Ask for one of these in Accept, or with `output`.")
    return form


@lru_cache(maxsize=1024)
def negotiate(accept: str, offered: tuple[str, ...]) -> str | None:
    """The offered form with the highest quality in an Accept header; the first offered one among equals."""
    if not accept:
        return offered[0]
    ranges = [_media_range(part) for part in accept.split(",") if part.strip()]
    best = max(offered, key=lambda form: _quality(MEDIA_TYPES[form], ranges))
    return best if _quality(MEDIA_TYPES[best], ranges) > 0.0 else None


def _media_range(text: str) -> tuple[str, float]:
    kind, *parameters = (part.strip().lower() for part in text.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return kind, min(max(float(value), 0.0), 1.0)
            except ValueError:
                return kind, 0.0
    return kind, 1.0


def _quality(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The quality that the most specific matching range gives; 0 where none matches."""
    given = dict(ranges)
    for pattern in (media_type, media_type.partition("/")[0] + "/*", "*/*"):
        if pattern in given:
            return given[pattern]
    return 0.0


def to_json(result: Result, options: Options) -> dict[str, Any]:
    """One result as the contract's JSON object."""
    body: dict[str, Any] = {"kind": result.kind}
    if result.kind in ("image", "mask"):
        body |= {"width": result.width, "height": result.height}
    body |= result.values
    if result.kind == "histogram":
        body["counts"] = dict(result.arrays)
    elif result.kind == "keypoints":
        body |= {name: result.arrays[name] for name in COLUMNS if name in result.arrays}
        if "descriptors" in result.arrays:
            body["descriptors"] = _numbers(result.arrays["descriptors"])
    elif result.kind == "descriptor":
        body |= _numbers(result.arrays["descriptor"])
    for name in PICTURES:
        if name in result.arrays and options.mask_encoding != "none":
            body[name] = _picture(result, options.mask_encoding)
    return body


def to_bytes(result: Result, form: str) -> bytes:
    """One result as a PNG, a WebP or an npy file."""
    if form == "png":
        return _png(result)
    return codec.encode_webp(_array(result)) if form == "webp" else codec.encode_npy(_array(result))


def dumps(body: Mapping[str, Any]) -> bytes:
    """The JSON text; numpy arrays become lists."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def bytes_to_encode(results: Sequence[Result], form: str) -> int:
    """Bytes that compression will read: tells whether encoding may run on the event loop."""
    if form == "npy":
        return 0
    weight = 64 if form == "webp" else 1
    return weight * sum(array.nbytes for result in results for name, array in result.arrays.items() if name in PICTURES)


def _has_mask(step: Step) -> bool:
    height, width = step.operator.min_size(step.params)
    return "mask" in step.operator.layout(height, width, step.params).outputs


def _png(result: Result) -> bytes:
    if "image" in result.arrays:
        return codec.encode_png(result.arrays["image"])
    return codec.encode_mask_png(result.arrays["mask"], result.width)


def _picture(result: Result, encoding: str) -> dict[str, Any]:
    if encoding == "rle":
        return {"encoding": "rle", "data": codec.rle(result.arrays["mask"], result.width)}
    return {"encoding": "png", "data": pybase64.b64encode_as_string(_png(result))}


def _numbers(array: NDArray[Any]) -> dict[str, Any]:
    """An array as little-endian base64 with its dtype and shape."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "encoding": "base64",
        "data": pybase64.b64encode_as_string(little.tobytes()),
    }


def _array(result: Result) -> NDArray[Any]:
    """The one array that npy holds: uint8 pixels, int64 counts [channels, bins] or float32 values."""
    if "image" in result.arrays:
        return result.arrays["image"]
    if "mask" in result.arrays:
        return result.mask
    if result.kind == "histogram":
        return np.stack(list(result.arrays.values()))
    return result.arrays["descriptor"]
