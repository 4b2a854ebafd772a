"""Canny edges of a grey image.

Definition: Sobel gradients (border REPLICATE; aperture 7 divides them and the thresholds by 16), magnitude |dx| + |dy| or dx^2 + dy^2, zero
outside the image; non-maximum suppression in four sectors with tan 22.5 degrees = 13573 / 2^15; candidates above `low` survive where
8-connected to one above `high`. Thresholds are swapped if reversed, squared for the L2 norm and floored; comparisons are strict. There is
no smoothing inside.
Exactness: equal to OpenCV, 0 differing bytes. Cost: one pass for gradients and suppression, then work in proportion to the candidates.
Source: J. Canny, PAMI 8(6), 1986; cv2.Canny (canny.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
from numba import cuda as gpu
from numba import int16 as i2
from numba import int32 as i4
from numba import uint8 as u1
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops import hysteresis
from cuda_ops.batch import FIRST, HEIGHT, OFFSET, STRIDE, WIDTH, CpuImage, CudaBatch
from cuda_ops.device import REPLICATE, find_image, replicate
from cuda_ops.edges.sobel import TAPS
from cuda_ops.hysteresis import GUARD, STRONG, THREADS, TILE_HEIGHT, TILE_PIXELS, TILE_WIDTH, WEAK
from cuda_ops.jit import device, host, kernel
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, Result, Sample, register
from cuda_ops.patterns import filter_columns
from cuda_ops.samples import every_image

TAN_22 = 13573  # tan(22.5 degrees) in Q15
MASK, STATE, LABELS = range(FIRST, FIRST + 3)


class CannyParams(Params):
    """Parameters of `edges/canny`."""

    low: float = Field(100, ge=0, le=1_000_000, description="Candidates have a gradient magnitude above this; floored.")
    high: float = Field(200, ge=0, le=1_000_000, description="Edges start where the magnitude is above this; swapped with low if smaller.")
    aperture: Literal[3, 5, 7] = Field(3, description="Side of the Sobel aperture in pixels.")
    l2_gradient: bool = Field(False, description="Magnitude as the Euclidean norm instead of |dx| + |dy|.")


def scalars(params: CannyParams, _height: int, _width: int) -> tuple[Sequence[int], Sequence[float]]:
    """The integer thresholds that magnitudes are compared with: (low, high)."""
    thresholds = sorted((params.low, params.high))
    if params.aperture == 7:
        thresholds = [value / 16 for value in thresholds]
    if params.l2_gradient:
        thresholds = [min(value, 32767.0) ** 2 for value in thresholds]
    return [math.floor(value) for value in thresholds], ()


def layout(height: int, width: int, params: CannyParams) -> Layout:
    """Mask; then a state per pixel (CPU: with a ring of zeros, see `hysteresis`), labels or stack, and the CPU twin's lines."""
    taps = params.aperture
    line = ArraySpec((width + taps - 1,), "int32" if taps == 7 else "int16")
    index = "int32" if (height + 2) * hysteresis.state_stride(width) < 2**31 else "int64"
    return Layout(
        {"mask": ArraySpec((height, width), "uint8", bits=True)},
        {
            "state": ArraySpec((height + 2, hysteresis.state_stride(width)), "uint8"),
            "labels": ArraySpec((height * width,), index),
            "rows_smooth": line,
            "rows_outer": line,
            "gradients": ArraySpec((4, width), "int16"),
            "magnitudes": ArraySpec((3, width + 2), "int32", zero=True),
        },
    )


@device
def sixteenth(value):
    """value / 16, halves to even: what a Sobel with scale 1/16 stores in 16 bits."""
    rest = value & 15
    quotient = value >> 4
    if rest > 8 or (rest == 8 and quotient & 1):
        quotient += 1
    return quotient


@host
def _gradient_row(source, y, lines, taps, dx, dy, magnitude, l2):
    """Both derivatives and the magnitude of row y; magnitude[0] and [width + 1] stay 0."""
    rows_smooth, rows_outer = lines
    smooth, outer = taps
    lane = rows_smooth.dtype.type
    filter_columns(source, y, rows_smooth, rows_outer, smooth, outer, REPLICATE)
    width = source.shape[1]
    for x in range(width):
        a, b = lane(0), lane(0)
        for k in range(len(smooth)):
            a = lane(a + lane(lane(outer[k]) * rows_smooth[x + k]))
            b = lane(b + lane(lane(smooth[k]) * rows_outer[x + k]))
        if len(smooth) == 7:
            a, b = lane(sixteenth(a)), lane(sixteenth(b))
        dx[x] = np.int16(a)
        dy[x] = np.int16(b)
    if l2:
        for x in range(width):
            a, b = np.int32(dx[x]), np.int32(dy[x])
            magnitude[x + 1] = np.int32(np.int32(a * a) + np.int32(b * b))
    else:
        for x in range(width):
            magnitude[x + 1] = np.int32(abs(np.int32(dx[x]))) + np.int32(abs(np.int32(dy[x])))


@host
def _suppress_row(dx, dy, above, here, below, low, high, state):
    """Non-maximum suppression of one row in 32-bit lanes: every comparison is made, bits select; a branch would cost more than it saves."""
    width = dx.shape[0]
    left, centre, right = here[0:width], here[1 : width + 1], here[2 : width + 2]
    above_left, above_centre, above_right = above[0:width], above[1 : width + 1], above[2 : width + 2]
    below_left, below_centre, below_right = below[0:width], below[1 : width + 1], below[2 : width + 2]
    for x in range(width):
        a, b, m = np.int32(dx[x]), np.int32(dy[x]), centre[x]
        opposite = np.int32(np.int32(a ^ b) >> 31)
        a, b = np.int32(abs(a)), np.int32(abs(b))
        y, t = np.int32(b << 15), np.int32(a * np.int32(TAN_22))
        first = np.int32((above_right[x] & opposite) | (above_left[x] & ~opposite))
        second = np.int32((below_left[x] & opposite) | (below_right[x] & ~opposite))
        along_x = np.uint8(m > left[x]) & np.uint8(m >= right[x])
        along_y = np.uint8(m > above_centre[x]) & np.uint8(m >= below_centre[x])
        across = np.uint8(m > first) & np.uint8(m > second)
        flat, steep = np.uint8(y < t), np.uint8(y > np.int32(t + np.int32(a << 16)))
        keep = np.uint8((flat & along_x) | (steep & along_y) | ((np.uint8(1) ^ flat ^ steep) & across)) & np.uint8(m > low)
        state[x] = np.uint8(keep + np.uint8(keep & np.uint8(m > high)))


@host
def canny(source, state, lines, taps, gradients, magnitudes, low, high, l2, stack):
    """Gradients and suppression, row by row behind each other; returns the number of strong pixels put on `stack`."""
    height, width = source.shape
    low, high = np.int32(low), np.int32(high)
    state[0, :] = 0
    state[height + 1, :] = 0
    state[:, :GUARD] = 0
    state[:, GUARD + width :] = 0
    depth = 0
    for y in range(height + 1):
        if y < height:
            _gradient_row(source, y, lines, taps, gradients[2 * (y & 1)], gradients[2 * (y & 1) + 1], magnitudes[y % 3], l2)
        else:
            magnitudes[y % 3, :] = 0
        if y > 0:
            row = y - 1
            dx, dy = gradients[2 * (row & 1)], gradients[2 * (row & 1) + 1]
            _suppress_row(
                dx, dy, magnitudes[(row + 2) % 3], magnitudes[row % 3], magnitudes[y % 3], low, high, state[row + 1, GUARD : GUARD + width]
            )
            depth = hysteresis.push_strong(state, row + 1, stack, depth)
    return depth


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    arrays, low, high = image.arrays, int(image.ints[0]), int(image.ints[1])
    lines = arrays["rows_smooth"], arrays["rows_outer"]
    taps = TAPS[image.params.aperture]
    l2 = image.params.l2_gradient
    depth = canny(image.source, arrays["state"], lines, taps, arrays["gradients"], arrays["magnitudes"], low, high, l2, arrays["labels"])
    hysteresis.flood(arrays["state"], arrays["labels"], depth, arrays["mask"])


@device
def sector_keeps(dx, dy, magnitudes, centre, span):
    """True where a pixel of a magnitude tile (row length `span`) is a maximum along its gradient."""
    a, b = abs(dx), abs(dy)
    m = magnitudes[centre]
    y, t = b << 15, a * TAN_22
    if y < t:
        return m > magnitudes[centre - 1] and m >= magnitudes[centre + 1]
    if y > t + (a << 16):
        return m > magnitudes[centre - span] and m >= magnitudes[centre + span]
    side = -1 if (dx ^ dy) < 0 else 1
    return m > magnitudes[centre - span - side] and m > magnitudes[centre + span + side]


@cache
def suppress_tiles(aperture: int) -> Any:
    """The CUDA kernel for an aperture: one tile a block, from pixels to states and tile-local labels without leaving shared memory."""
    smooth, outer = TAPS[aperture]
    radius = aperture // 2
    span, deep = TILE_WIDTH + 2, TILE_HEIGHT + 2  # the tile and the ring that suppression looks at
    across_pixels, down_pixels = span + 2 * radius, deep + 2 * radius
    window, line_size, ring = across_pixels * down_pixels, across_pixels * deep, span * deep

    def suppress(starts, table, ints, source, state, labels, l2):
        pixels = gpu.shared.array(window, u1)
        smoothed = gpu.shared.array(line_size, i4)
        differed = gpu.shared.array(line_size, i4)
        magnitudes = gpu.shared.array(ring, i4)
        gradients = gpu.shared.array((ring, 2), i2)
        tile_state = gpu.shared.array(TILE_PIXELS, u1)
        block = gpu.blockIdx.x
        owner = find_image(starts, block)
        height, width = table[owner, HEIGHT], table[owner, WIDTH]
        tile = block - starts[owner]
        across = (width + TILE_WIDTH - 1) // TILE_WIDTH
        top = tile // across * TILE_HEIGHT
        left = (tile - tile // across * across) * TILE_WIDTH
        thread = gpu.threadIdx.x
        for i in range(thread, window, THREADS):
            y = replicate(top + i // across_pixels - radius - 1, height)
            x = replicate(left + i % across_pixels - radius - 1, width)
            pixels[i] = source[table[owner, OFFSET] + y * table[owner, STRIDE] + x]
        gpu.syncthreads()
        for i in range(thread, line_size, THREADS):
            a, b = i4(0), i4(0)
            for k in range(aperture):
                value = i4(pixels[i + k * across_pixels])
                a += i4(smooth[k]) * value
                b += i4(outer[k]) * value
            smoothed[i] = a
            differed[i] = b
        gpu.syncthreads()
        for i in range(thread, ring, THREADS):
            row, column = i // span, i % span
            a, b = i4(0), i4(0)
            for k in range(aperture):
                a += i4(outer[k]) * smoothed[row * across_pixels + column + k]
                b += i4(smooth[k]) * differed[row * across_pixels + column + k]
            if aperture == 7:
                a, b = sixteenth(a), sixteenth(b)
            gradients[i, 0] = a
            gradients[i, 1] = b
            y, x = top + row - 1, left + column - 1
            magnitudes[i] = 0
            if 0 <= y < height and 0 <= x < width:
                magnitudes[i] = a * a + b * b if l2 else abs(a) + abs(b)
        gpu.syncthreads()
        for i in range(thread, TILE_PIXELS, THREADS):
            row, column = i // TILE_WIDTH, i % TILE_WIDTH
            centre = (row + 1) * span + column + 1
            level = 0
            inside = top + row < height and left + column < width
            dx, dy = i4(gradients[centre, 0]), i4(gradients[centre, 1])
            if inside and magnitudes[centre] > ints[owner, 0] and sector_keeps(dx, dy, magnitudes, centre, span):
                level = STRONG if magnitudes[centre] > ints[owner, 1] else WEAK
            tile_state[i] = level
        gpu.syncthreads()
        # `smoothed` is free again: its first words hold the tile's labels.
        hysteresis.label_tile(tile_state, smoothed, thread)
        first_state, first_label = table[owner, STATE], table[owner, LABELS]
        hysteresis.store_tile(tile_state, smoothed, state, labels, first_state, first_label, top, left, height, width, thread)

    suppress.__name__ = suppress.__qualname__ = f"canny_suppress_{aperture}"
    return kernel(suppress)


def cuda(batch: CudaBatch) -> None:
    """CUDA twin: suppression with tile labels, merging, marking, mask; four launches."""
    arrays = batch.arrays
    state, labels = arrays["state"], arrays["labels"]
    suppress = suppress_tiles(batch.params.aperture)
    batch.launch(suppress, "tile", THREADS, batch.ints, batch.source, state, labels, batch.params.l2_gradient)
    batch.launch(hysteresis.merge_tiles, "tile", hysteresis.BORDER_THREADS, state, labels, STATE, LABELS)
    batch.launch(hysteresis.mark_roots, "flat", hysteresis.FLAT_THREADS, state, labels, STATE, LABELS)
    batch.launch(hysteresis.keep_marked, "flat", hysteresis.FLAT_THREADS, state, labels, arrays["mask"], STATE, LABELS, MASK)


def finish(arrays: Mapping[str, NDArray[Any]], _params: CannyParams, height: int, width: int) -> Result:
    """Packed mask with its number and share of edge pixels."""
    edges = int(np.bitwise_count(arrays["mask"]).sum())
    return Result("mask", height, width, {"mask": arrays["mask"]}, {"edge_pixels": edges, "density": round(edges / (height * width), 6)})


def reference(image: NDArray[np.uint8], params: CannyParams) -> Result:
    """The definition, pixel by pixel."""
    smooth, outer = TAPS[params.aperture]
    radius, (height, width) = params.aperture // 2, image.shape
    padded = np.pad(image.astype(np.int64), radius, mode="edge")
    dx, dy = np.zeros(image.shape, np.int64), np.zeros(image.shape, np.int64)
    for j in range(params.aperture):
        for i in range(params.aperture):
            window = padded[j : j + height, i : i + width]
            dx += smooth[j] * outer[i] * window
            dy += outer[j] * smooth[i] * window
    if params.aperture == 7:
        dx, dy = np.rint(dx / 16).astype(np.int64), np.rint(dy / 16).astype(np.int64)
    (low, high), _ = scalars(params, height, width)
    magnitude = np.pad(dx * dx + dy * dy if params.l2_gradient else abs(dx) + abs(dy), 1)
    state = np.zeros((height + 2, width + 2), np.int64)
    for y, x in zip(*np.nonzero(magnitude[1:-1, 1:-1] > low), strict=True):
        gx, gy, m = int(dx[y, x]), int(dy[y, x]), magnitude[y + 1, x + 1]
        tangent = abs(gx) * TAN_22
        if abs(gy) << 15 < tangent:
            keep = m > magnitude[y + 1, x] and m >= magnitude[y + 1, x + 2]
        elif abs(gy) << 15 > tangent + (abs(gx) << 16):
            keep = m > magnitude[y, x + 1] and m >= magnitude[y + 2, x + 1]
        else:
            side = -1 if (gx ^ gy) < 0 else 1
            keep = m > magnitude[y, x + 1 - side] and m > magnitude[y + 2, x + 1 + side]
        state[y + 1, x + 1] = (2 if m > high else 1) if keep else 0
    seeds = list(zip(*np.nonzero(state == 2), strict=True))
    while seeds:
        y, x = seeds.pop()
        for j in (y - 1, y, y + 1):
            for i in (x - 1, x, x + 1):
                if state[j, i] == 1:
                    state[j, i] = 2
                    seeds.append((j, i))
    return finish({"mask": np.packbits(state[1:-1, 1:-1] == 2, axis=1)}, params, height, width)


def oracle(image: NDArray[np.uint8], params: CannyParams) -> Result:
    """cv2.Canny."""
    import cv2

    mask = cv2.Canny(image, params.low, params.high, apertureSize=params.aperture, L2gradient=params.l2_gradient)
    return finish({"mask": np.packbits(np.asarray(mask, dtype=np.uint8), axis=1)}, params, image.shape[0], image.shape[1])


def samples() -> Sequence[Sample]:
    """Every image, every aperture and norm, with thresholds that are low, reversed, fractional and out of reach."""
    thresholds: tuple[dict[str, float], ...] = (
        {},
        {"low": 10.7, "high": 30.2},
        {"low": 300, "high": 50},
        {"low": 0, "high": 0},
        {"low": 40_000, "high": 90_000},
    )
    scale = {3: 1, 5: 8, 7: 100}
    variants: list[dict[str, Any]] = []
    for index, aperture in enumerate((3, 5, 7, 3, 5, 7, 3, 3)):
        chosen = {name: value * scale[aperture] for name, value in thresholds[index % len(thresholds)].items()}
        variants.append({**chosen, "aperture": aperture, "l2_gradient": index % 2 == 1})
    return every_image(*variants)


def errors() -> Sequence[ErrorSample]:
    """Even aperture, negative threshold, threshold that is no number."""
    return [
        ErrorSample("even aperture", {"aperture": 4}, "aperture"),
        ErrorSample("negative threshold", {"low": -1}, "low"),
        ErrorSample("not a number", {"high": "nan"}, "high"),
    ]


def kernels() -> Sequence[KernelSpec]:
    """The compile check's view."""
    types = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", "u1[::1]", "u1[::1]", "i4[::1]", "b1")
    suppress = [KernelSpec(suppress_tiles(aperture), types, THREADS, moved=2.6, least=2.0) for aperture in (3, 5, 7)]
    return [*suppress, *hysteresis.kernel_specs()]


register(
    Operator(
        family="edges",
        name="canny",
        summary="Canny edge mask",
        description="Edges one pixel wide: Sobel gradients, non-maximum suppression and hysteresis between two thresholds; no smoothing.",
        params=CannyParams,
        kind="mask",
        exactness="equal to cv2.Canny: 0 differing bytes",
        cost="O(pixels x aperture), then O(candidates)",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=finish,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        structural=("aperture", "l2_gradient"),
        blocks={"tile": hysteresis.tile_blocks, "flat": hysteresis.flat_blocks},
        scalars=scalars,
        kernels=kernels,
    )
)
