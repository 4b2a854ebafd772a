"""Builders that make both twins of an operator from one description, where operators share a shape.

So far one shape: the separable pair, two responses A = rows `outer` x columns `smooth` and B = rows `smooth` x columns `outer` of a small
image window (`outer` differentiates), folded into one byte. Sobel, Scharr, Prewitt and the Laplacian are made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, uint8
from numba import int32 as i4
from numpy.typing import NDArray

from cuda_ops.batch import FIRST, HEIGHT, OFFSET, STRIDE, WIDTH, CpuImage, CudaBatch
from cuda_ops.device import REFLECT, border_index, find_image, reflect, rint
from cuda_ops.jit import device, host, kernel
from cuda_ops.operator import ArraySpec, KernelSpec, Layout, Result

Taps = tuple[int, ...]
L1, L2, X, Y, SUM = range(5)

TILE_WIDTH, TILE_HEIGHT, THREADS = 64, 16, 256


@device
def fold(a, b, mode):
    """Two responses to one byte: |a| + |b|, rint(sqrt(a^2 + b^2)), |a|, |b| or |a + b|, saturated at 255.

    For L2 both are first limited to 256, which saturates anyway: the squares then fit 32 bits, and the float32 root of an integer below
    2^18 is never close enough to a half to round the wrong way.
    """
    if mode == L1:
        return min(abs(a) + abs(b), 255)
    if mode == L2:
        p, q = min(abs(a), 256), min(abs(b), 256)
        return min(rint(math.sqrt(np.float32(p * p + q * q))), 255)
    if mode == X:
        return min(abs(a), 255)
    if mode == Y:
        return min(abs(b), 255)
    return min(abs(a + b), 255)


@host
def filter_columns(source, y, rows_smooth, rows_outer, smooth, outer, border):
    """Filter down the columns into two padded lines. Lane type = the lines' dtype, cast back at every step so that it stays narrow."""
    lane = rows_smooth.dtype.type
    height, width = source.shape
    radius = len(smooth) // 2
    row = source[border_index(y - radius, height, border)]
    for x in range(width):
        value = lane(row[x])
        rows_smooth[radius + x] = lane(lane(smooth[0]) * value)
        rows_outer[radius + x] = lane(lane(outer[0]) * value)
    for k in range(1, len(smooth)):
        row = source[border_index(y - radius + k, height, border)]
        a, b = lane(smooth[k]), lane(outer[k])
        for x in range(width):
            value = lane(row[x])
            rows_smooth[radius + x] = lane(rows_smooth[radius + x] + lane(a * value))
            rows_outer[radius + x] = lane(rows_outer[radius + x] + lane(b * value))
    for k in range(1, radius + 1):
        left = radius + border_index(-k, width, border)
        right = radius + border_index(width - 1 + k, width, border)
        rows_smooth[radius - k], rows_smooth[radius + width - 1 + k] = rows_smooth[left], rows_smooth[right]
        rows_outer[radius - k], rows_outer[radius + width - 1 + k] = rows_outer[left], rows_outer[right]


@host
def separable_pair(source, image, rows_smooth, rows_outer, smooth, outer, mode):
    """The CPU twin: row by row, vertical taps first; one loop per mode, for a branch inside would keep the compiler from vectorising."""
    lane = rows_smooth.dtype.type
    height, width = source.shape
    for y in range(height):
        filter_columns(source, y, rows_smooth, rows_outer, smooth, outer, REFLECT)
        line = image[y]
        if mode in (L1, SUM):
            for x in range(width):
                a, b = lane(0), lane(0)
                for k in range(len(smooth)):
                    a = lane(a + lane(lane(outer[k]) * rows_smooth[x + k]))
                    b = lane(b + lane(lane(smooth[k]) * rows_outer[x + k]))
                total = lane(abs(a) + abs(b)) if mode == L1 else lane(abs(lane(a + b)))
                line[x] = np.uint8(min(total, lane(255)))
        elif mode == X:
            for x in range(width):
                a = lane(0)
                for k in range(len(smooth)):
                    a = lane(a + lane(lane(outer[k]) * rows_smooth[x + k]))
                line[x] = np.uint8(min(lane(abs(a)), lane(255)))
        elif mode == Y:
            for x in range(width):
                b = lane(0)
                for k in range(len(smooth)):
                    b = lane(b + lane(lane(smooth[k]) * rows_outer[x + k]))
                line[x] = np.uint8(min(lane(abs(b)), lane(255)))
        else:
            for x in range(width):
                a, b = lane(0), lane(0)
                for k in range(len(smooth)):
                    a = lane(a + lane(lane(outer[k]) * rows_smooth[x + k]))
                    b = lane(b + lane(lane(smooth[k]) * rows_outer[x + k]))
                p, q = np.int32(min(lane(abs(a)), lane(256))), np.int32(min(lane(abs(b)), lane(256)))
                root = np.int32(np.rint(np.sqrt(np.float32(np.int32(p * p + q * q)))))
                line[x] = np.uint8(min(root, np.int32(255)))


def lane_type(smooth: Taps, outer: Taps) -> str:
    """int16 where no intermediate sum of 8-bit pixels can leave it, else int32."""
    weight = sum(map(abs, smooth)) * sum(map(abs, outer))
    return "int16" if 255 * weight <= 32767 else "int32"


def separable_layout(height: int, width: int, smooth: Taps, outer: Taps) -> Layout:
    """Output image, and the two padded lines of the CPU twin (the CUDA twin keeps them in shared memory)."""
    line = ArraySpec((width + len(smooth) - 1,), lane_type(smooth, outer))
    return Layout({"image": ArraySpec((height, width), "uint8")}, {"rows_smooth": line, "rows_outer": line})


def separable_cpu(image: CpuImage, smooth: Taps, outer: Taps, mode: int) -> None:
    """Run the CPU twin of a separable pair."""
    lines = image.arrays["rows_smooth"], image.arrays["rows_outer"]
    separable_pair(image.source, image.arrays["image"], *lines, smooth, outer, mode)


@cache
def separable_kernel(smooth: Taps, outer: Taps) -> Any:
    """The CUDA twin for these taps: one tile a block; pixels with halo, then both vertical responses, in shared memory."""
    taps = len(smooth)
    radius = taps // 2
    span = TILE_WIDTH + 2 * radius
    window = (TILE_HEIGHT + 2 * radius) * span
    lines = TILE_HEIGHT * span

    def pair(starts, table, source, image, mode):
        pixels = cuda.shared.array(window, uint8)
        smoothed = cuda.shared.array(lines, i4)
        differed = cuda.shared.array(lines, i4)
        block = cuda.blockIdx.x
        owner = find_image(starts, block)
        height, width = table[owner, HEIGHT], table[owner, WIDTH]
        stride = table[owner, STRIDE]
        tile = block - starts[owner]
        across = (width + TILE_WIDTH - 1) // TILE_WIDTH
        top = tile // across * TILE_HEIGHT
        left = (tile - tile // across * across) * TILE_WIDTH
        thread = cuda.threadIdx.x
        for i in range(thread, window, THREADS):
            y, x = top + i // span - radius, left + i % span - radius
            # Beyond the image and its border the tile has slack that no output reads.
            if y < height + radius and x < width + radius:
                pixels[i] = source[table[owner, OFFSET] + reflect(y, height) * stride + reflect(x, width)]
        cuda.syncthreads()
        for i in range(thread, lines, THREADS):
            a, b = i4(0), i4(0)
            for k in range(taps):
                value = i4(pixels[i + k * span])
                a += i4(smooth[k]) * value
                b += i4(outer[k]) * value
            smoothed[i] = a
            differed[i] = b
        cuda.syncthreads()
        for i in range(thread, TILE_HEIGHT * TILE_WIDTH, THREADS):
            row, column = i // TILE_WIDTH, i % TILE_WIDTH
            y, x = top + row, left + column
            if y < height and x < width:
                a, b = i4(0), i4(0)
                for k in range(taps):
                    a += i4(outer[k]) * smoothed[row * span + column + k]
                    b += i4(smooth[k]) * differed[row * span + column + k]
                image[table[owner, FIRST] + y * width + x] = fold(a, b, mode)

    pair.__name__ = pair.__qualname__ = f"separable_{'_'.join(map(str, smooth))}"
    return kernel(pair)


def separable_cuda(batch: CudaBatch, smooth: Taps, outer: Taps, mode: int) -> None:
    """Launch the CUDA twin of a separable pair over the `tile` grid."""
    batch.launch(separable_kernel(smooth, outer), "tile", THREADS, batch.source, batch.arrays["image"], mode)


def separable_blocks(height: int, width: int, _params: Any) -> int:
    """Tiles of one image."""
    return -(-height // TILE_HEIGHT) * -(-width // TILE_WIDTH)


def separable_specs(pairs: Sequence[tuple[Taps, Taps]]) -> Callable[[], Sequence[KernelSpec]]:
    """The compile check's view of the kernels for these taps."""

    def kernels() -> Sequence[KernelSpec]:
        types = ("i8[::1]", "i8[:, ::1]", "u1[::1]", "u1[::1]", "i4")
        halo = {len(s): (TILE_WIDTH + len(s) - 1) * (TILE_HEIGHT + len(s) - 1) / (TILE_WIDTH * TILE_HEIGHT) for s, _ in pairs}
        return [KernelSpec(separable_kernel(s, o), types, THREADS, moved=1 + halo[len(s)], least=2.0) for s, o in pairs]

    return kernels


def picture(arrays: Any, _params: Any, height: int, width: int) -> Result:
    """The result of an operator that returns an image."""
    return Result("image", height, width, {"image": arrays["image"]})


def reference_pair(image: NDArray[np.uint8], smooth: Taps, outer: Taps, mode: int) -> Result:
    """Both responses by plain 64-bit correlation over a REFLECT_101 border, folded."""
    radius = len(smooth) // 2
    height, width = image.shape
    rows = [_reflected(i, height) for i in range(-radius, height + radius)]
    columns = [_reflected(i, width) for i in range(-radius, width + radius)]
    padded = image.astype(np.int64)[np.ix_(rows, columns)]
    a = np.zeros(image.shape, dtype=np.int64)
    b = np.zeros(image.shape, dtype=np.int64)
    for dy in range(len(smooth)):
        for dx in range(len(smooth)):
            window = padded[dy : dy + height, dx : dx + width]
            a += smooth[dy] * outer[dx] * window
            b += outer[dy] * smooth[dx] * window
    folded = {L1: abs(a) + abs(b), L2: np.rint(np.sqrt(a * a + b * b)), X: abs(a), Y: abs(b), SUM: abs(a + b)}[mode]
    return Result("image", height, width, {"image": np.minimum(folded, 255).astype(np.uint8)})


def _reflected(index: int, size: int) -> int:
    """REFLECT_101 by its definition: the index runs back and forth between the ends."""
    if size == 1:
        return 0
    index %= 2 * (size - 1)
    return min(index, 2 * (size - 1) - index)
