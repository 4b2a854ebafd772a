"""ORB: oriented FAST corners of an image pyramid with rotated BRIEF descriptors, of a grey image.

Definition: per level (`orb_levels`, `orb_pyramid`) the FAST corners (ring of 16, suppressed) at least 31 pixels from the border; of them twice
the quota by their score, then the quota by their Harris response (`orb_keypoints`), equals of the weakest included both times, as in OpenCV,
so that there may be more than n_features. At most 8192 equals are kept on level 0, half as many on each level above, but never fewer than
1024: the first in row-major order, and then the result says truncated. Direction and 256 bits: `orb_orientation`, `orb_descriptors`.
Order: octave, then row-major; OpenCV leaves the order open. x, y in pixels of the image, float32: place in the level times its scale.
Border: nothing is read outside a level. Rounding: float32 steps one by one, halves to even.
Exactness: equal to OpenCV's set of keypoints (position, octave, size, response, angle) and to its descriptors, bit for bit.
Cost: the pyramid's pixels a few times over, and a square of 43 x 43 pixels a keypoint.
Source: cv2.ORB (orb.cpp); Rublee, Rabaud, Konolige and Bradski, ORB: an efficient alternative to SIFT or SURF, 2011.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops import orb_layout
from cuda_ops.batch import CpuImage, CudaBatch
from cuda_ops.corners_fast import RING_16, detect
from cuda_ops.corners_tiles import THREADS, pyramid_bytes, score_kernel, score_specs, tiles
from cuda_ops.operator import ErrorSample, KernelSpec, Layout, Operator, Params, Result, Sample, register
from cuda_ops.orb_descriptors import POINTS_X, POINTS_Y, describe_all, describe_level, describe_specs
from cuda_ops.orb_keypoints import TEAMS, corner_responses, keep, keep_best, keep_specs
from cuda_ops.orb_layout import FOUND, LEVEL_ROW, MAP_ROW, PYRAMID, SUPPRESSED, THRESHOLD, WORK, inner_sizes, segments, sizes
from cuda_ops.orb_levels import EDGE, MAX_LEVELS, Level, levels
from cuda_ops.orb_orientation import ACROSS, INSIDE, TURN
from cuda_ops.orb_pyramid import build_pyramid, pyramid_specs, shrink, shrink_blocks
from cuda_ops.orb_reference import keypoints, reference
from cuda_ops.samples import checkerboard, every_image, noise, smooth, squares
from cuda_ops.strongest import map_stretches, select, select_specs

TABLES = (INSIDE, ACROSS, TURN, POINTS_X, POINTS_Y)


class OrbParams(Params):
    """Parameters of `features/orb`."""

    n_features: int = Field(
        500, ge=1, le=100_000, description="Keypoints to keep, shared out among the levels; equals of the weakest stay too."
    )
    scale_factor: float = Field(1.2, ge=1.05, le=2, description="Ratio of the sizes of successive levels.")
    n_levels: int = Field(8, ge=1, le=MAX_LEVELS, description="Levels of the pyramid; those with a side below 63 pixels give nothing.")
    fast_threshold: int = Field(20, ge=0, le=255, description="Threshold of the FAST corners, in grey levels.")
    descriptors: bool = Field(True, description="Compute the 256-bit descriptors.")


def levels_of(height: int, width: int, params: OrbParams) -> tuple[Level, ...]:
    """The levels that can have keypoints."""
    return levels(height, width, params.n_features, params.scale_factor, params.n_levels)


def layout(height: int, width: int, params: OrbParams) -> Layout:
    """See `orb_layout`."""
    return orb_layout.layout(height, width, levels_of(height, width, params), params.descriptors)


def scalars(params: OrbParams, height: int, width: int) -> tuple[Sequence[int], Sequence[float]]:
    """See `orb_layout`."""
    return orb_layout.row(params.fast_threshold, levels_of(height, width, params)), ()


def cpu(image: CpuImage) -> None:
    """CPU twin: level by level, each made from the one before."""
    arrays, pixels, params = image.arrays, image.source, image.params
    height, width = pixels.shape
    chosen = levels_of(height, width, params)
    arrays["kept"][:] = 0
    for index, (level, begin) in enumerate(zip(chosen, segments(chosen), strict=False)):
        if index:
            start = pyramid_bytes(sizes(chosen)[:index])
            smaller = arrays["pyramid"][start : start + level.height * level.width].reshape(level.height, level.width)
            shrink(pixels, smaller, level.drift, arrays["places"], arrays["mixed"], arrays["words"])
            pixels = smaller
        if level.quota:
            out = slice(begin, begin + level.room)
            arrays["kept"][index] = _level_keypoints(arrays, pixels, level, params, out)


def _level_keypoints(
    arrays: Mapping[str, NDArray[Any]], pixels: NDArray[np.uint8], level: Level, params: OrbParams, out: slice
) -> tuple[int, bool]:
    """Find, rank and describe the keypoints of one level; how many there are, and whether equals of the weakest were lost."""
    rim = EDGE - 1  # corners there may suppress others
    region = rim, rim, level.height - 2 * rim, level.width - 2 * rim
    lines, active, codes, histogram = (arrays[name] for name in ("lines", "active", "codes", "histogram_of_codes"))
    found, _, lost = detect(pixels, region, 1, params.fast_threshold, True, RING_16, lines, active, codes, *level.candidates, histogram)
    responses, x, y = arrays["responses"], arrays["kept_x"][out], arrays["kept_y"][out]
    corner_responses(pixels, codes, found, responses)
    kept, lost_later = keep_best(codes, responses, found, level.quota, level.ties, x, y, arrays["kept_response"][out])
    scratch = arrays["blurred_rows"], arrays["patch"], arrays["samples"]
    describe_level(pixels, kept, x, y, arrays["angle"][out], arrays["descriptors"][out], params.descriptors, TABLES, scratch)
    return kept, lost or lost_later


def cuda(batch: CudaBatch) -> None:
    """CUDA twin: pyramid, scores of all levels, selection, responses, selection, descriptors."""
    build_pyramid(batch)
    arrays = batch.arrays
    columns = THRESHOLD, SUPPRESSED, LEVEL_ROW, MAP_ROW, WORK, PYRAMID, EDGE
    maps = arrays["map"].view(np.uint8), arrays["histogram"]
    batch.launch(score_kernel(RING_16), "tile", THREADS, batch.ints, batch.source, arrays["pyramid"], *maps, *columns)
    select(batch, work=WORK, output=FOUND, row=MAP_ROW)
    keep(batch)
    describe_all(batch, batch.params.descriptors)


def finish(arrays: Mapping[str, NDArray[Any]], params: OrbParams, height: int, width: int) -> Result:
    """Join the levels' segments, and go from places in a level to places in the image."""
    chosen = levels_of(height, width, params)
    counts = arrays["kept"][: len(chosen), 0]
    places = [slice(begin, begin + count) for begin, count in zip(segments(chosen), counts, strict=False)]
    truncated = bool(arrays["kept"][: len(chosen), 1].any())

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([arrays[name][:0], *(arrays[name][place] for place in places)])

    octave = np.repeat(np.arange(len(chosen), dtype=np.int32), counts)
    scales = np.array([level.scale for level in chosen], dtype=np.float32)
    names = ("kept_x", "kept_y", "kept_response", "angle", *(["descriptors"] if params.descriptors else []))
    return keypoints(octave, scales, [joined(name) for name in names], truncated, height, width)


def oracle(image: NDArray[np.uint8], params: OrbParams) -> Result:
    """The rival in this operator's order. OpenCV fails where a level would have no pixel; then no level has room for a keypoint either."""
    height, width = image.shape
    chosen = levels_of(height, width, params)
    found, descriptors = rival(image, params) if chosen else ((), np.zeros((0, 32), dtype=np.uint8))
    found_by_place = sorted(range(len(found)), key=lambda i: (found[i].octave, found[i].pt[1], found[i].pt[0]))
    points = [found[i] for i in found_by_place]
    columns = {
        "x": [point.pt[0] for point in points],
        "y": [point.pt[1] for point in points],
        "response": [point.response for point in points],
        "size": [point.size for point in points],
        "angle": [point.angle for point in points],
    }
    arrays: dict[str, NDArray[Any]] = {name: np.array(values, dtype=np.float32) for name, values in columns.items()}
    arrays["octave"] = np.array([point.octave for point in points], dtype=np.int32)
    if params.descriptors:
        arrays["descriptors"] = descriptors[found_by_place] if points else np.zeros((0, 32), dtype=np.uint8)
    return Result("keypoints", height, width, arrays, {"count": len(points), "truncated": False})


def rival(image: NDArray[np.uint8], params: OrbParams) -> Any:
    """cv2.ORB."""
    import cv2

    score = cv2.ORB_HARRIS_SCORE
    detector = cv2.ORB.create(params.n_features, params.scale_factor, params.n_levels, EDGE, 0, 2, score, 31, params.fast_threshold)
    return detector.detectAndCompute(image, None) if params.descriptors else (detector.detect(image), None)


def samples() -> Sequence[Sample]:
    """Every image; sizes around the least one; pyramids of one level and of many; quotas of nothing; ties everywhere."""
    small = {"n_levels": 2, "scale_factor": 1.05, "fast_threshold": 5}
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"descriptors": False},
        {"n_levels": 1, "fast_threshold": 5},
        {"n_levels": 16, "scale_factor": 1.05, "n_features": 300},
        {"scale_factor": 2.0, "n_levels": 3, "n_features": 3000, "fast_threshold": 0},
    )
    chosen = list(every_image(*variants))
    for side in (62, 63, 64, 65, 70, 96, 97):
        chosen += [Sample(f"side {side}", noise(side, side + 1, side), small), Sample(f"side {side}", noise(side + 30, side, side), small)]
    for index, params in enumerate(variants):
        chosen += [
            Sample(f"picture {index}", smooth(300, 411, 50 + index), params),
            Sample(f"shapes {index}", squares(230, 190, 60 + index), params),
            Sample(f"noise {index}", noise(180, 201, 70 + index), params),
            Sample(f"ties {index}", checkerboard(200, 256, 7 + index, 60, 200), params),
        ]
    chosen += [Sample(f"{count} features", smooth(200, 256, 80 + count), {"n_features": count}) for count in (1, 2, 9, 40)]
    chosen += [Sample("dots", dots(240, 320, 9), {"n_features": 100}), Sample("halves", smooth(1024, 1281, 90), {"scale_factor": 1.25})]
    tiny = noise(66, 72, 92)  # six corners on level 0, one on level 1
    chosen += [
        Sample("simulated", tiny, {**small, "n_features": 3}, simulate=True),
        Sample("simulated, too small", noise(62, 70, 93), {**small, "descriptors": False}, simulate=True),
        Sample("simulated, no share", tiny, {**small, "descriptors": False, "n_features": 1}, simulate=True),
    ]
    return chosen


def dots(height: int, width: int, period: int) -> NDArray[np.uint8]:
    """Single white pixels on black: a whole class of equal corners."""
    y, x = np.mgrid[:height, :width] % period
    return np.where((y == 0) & (x == 0), 255, 0).astype(np.uint8)


def errors() -> Sequence[ErrorSample]:
    """Every parameter out of its range."""
    return [
        ErrorSample("no features", {"n_features": 0}, "n_features"),
        ErrorSample("a pyramid that grows", {"scale_factor": 1.0}, "scale_factor"),
        ErrorSample("no levels", {"n_levels": 0}, "n_levels"),
        ErrorSample("too many levels", {"n_levels": 17}, "n_levels"),
        ErrorSample("negative threshold", {"fast_threshold": -1}, "fast_threshold"),
    ]


def kernels() -> Sequence[KernelSpec]:
    """Every kernel of the CUDA twin."""
    return [*pyramid_specs(), *score_specs([RING_16]), *select_specs(), *keep_specs(), *describe_specs()]


def blocks() -> dict[str, Callable[[int, int, Any], int]]:
    """The grids: tiles of a level, tiles of all levels, stretches of maps, corners by teams, levels, keypoints."""

    def level_tiles(index: int) -> Callable[[int, int, Any], int]:
        def count(height: int, width: int, params: Any) -> int:
            chosen = levels_of(height, width, params)
            return shrink_blocks(chosen[index]) if index < len(chosen) else 0

        return count

    def over_levels(count: Callable[[Sequence[Level]], int]) -> Callable[[int, int, Any], int]:
        return lambda height, width, params: count(levels_of(height, width, params))

    return {
        **{f"level{index}": level_tiles(index) for index in range(1, MAX_LEVELS)},
        "tile": over_levels(lambda chosen: tiles(sizes(chosen), EDGE)),
        "stretch": over_levels(lambda chosen: map_stretches(inner_sizes(chosen))),
        "corner": over_levels(lambda chosen: -(-sum(level.candidates[0] for level in chosen) // TEAMS)),
        "keep": over_levels(len),
        "keypoint": over_levels(lambda chosen: sum(min(level.quota, level.room) for level in chosen)),
    }


register(
    Operator(
        family="features",
        name="orb",
        summary="ORB keypoints with 256-bit descriptors",
        description="Oriented FAST corners over a pyramid, ranked by Harris response, with rotated BRIEF bits; by octave, then row-major.",
        params=OrbParams,
        kind="keypoints",
        exactness="equal to cv2.ORB as a set: position, octave, size, response, angle and all 256 bits",
        cost="O(pixels of the pyramid) + O(keypoints)",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=finish,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        structural=("descriptors",),
        scalars=scalars,
        blocks=blocks(),
        kernels=kernels,
        rival=rival,
    )
)
