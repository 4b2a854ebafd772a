"""Ranking of peaks: from a map of responses to keys sorted best first, with a total order and nothing dropped before it is ranked.

A key is (RESPONSE_BITS - bits of the float32 response) << 32 | (last pixel - pixel): ascending keys are descending responses, and of equal
responses the one further to the bottom right comes first, as in cv2.goodFeaturesToTrack (greaterThanPtr). Images have at most 2^32 pixels.
Peaks are visited from the last pixel to the first, so a stable radix sort of the upper half of the keys is enough.
CUDA: count, scan, write; then four radix passes of count, scan, scatter over chunks of keys. The launches are sized for every pixel being a
peak; blocks beyond the peaks that there are leave at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from numba import int32 as i4
from numba import int64 as i8

from cuda_ops.batch import FIRST, HEIGHT, WIDTH, CudaBatch
from cuda_ops.device import find_image, mul
from cuda_ops.jit import cuda_device, device, host, kernel
from cuda_ops.operator import ArraySpec, KernelSpec

RESPONSE_BITS = 0x7FFFFFFF  # above the bits of every positive float32

# Table columns of an operator that ranks peaks: what it returns, then the arrays of `ranking_scratch`.
X, Y, RESPONSE, FOUND, MAP, TOP, COUNTS, TOTAL, KEYS, DIGITS = range(FIRST, FIRST + 10)

THREADS = 256
PIXELS = 2048  # a block of the counting and writing kernels
RUN = PIXELS // THREADS
CHUNK = 1024  # keys a block of the sorting kernels
RADIX = 256
GROUP = 16  # THREADS = GROUP * GROUP


def ranking_scratch(height: int, width: int) -> dict[str, ArraySpec]:
    """Scratch of the ranking, in the order of the table columns from MAP on; the CPU twin uses `keys` only."""
    area = height * width
    return {
        "map": ArraySpec((area,), "float32"),
        "top": ArraySpec((1,), "float32", zero=True),
        "counts": ArraySpec((pixel_blocks(height, width, None),), "int32"),
        "total": ArraySpec((1,), "int32"),
        "keys": ArraySpec((2, area), "int64"),
        "digits": ArraySpec((chunk_blocks(height, width, None) * RADIX,), "int32"),
    }


def pixel_blocks(height: int, width: int, _params: Any) -> int:
    """Blocks of one image that count or write peaks."""
    return -(-height * width // PIXELS)


def chunk_blocks(height: int, width: int, _params: Any) -> int:
    """Blocks of one image that sort, should every pixel be a peak."""
    return -(-height * width // CHUNK)


@host
def radix_pass(source, target, count, shift, bits):
    """One stable counting pass over `bits` bits of the keys."""
    mask = (1 << bits) - 1
    starts = np.zeros(1 << bits, np.int64)
    for i in range(count):
        starts[(source[i] >> shift) & mask] += 1
    total = 0
    for digit in range(mask + 1):
        size = starts[digit]
        starts[digit] = total
        total += size
    for i in range(count):
        digit = (source[i] >> shift) & mask
        target[starts[digit]] = source[i]
        starts[digit] += 1


@host
def sort_keys(keys, count, floor):
    """Sort the peaks above the response bits `floor` out of keys[0, :count], which are in raster order; returns their number."""
    first, second = keys[0], keys[1]
    kept = 0
    for i in range(count - 1, -1, -1):
        if RESPONSE_BITS - (first[i] >> 32) > floor:
            second[kept] = first[i]
            kept += 1
    radix_pass(second, first, kept, 32, 11)
    radix_pass(first, second, kept, 43, 10)
    radix_pass(second, first, kept, 53, 10)
    return kept


@cuda_device
def block_scan(values, thread):
    """Turn THREADS shared int32 values into their inclusive sums: runs of GROUP, their totals, and the two together; three barriers."""
    cuda.syncthreads()
    if thread < GROUP:
        for i in range(thread * GROUP + 1, (thread + 1) * GROUP):
            values[i] += values[i - 1]
    cuda.syncthreads()
    before = 0
    for group in range(thread // GROUP):
        before += values[group * GROUP + GROUP - 1]
    cuda.syncthreads()
    values[thread] += before
    cuda.syncthreads()


@device
def run_of_pixels(starts, table, block, thread):
    """(image, first, last + 1): the run of this thread, counted from the last pixel of the image backwards."""
    image = find_image(starts, block)
    area = table[image, HEIGHT] * table[image, WIDTH]
    first = (block - starts[image]) * PIXELS + thread * RUN
    return image, first, min(first + RUN, area)


@kernel
def count_peaks(starts, table, floats, peaks, top, counts):
    """Peaks above quality * top per block of pixels; floats[image, 0] is the quality."""
    sums = cuda.shared.array(THREADS, i4)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    image, first, end = run_of_pixels(starts, table, block, thread)
    last = table[image, MAP] + table[image, HEIGHT] * table[image, WIDTH] - 1
    floor = mul(floats[image, 0], top[table[image, TOP]])
    count = 0
    for i in range(first, end):
        if peaks[last - i] > floor:
            count += 1
    sums[thread] = count
    block_scan(sums, thread)
    if thread == 0:
        counts[table[image, COUNTS] + block - starts[image]] = sums[THREADS - 1]


@kernel
def scan_counts(starts, table, counts, total, pixel_starts):
    """One block an image: counts to exclusive sums over the image's blocks (`pixel_starts` are theirs), and their total."""
    sums = cuda.shared.array(THREADS, i4)
    image, thread = cuda.blockIdx.x, cuda.threadIdx.x
    base = table[image, COUNTS]
    size = pixel_starts[image + 1] - pixel_starts[image]
    running = i4(0)
    for first in range(0, size, THREADS):
        own = i4(0)
        if first + thread < size:
            own = counts[base + first + thread]
        sums[thread] = own
        block_scan(sums, thread)
        if first + thread < size:
            counts[base + first + thread] = running + sums[thread] - own
        running += sums[THREADS - 1]
        cuda.syncthreads()
    if thread == 0:
        total[table[image, TOTAL]] = running


@kernel
def write_keys(starts, table, floats, peaks, bits, top, counts, keys):
    """The keys of the peaks above the floor, last pixel first; `bits` is the map of peaks seen as int32."""
    sums = cuda.shared.array(THREADS, i4)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    image, first, end = run_of_pixels(starts, table, block, thread)
    last = table[image, MAP] + table[image, HEIGHT] * table[image, WIDTH] - 1
    floor = mul(floats[image, 0], top[table[image, TOP]])
    count = 0
    for i in range(first, end):
        if peaks[last - i] > floor:
            count += 1
    sums[thread] = count
    block_scan(sums, thread)
    place = table[image, KEYS] + counts[table[image, COUNTS] + block - starts[image]] + sums[thread] - count
    for i in range(first, end):
        if peaks[last - i] > floor:
            keys[place] = (i8(RESPONSE_BITS - bits[last - i]) << 32) | i
            place += 1


@kernel
def count_digits(starts, table, keys, total, digits, shift, side):
    """How often each digit occurs in a chunk of keys."""
    bins = cuda.shared.array(RADIX, i4)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    image = find_image(starts, block)
    count = total[table[image, TOTAL]]
    chunk = block - starts[image]
    if chunk * CHUNK >= count:
        return
    bins[thread] = 0
    cuda.syncthreads()
    base = table[image, KEYS] + side * table[image, HEIGHT] * table[image, WIDTH]
    for i in range(chunk * CHUNK + thread, min((chunk + 1) * CHUNK, count), THREADS):
        cuda.atomic.add(bins, (keys[base + i] >> shift) & (RADIX - 1), 1)
    cuda.syncthreads()
    digits[table[image, DIGITS] + chunk * RADIX + thread] = bins[thread]


@kernel
def scan_digits(starts, table, total, digits):
    """One block an image: where the keys of each digit and chunk go; a thread walks the chunks of its digit."""
    sums = cuda.shared.array(RADIX, i4)
    image, thread = cuda.blockIdx.x, cuda.threadIdx.x
    chunks = (total[table[image, TOTAL]] + CHUNK - 1) // CHUNK
    base = table[image, DIGITS] + thread
    count = i4(0)
    for chunk in range(chunks):
        count += digits[base + chunk * RADIX]
    sums[thread] = count
    block_scan(sums, thread)
    place = sums[thread] - count
    for chunk in range(chunks):
        own = digits[base + chunk * RADIX]
        digits[base + chunk * RADIX] = place
        place += own


@kernel
def scatter_keys(starts, table, keys, total, digits, shift, side):
    """Move a chunk of keys to the other side; each digit's thread walks the chunk in order, which keeps the pass stable without atomics."""
    own_keys = cuda.shared.array(CHUNK, i8)
    own_digits = cuda.shared.array(CHUNK, i4)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    image = find_image(starts, block)
    count = total[table[image, TOTAL]]
    chunk = block - starts[image]
    if chunk * CHUNK >= count:
        return
    area = table[image, HEIGHT] * table[image, WIDTH]
    size = min(CHUNK, count - chunk * CHUNK)
    base = table[image, KEYS] + side * area + chunk * CHUNK
    for i in range(thread, size, THREADS):
        own_keys[i] = keys[base + i]
        own_digits[i] = (own_keys[i] >> shift) & (RADIX - 1)
    cuda.syncthreads()
    place = table[image, KEYS] + (1 - side) * area + digits[table[image, DIGITS] + chunk * RADIX + thread]
    for i in range(size):
        if own_digits[i] == thread:
            keys[place] = own_keys[i]
            place += 1


def rank_peaks(batch: CudaBatch) -> None:
    """Queue the ranking of `map`, whose per-image maximum is in `top`: sorted keys end in the first half of `keys`, their number in `total`."""
    arrays = batch.arrays
    peaks, top, counts, total, keys, digits = (arrays[name] for name in ranking_scratch(1, 1))
    batch.launch(count_peaks, "pixels", THREADS, batch.floats, peaks, top, counts)
    batch.launch(scan_counts, "image", THREADS, counts, total, batch.starts["pixels"])
    batch.launch(write_keys, "pixels", THREADS, batch.floats, peaks, peaks.view(np.int32), top, counts, keys)
    for turn in range(4):
        batch.launch(count_digits, "chunks", THREADS, keys, total, digits, 32 + 8 * turn, turn % 2)
        batch.launch(scan_digits, "image", THREADS, total, digits)
        batch.launch(scatter_keys, "chunks", THREADS, keys, total, digits, 32 + 8 * turn, turn % 2)


def kernel_specs() -> list[KernelSpec]:
    """The compile check's view of the kernels in this file."""
    tables = ("i8[::1]", "i8[:, ::1]")
    row, ints, keys = "f4[:, ::1]", "i4[::1]", "i8[::1]"
    return [
        KernelSpec(count_peaks, (*tables, row, "f4[::1]", "f4[::1]", ints), THREADS, moved=4.0, least=4.0),
        KernelSpec(scan_counts, (*tables, ints, ints, "i8[::1]"), THREADS),
        KernelSpec(write_keys, (*tables, row, "f4[::1]", ints, "f4[::1]", ints, keys), THREADS, moved=4.0, least=4.0),
        KernelSpec(count_digits, (*tables, keys, ints, ints, "i4", "i4"), THREADS),
        KernelSpec(scan_digits, (*tables, ints, ints), THREADS),
        KernelSpec(scatter_keys, (*tables, keys, ints, ints, "i4", "i4"), THREADS),
    ]
