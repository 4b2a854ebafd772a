"""Real examples for the documentation: a small picture, and what each operator's reference makes of it.

The text is the same on every machine: pictures are stored uncompressed (compressors differ) and floats are rounded.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from app import results
from app.parameters import Options
from cuda_ops import Operator, Params, Result

REQUEST_ID = "01JGFJJZ00Z5B4Q2VG6M3D8T9R"
EXECUTION = {
    "backend": "cpu",
    "batch_size": 1,
    "decode_ms": 0.21,
    "queue_ms": 0.05,
    "compute_ms": 0.12,
    "encode_ms": 0.04,
}
LEAST_SIDE = 32


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """A bright block with a notch on a dark ramp: uint8 [h, w, 3], every channel the same."""
    y, x = np.mgrid[0:height, 0:width]
    image = (x * 60 // width + y * 40 // height).astype(np.uint8)
    block = (y > height // 4) & (y < 3 * height // 4) & (x > width // 4) & (x < 3 * width // 4)
    image[block & ~((y > height // 2) & (x > width // 2))] = 220
    return np.repeat(image[:, :, None], 3, axis=2)


def picture_for(operator: Operator) -> NDArray[np.uint8]:
    """The example picture, large enough for the operator."""
    height, width = operator.min_size(operator.params())
    return picture(max(height, LEAST_SIDE), max(width, LEAST_SIDE))


def request_json(operators: Sequence[Operator]) -> str:
    """The base64 PNG that the examples of these operators send."""
    pictures = [picture_for(operator) for operator in operators]
    return _base64_png(max(pictures, key=lambda each: each.size)[:, :, 0])


def image_object(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """The `image` object that the service answers for the example picture."""
    return {
        "format": "png",
        "width": pixels.shape[1],
        "height": pixels.shape[0],
        "mode": "L",
        "depth": 8,
        "frames": 1,
        "orientation": 1,
        "oriented": True,
        "converted": [],
    }


@cache
def result_json(operator: Operator, params: Params) -> dict[str, Any]:
    """The operator's result for its example picture, by its reference implementation."""
    pixels = picture_for(operator)
    grey = operator.pixel_class(params) == "grey"
    result = operator.reference(np.ascontiguousarray(pixels[:, :, 0]) if grey else pixels, params)
    body: dict[str, Any] = _rounded(results.to_json(result, Options(mask_encoding="none")))
    for name in ("image", "mask"):
        if name in result.arrays:
            body[name] = {"encoding": "png", "data": _base64_png(_grey(result, name))}
    return body


def _grey(result: Result, name: str) -> NDArray[np.uint8]:
    return result.arrays["image"] if name == "image" else result.mask


def _rounded(value: Any) -> Any:
    """The value as plain JSON with four significant digits: the last ones differ between processors."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _base64_png(image: NDArray[np.uint8]) -> str:
    """uint8 [h, w] or [h, w, 3] as an uncompressed PNG in base64."""
    height, width = image.shape[:2]
    rows = np.zeros((height, 1 + image[0].size), dtype=np.uint8)
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if image.ndim == 2 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 0)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks)
    return pybase64.b64encode_as_string(b"\x89PNG\r\n\x1a\n" + body)
