"""Which corners of a level ORB keeps: the Harris response of its FAST corners, and the best of them with their equals.

Response: 3 x 3 Sobel gradients without smoothing, their products summed in integers over 7 x 7 pixels, then a b - c c - 0.04 (a + b)^2 in
float32, each step rounded (no fused multiply-add), scaled by 1 / (4 * 7 * 255)^4. Of more than `quota` corners those stay whose response is at
least that of the quota-th; of the weakest only `ties`, the first in row-major order, where there are very many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import cuda, int32, int64

from cuda_ops.batch import CudaBatch
from cuda_ops.corners_tiles import RECORD, WIDTH, level_base, level_pixel
from cuda_ops.device import add, find_image, mul
from cuda_ops.jit import cuda_device, device, host, kernel
from cuda_ops.operator import KernelSpec
from cuda_ops.orb_layout import (
    FOUND,
    KEEP,
    KEEP_RECORD,
    KEPT,
    KEPT_RESPONSE,
    KEPT_X,
    KEPT_Y,
    LEVEL_ROW,
    MAP_ROW,
    PYRAMID,
    QUOTA,
    RESPONSES,
    TIES,
    X,
    Y,
)
from cuda_ops.orb_layout import SEGMENT as KEPT_SEGMENT
from cuda_ops.orb_levels import EDGE
from cuda_ops.strongest import RECORD as MAP_RECORD
from cuda_ops.strongest import SEGMENT, SUMS, THREADS, TOTAL, running_sums

BLOCK = 7  # side of the window that gradients are summed over
RADIUS = BLOCK // 2
WEIGHT = np.float32(0.04)
_UNIT = np.float32(1) / np.float32(4 * BLOCK * 255)
SCALE = _UNIT * _UNIT * _UNIT * _UNIT

DIGITS, DIGIT_BITS = 256, 8
TEAM = 8  # threads on one corner, a row of its window each; the last one only keeps the count even
TEAMS = THREADS // TEAM


@device
def response(a, b, c):
    """Harris response of the sums of gx gx, gy gy and gx gy."""
    x, y, xy = np.float32(a), np.float32(b), np.float32(c)
    trace = add(x, y)
    determinant = add(mul(x, y), -mul(xy, xy))
    return mul(add(determinant, -mul(mul(WEIGHT, trace), trace)), SCALE)


@host
def corner_responses(pixels, codes, found, responses):
    """CPU twin: the responses of the first `found` corners."""
    for i in range(found):
        y, x = (codes[i] >> 40) - RADIUS, ((codes[i] >> 8) & 0xFFFFFFFF) - RADIUS
        a, b, c = np.int32(0), np.int32(0), np.int32(0)
        for row in range(BLOCK):
            upper = pixels[y + row - 1, x - 1 : x + BLOCK + 1]
            middle = pixels[y + row, x - 1 : x + BLOCK + 1]
            lower = pixels[y + row + 1, x - 1 : x + BLOCK + 1]
            for k in range(BLOCK):
                p, q, r = np.int32(upper[k]), np.int32(upper[k + 1]), np.int32(upper[k + 2])
                s, t = np.int32(middle[k]), np.int32(middle[k + 2])
                u, v, w = np.int32(lower[k]), np.int32(lower[k + 1]), np.int32(lower[k + 2])
                gx = np.int32(2 * (t - s) + (r - p) + (w - u))
                gy = np.int32(2 * (v - q) + (u - p) + (w - r))
                a += np.int32(gx * gx)
                b += np.int32(gy * gy)
                c += np.int32(gx * gy)
        responses[i] = response(a, b, c)


@host
def keep_best(codes, responses, found, quota, ties, x, y, kept_responses):
    """CPU twin: the corners that stay, in order. Returns how many, and whether equals of the weakest were lost."""
    cut, room = np.float32(-np.inf), np.int64(0)
    if found > quota:
        cut, room = np.partition(responses[:found], found - quota)[found - quota], np.int64(ties)
    kept, lost = 0, False
    for i in range(found):
        if responses[i] > cut or (responses[i] == cut and room > 0):
            room -= responses[i] == cut
            x[kept], y[kept], kept_responses[kept] = (codes[i] >> 8) & 0xFFFFFFFF, codes[i] >> 40, responses[i]
            kept += 1
        elif responses[i] == cut:
            lost = True
    return kept, lost


@device
def nth(n, counts, at, rows, owner, column, record):
    """The level and the place of the n-th corner or keypoint of an image, level by level; level -1 beyond the last.

    `counts` has two values a level from `at` on, `column` is that of the first level's segment.
    """
    for level in range(rows[owner, LEVEL_ROW]):
        count = counts[at + 2 * level]
        if n < count:
            return level, int64(rows[owner, column + record * level]) + n
        n -= count
    return -1, int64(0)


@device
def window_row(source, pyramid, level, at, width):
    """Sums of gx gx, gy gy and gx gy over one row of the window, whose first pixel is at the flat index `at`."""
    a, b, c = int32(0), int32(0), int32(0)
    for k in range(at, at + BLOCK):
        p, q = level_pixel(source, pyramid, level, k - width - 1), level_pixel(source, pyramid, level, k - width)
        r, s = level_pixel(source, pyramid, level, k - width + 1), level_pixel(source, pyramid, level, k - 1)
        t, u = level_pixel(source, pyramid, level, k + 1), level_pixel(source, pyramid, level, k + width - 1)
        v, w = level_pixel(source, pyramid, level, k + width), level_pixel(source, pyramid, level, k + width + 1)
        gx = 2 * (t - s) + (r - p) + (w - u)
        gy = 2 * (v - q) + (u - p) + (w - r)
        a += int32(gx * gx)
        b += int32(gy * gy)
        c += int32(gx * gy)
    return a, b, c


@kernel
def respond(starts, table, rows, source, pyramid, found, x, y, responses):
    """CUDA twin: a team of threads a corner, a row of the window each; a block goes on through the corners until there are none."""
    sums = cuda.shared.array((3, THREADS), int32)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    owner = find_image(starts, block)
    team, member = thread // TEAM, thread % TEAM
    first, step = (block - starts[owner]) * TEAMS, (starts[owner + 1] - starts[owner]) * TEAMS
    while nth(first, found, table[owner, FOUND], rows, owner, MAP_ROW + SEGMENT, MAP_RECORD)[0] >= 0:
        level, place = nth(first + team, found, table[owner, FOUND], rows, owner, MAP_ROW + SEGMENT, MAP_RECORD)
        a, b, c = int32(0), int32(0), int32(0)
        if level >= 0 and member < BLOCK:
            record = LEVEL_ROW + RECORD * level
            width = int64(rows[owner, record + WIDTH])
            at = level_base(table, rows, owner, record, level, PYRAMID)
            at += (y[table[owner, Y] + place] + EDGE - RADIUS + member) * width + x[table[owner, X] + place] + EDGE - RADIUS
            a, b, c = window_row(source, pyramid, level, at, width)
        sums[0, thread], sums[1, thread], sums[2, thread] = a, b, c
        cuda.syncthreads()
        if level >= 0 and member == 0:
            for k in range(1, BLOCK):
                a += sums[0, thread + k]
                b += sums[1, thread + k]
                c += sums[2, thread + k]
            responses[table[owner, RESPONSES] + place] = response(a, b, c)
        cuda.syncthreads()
        first += step


@device
def order_key(bits):
    """The bits of a float32 (int32) as an integer 0 .. 2^32 - 1 that is ordered like the numbers; there is no -0 among them."""
    return (int64(bits) ^ ((int64(bits) >> 31) & 0x7FFFFFFF)) + (int64(1) << 31)


@cuda_device
def find_cut(bits, base, count, rank, bins, choice, thread):
    """The key of the `rank`-th largest response (from 1), digit by digit from the highest; every thread of the block gets it."""
    prefix, left = int64(0), int32(rank)
    for step in range(4):
        shift = 24 - DIGIT_BITS * step
        for i in range(thread, DIGITS, THREADS):
            bins[i] = 0
        cuda.syncthreads()
        for i in range(thread, count, THREADS):
            key = order_key(bits[base + i])
            if key >> (shift + DIGIT_BITS) == prefix:
                cuda.atomic.add(bins, (key >> shift) & (DIGITS - 1), 1)
        cuda.syncthreads()
        for digit in range(thread, DIGITS, THREADS):
            above = int32(0)
            for i in range(digit + 1, DIGITS):
                above += bins[i]
            if above < left and left <= above + bins[digit]:
                choice[0], choice[1] = digit, left - above
        cuda.syncthreads()
        prefix, left = (prefix << DIGIT_BITS) + choice[0], choice[1]
    return prefix


@kernel
def keep_level(starts, table, rows, found, x, y, responses, bits, kept, kept_x, kept_y, kept_responses):
    """CUDA twin: one block a level. The cut by its digits, then the corners that stay to the level's segment of the output, in order.

    `bits` are the responses as int32.
    """
    bins = cuda.shared.array(DIGITS, int32)
    choice = cuda.shared.array(2, int32)
    sums = cuda.shared.array(SUMS, int32)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    owner = find_image(starts, block)
    level = block - starts[owner]
    record = KEEP + KEEP_RECORD * level
    segment, quota, ties = (
        int64(rows[owner, MAP_ROW + MAP_RECORD * level + SEGMENT]),
        rows[owner, record + QUOTA],
        rows[owner, record + TIES],
    )
    count, lost = found[table[owner, FOUND] + 2 * level], found[table[owner, FOUND] + 2 * level + 1]
    base = table[owner, RESPONSES] + segment
    cut = int64(-1)
    if count > quota:
        cut = find_cut(bits, base, count, quota, bins, choice, thread)
    above, same = int32(0), int32(0)
    for chunk in range(0, count, THREADS):
        index = chunk + thread
        key = order_key(bits[base + index]) if index < count else int64(-2)
        before = running_sums(sums, thread, int32(1 << 16) if key > cut else int32(1 if key == cut else 0))
        same_before = same + (before & 0xFFFF)
        if key > cut or (key == cut and same_before < ties):
            place = rows[owner, record + KEPT_SEGMENT] + above + (before >> 16) + min(same_before, ties)
            kept_x[table[owner, KEPT_X] + place] = x[table[owner, X] + segment + index] + EDGE
            kept_y[table[owner, KEPT_Y] + place] = y[table[owner, Y] + segment + index] + EDGE
            kept_responses[table[owner, KEPT_RESPONSE] + place] = responses[base + index]
        above += sums[TOTAL] >> 16
        same += sums[TOTAL] & 0xFFFF
    if thread == 0:
        kept[table[owner, KEPT] + 2 * level] = above + min(same, ties)
        kept[table[owner, KEPT] + 2 * level + 1] = 1 if lost != 0 or same > ties else 0


def keep(batch: CudaBatch) -> None:
    """Queue both kernels. Grids: `corner` and `keep`."""
    arrays, rows = batch.arrays, batch.ints
    corners = arrays["found"], arrays["x"], arrays["y"], arrays["responses"]
    batch.launch(respond, "corner", THREADS, rows, batch.source, arrays["pyramid"], *corners)
    kept = arrays["kept"], arrays["kept_x"], arrays["kept_y"], arrays["kept_response"]
    batch.launch(keep_level, "keep", THREADS, rows, *corners, arrays["responses"].view(np.int32), *kept)


def keep_specs() -> Sequence[KernelSpec]:
    """The compile check's view of both kernels."""
    head, integers, floats = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]"), "i4[::1]", "f4[::1]"
    return [
        KernelSpec(respond, (*head, "u1[::1]", "u1[::1]", *(integers,) * 3, floats), THREADS),
        KernelSpec(keep_level, (*head, *(integers,) * 3, floats, *(integers,) * 4, floats), THREADS),
    ]
