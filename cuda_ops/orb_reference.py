"""ORB once more, slowly and plainly, from its description: what both twins are checked against beside OpenCV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ops.features.fast import FastParams
from cuda_ops.features.fast import reference as fast_reference
from cuda_ops.operator import Result
from cuda_ops.orb_levels import EDGE, Level, levels
from cuda_ops.orb_pattern import PATTERN

F = np.float32
DIAMETER = F(31)  # of a keypoint on level 0, in pixels
Grey = NDArray[np.uint8]


def keypoints(
    octave: NDArray[Any], scales: NDArray[Any], columns: Sequence[NDArray[Any]], truncated: bool, height: int, width: int
) -> Result:
    """The result: octaves, float32 scale of each octave, then x and y in the level, response, angle and, where there are any, descriptors."""
    x, y, response, angle, *descriptors = columns
    scale = scales[octave]
    arrays = {
        "x": x.astype(np.float32) * scale,
        "y": y.astype(np.float32) * scale,
        "response": response.astype(np.float32),
        "size": DIAMETER * scale,
        "angle": angle.astype(np.float32),
        "octave": octave.astype(np.int32),
    }
    if descriptors:
        arrays["descriptors"] = descriptors[0].astype(np.uint8).reshape(-1, len(PATTERN) // 8)
    return Result("keypoints", height, width, arrays, {"count": len(octave), "truncated": truncated})


def reference(image: Grey, params: Any) -> Result:
    """Level by level, keypoint by keypoint."""
    height, width = image.shape
    chosen = levels(height, width, params.n_features, params.scale_factor, params.n_levels)
    rows, truncated, picture = [], False, image
    for octave, level in enumerate(chosen):
        if octave:
            picture = _resized(picture, level.height, level.width)
        blurred = _blurred(picture)
        found, lost = _chosen(picture, level, params.fast_threshold)
        truncated = truncated or lost
        for x, y, response in found:
            angle = _direction(picture, x, y)
            rows.append((octave, x, y, response, angle, *([_bits(blurred, x, y, angle)] if params.descriptors else [])))
    columns = [np.array(column) for column in zip(*rows, strict=True)] if rows else [np.zeros(0, dtype=np.int32)] * (5 + params.descriptors)
    scales = np.array([level.scale for level in chosen], dtype=np.float32)
    return keypoints(columns[0], scales, columns[1:], truncated, height, width)


def _resized(image: Grey, height: int, width: int) -> Grey:
    """INTER_LINEAR_EXACT as OpenCV computes it, places in float64."""

    def axis(source: int, target: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        place = (np.arange(target) + 0.5) * (1.0 / (target / source)) - 0.5
        first = np.floor(place).astype(np.int64)
        return first, np.minimum(first + 1, source - 1), np.rint((place - first) * 256).astype(np.int64)

    top, below, weight_y = axis(image.shape[0], height)
    left, right, weight_x = axis(image.shape[1], width)
    wide = image.astype(np.int64)
    mixed = wide[:, left] * (256 - weight_x) + wide[:, right] * weight_x
    total = mixed[top] * (256 - weight_y)[:, None] + mixed[below] * weight_y[:, None]
    return np.asarray((total + 32768) >> 16, dtype=np.uint8)


def _chosen(image: Grey, level: Level, threshold: int) -> tuple[list[tuple[int, int, np.float32]], bool]:
    """The corners that stay, and whether equals of a weakest one were lost."""
    if not level.quota:
        return [], False
    corners = fast_reference(image, FastParams(threshold=threshold, max_keypoints=1_000_000)).arrays
    height, width = image.shape
    places = [
        (int(x), int(y), F(score))
        for x, y, score in zip(corners["x"], corners["y"], corners["response"], strict=True)
        if EDGE <= x < width - EDGE and EDGE <= y < height - EDGE
    ]
    best, lost = _best(places, 2 * level.quota, level.ties)
    ranked, lost_later = _best([(x, y, _harris(image, x, y)) for x, y, _ in best], level.quota, level.ties)
    return ranked, lost or lost_later


def _best(places: list[tuple[int, int, np.float32]], count: int, ties: int) -> tuple[list[tuple[int, int, np.float32]], bool]:
    """Those at least as strong as the `count`-th strongest; of its equals the first `ties`."""
    if len(places) <= count:
        return places, False
    cut = sorted((value for _, _, value in places), reverse=True)[count - 1]
    equal = [place for place in places if place[2] == cut]
    dropped = set(equal[ties:])
    return [place for place in places if place[2] >= cut and place not in dropped], bool(dropped)


def _harris(image: Grey, x: int, y: int) -> np.float32:
    window = image[y - 4 : y + 5, x - 4 : x + 5].astype(np.int64)
    down = window[:-2] + 2 * window[1:-1] + window[2:]
    along = window[:, :-2] + 2 * window[:, 1:-1] + window[:, 2:]
    gx, gy = down[:, 2:] - down[:, :-2], along[2:] - along[:-2]
    a, b, c = F((gx * gx).sum()), F((gy * gy).sum()), F((gx * gy).sum())
    unit = F(1) / F(4 * 7 * 255)
    trace = a + b
    return F((a * b - c * c - F(0.04) * trace * trace) * (unit * unit * unit * unit))


def _direction(image: Grey, x: int, y: int) -> np.float32:
    half_widths = (15, 15, 15, 15, 14, 14, 14, 13, 13, 12, 11, 10, 9, 8, 6, 3)
    along = down = 0
    for v in range(-15, 16):
        reach = half_widths[abs(v)]
        line = image[y + v, x - reach : x + reach + 1].astype(np.int64)
        along += int((line * np.arange(-reach, reach + 1)).sum())
        down += v * int(line.sum())
    p1, p3, p5, p7 = (
        F(F(p) * F(180 / math.pi)) for p in (0.9997878412794807, -0.3258083974640975, 0.1555786518463281, -0.04432655554792128)
    )
    width, height = F(abs(along)), F(abs(down))
    ratio = min(width, height) / (max(width, height) + F(2.0**-52))
    square = ratio * ratio
    angle = (((p7 * square + p5) * square + p3) * square + p1) * ratio
    if height > width:
        angle = F(90) - angle
    if along < 0:
        angle = F(180) - angle
    return F(360) - angle if down < 0 else angle


def _blurred(image: Grey) -> Grey:
    """Gaussian 7 x 7 in float32: rows from left to right, then columns in pairs, fused; the sums have far fewer bits than a long double."""
    weights = np.exp(-((np.arange(7) - 3.0) ** 2) / 8)
    taps = (weights / weights.sum()).astype(np.float32)

    def fused(tap: np.float32, values: NDArray[Any], total: NDArray[Any]) -> NDArray[Any]:
        return (np.longdouble(tap) * values.astype(np.longdouble) + total.astype(np.longdouble)).astype(np.float32)

    height, width = image.shape
    padded = np.pad(image, 3, mode="reflect").astype(np.float32)
    rows = taps[0] * padded[:, :width]
    for k in range(1, 7):
        rows = fused(taps[k], padded[:, k : k + width], rows)
    total = taps[3] * rows[3 : 3 + height]
    for k in (1, 2, 3):
        total = fused(taps[3 - k], rows[3 - k : 3 - k + height] + rows[3 + k : 3 + k + height], total)
    return np.asarray(np.rint(total), dtype=np.uint8)


def _bits(blurred: Grey, x: int, y: int, angle: np.float32) -> NDArray[np.uint8]:
    radians = angle * F(math.pi / 180)
    cosine, sine = F(math.cos(radians)), F(math.sin(radians))

    def sample(column: int, row: int) -> int:
        across, down = F(column) * cosine - F(row) * sine, F(column) * sine + F(row) * cosine
        return int(blurred[y + int(np.rint(down)), x + int(np.rint(across))])

    return np.packbits([sample(a, b) < sample(c, d) for a, b, c, d in PATTERN], bitorder="little")
