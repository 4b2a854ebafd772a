"""Where ORB's twins find things: the arrays of an image, the table columns of the CUDA twin and the int32 row that describes the image.

Keypoints stand in one segment a level, each as long as the level could need; `finish` in `features/orb.py` joins them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda_ops import corners_tiles, strongest
from cuda_ops.batch import FIRST
from cuda_ops.corners_fast import GROUP, line_bytes
from cuda_ops.operator import ArraySpec, Layout
from cuda_ops.orb_levels import EDGE, MAX_LEVELS, Level

# Table columns: outputs, then scratch.
KEPT, KEPT_X, KEPT_Y, KEPT_RESPONSE, ANGLE, DESCRIPTORS = range(FIRST, FIRST + 6)
WORK = DESCRIPTORS + 1  # map, histogram, cut, counts
FOUND = WORK + 4
X, Y, SCORE, RESPONSES, PYRAMID = range(FOUND + 1, FOUND + 6)

# Columns of the int32 row; the records of levels that an image has not are zero.
THRESHOLD, SUPPRESSED, LEVEL_ROW = range(3)
MAP_ROW = LEVEL_ROW + 1 + corners_tiles.RECORD * MAX_LEVELS
DRIFTS = MAP_ROW + 1 + strongest.RECORD * MAX_LEVELS
DRIFT_Y, DRIFT_X, DRIFT_RECORD = range(3)
KEEP = DRIFTS + DRIFT_RECORD * MAX_LEVELS
QUOTA, TIES, SEGMENT, KEEP_RECORD = range(4)

PATCH = 43  # side of the square around a keypoint that its descriptor reads: sampled up to 18 pixels away, after a blur of radius 3
SAMPLED = PATCH - 6
LANES = 40  # SAMPLED in whole vector registers
PAIRS = 256  # comparisons of a descriptor


def sizes(levels: Sequence[Level]) -> list[tuple[int, int]]:
    """Height and width of each level."""
    return [(level.height, level.width) for level in levels]


def inner_sizes(levels: Sequence[Level]) -> list[tuple[int, int]]:
    """The part of each level that can hold keypoints, as in the maps of scores."""
    return [(level.height - 2 * EDGE, level.width - 2 * EDGE) for level in levels]


def segments(levels: Sequence[Level]) -> list[int]:
    """Where each level's keypoints begin, and behind the last one the end."""
    found = [0]
    for level in levels:
        found.append(found[-1] + level.room)
    return found


def row(threshold: int, levels: Sequence[Level]) -> list[int]:
    """The int32 row."""

    def filled(values: list[int], size: int) -> list[int]:
        return values + [0] * (size - len(values))

    chosen = [(*size, *level.candidates) for size, level in zip(inner_sizes(levels), levels, strict=True)]
    keep = [value for level, begin in zip(levels, segments(levels), strict=False) for value in (level.quota, level.ties, begin)]
    return [
        *(threshold, 1),
        *filled(corners_tiles.level_row(sizes(levels), EDGE), MAP_ROW - LEVEL_ROW),
        *filled(strongest.map_row(chosen), DRIFTS - MAP_ROW),
        *filled([value for level in levels for value in level.drift], KEEP - DRIFTS),
        *filled(keep, KEEP_RECORD * MAX_LEVELS),
    ]


def layout(height: int, width: int, levels: Sequence[Level], descriptors: bool) -> Layout:
    """Keypoints; corners, their map and the pyramid; lines, lists and patches of the CPU twin."""
    room, inner = max(segments(levels)[-1], 1), inner_sizes(levels) or [(1, 1)]
    corners = max(sum(sum(level.candidates) for level in levels), 1)
    most = max((sum(level.candidates) for level in levels), default=1)
    return Layout(
        {
            "kept": ArraySpec((MAX_LEVELS, 2), "int32"),
            "kept_x": ArraySpec((room,), "int32"),
            "kept_y": ArraySpec((room,), "int32"),
            "kept_response": ArraySpec((room,), "float32"),
            "angle": ArraySpec((room,), "float32"),
            "descriptors": ArraySpec((room if descriptors else 1, PAIRS // 8), "uint8"),
        },
        {
            **strongest.map_scratch(inner),
            "found": ArraySpec((MAX_LEVELS, 2), "int32"),
            "x": ArraySpec((corners,), "int32"),
            "y": ArraySpec((corners,), "int32"),
            "score": ArraySpec((corners,), "uint8"),
            "responses": ArraySpec((corners,), "float32"),
            "pyramid": ArraySpec((max(corners_tiles.pyramid_bytes(sizes(levels)), 1),), "uint8"),
        },
        {
            "lines": ArraySpec((4, line_bytes(width)), "uint8"),
            "active": ArraySpec((2, width // GROUP + 1), "uint32"),
            "codes": ArraySpec((2 * most + width + GROUP,), "int64"),
            "histogram_of_codes": ArraySpec((strongest.LEVELS,), "int64"),
            "places": ArraySpec((2, width), "uint32"),
            "mixed": ArraySpec((width + 1,), "uint16"),
            "words": ArraySpec((2, width), "uint32"),
            "blurred_rows": ArraySpec((PATCH, LANES), "float32"),
            "patch": ArraySpec((SAMPLED, LANES), "uint8"),
            "samples": ArraySpec((2 * PAIRS,), "int32"),
        },
    )
