"""From level to level of ORB's pyramid: OpenCV's INTER_LINEAR_EXACT, on both twins.

Pixel d of the target takes its place in the source at (d + 1/2) * source / target - 1/2; weights are rounded to 1/256, and the weighted sum
of four pixels is rounded once.

OpenCV computes that place in float64, which a GPU should not do. Here it is an exact fraction. The two differ only where the weight lies
exactly between two multiples of 1/256: there OpenCV's rounding goes the way of its error, which is known from `drift`, the error of its
float64 scale. No other case is close enough to a half for the error to matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import cuda, int32

from cuda_ops.batch import CudaBatch
from cuda_ops.corners_tiles import HEIGHT, RECORD, WIDTH, level_base, level_pixel
from cuda_ops.device import find_image
from cuda_ops.jit import device, host, kernel
from cuda_ops.operator import KernelSpec
from cuda_ops.orb_layout import DRIFT_RECORD, DRIFT_X, DRIFT_Y, DRIFTS, LEVEL_ROW, PYRAMID
from cuda_ops.orb_levels import MAX_LEVELS, Level

THREADS = 128
TILE_WIDTH, TILE_HEIGHT = 64, 16


@device
def place(d, source, target, drift):
    """Where pixel `d` of `target` pixels lies among `source` >= target: the index before it and the weight of the next, in 1/256."""
    span, twice = (2 * d + 1) * source, 2 * target
    index = (span - target) // twice
    rest = (span - target - index * twice) * 128
    weight = rest // target
    half = 2 * (rest - weight * target) - target
    if half > 0:
        return index, weight + 1
    if half == 0:
        # The float64 product is off by drift * (2 d + 1) / target, and shows it where that is more than half its last place.
        error, last_place, bound = 2 * drift * (2 * d + 1), target, twice
        while span >= bound:
            bound *= 2
            last_place *= 2
        if error > last_place or (error >= -last_place and weight % 2 == 1):
            return index, weight + 1
    return index, weight


@device
def blend(a, b, c, d, x, y):
    """Two by two pixels (a b over c d) with the weights x and y of the right and the lower pair, in 1/256."""
    return ((a * (256 - x) + b * x) * (256 - y) + (c * (256 - x) + d * x) * y + 32768) >> 16


@host
def mix(upper, lower, high, low, line):
    """Two rows with their weights (uint16, which keeps the products in 16-bit lanes), and the last pixel once more."""
    lane = line.dtype.type
    for x in range(upper.size):
        line[x] = lane(lane(upper[x] * high) + lane(lower[x] * low))
    line[upper.size] = line[upper.size - 1]


@host
def blend_columns(line, indices, weights, pairs, chosen, out):
    """Mix neighbors of a mixed row. Only the loads go one by one, each of a pair; `pairs` and `chosen` uint32 are scratch."""
    wide, signed, following = pairs.dtype.type, np.int32, line[1:]
    for x in range(following.size):
        pairs[x] = wide(wide(line[x]) | wide(wide(following[x]) << wide(16)))
    for x in range(out.size):
        chosen[x] = pairs[indices[x]]
    for x in range(out.size):
        left, right = signed(chosen[x] & wide(0xFFFF)), signed(chosen[x] >> wide(16))
        total = signed(signed(left << signed(8)) + signed(signed(right - left) * signed(weights[x])))
        out[x] = np.uint8(signed(total + signed(32768)) >> signed(16))


@host
def shrink(source, target, drift, places, line, words):
    """CPU twin of one reduction: rows are mixed first, then columns, which changes nothing, for the sum is exact.

    Scratch: `places` uint32 [2, >= target width], `line` uint16 [> source width], `words` uint32 [2, >= source width].
    """
    height, width = target.shape
    above, across = source.shape
    for x in range(width):
        places[0, x], places[1, x] = place(np.int64(x), across, width, drift[1])
    mixed = line[: across + 1]
    for y in range(height):
        first, weight = place(np.int64(y), above, height, drift[0])
        mix(source[first], source[min(first + 1, above - 1)], np.uint16(256 - weight), np.uint16(weight), mixed)
        blend_columns(mixed, places[0], places[1], words[0], words[1], target[y])


@kernel
def shrink_level(starts, table, rows, source, pyramid, level):
    """CUDA twin: one tile of `level` a block, read from the level below it; the places along both axes are worked out once a tile."""
    lefts = cuda.shared.array(TILE_WIDTH, int32)
    right_weights = cuda.shared.array(TILE_WIDTH, int32)
    tops = cuda.shared.array(TILE_HEIGHT, int32)
    lower_weights = cuda.shared.array(TILE_HEIGHT, int32)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    owner = find_image(starts, block)
    record = LEVEL_ROW + RECORD * level
    height, width = np.int64(rows[owner, record + HEIGHT]), np.int64(rows[owner, record + WIDTH])
    above, across = np.int64(rows[owner, record - RECORD + HEIGHT]), np.int64(rows[owner, record - RECORD + WIDTH])
    source_base = level_base(table, rows, owner, record - RECORD, level - 1, PYRAMID)
    base = level_base(table, rows, owner, record, level, PYRAMID)
    tiles = (width + TILE_WIDTH - 1) // TILE_WIDTH
    tile = block - starts[owner]
    top, left = tile // tiles * TILE_HEIGHT, (tile - tile // tiles * tiles) * TILE_WIDTH
    drift = DRIFTS + DRIFT_RECORD * level
    if thread < TILE_WIDTH:
        lefts[thread], right_weights[thread] = place(left + thread, across, width, np.int64(rows[owner, drift + DRIFT_X]))
    elif thread < TILE_WIDTH + TILE_HEIGHT:
        i = thread - TILE_WIDTH
        tops[i], lower_weights[i] = place(top + i, above, height, np.int64(rows[owner, drift + DRIFT_Y]))
    cuda.syncthreads()
    for i in range(thread, TILE_WIDTH * TILE_HEIGHT, THREADS):
        row, column = i // TILE_WIDTH, i % TILE_WIDTH
        y, x = top + row, left + column
        if y < height and x < width:
            upper = source_base + tops[row] * across + lefts[column]
            lower = upper + (across if tops[row] + 1 < above else 0)
            step = 1 if lefts[column] + 1 < across else 0
            a, b = level_pixel(source, pyramid, level - 1, upper), level_pixel(source, pyramid, level - 1, upper + step)
            c, d = level_pixel(source, pyramid, level - 1, lower), level_pixel(source, pyramid, level - 1, lower + step)
            pyramid[base + y * width + x] = blend(a, b, c, d, right_weights[column], lower_weights[row])


def shrink_blocks(level: Level) -> int:
    """Tiles of one level."""
    return -(-level.height // TILE_HEIGHT) * -(-level.width // TILE_WIDTH)


def build_pyramid(batch: CudaBatch) -> None:
    """Queue the reductions, level by level: the grids `level1` .. `level15`."""
    for level in range(1, MAX_LEVELS):
        batch.launch(shrink_level, f"level{level}", THREADS, batch.ints, batch.source, batch.arrays["pyramid"], level)


def pyramid_specs() -> Sequence[KernelSpec]:
    """The compile check's view of the reduction."""
    types = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", "u1[::1]", "u1[::1]", "i8")
    return [KernelSpec(shrink_level, types, THREADS, moved=2.44, least=2.44)]
