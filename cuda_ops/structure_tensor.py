"""Corner responses from the structure tensor: box sums of the products of Sobel gradients, then the Harris or the smallest-eigenvalue rule.

Gradients (border REFLECT_101) and their sums over block_size x block_size pixels (anchor block_size // 2; outside the image the products of
the reflected pixel) are exact integers: int32 where they fit, else integers of at most 46 bits in float64 (CPU) or int64 (CUDA). The
determinant a c - b^2 is exact too, and rounded to float32 once; where the sums reach 2^26 it is summed from three exact 24-bit digits, each
rounded on both twins alike. The few float32 steps behind it are unfused. OpenCV's scale, 1 / (2^(ksize - 1) block_size 255) a gradient, is
applied last.
Harris: det - k trace^2. Smallest eigenvalue: 2 det / (trace + sqrt((a - c)^2 + 4 b^2)), which does not cancel and is 0 on a straight edge.
A peak is a positive response that none of its 8 neighbours exceeds (plateaus keep all their pixels), off the outermost ring of the image.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, uint8
from numba import int16 as i2
from numba import int32 as i4
from numba import int64 as i8

from cuda_ops.batch import HEIGHT, OFFSET, STRIDE, WIDTH, CudaBatch
from cuda_ops.device import add, find_image, mul, reflect
from cuda_ops.edges.sobel import TAPS
from cuda_ops.jit import cuda_device, device, kernel
from cuda_ops.operator import KernelSpec
from cuda_ops.ranking import MAP, TOP

HARRIS, EIGENVALUE = 0, 1
DIGIT = 24  # bits of a digit of a large sum


def steepest(ksize: int) -> int:
    """The largest gradient of 8-bit pixels."""
    smooth, outer = TAPS[ksize]
    return 255 * sum(smooth) * sum(tap for tap in outer if tap > 0)


def large_sums(ksize: int, block_size: int) -> bool:
    """True where sums of products reach 2^26, so that their products need not be exact in float64."""
    return steepest(ksize) ** 2 * block_size**2 >= 1 << 26


def scale(ksize: int, block_size: int, power: int) -> float:
    """What OpenCV's scaled gradients make of a response of that power of a gradient; the scale of one gradient is rounded to float32."""
    return float(np.float32(1 / (2 ** (ksize - 1) * block_size * 255))) ** power


@device
def harris(determinant, trace, k, factor):
    """det - k trace^2 in float32, scaled."""
    return mul(add(determinant, -mul(k, mul(trace, trace))), factor)


@device
def eigenvalue(determinant, trace, difference, twice_b, factor):
    """The smaller eigenvalue in float32, scaled; 0 for a zero matrix, whose sums are integers."""
    root = np.float32(math.sqrt(add(mul(difference, difference), mul(twice_b, twice_b))))
    return mul(np.float32(add(determinant, determinant) / max(add(trace, root), np.float32(1))), factor)


@device
def digits_to_float(high, middle, low):
    """high 2^48 + middle 2^24 + low as float32; the lower two are below 2^24."""
    return add(mul(np.float32(high), np.float32(1 << 2 * DIGIT)), add(mul(np.float32(middle), np.float32(1 << DIGIT)), np.float32(low)))


REGION_WIDTH, REGION_HEIGHT = 64, 40  # gradients of a tile, halo included
THREADS = 256
STRIPS = THREADS // REGION_WIDTH


def tile_blocks(height: int, width: int, params: Any) -> int:
    """Tiles of one image: what the region leaves after the box sums and the ring of neighbours."""
    lost: int = params.block_size + 1
    return -(-height // (REGION_HEIGHT - lost)) * -(-width // (REGION_WIDTH - lost))


@device
def exact_determinant(a, b, c, large):
    """a c - b^2 of int64 sums, rounded to float32 as the CPU twin does."""
    if not large:
        return np.float32(a * c - b * b)
    mask = (1 << DIGIT) - 1
    a1, b1, c1 = a >> DIGIT, b >> DIGIT, c >> DIGIT
    a0, b0, c0 = a & mask, b & mask, c & mask
    low = a0 * c0 - b0 * b0
    middle = a1 * c0 + a0 * c1 - 2 * b1 * b0 + (low >> DIGIT)
    high = a1 * c1 - b1 * b1 + (middle >> DIGIT)
    return digits_to_float(high, middle & mask, low & mask)


@cuda_device
def load_region(source, pixels, table, image, thread, top, left, ahead, span):
    """The pixels of a region with its halo, REFLECT_101 at the border; beyond that the region has slack that no response reads."""
    height, width = table[image, HEIGHT], table[image, WIDTH]
    for i in range(thread, pixels.shape[0], THREADS):
        y, x = top + i // span, left + i % span
        if y < height + ahead and x < width + ahead:
            pixels[i] = source[table[image, OFFSET] + reflect(y, height) * table[image, STRIDE] + reflect(x, width)]


@cuda_device
def gradient_tile(pixels, dx, dy, smooth, outer, thread, top_row, left, height, width, pad, ahead):
    """Both gradients of a region of pixels with its halo; outside the image those of the reflected pixel."""
    span = REGION_WIDTH + len(smooth) - 1
    for i in range(thread, REGION_HEIGHT * REGION_WIDTH, THREADS):
        y, x = top_row + i // REGION_WIDTH, left + i % REGION_WIDTH
        if -pad <= y < height + ahead and -pad <= x < width + ahead:
            # Outside the image the gradient of the reflected pixel counts.
            corner = (reflect(y, height) - top_row) * span + reflect(x, width) - left
            a, b = i4(0), i4(0)
            for j in range(len(smooth)):
                smoothed, differed = i4(0), i4(0)
                for m in range(len(smooth)):
                    value = i4(pixels[corner + j * span + m])
                    smoothed += i4(smooth[m]) * value
                    differed += i4(outer[m]) * value
                a += i4(smooth[j]) * differed
                b += i4(outer[j]) * smoothed
            dx[i] = a
            dy[i] = b


@cuda_device
def largest_first(largest, thread):
    """Move the largest of THREADS values to the front; every thread of the block must call it."""
    half = THREADS // 2
    while half > 0:
        if thread < half:
            largest[thread] = max(largest[thread], largest[thread + half])
        cuda.syncthreads()
        half //= 2


@cuda_device
def store_peaks(responses, found, origin, thread, top, left, tile_height, tile_width, height, width):
    """Write a tile's responses where they are peaks, 0 elsewhere and on the image's outermost ring."""
    for i in range(thread, tile_height * tile_width, THREADS):
        row = i // tile_width
        place = (row + 1) * REGION_WIDTH + i - row * tile_width + 1
        y, x = top + row, left + i - row * tile_width
        if y < height and x < width:
            value = float32(0)
            if 0 < y < height - 1 and 0 < x < width - 1:
                value = peak(responses, place)
            found[origin + y * width + x] = value


@cache
def peak_tiles(ksize: int) -> Any:
    """The CUDA kernel for an aperture: one tile a block, from pixels to peaks and the image's largest response in shared memory."""
    smooth, outer = TAPS[ksize]
    taps = len(smooth)
    radius = taps // 2
    span = REGION_WIDTH + 2 * radius
    window = (REGION_HEIGHT + 2 * radius) * span
    region = REGION_HEIGHT * REGION_WIDTH
    lane = i2 if ksize < 7 else i4
    sum_type = i4 if ksize <= 3 else i8

    def peaks(starts, table, ints, floats, source, found, top, rule):
        pixels = cuda.shared.array(window, uint8)
        dx = cuda.shared.array(region, lane)
        dy = cuda.shared.array(region, lane)
        responses = cuda.shared.array(region, float32)
        largest = cuda.shared.array(THREADS, float32)
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        image = find_image(starts, block)
        height, width = table[image, HEIGHT], table[image, WIDTH]
        size, large = ints[image, 0], ints[image, 1]
        pad, ahead = size // 2, size - 1 - size // 2
        tile_height, tile_width = REGION_HEIGHT - size - 1, REGION_WIDTH - size - 1
        across = (width + tile_width - 1) // tile_width
        tile = block - starts[image]
        # The region starts a ring of neighbours and a box's overhang before the tile.
        top_row = tile // across * tile_height - 1 - pad
        left = (tile - tile // across * across) * tile_width - 1 - pad
        load_region(source, pixels, table, image, thread, top_row - radius, left - radius, ahead + radius, span)
        cuda.syncthreads()
        gradient_tile(pixels, dx, dy, smooth, outer, thread, top_row, left, height, width, pad, ahead)
        cuda.syncthreads()
        best = float32(0)
        rows = REGION_HEIGHT - size + 1
        share = (rows + STRIPS - 1) // STRIPS
        column, strip = thread % REGION_WIDTH, thread // REGION_WIDTH
        x = left + pad + column
        if column < REGION_WIDTH - size + 1 and 0 <= x < width:
            xx, xy, yy = sum_type(0), sum_type(0), sum_type(0)
            first = strip * share
            # Slide down the strip: a row of products enters, another leaves.
            for row in range(max(first, -(top_row + pad)), min(first + share, rows, height - top_row - pad)):
                begin = row + size - 1
                if row == max(first, -(top_row + pad)):
                    begin = row
                for line in range(begin, row + size):
                    for m in range(line * REGION_WIDTH + column, line * REGION_WIDTH + column + size):
                        p, q = sum_type(dx[m]), sum_type(dy[m])
                        xx += p * p
                        xy += p * q
                        yy += q * q
                a, b, c = i8(xx), i8(xy), i8(yy)
                determinant = exact_determinant(a, b, c, large)
                if rule == HARRIS:
                    value = harris(determinant, float32(a + c), floats[image, 1], floats[image, 2])
                else:
                    value = eigenvalue(determinant, float32(a + c), float32(a - c), float32(b + b), floats[image, 2])
                responses[row * REGION_WIDTH + column] = value
                best = max(best, value)
                for m in range(row * REGION_WIDTH + column, row * REGION_WIDTH + column + size):
                    p, q = sum_type(dx[m]), sum_type(dy[m])
                    xx -= p * p
                    xy -= p * q
                    yy -= q * q
        largest[thread] = best
        cuda.syncthreads()
        largest_first(largest, thread)
        if thread == 0:
            cuda.atomic.max(top, table[image, TOP], largest[0])
        origin = table[image, MAP]
        store_peaks(responses, found, origin, thread, top_row + 1 + pad, left + 1 + pad, tile_height, tile_width, height, width)

    peaks.__name__ = peaks.__qualname__ = f"structure_tensor_peaks_{ksize}"
    return kernel(peaks)


@device
def peak(responses, place):
    """The response at a place of a tile, 0 where a neighbour's is larger or it is not positive."""
    value = responses[place]
    for line in range(place - REGION_WIDTH, place + REGION_WIDTH + 1, REGION_WIDTH):
        if responses[line - 1] > value or responses[line] > value or responses[line + 1] > value:
            return np.float32(0)
    return max(value, np.float32(0))


def peaks_cuda(batch: CudaBatch, rule: int) -> None:
    """Queue the CUDA twin over the `tile` grid: `map` of peaks and `top`. `ints` rows start with (block size, large sums), `floats` rows
    with (quality, k, factor)."""
    arrays = batch.arrays
    batch.launch(
        peak_tiles(batch.params.ksize), "tile", THREADS, batch.ints, batch.floats, batch.source, arrays["map"], arrays["top"], rule
    )


def kernel_specs() -> list[KernelSpec]:
    """The compile check's view of the kernels in this file."""
    types = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", "f4[:, ::1]", "u1[::1]", "f4[::1]", "f4[::1]", "i4")
    halo = REGION_WIDTH * REGION_HEIGHT / ((REGION_WIDTH - 3) * (REGION_HEIGHT - 3))
    return [KernelSpec(peak_tiles(ksize), types, THREADS, moved=4 + halo, least=5.0) for ksize in TAPS]
