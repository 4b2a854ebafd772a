"""Contrast limited adaptive histogram equalization of a grey image.

The image is cut into tiles_x x tiles_y tiles; if a side is no multiple, both sides are first extended to the right and down over a
REFLECT_101 border by tiles - size mod tiles pixels. In each tile counts above max(1, int(clip_limit * area / 256)) are cut; the excess is
given back evenly, its rest one each at equal steps from level 0 on; clip_limit 0 does not cut. The running sum times 255 / area, in
float32, is the tile's new level. A pixel blends the levels of the four tiles whose centers surround it, in float32 without fused
operations, halves to even.
Exactness: equal to cv2.createCLAHE(...).apply, 0 differing bytes. Cost: two reads and one write a pixel, 256 levels a tile.
Source: S. M. Pizer et al., CVGIP 39, 1987; K. Zuiderveld, Graphics Gems IV, 1994; cv2.CLAHE (clahe.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cuda as gpu
from numba import int32
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops.batch import FIRST, HEIGHT, OFFSET, WIDTH, CpuImage, CudaBatch
from cuda_ops.counting import LEVELS, count_span, flat, inclusive_sums, lanes_spec
from cuda_ops.device import add, find_image, mul, reflect, rint
from cuda_ops.jit import device, host, kernel
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, Result, Sample, register
from cuda_ops.patterns import picture
from cuda_ops.samples import every_image, images, large_images, noise, smooth

TILES_X, TILES_Y, TILE_WIDTH, TILE_HEIGHT, CLIP = range(5)  # columns of the int32 row
ACROSS, DOWN, SCALE = range(3)  # columns of the float32 row: 1 / tile width, 1 / tile height, 255 / tile area
IMAGE, TABLES = FIRST, FIRST + 1
COPIES = 8
COUNTERS = LEVELS * COPIES
BLOCK_WIDTH, BLOCK_ROWS, ROWS = 32, 4, 8  # a block blends 32 columns of 32 rows, eight rows a thread


class ClaheParams(Params):
    """Parameters of `histograms/clahe`."""

    clip_limit: float = Field(2.0, ge=0, le=1000, description="Counts are cut at this multiple of their mean over a tile; 0 does not cut.")
    tiles_x: int = Field(8, ge=1, le=64, description="Number of tiles from left to right.")
    tiles_y: int = Field(8, ge=1, le=64, description="Number of tiles from top to bottom.")


def scalars(params: ClaheParams, height: int, width: int) -> tuple[Sequence[int], Sequence[float]]:
    """Tiles, their size and the limit of a count (0: none) as integers; reciprocals of the size and the scale of the sums as floats."""
    over_x, over_y = width % params.tiles_x, height % params.tiles_y
    if over_x or over_y:
        width, height = width + params.tiles_x - over_x, height + params.tiles_y - over_y
    tile_width, tile_height = width // params.tiles_x, height // params.tiles_y
    area = tile_width * tile_height
    clip = min(max(int(params.clip_limit * area / LEVELS), 1), area) if params.clip_limit > 0 else 0
    one = np.float32(1)
    reciprocals = [float(one / np.float32(tile_width)), float(one / np.float32(tile_height)), float(np.float32(255) / np.float32(area))]
    return [params.tiles_x, params.tiles_y, tile_width, tile_height, clip], reciprocals


def layout(height: int, width: int, params: ClaheParams) -> Layout:
    """Output image; new levels per tile; the CPU twin's counters and what it keeps per column and per row of tiles."""
    tiles = params.tiles_x * params.tiles_y
    return Layout(
        {"image": ArraySpec((height, width), "uint8")},
        {"tables": ArraySpec((tiles, LEVELS), "uint8")},
        {
            "lanes": lanes_spec(),
            "counts": ArraySpec((LEVELS,), "int32"),
            "weights": ArraySpec((2, width), "float32"),
            "segments": ArraySpec((params.tiles_x + 2,), "int32"),
            "corners": ArraySpec((params.tiles_x + 1, LEVELS), "int32"),
            "line": ArraySpec((width,), "int32"),
        },
    )


@device
def place(position, reciprocal):
    """Where a pixel lies between tile centers: the tile before it (-1 before the first center) and its distance from that, in tiles."""
    where = add(mul(np.float32(position), reciprocal), np.float32(-0.5))
    tile = math.floor(where)
    return np.int32(tile), np.float32(where - np.float32(tile))


@device
def given_back(level, excess):
    """What a level gets of the excess: an even share, and one of the rest if it is its turn."""
    share = excess >> 8
    rest = excess & 255
    if rest != 0:
        step = 256 // rest
        if level % step == 0 and level // step < rest:
            share += 1
    return share


@device
def stretched(total, scale):
    """The new level where the running sum is `total`."""
    return min(rint(mul(np.float32(total), scale)), 255)


@device
def blend(level_11, level_12, level_21, level_22, x, before_x, y, before_y):
    """The four levels weighted by x, y and by before_x = 1 - x, before_y = 1 - y; rounds to at most 255."""
    upper = add(mul(level_11, before_x), mul(level_12, x))
    lower = add(mul(level_21, before_x), mul(level_22, x))
    return add(mul(upper, before_y), mul(lower, y))


@host
def _count_tile(source, pixels, words, top, left, tile_height, tile_width, lanes, counts):
    """Counts of one tile; columns and rows beyond the image are mirrored."""
    height, width = source.shape
    lanes[:] = 0
    for y in range(top, top + tile_height):
        row = reflect(y, height)
        inside = min(left + tile_width, width)
        if left < inside:
            count_span(pixels, words, row * width + left, row * width + inside, lanes)
        for x in range(max(left, inside), left + tile_width):
            lanes[source[row, reflect(x, width)]] += np.int32(1)
    for level in range(LEVELS):
        counts[level] = lanes[level] + lanes[LEVELS + level] + lanes[2 * LEVELS + level] + lanes[3 * LEVELS + level]


@host
def tile_levels(source, pixels, ints, floats, lanes, counts, tables):
    """New levels of every tile into tables uint8 [tiles, 256]."""
    words = pixels[: pixels.size // 8 * 8].view(np.uint64)
    for tile in range(tables.shape[0]):
        row, column = tile // ints[TILES_X], tile % ints[TILES_X]
        tile_height, tile_width = ints[TILE_HEIGHT], ints[TILE_WIDTH]
        _count_tile(source, pixels, words, row * tile_height, column * tile_width, tile_height, tile_width, lanes, counts)
        if ints[CLIP] > 0:
            excess = 0
            for level in range(LEVELS):
                excess += max(counts[level] - ints[CLIP], 0)
            for level in range(LEVELS):
                counts[level] = min(counts[level], ints[CLIP]) + given_back(level, excess)
        total = 0
        for level in range(LEVELS):
            total += counts[level]
            tables[tile, level] = stretched(total, floats[SCALE])


@host
def _columns(ints, floats, weights, segments):
    """Weights per column, and where the segments between neighboring tile centers begin; segment s lies before the center of tile s."""
    width = weights.shape[1]
    segments[:] = width
    for x in range(width - 1, -1, -1):
        tile, distance = place(x, floats[ACROSS])
        weights[0, x] = distance
        weights[1, x] = np.float32(1) - distance
        segments[tile + 1] = x
    for s in range(segments.size - 2, -1, -1):
        segments[s] = min(segments[s], segments[s + 1])


@host
def _corners(upper, lower, tables, tiles_x, corners):
    """Per segment and level the new levels of its four tiles, packed into 32 bits."""
    for s in range(tiles_x + 1):
        left, right = max(s - 1, 0), min(s, tiles_x - 1)
        a, b = tables[upper * tiles_x + left], tables[upper * tiles_x + right]
        c, d = tables[lower * tiles_x + left], tables[lower * tiles_x + right]
        row = corners[s]
        for level in range(LEVELS):
            row[level] = np.int32(a[level]) | np.int32(b[level]) << 8 | np.int32(c[level]) << 16 | np.int32(d[level]) << 24


@host
def _look_up(pixels, table, found):
    """found = table[pixels], four at a time: loads that are independent overlap."""
    whole = pixels.size // 4 * 4
    for i in range(0, whole, 4):
        a, b, c, d = table[pixels[i]], table[pixels[i + 1]], table[pixels[i + 2]], table[pixels[i + 3]]
        found[i], found[i + 1], found[i + 2], found[i + 3] = a, b, c, d
    for i in range(whole, pixels.size):
        found[i] = table[pixels[i]]


@host
def blend_rows(source, ints, floats, tables, weights, segments, corners, line, image):
    """Row by row: look up the four levels of each pixel as one word, then blend them, which vectorizes."""
    height, width = source.shape
    _columns(ints, floats, weights, segments)
    after, before = weights[0], weights[1]
    byte, current = np.int32(255), -2
    for y in range(height):
        tile, distance = place(y, floats[DOWN])
        if tile != current:
            _corners(max(tile, 0), min(tile + 1, ints[TILES_Y] - 1), tables, ints[TILES_X], corners)
            current = tile
        for s in range(ints[TILES_X] + 1):
            _look_up(source[y, segments[s] : segments[s + 1]], corners[s], line[segments[s] : segments[s + 1]])
        below, above, out = distance, np.float32(1) - distance, image[y]
        for x in range(width):
            word = line[x]
            a, b = np.float32(word & byte), np.float32(np.int32(word >> np.int32(8)) & byte)
            c, d = np.float32(np.int32(word >> np.int32(16)) & byte), np.float32(np.int32(word >> np.int32(24)) & byte)
            out[x] = np.uint8(rint(blend(a, b, c, d, after[x], before[x], below, above)))


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    arrays, ints, floats = image.arrays, image.ints, image.floats
    tile_levels(image.source, flat(image.source), ints, floats, arrays["lanes"], arrays["counts"], arrays["tables"])
    columns = arrays["weights"], arrays["segments"], arrays["corners"], arrays["line"]
    blend_rows(image.source, ints, floats, arrays["tables"], *columns, arrays["image"])


@kernel
def tile_levels_cuda(starts, table, ints, floats, source, tables):
    """One tile a block: count in shared memory, a warp a row; then cut, give back, sum and stretch, a thread a level."""
    lanes = gpu.shared.array(COUNTERS, int32)
    sums = gpu.shared.array(LEVELS, int32)
    excess = gpu.shared.array(1, int32)
    block = gpu.blockIdx.x
    owner = find_image(starts, block)
    height, width = table[owner, HEIGHT], table[owner, WIDTH]
    tile = int32(block - starts[owner])
    tile_height, tile_width, clip = ints[owner, TILE_HEIGHT], ints[owner, TILE_WIDTH], ints[owner, CLIP]
    top, left = tile // ints[owner, TILES_X] * tile_height, tile % ints[owner, TILES_X] * tile_width
    thread = int32(gpu.threadIdx.x)
    for i in range(thread, COUNTERS, LEVELS):
        lanes[i] = 0
    if thread == 0:
        excess[0] = 0
    gpu.syncthreads()
    for y in range(top + (thread >> 5), top + tile_height, LEVELS >> 5):
        base = table[owner, OFFSET] + reflect(y, height) * width
        for x in range(left + (thread & 31), left + tile_width, 32):
            gpu.atomic.add(lanes, int32(source[base + reflect(x, width)]) * COPIES + (thread & (COPIES - 1)), 1)
    gpu.syncthreads()
    count = int32(0)
    for c in range(COPIES):
        count += lanes[thread * COPIES + ((c + (thread >> 2)) & (COPIES - 1))]
    if clip > 0 and count > clip:
        gpu.atomic.add(excess, 0, count - clip)
        count = clip
    gpu.syncthreads()
    sums[thread] = count + given_back(thread, excess[0])
    inclusive_sums(sums, thread)
    tables[table[owner, TABLES] + tile * LEVELS + thread] = stretched(sums[thread], floats[owner, SCALE])


@kernel
def blend_cuda(starts, table, ints, floats, source, tables, image):
    """A block blends `BLOCK_ROWS` x `ROWS` rows of `BLOCK_WIDTH` columns; what belongs to a column is worked out once a thread."""
    block = gpu.blockIdx.x
    owner = find_image(starts, block)
    height, width = table[owner, HEIGHT], table[owner, WIDTH]
    blocks_across = (width + BLOCK_WIDTH - 1) // BLOCK_WIDTH
    index = block - starts[owner]
    thread = int32(gpu.threadIdx.x)
    x = index % blocks_across * BLOCK_WIDTH + (thread & (BLOCK_WIDTH - 1))
    top = index // blocks_across * (BLOCK_ROWS * ROWS) + thread // BLOCK_WIDTH
    if x >= width:
        return
    tiles_x, tiles_y = ints[owner, TILES_X], ints[owner, TILES_Y]
    column, after_x = place(int32(x), floats[owner, ACROSS])
    before_x = np.float32(1) - after_x
    left, right = max(column, 0) * LEVELS, min(column + 1, tiles_x - 1) * LEVELS
    for y in range(top, min(top + BLOCK_ROWS * ROWS, height), BLOCK_ROWS):
        row, after_y = place(int32(y), floats[owner, DOWN])
        level = int32(source[table[owner, OFFSET] + y * width + x])
        upper = table[owner, TABLES] + max(row, 0) * tiles_x * LEVELS + level
        lower = table[owner, TABLES] + min(row + 1, tiles_y - 1) * tiles_x * LEVELS + level
        a, b = np.float32(tables[upper + left]), np.float32(tables[upper + right])
        c, d = np.float32(tables[lower + left]), np.float32(tables[lower + right])
        image[table[owner, IMAGE] + y * width + x] = rint(blend(a, b, c, d, after_x, before_x, after_y, np.float32(1) - after_y))


def cuda(batch: CudaBatch) -> None:
    """CUDA twin: the tiles' levels, then the blend; two launches."""
    arrays = batch.arrays
    batch.launch(tile_levels_cuda, "tile", LEVELS, batch.ints, batch.floats, batch.source, arrays["tables"])
    arguments = batch.ints, batch.floats, batch.source, arrays["tables"], arrays["image"]
    batch.launch(blend_cuda, "block", BLOCK_WIDTH * BLOCK_ROWS, *arguments)


def kernels() -> Sequence[KernelSpec]:
    """Both kernels."""
    rows = ("i8[::1]", "i8[:, ::1]", "i4[:, ::1]", "f4[:, ::1]", "u1[::1]", "u1[::1]")
    return [
        KernelSpec(tile_levels_cuda, rows, LEVELS, moved=1.0, least=1.0),
        KernelSpec(blend_cuda, (*rows, "u1[::1]"), BLOCK_WIDTH * BLOCK_ROWS, moved=2.0, least=2.0),
    ]


def _tile_table(tile: NDArray[np.uint8], clip: int) -> NDArray[np.uint8]:
    """New levels of one tile by the definition."""
    counts = np.bincount(tile.ravel(), minlength=LEVELS)
    if clip > 0:
        excess = int(np.maximum(counts - clip, 0).sum())
        counts = np.minimum(counts, clip) + excess // LEVELS
        rest = excess % LEVELS
        if rest:
            counts[np.arange(rest) * max(LEVELS // rest, 1)] += 1
    scaled = np.cumsum(counts).astype(np.float32) * (np.float32(255) / np.float32(tile.size))
    return np.asarray(np.minimum(np.rint(scaled), 255), dtype=np.uint8)


def reference(image: NDArray[np.uint8], params: ClaheParams) -> Result:
    """Pad, tables per tile, blend of four whole images."""
    height, width = image.shape
    tiles_x, tiles_y = params.tiles_x, params.tiles_y
    pad_y, pad_x = -height % tiles_y, -width % tiles_x
    if pad_x or pad_y:
        image_padded = np.pad(image, ((0, tiles_y - height % tiles_y), (0, tiles_x - width % tiles_x)), mode="reflect")
    else:
        image_padded = image
    tile_height, tile_width = image_padded.shape[0] // tiles_y, image_padded.shape[1] // tiles_x
    area = tile_height * tile_width
    clip = max(int(params.clip_limit * area / LEVELS), 1) if params.clip_limit > 0 else 0
    tiles = image_padded.reshape(tiles_y, tile_height, tiles_x, tile_width).transpose(0, 2, 1, 3)
    tables = np.array([[_tile_table(tile, clip) for tile in row] for row in tiles])

    def axis(size: int, tile_size: int, tiles: int) -> tuple[Any, Any, Any]:
        where = np.arange(size, dtype=np.float32) * (np.float32(1) / np.float32(tile_size)) - np.float32(0.5)
        first = np.floor(where)
        return np.maximum(first, 0).astype(int), np.minimum(first + 1, tiles - 1).astype(int), where - first

    y1, y2, y = axis(height, tile_height, tiles_y)
    x1, x2, x = axis(width, tile_width, tiles_x)
    one = np.float32(1)

    def levels(rows: Any, columns: Any) -> Any:
        return tables[rows[:, None], columns[None, :], image].astype(np.float32)

    upper = levels(y1, x1) * (one - x) + levels(y1, x2) * x
    lower = levels(y2, x1) * (one - x) + levels(y2, x2) * x
    blended = upper * (one - y)[:, None] + lower * y[:, None]
    return Result("image", height, width, {"image": np.minimum(np.rint(blended), 255).astype(np.uint8)})


def oracle(image: NDArray[np.uint8], params: ClaheParams) -> Result:
    """cv2.createCLAHE."""
    import cv2

    equalizer = cv2.createCLAHE(params.clip_limit, (params.tiles_x, params.tiles_y))
    return Result("image", image.shape[0], image.shape[1], {"image": np.asarray(equalizer.apply(image), dtype=np.uint8)})


def samples() -> Sequence[Sample]:
    """Every image; grids from 1 x 1 to more tiles than pixels, square and not, limits from none to all."""
    limits = (0.0, 0.01, 1.0, 3.3, 40.0, 1000.0)
    grids = ((1, 1), (1, 5), (7, 2), (4, 4), (3, 40), (64, 64))
    pictures = (noise(32, 28, 1), smooth(41, 29, 2), images()["7x7"], large_images()["prime"])
    varied = [
        Sample(f"grid {x} x {y}", image, {"clip_limit": limits[(i + j) % len(limits)], "tiles_x": x, "tiles_y": y})
        for i, (x, y) in enumerate(grids)
        for j, image in enumerate(pictures)
    ]
    tiny = [
        Sample("simulated", image, {"clip_limit": limit, "tiles_x": x, "tiles_y": y}, simulate=True)
        for image, limit, x, y in (
            (images()["1x1"], 0.0, 2, 1),
            (images()["squares"], 2.0, 1, 2),
            (noise(11, 37, 3), 1.2, 2, 1),
            (smooth(33, 8, 4), 1000.0, 1, 1),
        )
    ]
    return [*every_image(), *varied, *tiny]


def errors() -> Sequence[ErrorSample]:
    """A negative limit, no tiles, too many tiles."""
    return [ErrorSample(f"{name} {value}", {name: value}, name) for name, value in (("clip_limit", -1), ("tiles_x", 0), ("tiles_y", 65))]


register(
    Operator(
        family="histograms",
        name="clahe",
        summary="Contrast limited adaptive histogram equalization (CLAHE)",
        description="Equalizes each tile with its counts cut at a limit, and blends the levels of neighboring tiles.",
        params=ClaheParams,
        kind="image",
        exactness="equal to cv2.CLAHE on x86: 0 differing bytes",
        cost="O(pixels + 256 x tiles), two passes",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=picture,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        blocks={
            "tile": lambda _height, _width, params: params.tiles_x * params.tiles_y,
            "block": lambda height, width, _params: -(-width // BLOCK_WIDTH) * -(-height // (BLOCK_ROWS * ROWS)),
        },
        scalars=scalars,
        kernels=kernels,
    )
)
