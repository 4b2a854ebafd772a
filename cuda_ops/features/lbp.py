"""Local binary patterns of a grey image, as the histogram of their codes.

Bit i of a pixel's code is 1 where the sample at angle 2 pi i / points on the circle of `radius` around it is at least the pixel itself.
Samples are bilinear; their offsets are rounded to 5 decimals and pixels outside the image are 0. `default` counts the codes 0 to
2^points - 1; `uniform` counts the ones of a code with at most two changes between neighboring bits (the last and the first are no
neighbors), and all other codes as points + 1.
Rule for ties: samples are compared exactly, in integers (weights in units of 10^-10). scikit-image compares in float64, where a sample
that equals the pixel may come out a rounding error below it, by the pixel's position; here it is equal, so the bit is 1.
Exactness: codes equal to skimage.feature.local_binary_pattern but for those ties. Cost: points x 4 reads a pixel.
Source: T. Ojala et al., PAMI 24(7), 2002; scikit-image (_texture.pyx).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numba import cuda as gpu
from numba import int32, uint8
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from cuda_ops.batch import FIRST, HEIGHT, OFFSET, WIDTH, CpuImage, CudaBatch
from cuda_ops.device import find_image
from cuda_ops.jit import device, host, kernel
from cuda_ops.level_statistics import statistics
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, Result, Sample, register
from cuda_ops.samples import every_image, images, noise, smooth, squares

UNIT = 100_000  # offsets have five decimals
MOST_POINTS, MOST_RADIUS, MOST_DEFAULT_POINTS = 24, 16, 16

POINTS, UNIFORM, MARGIN, SAMPLES = range(4)  # columns of the int32 row; from SAMPLES on row, column, and their fractions per sample

TILE_WIDTH, TILE_HEIGHT, THREADS = 64, 32, 128
WINDOW = (TILE_WIDTH + 2 * MOST_RADIUS + 3) * (TILE_HEIGHT + 2 * MOST_RADIUS + 3)
COUNTERS = 1024  # in shared memory; more codes than that are counted in global memory


class LbpParams(Params):
    """Parameters of `features/lbp`."""

    points: int = Field(8, ge=1, le=MOST_POINTS, description="Samples on the circle; at most 16 for the method default.")
    radius: float = Field(1.0, ge=0.1, le=MOST_RADIUS, description="Radius of the circle in pixels.")
    method: Literal["uniform", "default"] = Field(
        "uniform", description="Rotation invariant uniform codes (points + 2 bins), or all codes (2^points bins)."
    )

    @field_validator("method")
    @classmethod
    def _bounded(cls, method: str, info: ValidationInfo) -> str:
        if method == "default" and info.data.get("points", 0) > MOST_DEFAULT_POINTS:
            raise ValueError(f"default has 2^points bins and takes at most {MOST_DEFAULT_POINTS} points; use uniform")
        return method


def bins(params: LbpParams) -> int:
    """Number of codes."""
    return params.points + 2 if params.method == "uniform" else 1 << params.points


def margin(params: LbpParams) -> int:
    """Pixels that samples reach beyond the image."""
    return math.ceil(params.radius) + 1


def offsets(params: LbpParams) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column offsets of the samples in units of 10^-5 pixels, rounded as scikit-image does from a float32 radius."""
    angles = 2 * np.pi * np.arange(params.points, dtype=np.float64) / params.points
    radius = float(np.float32(params.radius))
    rows, columns = np.round(-radius * np.sin(angles), 5), np.round(radius * np.cos(angles), 5)
    return np.rint(rows * UNIT).astype(np.int64), np.rint(columns * UNIT).astype(np.int64)


def scalars(params: LbpParams, _height: int, _width: int) -> tuple[Sequence[int], Sequence[float]]:
    """Points, method, margin, and per sample whole row, whole column and their fractions."""
    samples = np.zeros((MOST_POINTS, 4), dtype=np.int64)
    for axis, distance in enumerate(offsets(params)):
        samples[: params.points, axis] = distance // UNIT
        samples[: params.points, 2 + axis] = distance % UNIT
    return [params.points, int(params.method == "uniform"), margin(params), *samples.ravel().tolist()], ()


def layout(height: int, width: int, params: LbpParams) -> Layout:
    """Counts per code; for the CPU twin the image with its margin of zeros, a line of codes, and four lanes of counters where few."""
    border = 2 * margin(params)
    return Layout(
        {"counts": ArraySpec((bins(params),), "int32", zero=True)},
        cpu={
            "padded": ArraySpec((height + border, width + border), "uint8"),
            "line": ArraySpec((width,), "int32"),
            "lanes": ArraySpec((4 if bins(params) <= COUNTERS else 1, bins(params)), "int32", zero=True),
        },
    )


@device
def towards(near, far, fraction, centre):
    """One step of the interpolation, less the center, in units of 10^-5 grey levels; kept in 32 bits, where twice as many lanes fit."""
    step = np.int32(np.int32(near * np.int32(UNIT - fraction)) + np.int32(far * np.int32(fraction)))
    return np.int32(step - np.int32(centre * np.int32(UNIT)))


@device
def at_least(upper, lower, fraction):
    """1 where the second step, in units of 10^-10 grey levels, does not come out below the center."""
    return np.int32(np.int64(upper) * np.int64(UNIT - fraction) + np.int64(lower) * np.int64(fraction) >= 0)


@device
def ones(bits):
    """Number of set bits of an int32."""
    pairs = np.int32(bits - np.int32(np.int32(bits >> np.int32(1)) & np.int32(0x55555555)))
    fours = np.int32(np.int32(pairs & np.int32(0x33333333)) + np.int32(np.int32(pairs >> np.int32(2)) & np.int32(0x33333333)))
    eights = np.int32(np.int32(fours + np.int32(fours >> np.int32(4))) & np.int32(0x0F0F0F0F))
    halves = np.int32(eights + np.int32(eights >> np.int32(8)))
    return np.int32(np.int32(halves + np.int32(halves >> np.int32(16))) & np.int32(63))


@device
def uniform(code, points):
    """The number of ones where at most two neighboring bits differ, else points + 1."""
    changes = ones(np.int32(np.int32(code ^ np.int32(code >> np.int32(1))) & np.int32((1 << (points - 1)) - 1)))
    return ones(code) if changes <= 2 else np.int32(points + 1)


@host
def _add_sample(centres, upper, lower, x_fraction, y_fraction, bit, line):
    """Set bit `bit` of the codes of a line; `upper` and `lower` are the padded rows around the sample, from its left column on."""
    if x_fraction == 0 and y_fraction == 0:
        for x in range(line.size):
            line[x] |= np.int32(np.int32(upper[x] >= centres[x]) << bit)
    else:
        for x in range(line.size):
            centre = np.int32(centres[x])
            a = towards(np.int32(upper[x]), np.int32(upper[x + 1]), x_fraction, centre)
            b = towards(np.int32(lower[x]), np.int32(lower[x + 1]), x_fraction, centre)
            line[x] |= np.int32(at_least(a, b, y_fraction) << bit)


@host
def local_patterns(source, ints, padded, line, lanes, counts):
    """The CPU twin: row by row, sample by sample, then the codes of the row are counted in turn in the lanes."""
    height, width = source.shape
    border, points = ints[MARGIN], ints[POINTS]
    padded[:] = 0
    padded[border : border + height, border : border + width] = source
    for y in range(height):
        line[:] = 0
        for i in range(points):
            row, column, y_fraction, x_fraction = ints[SAMPLES + 4 * i : SAMPLES + 4 * i + 4]
            upper = padded[border + y + row, border + column :]
            lower = padded[border + y + row + 1, border + column :]
            _add_sample(source[y], upper, lower, x_fraction, y_fraction, np.int32(i), line)
        if ints[UNIFORM]:
            for x in range(width):
                line[x] = uniform(line[x], points)
        for x in range(width):
            lanes[x & (lanes.shape[0] - 1), line[x]] += np.int32(1)
    for lane in range(lanes.shape[0]):
        counts += lanes[lane]


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    arrays = image.arrays
    local_patterns(image.source, image.ints, arrays["padded"], arrays["line"], arrays["lanes"], arrays["counts"])


@kernel
def count_patterns(starts, table, ints, source, counts):
    """One tile a block, with its margin in shared memory; few codes are counted there too, in as many copies as fit."""
    window = gpu.shared.array(WINDOW, uint8)
    counters = gpu.shared.array(COUNTERS, int32)
    block = gpu.blockIdx.x
    owner = find_image(starts, block)
    height, width = table[owner, HEIGHT], table[owner, WIDTH]
    tile = block - starts[owner]
    across = (width + TILE_WIDTH - 1) // TILE_WIDTH
    top, left = tile // across * TILE_HEIGHT, tile % across * TILE_WIDTH
    points, border = ints[owner, POINTS], ints[owner, MARGIN]
    codes = points + 2 if ints[owner, UNIFORM] else int32(1) << points
    copies = int32(32)
    while codes * copies > COUNTERS:
        copies >>= 1
    span = int32(TILE_WIDTH + 2 * border)
    thread = int32(gpu.threadIdx.x)
    for i in range(thread, COUNTERS, THREADS):
        counters[i] = 0
    for i in range(thread, span * (TILE_HEIGHT + 2 * border), THREADS):
        y, x = top + i // span - border, left + i % span - border
        inside = 0 <= y < height and 0 <= x < width
        window[i] = source[table[owner, OFFSET] + y * width + x] if inside else uint8(0)
    gpu.syncthreads()
    for i in range(thread, TILE_WIDTH * TILE_HEIGHT, THREADS):
        row, column = i // TILE_WIDTH, i % TILE_WIDTH
        if top + row < height and left + column < width:
            here = int32((row + border) * span + column + border)
            centre, code = int32(window[here]), int32(0)
            for k in range(points):
                sample = SAMPLES + 4 * k
                there = int32(here + ints[owner, sample] * span + ints[owner, sample + 1])
                y_fraction, x_fraction = ints[owner, sample + 2], ints[owner, sample + 3]
                a = towards(int32(window[there]), int32(window[there + 1]), x_fraction, centre)
                b = towards(int32(window[there + span]), int32(window[there + span + 1]), x_fraction, centre)
                code |= at_least(a, b, y_fraction) << k
            if ints[owner, UNIFORM]:
                code = uniform(code, points)
            if copies > 0:
                gpu.atomic.add(counters, code * copies + (thread & (copies - 1)), 1)
            else:
                gpu.atomic.add(counts, table[owner, FIRST] + code, 1)
    gpu.syncthreads()
    if copies > 0:
        for code in range(thread, codes, THREADS):
            total = int32(0)
            for k in range(copies):
                total += counters[code * copies + ((k + code) & (copies - 1))]
            if total > 0:
                gpu.atomic.add(counts, table[owner, FIRST] + code, total)


def cuda(batch: CudaBatch) -> None:
    """CUDA twin, one launch."""
    batch.launch(count_patterns, "tile", THREADS, batch.ints, batch.source, batch.arrays["counts"])


def kernels() -> Sequence[KernelSpec]:
    """The only kernel; its halo is that of the default radius."""
    types = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", "u1[::1]", "i4[::1]")
    halo = (TILE_WIDTH + 4) * (TILE_HEIGHT + 4) / (TILE_WIDTH * TILE_HEIGHT)
    return [KernelSpec(count_patterns, types, THREADS, moved=halo, least=1.0)]


def blocks(height: int, width: int, _params: LbpParams) -> int:
    """Tiles of one image."""
    return -(-height // TILE_HEIGHT) * -(-width // TILE_WIDTH)


def finish(arrays: Mapping[str, NDArray[Any]], _params: LbpParams, height: int, width: int) -> Result:
    """The counts and the statistics of the codes."""
    counts = arrays["counts"].astype(np.int64)
    return Result("histogram", height, width, {"lbp": counts}, {"bins": counts.size, "statistics": {"lbp": statistics(counts)}})


def exact_codes(image: NDArray[np.uint8], params: LbpParams) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The codes by the definition, and where a sample is so near the pixel that float64 cannot tell."""
    height, width = image.shape
    border = margin(params)
    padded = np.pad(image, border).astype(np.int64)
    codes, near = np.zeros(image.shape, dtype=np.int64), np.zeros(image.shape, dtype=bool)
    previous, changes, total = None, np.zeros(image.shape, dtype=np.int64), np.zeros(image.shape, dtype=np.int64)
    for i, (y, x) in enumerate(zip(*offsets(params), strict=True)):
        difference = -(UNIT**2) * image.astype(np.int64)
        for dy in (0, 1):
            for dx in (0, 1):
                weight = (y % UNIT if dy else UNIT - y % UNIT) * (x % UNIT if dx else UNIT - x % UNIT)
                top, left = border + y // UNIT + dy, border + x // UNIT + dx
                difference += weight * padded[top : top + height, left : left + width]
        bit = (difference >= 0).astype(np.int64)
        near |= (abs(difference) < 100) & (y % UNIT + x % UNIT > 0)
        codes += bit << i
        total += bit
        changes += 0 if previous is None else abs(bit - previous)
        previous = bit
    return (np.where(changes <= 2, total, params.points + 1) if params.method == "uniform" else codes), near


def reference(image: NDArray[np.uint8], params: LbpParams) -> Result:
    """The definition in 64-bit integers, four weighted pixels a sample."""
    counts = np.bincount(exact_codes(image, params)[0].ravel(), minlength=bins(params))
    return finish({"counts": counts}, params, *image.shape)


def oracle(image: NDArray[np.uint8], params: LbpParams) -> Result:
    """skimage.feature.local_binary_pattern, and the rule for ties where float64 cannot tell."""
    codes, near = exact_codes(image, params)
    codes = np.where(near, codes, rival(image, params)).astype(np.int64)
    return finish({"counts": np.bincount(codes.ravel(), minlength=bins(params))}, params, *image.shape)


def rival(image: NDArray[np.uint8], params: LbpParams) -> NDArray[Any]:
    """skimage.feature.local_binary_pattern alone."""
    from skimage.feature import local_binary_pattern

    return np.asarray(local_binary_pattern(image, params.points, params.radius, params.method))


def samples() -> Sequence[Sample]:
    """Every image, circles of few and many points, large and broken radii, more codes than shared memory holds."""
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"method": "default"},
        {"points": 24, "radius": 3},
        {"points": 16, "radius": 2.5, "method": "default"},
        {"points": 1, "radius": 0.1},
        {"points": 5, "radius": 16, "method": "default"},
        {"points": 12, "radius": 1.5},
        {"points": 10, "radius": 2, "method": "default"},
    )
    tiny = [
        Sample("simulated", image, params, simulate=True)
        for image, params in zip((images()["1x1"], squares(6, 13), noise(9, 5), smooth(4, 9)), variants, strict=False)
    ]
    return [*every_image(*variants), *tiny, Sample("wide tile", smooth(3, 67), {"radius": 16}, simulate=True)]


def errors() -> Sequence[ErrorSample]:
    """Too many points, too many codes, no radius, too large a radius, an unknown method."""
    return [
        ErrorSample("no points", {"points": 0}, "points"),
        ErrorSample("too many points", {"points": 25}, "points"),
        ErrorSample("too many codes", {"points": 17, "method": "default"}, "method"),
        ErrorSample("no radius", {"radius": 0}, "radius"),
        ErrorSample("too large a radius", {"radius": 17}, "radius"),
        ErrorSample("unknown method", {"method": "ror"}, "method"),
    ]


register(
    Operator(
        family="features",
        name="lbp",
        summary="Histogram of local binary patterns",
        description="Compares samples on a circle with its center, bit by bit, and counts the codes.",
        params=LbpParams,
        kind="histogram",
        exactness="codes equal to skimage.feature.local_binary_pattern; a sample equal to its center counts as at least the center",
        cost="O(pixels x points), one pass",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=finish,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        blocks={"tile": blocks},
        scalars=scalars,
        rival=rival,
        kernels=kernels,
    )
)
