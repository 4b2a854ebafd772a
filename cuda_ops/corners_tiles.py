"""FAST scores on CUDA: a tile a block, of a picture or of every level of a pyramid, into the maps that `strongest` selects from.

The map of a level leaves out `origin` pixels along each border. The int32 row of an image describes its levels from some column on
(`level_row`): their number, then RECORD values for each. Level 0 is the picture itself, the others lie in a pyramid.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, int32

from cuda_ops.batch import ALIGNMENT, OFFSET, aligned
from cuda_ops.corners_fast import MARGIN, REACH, cross, peak, score_8, score_12, score_16
from cuda_ops.device import find_image
from cuda_ops.jit import device, kernel
from cuda_ops.operator import KernelSpec
from cuda_ops.strongest import FIRST_STRETCH, HISTOGRAM, LEVELS, MAP, ROW, STRETCH
from cuda_ops.strongest import RECORD as MAP_RECORD

Size = tuple[int, int]

HEIGHT, WIDTH, START, FIRST_TILE = range(1, 5)  # columns of a level's record, from the level count on; START in units of ALIGNMENT bytes
RECORD = 4

SCORES = (score_16, score_12, score_8)
THREADS = 128
TILE_WIDTH, TILE_HEIGHT = ROW, 16
HALO = MARGIN + 1  # the ring of a neighbor
SPAN, SCORE_SPAN = TILE_WIDTH + 2 * HALO, TILE_WIDTH + 2
PIXELS, SCORED = SPAN * (TILE_HEIGHT + 2 * HALO), SCORE_SPAN * (TILE_HEIGHT + 2)


def tiles(sizes: Sequence[Size], origin: int) -> int:
    """Blocks that score levels of these sizes (height, width)."""
    return sum(-(-(height - 2 * origin) // TILE_HEIGHT) * -(-(width - 2 * origin) // TILE_WIDTH) for height, width in sizes)


def pyramid_bytes(sizes: Sequence[Size]) -> int:
    """Room for the levels above the picture."""
    return sum(aligned(height * width) for height, width in sizes[1:])


def level_row(sizes: Sequence[Size], origin: int) -> list[int]:
    """The description of the levels for the kernels."""
    row = [len(sizes)]
    for level, (height, width) in enumerate(sizes):
        row += [height, width, pyramid_bytes(sizes[:level]) // ALIGNMENT, tiles(sizes[:level], origin)]
    return row


@device
def level_base(table, rows, owner, record, level, pyramid):
    """Flat index of a level's first pixel, in the source (level 0) or in the pyramid, whose table column is `pyramid`."""
    if level == 0:
        return table[owner, OFFSET]
    return table[owner, pyramid] + ALIGNMENT * np.int64(rows[owner, record + START])


@device
def level_pixel(source, pyramid, level, index):
    """A pixel of a level, by its flat index."""
    if level == 0:
        return int32(source[index])
    return int32(pyramid[index])


@cache
def score_kernel(mode: int) -> Any:
    """The kernel that scores and suppresses on one ring: pixels with halo and then scores in shared memory."""
    score_ring, near, far = SCORES[mode], MARGIN - REACH[mode], MARGIN + REACH[mode]

    def score_tile(starts, table, rows, source, pyramid, scores, histogram, threshold, suppressed, levels, row, work, below, origin):
        pixels = cuda.shared.array(PIXELS, int32)
        scored = cuda.shared.array(SCORED, int32)
        bins = cuda.shared.array(LEVELS, int32)
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        owner = find_image(starts, block)
        tile = block - starts[owner]
        level = 0
        while level + 1 < rows[owner, levels] and rows[owner, levels + RECORD * (level + 1) + FIRST_TILE] <= tile:
            level += 1
        record = levels + RECORD * level
        height, width = rows[owner, record + HEIGHT], rows[owner, record + WIDTH]
        base = level_base(table, rows, owner, record, level, below)
        across = (width - 2 * origin + TILE_WIDTH - 1) // TILE_WIDTH
        tile -= rows[owner, record + FIRST_TILE]
        top = tile // across * TILE_HEIGHT
        left = (tile - tile // across * across) * TILE_WIDTH
        least, alone = rows[owner, threshold], rows[owner, suppressed]
        for i in range(thread, LEVELS, THREADS):
            bins[i] = 0
        for i in range(thread, PIXELS, THREADS):
            y, x = origin + top + i // SPAN - HALO, origin + left + i % SPAN - HALO
            if y >= 0 and y < height and x >= 0 and x < width:
                pixels[i] = level_pixel(source, pyramid, level, base + y * width + x)
        cuda.syncthreads()
        for i in range(thread, SCORED, THREADS):
            y, x = origin + top + i // SCORE_SPAN - 1, origin + left + i % SCORE_SPAN - 1
            best = int32(0)
            if y >= MARGIN and y < height - MARGIN and x >= MARGIN and x < width - MARGIN:
                at = i // SCORE_SPAN * SPAN + i % SCORE_SPAN
                if cross(pixels, SPAN, near, far, at) > least:
                    score, bound = score_ring(pixels, SPAN, at)
                    if bound > least and score > alone:  # OpenCV's score is one less, and 0 exceeds no neighbor
                        best = score
            scored[i] = best
        cuda.syncthreads()
        pitch = across * TILE_WIDTH
        out = 4 * table[owner, work + MAP] + STRETCH * np.int64(rows[owner, row + MAP_RECORD * level + FIRST_STRETCH])
        for i in range(thread, TILE_HEIGHT * TILE_WIDTH, THREADS):
            y, x = i // TILE_WIDTH, i % TILE_WIDTH
            at = y * SCORE_SPAN + x
            best = scored[at + SCORE_SPAN + 1]
            if alone != 0 and best > 0:
                best = peak(scored[at:], scored[at + SCORE_SPAN :], scored[at + 2 * SCORE_SPAN :], 0)
            if top + y < height - 2 * origin:
                if left + x >= width - 2 * origin:
                    best = int32(0)
                if best > 0:
                    cuda.atomic.add(bins, best, 1)
                scores[out + (top + y) * pitch + left + x] = best
        cuda.syncthreads()
        for i in range(thread, LEVELS, THREADS):
            if bins[i] > 0:
                cuda.atomic.add(histogram, table[owner, work + HISTOGRAM] + level * LEVELS + i, bins[i])

    score_tile.__name__ = score_tile.__qualname__ = f"score_tile_{(16, 12, 8)[mode]}"
    return kernel(score_tile)


def score_specs(modes: Sequence[int]) -> Sequence[KernelSpec]:
    """The compile check's view of the kernels of these rings."""
    bytes_ = ("u1[::1]",) * 3
    types = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", *bytes_, "i4[::1]", *("i8",) * 7)
    moved = 1 + PIXELS / (TILE_WIDTH * TILE_HEIGHT)
    return [KernelSpec(score_kernel(mode), types, THREADS, moved=moved, least=2.0) for mode in modes]
