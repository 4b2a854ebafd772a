"""Corner detectors: what Harris and Shi-Tomasi share. They differ in the rule that makes a response of the structure tensor.

Selection, as cv2.goodFeaturesToTrack: peaks above float32(quality x largest response), best first (equal responses: bottom right first),
greedily spaced, the first `max_corners` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops import ranking, spacing, structure_tensor
from cuda_ops.batch import CpuImage, CudaBatch
from cuda_ops.edges.sobel import TAPS
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, Result, identical
from cuda_ops.samples import every_image
from cuda_ops.structure_rows import cpu_scratch, find_peaks
from cuda_ops.structure_tensor import DIGIT, HARRIS

UNLIMITED = 100_000  # the most corners of one answer
ROWS = tuple(cpu_scratch(1, 3, 1))


class CornerParams(Params):
    """Parameters of every corner detector."""

    block_size: int = Field(3, ge=1, le=31, description="Side in pixels of the square over which products of gradients are summed.")
    ksize: Literal[1, 3, 5, 7] = Field(3, description="Side of the Sobel aperture in pixels; 1 differs without smoothing.")
    max_corners: int = Field(
        1000, ge=0, le=UNLIMITED, description=f"The most corners to return, best first; 0 for no limit but {UNLIMITED}."
    )
    quality_level: float = Field(0.01, gt=0, le=1, description="Corners respond above this share of the largest response in the image.")
    min_distance: float = Field(10.0, ge=0, le=4096, description="Least distance in pixels between two corners; the better one stays.")


def wanted(params: CornerParams) -> int:
    """The most corners to return."""
    return params.max_corners or UNLIMITED


def layout(height: int, width: int, params: CornerParams) -> Layout:
    """Columns with room for every corner that can be, how many there are, and scratch."""
    room = max(1, min(wanted(params), (height - 2) * (width - 2)))
    return Layout(
        {
            "x": ArraySpec((room,), "int32"),
            "y": ArraySpec((room,), "int32"),
            "response": ArraySpec((room,), "float32"),
            "found": ArraySpec((1,), "int32"),
        },
        {
            **ranking.ranking_scratch(height, width),
            "cells": ArraySpec((spacing.cell_count(height, width, params.min_distance),), "int32", zero=True),
            **cpu_scratch(width, params.ksize, params.block_size),
        },
    )


def finish(arrays: Mapping[str, NDArray[Any]], params: CornerParams, height: int, width: int) -> Result:
    """Columns cut to the corners there are; truncated when one more was found than may be returned."""
    found = int(arrays["found"][0])
    count = min(found, wanted(params))
    columns = {name: arrays[name][:count] for name in ("x", "y", "response")}
    return Result("keypoints", height, width, columns, {"count": count, "truncated": found > count})


def reference_responses(image: NDArray[np.uint8], params: Any, rule: int) -> NDArray[np.float32]:
    """The response map: gradients, products and sums in 64 bits, the determinant in Python's integers; then the float32 rule."""
    smooth, outer = TAPS[params.ksize]
    dx, dy = (_correlate(image, down, along) for down, along in ((smooth, outer), (outer, smooth)))
    ones, pad = (1,) * params.block_size, params.block_size // 2
    a, b, c = (_correlate(product, ones, ones, pad).astype(object) for product in (dx * dx, dx * dy, dy * dy))
    determinant = a * c - b * b
    if structure_tensor.large_sums(params.ksize, params.block_size):
        mask = (1 << DIGIT) - 1
        high, middle, low = (_float32(digit) for digit in (determinant >> 2 * DIGIT, determinant >> DIGIT & mask, determinant & mask))
        rounded = high * np.float32(1 << 2 * DIGIT) + (middle * np.float32(1 << DIGIT) + low)
    else:
        rounded = _float32(determinant)
    trace, difference, twice_b = _float32(a + c), _float32(a - c), _float32(b + b)
    if rule == HARRIS:
        k, factor = np.float32(params.k), np.float32(structure_tensor.scale(params.ksize, params.block_size, 4))
        return np.asarray((rounded - k * (trace * trace)) * factor, dtype=np.float32)
    factor = np.float32(structure_tensor.scale(params.ksize, params.block_size, 2))
    root = np.sqrt(difference * difference + twice_b * twice_b)
    return np.asarray((rounded + rounded) / np.maximum(trace + root, np.float32(1)) * factor, dtype=np.float32)


def _float32(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Integers below 2^53, rounded once."""
    return numbers.astype(np.float64).astype(np.float32)


def _correlate(image: NDArray[Any], down: Sequence[int], along: Sequence[int], pad: int | None = None) -> NDArray[np.int64]:
    """Correlation over a REFLECT_101 border; the anchor is `pad`, by default the middle."""
    height, width = image.shape
    before = len(down) // 2 if pad is None else pad
    padded = np.pad(image.astype(np.int64), (before, len(down) - 1 - before), mode="reflect")
    lines = np.sum([weight * padded[i : i + height] for i, weight in enumerate(down)], axis=0)
    return np.asarray(np.sum([weight * lines[:, i : i + width] for i, weight in enumerate(along)], axis=0))


def neighbourhood(responses: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest of each 3 x 3 neighbourhood, the pixel itself included."""
    height, width = responses.shape
    padded = np.pad(responses, 1, constant_values=-np.inf)
    return np.asarray(np.max([padded[j : j + height, i : i + width] for j in range(3) for i in range(3)], axis=0))


def reference_selection(responses: NDArray[np.float32], params: CornerParams) -> Result:
    """The selection rule, one candidate after another."""
    height, width = responses.shape
    floor = np.float32(params.quality_level) * np.float32(max(responses.max(), 0))
    candidates = (responses > floor) & (responses == neighbourhood(responses))
    candidates[[0, -1]] = False
    candidates[:, [0, -1]] = False
    ys, xs = np.nonzero(candidates)
    order = np.lexsort((-(ys * width + xs), -responses[ys, xs]))
    limit = params.min_distance * params.min_distance
    kept = np.zeros((0, 2), np.int64)
    for point in np.stack([ys, xs], axis=1)[order]:
        if len(kept) > wanted(params):
            break
        if not np.any(np.sum((kept - point) ** 2, axis=1) < limit):
            kept = np.vstack([kept, point])
    count = min(len(kept), wanted(params))
    y, x = kept[:count, 0], kept[:count, 1]
    arrays = {"x": x.astype(np.int32), "y": y.astype(np.int32), "response": responses[y, x]}
    return Result("keypoints", height, width, arrays, {"count": count, "truncated": len(kept) > count})


def opencv(image: NDArray[np.uint8], params: Any, rule: int, responses: NDArray[np.float32]) -> Result:
    """cv2.goodFeaturesToTrack, and what `agrees` needs to judge another answer: OpenCV's response map and the parameters.

    `tolerance` is 2e-6 of the map's largest absolute value, or what OpenCV itself loses: its float32 gradients are differences of rounded
    products of the pixels, so their error is a step of the pixels' size, however small the gradients are.
    """
    import cv2

    values = cv2.cornerEigenValsAndVecs(image, params.block_size, params.ksize)
    trace = float(np.max(values[..., 0].astype(np.float64) + values[..., 1]))
    smooth, outer = TAPS[params.ksize]
    steepest = max(float(np.abs(_correlate(image, down, along)).max()) for down, along in ((smooth, outer), (outer, smooth)))
    loss = 2.0**-24 * float(image.max()) * sum(smooth) * sum(map(abs, outer)) / max(steepest, 1.0)
    step = max(loss, 2.0**-23) * (trace * trace if rule == HARRIS else trace)
    rest = {"k": params.k} if rule == HARRIS else {}
    found: Any = cv2.goodFeaturesToTrack(  # type: ignore[call-overload]  # the stubs know no **rest
        image, wanted(params) + 1, params.quality_level, params.min_distance, None,
        blockSize=params.block_size, gradientSize=params.ksize, useHarrisDetector=rule == HARRIS, **rest,
    )  # fmt: skip
    corners = np.zeros((0, 2), np.int32) if found is None else found.reshape(-1, 2).astype(np.int32)
    count = min(len(corners), wanted(params))
    x, y = corners[:count, 0], corners[:count, 1]
    return Result(
        "keypoints",
        image.shape[0],
        image.shape[1],
        {"x": x, "y": y, "response": responses[y, x], "map": responses},
        {
            "count": count,
            "truncated": len(corners) > count,
            "params": params,
            "tolerance": max(2e-6 * float(np.abs(responses).max()), step),
        },
    )


def agrees(got: Result, expected: Result) -> str | None:
    """Against the reference: equal to the byte. Against OpenCV: responses within the tolerance, and the corners are those that the selection
    rule makes of OpenCV's map when responses closer than twice the tolerance may rank either way. With no such ties only OpenCV's own
    corners pass. None, or what is wrong.
    """
    if "map" not in expected.arrays:
        return identical(got, expected)
    x, y, response = (got.arrays[name] for name in ("x", "y", "response"))
    responses = expected.arrays["map"].astype(np.float64)
    params, near = expected.values["params"], 2 * expected.values["tolerance"]
    here = responses[y, x]
    if not (len(x) == len(y) == len(response) == got.values["count"] <= wanted(params)):
        return "the columns do not have `count` entries"
    if np.any(np.abs(response - here) > expected.values["tolerance"]):
        return f"responses differ from OpenCV's by {np.max(np.abs(response - here)):.3g}, the tolerance is {near / 2:.3g}"
    pixel = y.astype(np.int64) * got.width + x
    if not np.array_equal(np.lexsort((-pixel, -response)), np.arange(len(x))):
        return "corners are not ranked"
    floor = params.quality_level * max(responses.max(), 0)
    around = np.stack(
        [np.roll(np.pad(responses, 1, constant_values=-np.inf), (j, i), (0, 1)) for j in (-1, 0, 1) for i in (-1, 0, 1) if i or j]
    )
    rest = around[:, 1:-1, 1:-1].max(axis=0)
    inner = np.zeros(responses.shape, bool)
    inner[1:-1, 1:-1] = True
    possible = inner & (responses > floor - near) & (responses >= rest - near)
    certain = inner & (responses > floor + near) & (responses > rest + near)
    if not np.all(possible[y, x]):
        return "a corner is no peak of OpenCV's responses"
    taken = np.zeros(responses.shape, bool)
    taken[y, x] = True
    limit = params.min_distance**2
    for index, (row, column) in enumerate(zip(y.tolist(), x.tolist(), strict=True)):
        if np.any((y[:index] - row) ** 2 + (x[:index] - column) ** 2 < limit):
            return f"the corner at ({column}, {row}) is too near to a better one"
    spare = False
    for row, column in np.argwhere(possible & ~taken).tolist():
        too_near = (y - row) ** 2 + (x - column) ** 2 < limit
        spare = spare or not np.any(too_near)
        value = responses[row, column]
        worse = got.values["truncated"] and value <= here[-1] + near
        if certain[row, column] and not worse and not np.any(here[too_near] >= value - near):
            return f"the corner at ({column}, {row}) is missing"
    if got.values["truncated"] and not (spare and len(x) == wanted(params)):
        return "nothing was cut off, yet the answer says so"
    return None


def corner_operator(
    name: str,
    rule: int,
    params: type[CornerParams],
    texts: Mapping[str, str],
    oracle: Callable[[NDArray[np.uint8], Any], NDArray[np.float32]],
    variants: Sequence[Mapping[str, Any]],
    invalid: Sequence[ErrorSample],
) -> Operator:
    """The declaration of a detector; `oracle` gives OpenCV's response map."""

    def scalars(params: Any, _height: int, _width: int) -> tuple[Sequence[int], Sequence[float]]:
        large = structure_tensor.large_sums(params.ksize, params.block_size)
        power = 4 if rule == HARRIS else 2
        integers = params.block_size, large, wanted(params), *spacing.grid(params.min_distance)
        return integers, (params.quality_level, getattr(params, "k", 0.0), structure_tensor.scale(params.ksize, params.block_size, power))

    def cpu(image: CpuImage) -> None:
        arrays, (size, large, most, *grid) = image.arrays, image.ints.tolist()
        quality, k, factor = image.floats
        lines, work = (arrays["rows_smooth"], arrays["rows_outer"]), tuple(arrays[row] for row in ROWS[2:])
        keys, factors = arrays["keys"], (k, factor, quality)
        count, floor = find_peaks(image.source, lines, work, keys[0], TAPS[image.params.ksize], size, bool(large), rule, factors)
        count = ranking.sort_keys(keys, count, floor)
        columns = arrays["x"], arrays["y"], arrays["response"].view(np.int32)
        arrays["found"][0] = spacing.select(keys[0], count, image.source.shape, tuple(grid), arrays["cells"], most, *columns)

    def cuda(batch: CudaBatch) -> None:
        structure_tensor.peaks_cuda(batch, rule)
        ranking.rank_peaks(batch)
        spacing.select_points(batch)

    def kernels() -> Sequence[KernelSpec]:
        return [*structure_tensor.kernel_specs(), *ranking.kernel_specs(), *spacing.kernel_specs()]

    return Operator(
        family="features",
        name=name,
        params=params,
        kind="keypoints",
        summary=texts["summary"],
        description=texts["description"],
        exactness=texts["exactness"],
        cost="O(pixels x log block_size) on the CPU, O(pixels x block_size) on CUDA; then O(corners)",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=finish,
        reference=lambda image, params: reference_selection(reference_responses(image, params, rule), params),
        oracle=lambda image, params: opencv(image, params, rule, oracle(image, params)),
        samples=lambda: every_image(*variants),
        errors=lambda: [
            *invalid,
            ErrorSample("even aperture", {"ksize": 4}, "ksize"),
            ErrorSample("quality of zero", {"quality_level": 0}, "quality_level"),
            ErrorSample("negative distance", {"min_distance": -1}, "min_distance"),
            ErrorSample("block too large", {"block_size": 32}, "block_size"),
        ],
        structural=("ksize",),
        blocks={
            "tile": structure_tensor.tile_blocks,
            "pixels": ranking.pixel_blocks,
            "chunks": ranking.chunk_blocks,
        },
        scalars=scalars,
        agrees=agrees,
        kernels=kernels,
    )
