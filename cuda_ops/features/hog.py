"""Histograms of oriented gradients of a grey image.

Definition: square roots of the pixels (`gamma`), differences [-1 0 1] with border REFLECT_101, magnitude and unsigned angle; each
pixel votes for the two nearest of `bins` orientations and, inside its block only, for the nearest cells, weighted by a Gaussian around the
block's center (sigma = block / 4). Blocks are normalized by L2-Hys (clip 0.2). The window is the largest one at the top left that whole
cells and strides fill; it is the whole picture: pixels beyond it are not looked at. Result: float32 [blocks_x, blocks_y, values], OpenCV's
order, blocks and cells column by column, bins fastest.
The weights are separable, so each row is summed once per block column and the rows once per block row; both twins add in the same order.
Exactness: within 1e-6 of OpenCV's HOGDescriptor, whose own order of additions depends on the machine. Cost: about six additions a pixel.
Source: N. Dalal and B. Triggs, CVPR 2005; cv2.HOGDescriptor (hog.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba import cuda as gpu
from numba import float32 as f4
from numba import uint8 as u1
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from cuda_ops.batch import FIRST, OFFSET, STRIDE, CpuImage, CudaBatch
from cuda_ops.device import add, find_image, mul, reflect
from cuda_ops.jit import host, kernel
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, Result, Sample, register
from cuda_ops.orientation import (
    CLIP,
    HALF,
    HALF_TURN,
    ONE,
    P1,
    P3,
    P5,
    P7,
    QUARTER,
    RADIANS,
    TENTH,
    THOUSANDTH,
    TINY,
    TURN,
    ZERO,
    level,
    normalize,
    vote,
)
from cuda_ops.samples import every_image

MOST_BLOCK, MOST_CELLS, MOST_BINS = 32, 4, 18
MOST_PIXELS, MOST_SUMS, MOST_VALUES = MOST_BLOCK**2, MOST_BLOCK * MOST_CELLS * MOST_BINS, MOST_CELLS**2 * MOST_BINS
SCALE = MOST_CELLS * MOST_BLOCK  # where the bins per radian stand behind the weights
THREADS = 128
CELLS, BLOCK, STEP, BINS, GAMMA, WINDOW_HEIGHT, WINDOW_WIDTH, BLOCKS_Y = range(8)


class HogParams(Params):
    """Parameters of `features/hog`."""

    cell: int = Field(8, ge=4, le=16, description="Side of a cell in pixels.")
    block: int = Field(16, ge=4, le=MOST_BLOCK, description="Side of a block in pixels: a multiple of cell, at most 4 cells.")
    stride: int = Field(8, ge=4, le=MOST_BLOCK, description="Distance of blocks in pixels: a multiple of cell.")
    bins: int = Field(9, ge=2, le=MOST_BINS, description="Number of orientations in half a turn.")
    gamma: bool = Field(True, description="Take the square root of the pixels first.")

    @field_validator("block")
    @classmethod
    def _whole_cells(cls, block: int, info: ValidationInfo) -> int:
        cell = info.data.get("cell", block)
        if block % cell or block > MOST_CELLS * cell:
            raise ValueError(f"block should be 1 to {MOST_CELLS} times cell ({cell}); it is {block}")
        return block

    @field_validator("stride")
    @classmethod
    def _whole_steps(cls, stride: int, info: ValidationInfo) -> int:
        cell = info.data.get("cell", stride)
        if stride % cell:
            raise ValueError(f"stride should be a multiple of cell ({cell}); it is {stride}")
        return stride


def blocks_along(side: int, params: HogParams) -> int:
    """Blocks along a side of that many pixels, at least 1 (the least size is checked before)."""
    return max(1, (side // params.cell * params.cell - params.block) // params.stride + 1)


def scalars(params: HogParams, height: int, width: int) -> tuple[Sequence[int], Sequence[float]]:
    """Sizes; per cell of a block row the weight of each pixel, Gaussian times nearness to the cell's center; bins per radian."""
    cells = params.block // params.cell
    blocks_y, blocks_x = blocks_along(height, params), blocks_along(width, params)
    window = [(blocks - 1) * params.stride + params.block for blocks in (blocks_y, blocks_x)]
    position = np.arange(params.block)
    spread = np.exp(-((position - params.block / 2) ** 2) / (2 * (params.block / 4) ** 2))
    nearness = (np.maximum(0, 1 - abs((position + 0.5) / params.cell - 0.5 - cell)) for cell in range(cells))
    weights = np.zeros(SCALE + 1, dtype=np.float32)  # rows of one length for every image of a batch
    weights[SCALE] = params.bins / math.pi
    weights[: cells * params.block] = np.concatenate([spread * near for near in nearness])
    return [cells, params.block, params.stride, params.bins, params.gamma, *window, blocks_y], weights.tolist()


def layout(height: int, width: int, params: HogParams) -> Layout:
    """The descriptor; for the CPU twin a row's votes and the sums of the last `block` rows."""
    cells = params.block // params.cell
    blocks_y, blocks_x = blocks_along(height, params), blocks_along(width, params)
    row = blocks_x * cells * params.bins
    return Layout(
        {"descriptor": ArraySpec((blocks_x, blocks_y, cells * cells * params.bins), "float32")},
        {
            "levels": ArraySpec((3, width + 2), "float32"),
            "votes": ArraySpec((2, width), "float32"),
            "bins": ArraySpec((2, width), "uint8"),
            "sums": ArraySpec((params.block, row), "float32"),
            "columns": ArraySpec((cells, row), "float32"),
        },
    )


@host
def _levels(row, out, width, gamma):
    """A row's levels from out[1] on, its border on both sides."""
    line = out[1 : width + 1]
    if gamma:
        for x in range(width):
            line[x] = np.sqrt(np.float32(row[x]))
    else:
        for x in range(width):
            line[x] = np.float32(row[x])
    out[0], out[width + 1] = out[1 + reflect(-1, width)], out[1 + reflect(width, width)]


@host
def _vote_row(above, here, below, width, scale, bins, votes, lower, upper):
    """Both votes of each pixel of a row."""
    first, second = votes[0], votes[1]
    left, right, above, below = here[0:width], here[2 : width + 2], above[1 : width + 1], below[1 : width + 1]
    for x in range(width):
        low, one, other = vote(right[x] - left[x], below[x] - above[x], scale, bins)
        first[x] = one
        second[x] = other
        lower[x] = np.uint8(low)
        upper[x] = np.uint8(0) if low + 1 == bins else np.uint8(low + 1)


@host
def _sum_row(votes, lower, upper, weights, cells, block, step, bins, sums):
    """Add a row's votes, weighted, to the cells of every block column."""
    sums[:] = np.float32(0)
    first, second = votes[0], votes[1]
    count = sums.shape[0] // (cells * bins)
    for column in range(count):
        for j in range(block):
            x = column * step + j
            low, high, one, other = lower[x], upper[x], first[x], second[x]
            for cell in range(cells):
                weight = weights[cell * block + j]
                if weight != 0:
                    base = (column * cells + cell) * bins
                    sums[base + low] += weight * one
                    sums[base + high] += weight * other


@host
def _block_row(sums, y, weights, cells, block, bins, columns, descriptor, index):
    """Sum the last `block` rows into the cells of a row of blocks, normalize, and store."""
    for cell in range(cells):
        line = columns[cell]
        line[:] = np.float32(0)
        for i in range(block):
            weight = weights[cell * block + i]
            if weight != 0:
                row = sums[(y + i) % block]
                for k in range(line.shape[0]):
                    line[k] += weight * row[k]
    values = descriptor.shape[2]
    for column in range(descriptor.shape[0]):
        out = descriptor[column, index]
        for cell_x in range(cells):
            for cell_y in range(cells):
                for b in range(bins):
                    out[(cell_x * cells + cell_y) * bins + b] = columns[cell_y, (column * cells + cell_x) * bins + b]
        total = np.float32(0)
        for k in range(values):
            total = add(total, mul(out[k], out[k]))
        scale = ONE / add(np.float32(math.sqrt(total)), mul(np.float32(values), TENTH))
        total = np.float32(0)
        for k in range(values):
            out[k] = min(mul(out[k], scale), CLIP)
            total = add(total, mul(out[k], out[k]))
        scale = ONE / add(np.float32(math.sqrt(total)), THOUSANDTH)
        for k in range(values):
            out[k] = mul(out[k], scale)


@host
def describe(source, ints, weights, levels, votes, bin_rows, sums, columns, descriptor):
    """The CPU twin: rows are voted and summed once, block rows follow as soon as their last row is there."""
    cells, block, step, bins, gamma = ints[CELLS], ints[BLOCK], ints[STEP], ints[BINS], ints[GAMMA]
    height, width, scale = ints[WINDOW_HEIGHT], ints[WINDOW_WIDTH], weights[SCALE]
    _levels(source[reflect(-1, height)], levels[2], width, gamma)
    _levels(source[0], levels[0], width, gamma)
    for y in range(height):
        _levels(source[reflect(y + 1, height)], levels[(y + 1) % 3], width, gamma)
        _vote_row(levels[(y + 2) % 3], levels[y % 3], levels[(y + 1) % 3], width, scale, bins, votes, bin_rows[0], bin_rows[1])
        _sum_row(votes, bin_rows[0], bin_rows[1], weights, cells, block, step, bins, sums[y % block])
        top = y + 1 - block
        if top >= 0 and top % step == 0:
            _block_row(sums, top, weights, cells, block, bins, columns, descriptor, top // step)


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    arrays = image.arrays
    scratch = arrays["levels"], arrays["votes"], arrays["bins"], arrays["sums"], arrays["columns"]
    describe(image.source, image.ints, image.floats, *scratch, arrays["descriptor"])


@kernel
def describe_blocks(starts, table, ints, weights, source, descriptor):
    """The CUDA twin: one CUDA block a HOG block; votes, row sums, cell sums and the normalization stay in shared memory."""
    first = gpu.shared.array(MOST_PIXELS, f4)
    second = gpu.shared.array(MOST_PIXELS, f4)
    lower = gpu.shared.array(MOST_PIXELS, u1)
    sums = gpu.shared.array(MOST_SUMS, f4)
    cell_sums = gpu.shared.array(MOST_VALUES, f4)
    owner = find_image(starts, gpu.blockIdx.x)
    number = gpu.blockIdx.x - starts[owner]
    cells, block, step, bins = ints[owner, CELLS], ints[owner, BLOCK], ints[owner, STEP], ints[owner, BINS]
    height, width, gamma = ints[owner, WINDOW_HEIGHT], ints[owner, WINDOW_WIDTH], ints[owner, GAMMA] != 0
    column = number // ints[owner, BLOCKS_Y]
    left, top = column * step, (number - column * ints[owner, BLOCKS_Y]) * step
    base, stride = table[owner, OFFSET], table[owner, STRIDE]
    scale = weights[owner, SCALE]
    thread = gpu.threadIdx.x
    for i in range(thread, block * block, THREADS):
        y, x = top + i // block, left + i % block
        row = base + y * stride
        dx = level(source[row + reflect(x + 1, width)], gamma) - level(source[row + reflect(x - 1, width)], gamma)
        below, above = base + reflect(y + 1, height) * stride + x, base + reflect(y - 1, height) * stride + x
        low, first[i], second[i] = vote(dx, level(source[below], gamma) - level(source[above], gamma), scale, bins)
        lower[i] = low
    for i in range(thread, block * cells * bins, THREADS):
        sums[i] = ZERO
    gpu.syncthreads()
    for i in range(thread, block * cells, THREADS):
        row, cell = i // cells, i % cells
        slot = i * bins
        for j in range(block):
            weight = weights[owner, cell * block + j]
            if weight != ZERO:
                pixel = row * block + j
                low = lower[pixel]
                high = 0 if low + 1 == bins else low + 1
                sums[slot + low] = add(sums[slot + low], mul(weight, first[pixel]))
                sums[slot + high] = add(sums[slot + high], mul(weight, second[pixel]))
    gpu.syncthreads()
    values = cells * cells * bins
    for i in range(thread, values, THREADS):
        cell_x, cell_y, b = i // (cells * bins), i // bins % cells, i % bins
        total = ZERO
        for j in range(block):
            weight = weights[owner, cell_y * block + j]
            if weight != ZERO:
                total = add(total, mul(weight, sums[(j * cells + cell_x) * bins + b]))
        cell_sums[i] = total
    gpu.syncthreads()
    normalize(cell_sums, values, descriptor, table[owner, FIRST] + number * values, thread)


def cuda(batch: CudaBatch) -> None:
    """CUDA twin: one launch."""
    batch.launch(describe_blocks, "block", THREADS, batch.ints, batch.floats, batch.source, batch.arrays["descriptor"])


def finish(arrays: Mapping[str, NDArray[Any]], _params: HogParams, height: int, width: int) -> Result:
    """The descriptor as it is."""
    return Result("descriptor", height, width, {"descriptor": arrays["descriptor"]})


def reference(image: NDArray[np.uint8], params: HogParams) -> Result:
    """The definition block by block, pixel by pixel, in float64 but for gradient and angle, whose float32 is part of it."""
    (cells, block, step, bins, gamma, height, width, blocks_y), _ = scalars(params, *image.shape)
    window = image[:height, :width].astype(np.float32)
    window = np.sqrt(window) if gamma else window
    padded = np.pad(window, 1, mode="reflect")
    dx, dy = padded[1:-1, 2:] - padded[1:-1, :-2], padded[2:, 1:-1] - padded[:-2, 1:-1]
    ratio = np.minimum(abs(dx), abs(dy)) / (np.maximum(abs(dx), abs(dy)) + TINY)
    angle = np.full_like(ratio, P7)
    for coefficient in (P5, P3, P1):  # each product and sum rounded once, together
        angle = ((ratio * ratio).astype(np.float64) * angle + coefficient).astype(np.float32)
    angle = angle * ratio
    angle = np.where(abs(dx) < abs(dy), QUARTER - angle, angle)
    angle = np.where(dx < 0, HALF_TURN - angle, angle)
    angle = np.where(dy < 0, TURN - angle, angle)
    magnitude, position = np.hypot(dx, dy).astype(np.float64), angle * RADIANS * np.float32(bins / math.pi) - HALF
    result = np.zeros((blocks_along(width, params), blocks_y, cells, cells, bins))
    for column, row in np.ndindex(result.shape[:2]):
        histogram = result[column, row]
        for i, j in np.ndindex(block, block):
            y, x = row * step + i, column * step + j
            low = math.floor(position[y, x])
            share = position[y, x] - low
            spread = math.exp(-((i - block / 2) ** 2 + (j - block / 2) ** 2) / (2 * (block / 4) ** 2))
            for cell_x, cell_y in np.ndindex(cells, cells):
                near_x = max(0.0, 1 - abs((j + 0.5) / params.cell - 0.5 - cell_x))
                near_y = max(0.0, 1 - abs((i + 0.5) / params.cell - 0.5 - cell_y))
                histogram[cell_x, cell_y, low % bins] += magnitude[y, x] * spread * near_x * near_y * (1 - share)
                histogram[cell_x, cell_y, (low + 1) % bins] += magnitude[y, x] * spread * near_x * near_y * share
        histogram /= np.sqrt((histogram**2).sum()) + 0.1 * histogram.size
        np.minimum(histogram, 0.2, out=histogram)
        histogram /= np.sqrt((histogram**2).sum()) + 1e-3
    return finish({"descriptor": result.reshape(*result.shape[:2], -1).astype(np.float32)}, params, *image.shape)


def oracle(image: NDArray[np.uint8], params: HogParams) -> Result:
    """cv2.HOGDescriptor over the window."""
    import cv2

    (_, block, step, bins, gamma, height, width, blocks_y), _ = scalars(params, *image.shape)
    sides = (width, height), (block, block), (step, step), (params.cell, params.cell)
    hog = cv2.HOGDescriptor(*sides, bins, 1, -1, 0, 0.2, bool(gamma), 64)
    found = np.asarray(hog.compute(np.ascontiguousarray(image[:height, :width])))
    return finish({"descriptor": found.reshape(blocks_along(width, params), blocks_y, -1)}, params, *image.shape)


def agrees(got: Result, expected: Result) -> str | None:
    """Within 1e-6."""
    a, b = got.arrays["descriptor"], expected.arrays["descriptor"]
    if a.shape != b.shape:
        return f"shape {a.shape} instead of {b.shape}"
    worst = float(abs(a - b).max())
    return None if worst <= 1e-6 else f"differs by {worst:.2e}"


def samples() -> Sequence[Sample]:
    """Every image at least a block large, cells and blocks of several sizes, with and without gamma."""
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"gamma": False, "bins": 18},
        {"cell": 4, "block": 16, "stride": 4, "bins": 6},
        {"cell": 4, "block": 4, "stride": 8},
        {"cell": 16, "block": 16, "stride": 16, "bins": 4},
        {"cell": 8, "block": 32, "stride": 8, "bins": 4, "gamma": False},
    )
    return every_image(*variants)


def errors() -> Sequence[ErrorSample]:
    """Sides that are no multiples, and images below a block."""
    return [
        ErrorSample("block is no multiple", {"block": 20}, "block"),
        ErrorSample("block of many cells", {"cell": 4, "block": 24, "stride": 4}, "block"),
        ErrorSample("stride is no multiple", {"stride": 12}, "stride"),
        ErrorSample("too many bins", {"bins": 19}, "bins"),
        ErrorSample("below a block", {}, None, (15, 40)),
    ]


def kernels() -> Sequence[KernelSpec]:
    """The compile check's view."""
    types = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", "f4[:, ::1]", "u1[::1]", "f4[::1]")
    return [KernelSpec(describe_blocks, types, THREADS)]


register(
    Operator(
        family="features",
        name="hog",
        summary="Histograms of oriented gradients",
        description="Block-normalized orientation histograms over the largest window of whole cells, in the layout of cv2.HOGDescriptor.",
        params=HogParams,
        kind="descriptor",
        exactness="within 1e-6 of cv2.HOGDescriptor; both twins equal",
        cost="O(pixels x overlap of blocks)",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=finish,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        blocks={"block": lambda height, width, params: blocks_along(height, params) * blocks_along(width, params)},
        scalars=scalars,
        min_size=lambda params: (params.block, params.block),
        agrees=agrees,
        kernels=kernels,
    )
)
