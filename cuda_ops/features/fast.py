"""FAST corners of a grey image.

Definition, scores, suppression and OpenCV's own conditions: see `corners_fast`. Order is row-major. Above `max_keypoints` the strongest
stay, of equals the earlier in that order, and the result says truncated; a weaker corner never displaces a stronger one. Border: no corner
within 3 pixels of it. Everything is integer. With suppression the response is the score, without it 0, as in OpenCV (the ranking uses the
score either way). OpenCV's angle (-1) and octave (0) say nothing and are absent; size is 7.
Exactness: equal to OpenCV, order and responses included, on all three rings. Cost: one read a pixel, and a few dozen vector minima where a
cheap test does not rule a corner out.
Source: cv2.FastFeatureDetector (fast.cpp, fast_score.cpp); Rosten and Drummond, Machine learning for high-speed corner detection, 2006.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops.batch import FIRST, CpuImage, CudaBatch
from cuda_ops.corners_fast import FRAME, GROUP, LEAST_SIDE, MARGIN, RING_8, RING_12, RING_16, detect, line_bytes
from cuda_ops.corners_tiles import RECORD, THREADS, level_row, score_kernel, score_specs, tiles
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, Result, Sample, register
from cuda_ops.samples import checkerboard, constant, every_image, noise, smooth, squares
from cuda_ops.strongest import LEVELS, decode, map_row, map_scratch, map_stretches, select, select_specs

MODES = {"9_16": RING_16, "7_12": RING_12, "5_8": RING_8}
SIZE = 7  # diameter that OpenCV gives a FAST keypoint, in pixels

OUTPUTS = ("found", "x", "y", "score")
WORK = FIRST + len(OUTPUTS)  # table column of the map
THRESHOLD, SUPPRESSED, LEVEL_ROW = range(3)  # columns of the int32 row
MAP_ROW = LEVEL_ROW + 1 + RECORD


class FastParams(Params):
    """Parameters of `features/fast`."""

    threshold: int = Field(10, ge=0, le=255, description="Difference to the center, in grey levels, that an arc of the ring must exceed.")
    nonmax_suppression: bool = Field(True, description="Keep a corner only where its score exceeds those of its eight neighbors.")
    type: Literal["9_16", "7_12", "5_8"] = Field("9_16", description="Length of the arc and of the ring, in pixels.")
    max_keypoints: int = Field(5000, ge=1, le=1_000_000, description="Most corners returned, the strongest ones.")


def capacity(height: int, width: int, params: FastParams) -> int:
    """Room for corners: of two neighbors suppression leaves one at most."""
    rows, columns = max(height - 2 * MARGIN, 1), max(width - 2 * MARGIN, 1)
    possible = -(-rows // 2) * -(-columns // 2) if params.nonmax_suppression else rows * columns
    return min(params.max_keypoints, possible)


def layout(height: int, width: int, params: FastParams) -> Layout:
    """Columns of corners; the map of scores and its counts (CUDA), lines of scores and the list of codes (CPU)."""
    room = capacity(height, width, params)
    wide = max(width, FRAME)
    return Layout(
        {
            "found": ArraySpec((2,), "int32"),
            "x": ArraySpec((room,), "int32"),
            "y": ArraySpec((room,), "int32"),
            "score": ArraySpec((room,), "uint8"),
        },
        map_scratch([(height, width)]),
        {
            "lines": ArraySpec((4, line_bytes(wide)), "uint8"),
            "active": ArraySpec((2, wide // GROUP + 1), "uint32"),
            "codes": ArraySpec((2 * room + wide + GROUP,), "int64"),
            "levels": ArraySpec((LEVELS,), "int64"),
        },
    )


def scalars(params: FastParams, height: int, width: int) -> tuple[Sequence[int], Sequence[float]]:
    """Threshold, suppression, room and the description of the map."""
    room = capacity(height, width, params)
    levels = level_row([(height, width)], 0)
    return (params.threshold, params.nonmax_suppression, *levels, *map_row([(height, width, room, 0)])), ()


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    arrays, pixels = image.arrays, image.source
    height, width = pixels.shape
    arrays["found"][:] = 0
    if min(height, width) < LEAST_SIDE:
        return
    if width < FRAME:  # whole groups of pixels need that much room
        pixels = np.zeros((height, FRAME), dtype=np.uint8)
        pixels[:, :width] = image.source
    threshold, suppressed = (int(value) for value in image.ints[:2])
    region = MARGIN, MARGIN, height - 2 * MARGIN, width - 2 * MARGIN
    lines, active, codes, levels = (arrays[name] for name in ("lines", "active", "codes", "levels"))
    limit, mode = arrays["x"].size, MODES[image.params.type]
    found, truncated, _ = detect(pixels, region, 0, threshold, bool(suppressed), mode, lines, active, codes, limit, 0, levels)
    decode(arrays["codes"], found, arrays["x"], arrays["y"], arrays["score"])
    arrays["found"][:] = found, truncated


def cuda(batch: CudaBatch) -> None:
    """CUDA twin. The picture is a pyramid of one level, so the array of the other levels is never read."""
    kernel, source, arrays = score_kernel(MODES[batch.params.type]), batch.source, batch.arrays
    scores = arrays["map"].view(np.uint8)
    columns = THRESHOLD, SUPPRESSED, LEVEL_ROW, MAP_ROW, WORK, FIRST, 0
    batch.launch(kernel, "tile", THREADS, batch.ints, source, source, scores, arrays["histogram"], *columns)
    select(batch, work=WORK, output=FIRST, row=MAP_ROW)


def finish(arrays: Mapping[str, NDArray[Any]], params: FastParams, height: int, width: int) -> Result:
    """Trim the columns; the response is the score less one, or 0 without suppression."""
    count, truncated = (int(value) for value in arrays["found"])
    score = arrays["score"][:count].astype(np.int32)
    return _keypoints(arrays["x"][:count], arrays["y"][:count], score, bool(truncated), params, height, width)


def _keypoints(
    x: NDArray[Any], y: NDArray[Any], score: NDArray[Any], truncated: bool, params: FastParams, height: int, width: int
) -> Result:
    response = score - 1 if params.nonmax_suppression else np.zeros_like(score)
    columns = {"x": x, "y": y, "response": response, "size": np.full(len(x), SIZE)}
    arrays = {name: np.array(column, dtype=np.int32) for name, column in columns.items()}
    return Result("keypoints", height, width, arrays, {"count": len(x), "truncated": truncated})


RINGS = {
    "9_16": [
        *((0, 3), (1, 3), (2, 2), (3, 1), (3, 0), (3, -1), (2, -2), (1, -3)),
        *((0, -3), (-1, -3), (-2, -2), (-3, -1), (-3, 0), (-3, 1), (-2, 2), (-1, 3)),
    ],
    "7_12": [(0, 2), (1, 2), (2, 1), (2, 0), (2, -1), (1, -2), (0, -2), (-1, -2), (-2, -1), (-2, 0), (-2, 1), (-1, 2)],
    "5_8": [(0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)],
}  # (x, y) from the center, in OpenCV's order


def reference(image: NDArray[np.uint8], params: FastParams) -> Result:
    """Every arc of every pixel, then suppression, then a stable sort."""
    height, width = image.shape
    scores = np.zeros((height + 2, width + 2), dtype=np.int64)
    if min(height, width) >= LEAST_SIDE:
        scores[4:-4, 4:-4] = _scores(image.astype(np.int64), params)
    inner = scores[1:-1, 1:-1]
    chosen = inner > 0
    if params.nonmax_suppression:
        for dy in range(3):
            for dx in range(3):
                if (dy, dx) != (1, 1):
                    neighbor = scores[dy : dy + height, dx : dx + width]
                    chosen &= np.maximum(inner - 1, 0) > np.maximum(neighbor - 1, 0)
    y, x = np.nonzero(chosen)
    return _ranked(x, y, inner[y, x], params, height, width)


def _scores(image: NDArray[np.int64], params: FastParams) -> NDArray[np.int64]:
    """Scores of the pixels that are corners, else 0; the picture without its margin."""
    height, width = image.shape
    ring = RINGS[params.type]
    size, best, corner = len(ring), 0, False
    center = image[MARGIN : height - MARGIN, MARGIN : width - MARGIN]
    for sign in (1, -1):
        sides = [sign * (image[MARGIN + dy : height - MARGIN + dy, MARGIN + dx : width - MARGIN + dx] - center) for dx, dy in ring]
        arcs = [np.minimum.reduce([sides[(k + i) % size] for i in range(size // 2 + 1)]) for k in range(size)]
        pairs = [np.maximum(sides[k % size], sides[(k + 8) % size]) for k in range(8)]
        score = np.maximum.reduce(arcs)
        best = np.maximum(best, score)
        corner = corner | (np.minimum(score, np.minimum.reduce(pairs)) > params.threshold)
    return np.where(corner, best, 0)


def _ranked(x: NDArray[Any], y: NDArray[Any], score: NDArray[Any], params: FastParams, height: int, width: int) -> Result:
    """The strongest, by a stable sort, in the order they came."""
    chosen = np.sort(np.argsort(-score, kind="stable")[: params.max_keypoints])
    return _keypoints(x[chosen], y[chosen], score[chosen], len(x) > params.max_keypoints, params, height, width)


def rival(image: NDArray[np.uint8], params: FastParams) -> Any:
    """cv2.FastFeatureDetector."""
    import cv2

    ring = getattr(cv2, f"FastFeatureDetector_TYPE_{params.type}")
    return cv2.FastFeatureDetector.create(params.threshold, params.nonmax_suppression, ring).detect(image)


def oracle(image: NDArray[np.uint8], params: FastParams) -> Result:
    """The rival, ranked by its responses; without suppression by those of each pixel alone, in its own 7 x 7 picture."""
    found = rival(image, params)
    x = np.array([int(point.pt[0]) for point in found], dtype=np.int64)
    y = np.array([int(point.pt[1]) for point in found], dtype=np.int64)
    score = np.array([int(point.response) + 1 for point in found], dtype=np.int64)
    if not params.nonmax_suppression and len(x) > params.max_keypoints:
        alone = params.model_copy(update={"nonmax_suppression": True})
        for i in range(len(x)):
            corner = rival(image[y[i] - MARGIN : y[i] + MARGIN + 1, x[i] - MARGIN : x[i] + MARGIN + 1].copy(), alone)
            score[i] += int(corner[0].response) if corner else 0
    return _ranked(x, y, score, params, *image.shape)


def samples() -> Sequence[Sample]:
    """Every image; every ring with and without suppression, at thresholds from end to end; ties at the cut; widths around a group."""
    rings = [{"type": ring, "nonmax_suppression": on} for ring in MODES for on in (True, False)]
    chosen = [*every_image(*({"threshold": 20, **ring} for ring in rings))]
    chosen += [
        Sample("small", noise(13, 20, 36), {"threshold": 20}, simulate=True),
        Sample("two tiles, a cut", noise(10, 67, 37), {"max_keypoints": 9, "nonmax_suppression": False}, simulate=True),
        Sample("all equal", checkerboard(17, 19, 5, 90, 120), {"max_keypoints": 3, "type": "9_16"}, simulate=True),
        Sample("too low", noise(6, 9, 38), simulate=True),
        *(Sample("small", noise(11, 13, 39), {"type": ring}, simulate=True) for ring in ("7_12", "5_8")),
    ]
    for threshold in (0, 1, 60, 254, 255):
        chosen += [Sample(f"threshold {threshold}", noise(20, 31, 30), {"threshold": threshold, **ring}) for ring in rings]
    for limit in (1, 7, 40):
        chosen += [Sample(f"limit {limit}", noise(30, 40, 31), {"max_keypoints": limit, **ring}) for ring in rings]
        chosen += [Sample(f"ties {limit}", checkerboard(40, 44, 5, 90, 120), {"max_keypoints": limit, **ring}) for ring in rings]
    for width in (69, 70, 71, 133, 134, 135, 200):
        chosen += [Sample(f"width {width}", noise(9, width, 32), ring) for ring in rings]
    chosen += [Sample(f"height {height}", smooth(height, 25, 33), {"threshold": 3}) for height in (15, 16, 17, 18, 48, 49)]
    chosen += [Sample("many", noise(200, 300, 34), {"max_keypoints": 900, **ring}) for ring in rings]
    chosen += [Sample("plateaus", squares(90, 120, 35), {"threshold": 1, "max_keypoints": 20}), Sample("flat", constant(70, 80, 128))]
    return chosen


def errors() -> Sequence[ErrorSample]:
    """Thresholds and limits out of range, an unknown ring."""
    return [
        ErrorSample("negative threshold", {"threshold": -1}, "threshold"),
        ErrorSample("threshold above white", {"threshold": 256}, "threshold"),
        ErrorSample("unknown ring", {"type": "10_16"}, "type"),
        ErrorSample("no keypoints", {"max_keypoints": 0}, "max_keypoints"),
        ErrorSample("too many keypoints", {"max_keypoints": 1_000_001}, "max_keypoints"),
    ]


def kernels() -> Sequence[KernelSpec]:
    """The three scoring kernels and the selection."""
    return [*score_specs(list(MODES.values())), *select_specs()]


register(
    Operator(
        family="features",
        name="fast",
        summary="FAST corners: position and score",
        description="Segment test on a ring of 16, 12 or 8 pixels, with OpenCV's scores and suppression; in row-major order.",
        params=FastParams,
        kind="keypoints",
        exactness="equal to cv2.FastFeatureDetector, order included; above max_keypoints the strongest of its list",
        cost="O(pixels), one pass and the selection",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=finish,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        structural=("type",),
        scalars=scalars,
        blocks={
            "tile": lambda height, width, _params: tiles([(height, width)], 0),
            "stretch": lambda height, width, _params: map_stretches([(height, width)]),
        },
        kernels=kernels,
        rival=rival,
    )
)
