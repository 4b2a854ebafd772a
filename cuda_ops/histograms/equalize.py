"""Histogram equalization of a grey image.

With counts c, first occupied level f and N pixels, level v > f becomes rint(s * (c[f + 1] + ... + c[v])), s = 255 / (N - c[f]), both in
float32, halves to even, limited to 255; levels up to f become 0. An image of one level stays as it is. No border, no parameters.
Exactness: equal to cv2.equalizeHist, 0 differing bytes. Cost: two reads and one write a pixel.
Source: cv2.equalizeHist (histogram.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import cuda as gpu
from numba import int32, uint8, uint32
from numpy.typing import NDArray

from cuda_ops.batch import FIRST, HEIGHT, OFFSET, WIDTH, CpuImage, CudaBatch
from cuda_ops.counting import (
    LEVELS,
    STRETCH,
    THREADS,
    count_cuda,
    count_levels,
    count_spec,
    flat,
    inclusive_sums,
    lanes_spec,
    stretches,
)
from cuda_ops.device import find_image, mul, rint
from cuda_ops.jit import device, host, kernel
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, Result, Sample, register
from cuda_ops.patterns import picture
from cuda_ops.samples import constant, every_image, noise

IMAGE, COUNTS, LEVEL_TABLE = range(FIRST, FIRST + 3)
PAIRS = LEVELS * LEVELS
PAIRS_FROM = 1 << 16  # pixels from which a table of pairs saves more than it costs
SCAN_THREADS = 64
SPAN = LEVELS // SCAN_THREADS


class EqualizeParams(Params):
    """`histograms/equalize` has no parameters."""


@device
def equalized(above, first, size):
    """The new level of a pixel: `above` pixels lie over the first occupied level and up to its own, `first` of `size` lie on that level."""
    scale = np.float32(255) / np.float32(size - first)
    return min(rint(mul(np.float32(above), scale)), 255)


def layout(height: int, width: int, _params: EqualizeParams) -> Layout:
    """Output image; counts and new levels; the CPU twin's lanes and its table of pairs."""
    return Layout(
        {"image": ArraySpec((height, width), "uint8")},
        {"counts": ArraySpec((LEVELS,), "int32", zero=True), "levels": ArraySpec((LEVELS,), "uint8")},
        {"lanes": lanes_spec(), "pair_levels": ArraySpec((PAIRS,), "uint16")},
    )


@host
def new_levels(counts, size, levels):
    """Fill levels uint8 [256]; returns False where one level holds every pixel, so that the image stays as it is."""
    first = 0
    while counts[first] == 0:
        first += 1
    levels[: first + 1] = 0
    if counts[first] == size:
        return False
    above = 0
    for level in range(first + 1, LEVELS):
        above += counts[level]
        levels[level] = equalized(above, counts[first], size)
    return True


@host
def map_levels(source, image, levels, pair_levels):
    """image = levels[source], by pairs of pixels where there are enough of them to make up for the table."""
    byte, pair = np.uint64(255), np.uint64(65535)
    words, mapped = source[: source.size // 8 * 8].view(np.uint64), image[: image.size // 8 * 8].view(np.uint64)
    if source.size < PAIRS_FROM:
        for i in range(words.size):
            word, result = words[i], np.uint64(0)
            for shift in range(0, 64, 8):
                result |= np.uint64(levels[(word >> np.uint64(shift)) & byte]) << np.uint64(shift)
            mapped[i] = result
    else:
        for high in range(LEVELS):
            row, upper = pair_levels[high * LEVELS : (high + 1) * LEVELS], np.uint16(np.uint16(levels[high]) << np.uint16(8))
            for low in range(LEVELS):
                row[low] = np.uint16(upper | np.uint16(levels[low]))
        for i in range(words.size):
            word = words[i]
            result = np.uint64(pair_levels[word & pair])
            result |= np.uint64(pair_levels[(word >> np.uint64(16)) & pair]) << np.uint64(16)
            result |= np.uint64(pair_levels[(word >> np.uint64(32)) & pair]) << np.uint64(32)
            mapped[i] = result | np.uint64(pair_levels[word >> np.uint64(48)]) << np.uint64(48)
    for i in range(words.size * 8, source.size):
        image[i] = levels[source[i]]


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    source, arrays = flat(image.source), image.arrays
    count_levels(source, arrays["lanes"], (arrays["counts"],))
    if new_levels(arrays["counts"], source.size, arrays["levels"]):
        map_levels(source, arrays["image"].reshape(-1), arrays["levels"], arrays["pair_levels"])
    else:
        arrays["image"][:] = image.source


@kernel
def scan_levels(starts, table, counts, levels):
    """One image a block, `SPAN` levels a thread: inclusive prefix sums over the threads in shared memory, then the new levels."""
    sums = gpu.shared.array(SCAN_THREADS, int32)
    first = gpu.shared.array(1, int32)
    owner = gpu.blockIdx.x
    thread = int32(gpu.threadIdx.x)
    size = int32(table[owner, HEIGHT] * table[owner, WIDTH])
    base = table[owner, COUNTS] + SPAN * thread
    own = int32(0)
    for k in range(SPAN):
        own += counts[base + k]
    sums[thread] = own
    inclusive_sums(sums, thread)
    running = sums[thread] - own
    if running == 0 and own > 0:
        k = 0
        while counts[base + k] == 0:
            k += 1
        first[0] = counts[base + k]
    gpu.syncthreads()
    for k in range(SPAN):
        running += counts[base + k]
        new = SPAN * thread + k
        if first[0] != size:
            new = equalized(max(running - first[0], 0), first[0], size)
        levels[table[owner, LEVEL_TABLE] + SPAN * thread + k] = new


@kernel
def map_stretches(starts, table, words, levels, image):
    """The levels of one stretch of pixels, four a 32-bit word; the last word may run into the padding behind the image."""
    lookup = gpu.shared.array(LEVELS, uint8)
    block = gpu.blockIdx.x
    owner = find_image(starts, block)
    first = (block - starts[owner]) * STRETCH
    size = int32(min(table[owner, HEIGHT] * table[owner, WIDTH] - first, STRETCH))
    thread = int32(gpu.threadIdx.x)
    for level in range(thread, LEVELS, THREADS):
        lookup[level] = levels[table[owner, LEVEL_TABLE] + level]
    gpu.syncthreads()
    read, write = (table[owner, OFFSET] + first) >> 2, (table[owner, IMAGE] + first) >> 2
    for i in range(thread, (size + 3) >> 2, THREADS):
        word, mapped = words[read + i], uint32(0)
        for k in range(4):
            mapped |= uint32(lookup[int32((word >> uint32(8 * k)) & uint32(255))]) << uint32(8 * k)
        image[write + i] = mapped


def cuda(batch: CudaBatch) -> None:
    """CUDA twin: counts, new levels, mapping; three launches."""
    arrays = batch.arrays
    count_cuda(batch, "counts")
    batch.launch(scan_levels, "image", SCAN_THREADS, arrays["counts"], arrays["levels"])
    batch.launch(map_stretches, "stretch", THREADS, batch.source.view(np.uint32), arrays["levels"], arrays["image"].view(np.uint32))


def kernels() -> Sequence[KernelSpec]:
    """The three kernels."""
    return [
        count_spec(),
        KernelSpec(scan_levels, ("i8[::1]", "i8[:, ::1]", "i4[::1]", "u1[::1]"), SCAN_THREADS),
        KernelSpec(map_stretches, ("i8[::1]", "i8[:, ::1]", "u4[::1]", "u1[::1]", "u4[::1]"), THREADS, moved=2.0, least=2.0),
    ]


def reference(image: NDArray[np.uint8], _params: EqualizeParams) -> Result:
    """The definition, level by level."""
    counts = np.bincount(image.ravel(), minlength=LEVELS)
    first = int(image.min())
    levels = np.arange(LEVELS)
    if counts[first] < image.size:
        scale = np.float32(255) / np.float32(image.size - counts[first])
        for level in range(LEVELS):
            above = np.float32(counts[first + 1 : level + 1].sum())
            levels[level] = min(int(np.rint(above * scale)), 255)
    return Result("image", image.shape[0], image.shape[1], {"image": levels.astype(np.uint8)[image]})


def oracle(image: NDArray[np.uint8], _params: EqualizeParams) -> Result:
    """cv2.equalizeHist."""
    import cv2

    return Result("image", image.shape[0], image.shape[1], {"image": np.asarray(cv2.equalizeHist(image), dtype=np.uint8)})


def samples() -> Sequence[Sample]:
    """Every image; few levels, one rare level, sizes around whole words and the table of pairs."""
    rare = constant(40, 50, 200)
    rare[-1, -1] = 3
    special = {
        "two levels": noise(16, 16) // 128 * 255,
        "narrow": noise(23, 31) // 32 + 100,
        "rare level": rare,
        "flat large": constant(300, 301, 77),
        "below pairs": noise(255, 257, 21),
        "from pairs": noise(256, 259, 22),
        "two stretches": noise(90, 92, 23),
    }
    return [*every_image(), *(Sample(name, image) for name, image in special.items())]


def errors() -> Sequence[ErrorSample]:
    """Any parameter is unknown."""
    return [ErrorSample("unknown parameter", {"clip_limit": 2.0}, "clip_limit")]


register(
    Operator(
        family="histograms",
        name="equalize",
        summary="Histogram equalization",
        description="Spreads the grey levels over 0..255 by their cumulative counts; an image of one level stays as it is.",
        params=EqualizeParams,
        kind="image",
        exactness="equal to cv2.equalizeHist: 0 differing bytes",
        cost="O(pixels), two passes",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=picture,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        blocks={"stretch": stretches},
        kernels=kernels,
    )
)
