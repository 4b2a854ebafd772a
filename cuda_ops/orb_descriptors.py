"""Direction and descriptor of ORB keypoints, on both twins.

Descriptor: bit k of byte j says whether the first pixel of pair 8 j + k is darker than the second, the pairs of `orb_pattern` turned by the
keypoint's direction and rounded half to even, in the level after a Gaussian blur (7 x 7, sigma 2). The blur is OpenCV's float32 filter as its
vector code computes it: along rows from left to right, then down columns in symmetric pairs, each sum a fused multiply-add; rounded half to
even. Keypoints are 31 pixels away from every border, so no sample and no tap leaves the level: only the square around a keypoint is
blurred, not the level.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import cuda, float32, int8, int32, int64, uint8

from cuda_ops.batch import CudaBatch
from cuda_ops.corners_tiles import RECORD, WIDTH, level_base, level_pixel
from cuda_ops.device import add, find_image, fma, mul, rint
from cuda_ops.jit import cuda_device, device, host, kernel
from cuda_ops.operator import KernelSpec
from cuda_ops.orb_keypoints import nth
from cuda_ops.orb_layout import (
    ANGLE,
    DESCRIPTORS,
    KEEP,
    KEEP_RECORD,
    KEPT,
    KEPT_X,
    KEPT_Y,
    LANES,
    LEVEL_ROW,
    PAIRS,
    PATCH,
    PYRAMID,
    SAMPLED,
    SEGMENT,
)
from cuda_ops.orb_orientation import HALF_WIDTHS, RADIUS, SIDE, TURN, cosine_sine, direction, moments
from cuda_ops.orb_pattern import PATTERN

THREADS = 128
BITS = PAIRS // THREADS  # bits of a descriptor that one thread finds
PATCH_PIXELS, ROW_PIXELS, SAMPLED_PIXELS, COORDINATES = PATCH * PATCH, PATCH * SAMPLED, SAMPLED * SAMPLED, 4 * PAIRS
REACH, INNER = PATCH // 2, SAMPLED // 2  # from the keypoint to the edge of the square that is read, and of the blurred one

_GAUSS = np.exp(-((np.arange(7) - 3.0) ** 2) / 8)
T0, T1, T2, T3 = (_GAUSS / _GAUSS.sum()).astype(np.float32)[:4]

POINTS = np.array(PATTERN, dtype=np.int8)  # [256, 4]: x0, y0, x1, y1
POINTS_X, POINTS_Y = (
    np.concatenate([POINTS[:, i], POINTS[:, i + 2]]).astype(np.float32) for i in (0, 1)
)  # all first points, all second ones
WIDTHS = np.array(HALF_WIDTHS, dtype=np.int32)


@device
def blur_along(a, b, c, d, e, f, g):
    """The row pass of the blur on seven pixels."""
    total = fma(T1, b, mul(T0, a))
    total = fma(T3, d, fma(T2, c, total))
    return fma(T0, g, fma(T1, f, fma(T2, e, total)))


@device
def blur_down(a, b, c, d, e, f, g):
    """The column pass of the blur on seven sums of the row pass; rounded to a grey level."""
    return rint(fma(T0, add(a, g), fma(T1, add(b, f), fma(T2, add(c, e), mul(T3, d)))))


@device
def turned(x, y, cosine, sine):
    """A point of the pattern turned: its column and row from the keypoint."""
    return rint(add(mul(x, cosine), -mul(y, sine))), rint(add(mul(x, sine), mul(y, cosine)))


@host
def blur_patch(pixels, y, x, rows, patch):
    """Blur the square around a keypoint: `rows` float32 [43, 40] is scratch, `patch` uint8 [37, 40] the result."""
    for i in range(PATCH):
        line, out = pixels[y - REACH + i, x - REACH : x - REACH + LANES + 6], rows[i]
        for k in range(LANES):
            out[k] = blur_along(
                np.float32(line[k]),
                np.float32(line[k + 1]),
                np.float32(line[k + 2]),
                np.float32(line[k + 3]),
                np.float32(line[k + 4]),
                np.float32(line[k + 5]),
                np.float32(line[k + 6]),
            )
    for i in range(SAMPLED):
        a, b, c, d, e, f, g = rows[i], rows[i + 1], rows[i + 2], rows[i + 3], rows[i + 4], rows[i + 5], rows[i + 6]
        out = patch[i]
        for k in range(LANES):
            out[k] = np.uint8(blur_down(a[k], b[k], c[k], d[k], e[k], f[k], g[k]))


@host
def compare(patch, points_x, points_y, cosine, sine, samples, descriptor):
    """The bits of one descriptor; `samples` int32 [512] is scratch."""
    for i in range(2 * PAIRS):
        column, row = turned(points_x[i], points_y[i], cosine, sine)
        samples[i] = (row + INNER) * LANES + column + INNER
    pixels = patch.reshape(-1)
    first, second = samples[:PAIRS], samples[PAIRS:]
    for j in range(PAIRS // 8):
        byte = np.uint8(0)
        for k in range(8):
            byte |= np.uint8(pixels[np.uint32(first[8 * j + k])] < pixels[np.uint32(second[8 * j + k])]) << np.uint8(k)
        descriptor[j] = byte


@host
def describe_level(pixels, count, x, y, angle, descriptors, wanted, tables, scratch):
    """CPU twin: directions and, if wanted, descriptors of `count` keypoints."""
    inside, across, turn, points_x, points_y = tables
    rows, patch, samples = scratch
    for i in range(count):
        along, down = moments(pixels, y[i], x[i], inside, across)
        angle[i] = direction(along, down)
        if wanted:
            cosine, sine = cosine_sine(angle[i], turn)
            blur_patch(pixels, y[i], x[i], rows, patch)
            compare(patch, points_x, points_y, cosine, sine, samples, descriptors[i])


@cuda_device
def sum_moments(patch, widths, sums, thread):
    """First moments of the disc in a square, into sums[:, 0]."""
    along, down = int32(0), int32(0)
    for i in range(thread, SIDE * SIDE, THREADS):
        y, x = i // SIDE - RADIUS, i % SIDE - RADIUS
        if abs(x) <= widths[abs(y)]:
            value = int32(patch[(y + REACH) * PATCH + x + REACH])
            along += int32(x * value)
            down += int32(y * value)
    sums[0, thread], sums[1, thread] = along, down
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            sums[0, thread] += sums[0, thread + half]
            sums[1, thread] += sums[1, thread + half]
        half //= 2


@cuda_device
def blur_square(patch, rows, smooth, thread):
    """Blur a square: rows first, then columns."""
    for i in range(thread, ROW_PIXELS, THREADS):
        at = i // SAMPLED * PATCH + i % SAMPLED
        a, b, c, d = float32(patch[at]), float32(patch[at + 1]), float32(patch[at + 2]), float32(patch[at + 3])
        rows[i] = blur_along(a, b, c, d, float32(patch[at + 4]), float32(patch[at + 5]), float32(patch[at + 6]))
    cuda.syncthreads()
    for i in range(thread, SAMPLED_PIXELS, THREADS):
        a, b, c, d = rows[i], rows[i + SAMPLED], rows[i + 2 * SAMPLED], rows[i + 3 * SAMPLED]
        smooth[i] = blur_down(a, b, c, d, rows[i + 4 * SAMPLED], rows[i + 5 * SAMPLED], rows[i + 6 * SAMPLED])
    cuda.syncthreads()


@device
def is_darker(smooth, points, at, cosine, sine):
    """One bit: whether the first point of the pair at `at` is darker than the second."""
    column, row = turned(float32(points[at]), float32(points[at + 1]), cosine, sine)
    first = smooth[(row + INNER) * SAMPLED + column + INNER]
    column, row = turned(float32(points[at + 2]), float32(points[at + 3]), cosine, sine)
    return first < smooth[(row + INNER) * SAMPLED + column + INNER]


@cuda_device
def write_bits(smooth, points, turn, bits, descriptors, at, thread):
    """The descriptor at the flat index `at`: two bits a thread, then a byte each of the first threads. `bits` is shared scratch."""
    first = 4 * BITS * thread
    value = int32(0)
    for i in range(BITS):
        if is_darker(smooth, points, first + 4 * i, turn[0], turn[1]):
            value |= 1 << i
    bits[thread] = value
    cuda.syncthreads()
    if thread < PAIRS // 8:
        byte = int32(0)
        for i in range(8 // BITS):
            byte |= bits[8 // BITS * thread + i] << (BITS * i)
        descriptors[at + thread] = byte


@kernel
def describe(starts, table, rows, source, pyramid, kept, kept_x, kept_y, angles, descriptors, wanted):
    """CUDA twin: one keypoint a block, its square in shared memory; a block goes on through the keypoints until there are none."""
    patch = cuda.shared.array(PATCH_PIXELS, uint8)
    blurred_rows = cuda.shared.array(ROW_PIXELS, float32)
    smooth = cuda.shared.array(SAMPLED_PIXELS, uint8)
    points = cuda.shared.array(COORDINATES, int8)
    sums = cuda.shared.array((2, THREADS), int32)
    bits = cuda.shared.array(THREADS, int32)
    turn = cuda.shared.array(2, float32)
    widths, pattern, turns = cuda.const.array_like(WIDTHS), cuda.const.array_like(POINTS), cuda.const.array_like(TURN)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    owner = find_image(starts, block)
    for i in range(thread, COORDINATES, THREADS):
        points[i] = pattern[i >> 2, i & 3]
    n, step = block - starts[owner], starts[owner + 1] - starts[owner]
    level, place = nth(n, kept, table[owner, KEPT], rows, owner, KEEP + SEGMENT, KEEP_RECORD)
    while level >= 0:
        record = LEVEL_ROW + RECORD * level
        width = int64(rows[owner, record + WIDTH])
        corner = level_base(table, rows, owner, record, level, PYRAMID)
        corner += (kept_y[table[owner, KEPT_Y] + place] - REACH) * width + kept_x[table[owner, KEPT_X] + place] - REACH
        for i in range(thread, PATCH_PIXELS, THREADS):
            patch[i] = level_pixel(source, pyramid, level, corner + i // PATCH * width + i % PATCH)
        cuda.syncthreads()
        sum_moments(patch, widths, sums, thread)
        if thread == 0:
            angle = direction(sums[0, 0], sums[1, 0])
            angles[table[owner, ANGLE] + place] = angle
            turn[0], turn[1] = cosine_sine(angle, turns)
        if wanted:
            blur_square(patch, blurred_rows, smooth, thread)
            write_bits(smooth, points, turn, bits, descriptors, table[owner, DESCRIPTORS] + PAIRS // 8 * place, thread)
        cuda.syncthreads()
        n += step
        level, place = nth(n, kept, table[owner, KEPT], rows, owner, KEEP + SEGMENT, KEEP_RECORD)


def describe_all(batch: CudaBatch, wanted: bool) -> None:
    """Queue the kernel over the grid `keypoint`."""
    arrays = batch.arrays
    kept = arrays["kept"], arrays["kept_x"], arrays["kept_y"], arrays["angle"], arrays["descriptors"]
    batch.launch(describe, "keypoint", THREADS, batch.ints, batch.source, arrays["pyramid"], *kept, wanted)


def describe_specs() -> Sequence[KernelSpec]:
    """The compile check's view of the kernel."""
    integers = "i4[::1]"
    head = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", "u1[::1]", "u1[::1]")
    return [KernelSpec(describe, (*head, integers, integers, integers, "f4[::1]", "u1[::1]", "b1"), THREADS)]
