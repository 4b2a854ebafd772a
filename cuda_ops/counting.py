"""Counting grey levels, the first step of every histogram operator, on both twins.

CPU: eight pixels are read at a time and neighbours counted in different lanes, so that equal ones do not wait for each other's store.
CUDA: each block counts its stretch of pixels in shared memory, in several interleaved copies and with runs of equal pixels as one
addition, so that flat areas do not queue on one counter.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, int32, uint32
from numpy.typing import NDArray

from cuda_ops.batch import FIRST, HEIGHT, OFFSET, WIDTH, CudaBatch
from cuda_ops.device import find_image
from cuda_ops.jit import cuda_device, host, kernel
from cuda_ops.operator import ArraySpec, KernelSpec

LEVELS = 256
THREADS = 128
WORDS = 16  # 32-bit words, so 64 pixels, a thread
STRETCH = 4 * WORDS * THREADS  # pixels a block


def lanes_spec(channels: int = 1) -> ArraySpec:
    """What the CPU twin counts in: four sets of counters."""
    return ArraySpec((4 * channels * LEVELS,), "int32")


def flat(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """All bytes of a contiguous image in a row, at an address that 64-bit loads like (a copy in the rare case that it is not)."""
    line = image.reshape(-1)
    return line if line.ctypes.data % 8 == 0 else line.copy()


@host
def count_levels(pixels, lanes, counts):
    """Add the levels of uint8 [n], interleaved channels, to `counts`, one int32 [256] a channel; `lanes` is scratch of `lanes_spec`.

    As many words as there are channels are read at a time, so that every byte of them has a fixed lane.
    """
    one, byte = np.int32(1), np.uint64(255)
    channels = len(counts)
    lanes[:] = 0
    words = pixels[: pixels.size // (8 * channels) * (8 * channels)].view(np.uint64)
    for i in range(0, words.size, channels):
        for j in range(channels):
            word = words[i + j]
            for k in range(8):
                lane = (8 * j + k) % (4 * channels)
                lanes[np.uint64(LEVELS * lane) + ((word >> np.uint64(8 * k)) & byte)] += one
    for lane in range(4 * channels):
        for level in range(LEVELS):
            counts[lane % channels][level] += lanes[LEVELS * lane + level]
    for i in range(words.size * 8, pixels.size):
        counts[i % channels][pixels[i]] += one


@host
def count_span(pixels, words, first, end, lanes):
    """Add pixels[first:end] to the four lanes; `words` are the same pixels as 64-bit words."""
    one, byte = np.int32(1), np.uint64(255)
    begin, stop = (first + 7) >> 3, end >> 3
    if stop <= begin:
        for i in range(first, end):
            lanes[pixels[i]] += one
        return
    for i in range(first, 8 * begin):
        lanes[pixels[i]] += one
    for i in range(begin, stop):
        word = words[i]
        for k in range(8):
            lanes[np.uint64(LEVELS * (k % 4)) + ((word >> np.uint64(8 * k)) & byte)] += one
    for i in range(8 * stop, end):
        lanes[pixels[i]] += one


@cuda_device
def inclusive_sums(values, thread):
    """Turn the shared values, one a thread, into their inclusive prefix sums."""
    cuda.syncthreads()
    step = 1
    while step < values.shape[0]:
        before = values[thread - step] if thread >= step else int32(0)
        cuda.syncthreads()
        values[thread] += before
        cuda.syncthreads()
        step <<= 1


def stretches(height: int, width: int, params: Any) -> int:
    """CUDA blocks that count one image, in color where the parameters have `channels` rgb."""
    return -(-height * width * (3 if getattr(params, "channels", "grey") == "rgb" else 1) // STRETCH)


@cache
def count_kernel(channels: int = 1) -> Any:
    """The CUDA twin for interleaved channels: adds the levels of each image to its counts int32 [channels, 256], in table column `column`.

    `words` is the batch's source as uint32. Copy c of a counter lies next to copy c + 1, so that copies differ in their memory bank.
    """
    copies = 8 if channels == 1 else 4
    counters = channels * LEVELS * copies

    def count(starts, table, words, counts, column):
        levels = cuda.shared.array(counters, int32)
        block = cuda.blockIdx.x
        owner = find_image(starts, block)
        first = (block - starts[owner]) * STRETCH
        size = int32(min(table[owner, HEIGHT] * table[owner, WIDTH] * channels - first, STRETCH))
        base = (table[owner, OFFSET] + first) >> 2
        phase = int32(first % channels)
        thread = int32(cuda.threadIdx.x)
        copy = thread & (copies - 1)
        for i in range(thread, counters, THREADS):
            levels[i] = 0
        cuda.syncthreads()
        last, run = int32(0), int32(0)
        for i in range(thread, (size + 3) >> 2, THREADS):
            word = words[base + i]
            for k in range(4):
                if 4 * i + k < size:
                    level = int32((word >> uint32(8 * k)) & uint32(255))
                    if channels > 1:
                        level += LEVELS * ((phase + 4 * i + k) % channels)
                    if level == last:
                        run += 1
                    else:
                        cuda.atomic.add(levels, last * copies + copy, run)
                        last, run = level, int32(1)
        cuda.atomic.add(levels, last * copies + copy, run)
        cuda.syncthreads()
        for level in range(thread, channels * LEVELS, THREADS):
            total = int32(0)
            for k in range(copies):
                total += levels[level * copies + ((k + (level >> 2)) & (copies - 1))]
            if total:
                cuda.atomic.add(counts, table[owner, column] + level, total)

    count.__name__ = count.__qualname__ = f"count_{channels}"
    return kernel(count)


def count_cuda(batch: CudaBatch, name: str, channels: int = 1) -> None:
    """Launch the CUDA twin over the `stretch` grid, into the batch's zeroed array `name`."""
    column = FIRST + list(batch.arrays).index(name)
    batch.launch(count_kernel(channels), "stretch", THREADS, batch.source.view(np.uint32), batch.arrays[name], column)


def count_spec(channels: int = 1) -> KernelSpec:
    """The compile check's view of the count."""
    return KernelSpec(count_kernel(channels), ("i8[::1]", "i8[:, ::1]", "u4[::1]", "i4[::1]", "i4"), THREADS, channels, channels)
