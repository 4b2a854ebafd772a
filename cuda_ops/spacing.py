"""Spacing of ranked points: walk them best first and keep each one that lies `min_distance` or more from every point kept before.

Kept points lie in a grid whose cells are too small for two of them, so a point looks at a few cells only. CPU: one point after another. CUDA:
one block an image takes THREADS points at a time, asks the grid, then settles the rest among themselves in rounds (a point is kept once all
better points near it are gone, and gone once one near it is kept): the same points, for the greedy choice is unique.
Source: cv2.goodFeaturesToTrack (featureselect.cpp).
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda
from numba import int32 as i4
from numba import int64 as i8

from cuda_ops.batch import HEIGHT, WIDTH, CudaBatch
from cuda_ops.jit import cuda_device, device, host, kernel
from cuda_ops.operator import KernelSpec
from cuda_ops.ranking import DIGITS, FOUND, KEYS, RESPONSE, RESPONSE_BITS, TOTAL, X, Y, block_scan

THREADS = 256
OPEN, KEPT, GONE = range(3)
CELLS = DIGITS + 1  # table column, behind those of the ranking


def grid(min_distance: float) -> tuple[int, int, int]:
    """(limit, side, reach): squared distances below `limit` are too near; cells of `side` pixels hold one point; look `reach` cells around."""
    limit = math.ceil(min_distance * min_distance)
    side = 1
    while 2 * side * side < limit:
        side += 1
    farthest = math.isqrt(max(limit - 1, 0))
    return limit, side, (side - 1 + farthest) // side


def cell_count(height: int, width: int, min_distance: float) -> int:
    """Cells of one image; at least one, and no more where every distance will do."""
    limit, side, _ = grid(min_distance)
    return -(-height // side) * -(-width // side) if limit > 1 else 1


@device
def crowded(cells, base, down, across, y, x, limit, side, reach):
    """True when a kept point lies too near to (y, x). A cell holds 1 + (row << 16 | column) of its point, from its own corner; 0 if none."""
    row, column = y // side, x // side
    for j in range(max(row - reach, 0), min(row + reach + 1, down)):
        for i in range(max(column - reach, 0), min(column + reach + 1, across)):
            held = cells[base + j * across + i] - 1
            if held >= 0:
                dy, dx = j * side + (held >> 16) - y, i * side + (held & 0xFFFF) - x
                if dy * dy + dx * dx < limit:
                    return True
    return False


@device
def settle(cells, base, across, y, x, side):
    """Put a kept point into its cell."""
    row, column = y // side, x // side
    cells[base + row * across + column] = 1 + ((y - row * side) << 16 | (x - column * side))


@host
def select(keys, count, shape, spacing, cells, wanted, xs, ys, bits):
    """Write the first `wanted` well spaced points of `count` sorted keys; returns how many there are, at most wanted + 1."""
    height, width = shape
    limit, side, reach = spacing
    last, down, across = height * width - 1, (height + side - 1) // side, (width + side - 1) // side
    kept = 0
    for i in range(count):
        index = last - (keys[i] & 0xFFFFFFFF)
        y = index // width
        x = index - y * width
        if limit > 1:
            if crowded(cells, 0, down, across, y, x, limit, side, reach):
                continue
            settle(cells, 0, across, y, x, side)
        if kept == wanted:
            return wanted + 1
        xs[kept], ys[kept], bits[kept] = x, y, RESPONSE_BITS - (keys[i] >> 32)
        kept += 1
    return kept


@cuda_device
def settle_rounds(ys, xs, states, thread, limit):
    """Decide the open points of one round's THREADS among themselves; a smaller index is a better point."""
    undecided = 1
    while undecided:
        state, found = states[thread], KEPT
        if state == OPEN:
            for other in range(thread):
                if states[other] != GONE:
                    dy, dx = ys[other] - ys[thread], xs[other] - xs[thread]
                    if dy * dy + dx * dx < limit:
                        found = OPEN
                        if states[other] == KEPT:
                            found = GONE
                            break
        cuda.syncthreads()
        if state == OPEN:
            states[thread] = found
        undecided = cuda.syncthreads_or(i4(state == OPEN and found == OPEN))


@kernel
def select_spaced(starts, table, ints, keys, total, cells, xs, ys, bits, found):
    """One block an image: the first `wanted` well spaced points, and in `found` how many there are (at most wanted + 1).

    A row of `ints` ends in (wanted, limit, side, reach); `bits` is the array of responses seen as int32.
    """
    row = cuda.shared.array(THREADS, i4)
    column = cuda.shared.array(THREADS, i4)
    states = cuda.shared.array(THREADS, i4)
    ranks = cuda.shared.array(THREADS, i4)
    image, thread = cuda.blockIdx.x, cuda.threadIdx.x
    height, width = table[image, HEIGHT], table[image, WIDTH]
    last = height * width - 1
    tail = ints.shape[1] - 4
    wanted, limit, side, reach = ints[image, tail], ints[image, tail + 1], ints[image, tail + 2], ints[image, tail + 3]
    down, across = (height + side - 1) // side, (width + side - 1) // side
    count, kept = total[table[image, TOTAL]], i4(0)
    for first in range(0, count, THREADS):
        key, state = i8(0), GONE
        if first + thread < count:
            key, state = keys[table[image, KEYS] + first + thread], OPEN
        index = last - (key & 0xFFFFFFFF)
        y = index // width
        x = index - y * width
        near = state == OPEN and limit > 1 and crowded(cells, table[image, CELLS], down, across, y, x, limit, side, reach)
        state = GONE if near else state
        row[thread], column[thread], states[thread] = y, x, state
        cuda.syncthreads()
        settle_rounds(row, column, states, thread, limit)
        state = states[thread]
        ranks[thread] = state == KEPT
        block_scan(ranks, thread)
        if state == KEPT:
            place = kept + ranks[thread] - 1
            if place < wanted:
                xs[table[image, X] + place], ys[table[image, Y] + place] = x, y
                bits[table[image, RESPONSE] + place] = RESPONSE_BITS - (key >> 32)
            if limit > 1:
                settle(cells, table[image, CELLS], across, y, x, side)
        kept += ranks[THREADS - 1]
        cuda.syncthreads()
        if kept > wanted:
            break
    if thread == 0:
        found[table[image, FOUND]] = min(kept, wanted + 1)


def select_points(batch: CudaBatch) -> None:
    """Queue the selection behind `ranking.rank_peaks`."""
    arrays = batch.arrays
    outputs = arrays["x"], arrays["y"], arrays["response"].view(np.int32), arrays["found"]
    batch.launch(select_spaced, "image", THREADS, batch.ints, arrays["keys"], arrays["total"], arrays["cells"], *outputs)


def kernel_specs() -> list[KernelSpec]:
    """The compile check's view of the kernel in this file."""
    ints = "i4[::1]"
    return [KernelSpec(select_spaced, ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", "i8[::1]", *(ints,) * 6), THREADS)]
