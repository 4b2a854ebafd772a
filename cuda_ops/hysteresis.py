"""Hysteresis: which candidate pixels are 8-connected to a strong one. Two algorithms with one answer, for it does not depend on order.

CPU: a stack, seeded with the strong pixels. CUDA: union-find. Each tile is resolved in shared memory, tiles are merged along their borders,
roots with a strong member are marked, and every pixel asks its root: a fixed number of launches and no host synchronisation.
State of a pixel: 0 nothing, WEAK candidate, STRONG candidate; MARKED, on CUDA, a root with a strong member.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from cuda_ops.batch import HEIGHT, WIDTH
from cuda_ops.device import find_image
from cuda_ops.jit import cuda_device, device, host, kernel
from cuda_ops.operator import KernelSpec

WEAK, STRONG, MARKED = 1, 2, 3

TILE_WIDTH, TILE_HEIGHT, THREADS = 32, 16, 256
TILE_PIXELS = TILE_WIDTH * TILE_HEIGHT
BORDER_THREADS = TILE_WIDTH + TILE_HEIGHT  # one thread a pixel of the tile's top row and left column
FLAT_THREADS, FLAT_PIXELS = 256, 4096


GUARD = 8  # bytes before each row of the CPU twin's states, so that rows are whole 64-bit words
STRONG_BYTES = np.uint64(0x0202020202020202)


def state_stride(width: int) -> int:
    """Bytes of a row of states: the guard, then the pixels, filled up to whole words (the next row's guard ends the last one)."""
    return GUARD + -(-width // 8) * 8


@host
def push_strong(state, row, stack, depth):
    """Put a row's strong pixels on the stack, as flat indices into `state`; eight pixels are looked at together. Returns the depth."""
    stride = state.shape[1]
    words = state[row].view(np.uint64)
    for i in range(1, words.shape[0]):
        if words[i] & STRONG_BYTES:
            for x in range(8 * i, 8 * i + 8):
                if state[row, x] == STRONG:
                    stack[depth] = row * stride + x
                    depth += 1
    return depth


@host
def flood(state, stack, depth, mask):
    """Grow from `depth` strong pixels on `stack`, then write the mask; `state` is uint8 [h + 2, state_stride(w)], zero at its edges."""
    height, width = mask.shape
    stride = state.shape[1]
    flat = state.ravel()
    while depth > 0:
        depth -= 1
        centre = np.int64(stack[depth])
        for row in range(-1, 2):
            first = centre + row * stride - 1
            for neighbour in range(first, first + 3):
                if flat[neighbour] == WEAK:
                    flat[neighbour] = STRONG
                    stack[depth] = neighbour
                    depth += 1
    for y in range(height):
        line, out = state[y + 1, GUARD : GUARD + width], mask[y]
        for x in range(width):
            out[x] = np.uint8(line[x] >> 1) * np.uint8(255)


@device
def root(labels, base, index):
    """The root of a pixel; labels are image-local and never above their own index."""
    parent = labels[base + index]
    while parent != index:
        index = parent
        parent = labels[base + index]
    return index


@cuda_device
def unite(labels, base, a, b):
    """Join two trees under the smaller root. A stale read only names an older ancestor: the atomic minimum returns the truth."""
    a, b = root(labels, base, a), root(labels, base, b)
    while a != b:
        if a < b:
            a, b = b, a
        old = cuda.atomic.min(labels, base + a, b)
        a = b if old == a else root(labels, base, old)


@cuda_device
def label_tile(tile_state, tile_labels, thread):
    """Resolve one tile in shared memory: every candidate ends at the smallest index of its component inside the tile."""
    for i in range(thread, TILE_PIXELS, THREADS):
        tile_labels[i] = i
    cuda.syncthreads()
    for i in range(thread, TILE_PIXELS, THREADS):
        if tile_state[i] != 0:
            row, column = i // TILE_WIDTH, i % TILE_WIDTH
            if column > 0 and tile_state[i - 1] != 0:
                unite(tile_labels, 0, i, i - 1)
            if row > 0:
                if tile_state[i - TILE_WIDTH] != 0:
                    unite(tile_labels, 0, i, i - TILE_WIDTH)
                if column > 0 and tile_state[i - TILE_WIDTH - 1] != 0:
                    unite(tile_labels, 0, i, i - TILE_WIDTH - 1)
                if column < TILE_WIDTH - 1 and tile_state[i - TILE_WIDTH + 1] != 0:
                    unite(tile_labels, 0, i, i - TILE_WIDTH + 1)
    cuda.syncthreads()


@cuda_device
def store_tile(tile_state, tile_labels, state, labels, pixels, base, top, left, height, width, thread):
    """Write a labelled tile to the image: states, and for candidates the image-wide index of their root in the tile."""
    for i in range(thread, TILE_PIXELS, THREADS):
        y, x = top + i // TILE_WIDTH, left + i % TILE_WIDTH
        if y < height and x < width:
            state[pixels + y * width + x] = tile_state[i]
            if tile_state[i] != 0:
                first = root(tile_labels, 0, i)
                labels[base + y * width + x] = (top + first // TILE_WIDTH) * width + left + first % TILE_WIDTH


@kernel
def merge_tiles(starts, table, state, labels, state_column, label_column):
    """Join components across the top and left borders of each tile."""
    block = cuda.blockIdx.x
    owner = find_image(starts, block)
    height, width = table[owner, HEIGHT], table[owner, WIDTH]
    pixels, base = table[owner, state_column], table[owner, label_column]
    tile = block - starts[owner]
    across = (width + TILE_WIDTH - 1) // TILE_WIDTH
    top = tile // across * TILE_HEIGHT
    left = (tile - tile // across * across) * TILE_WIDTH
    thread = cuda.threadIdx.x
    if thread < TILE_WIDTH:
        y, x = top, left + thread
    else:
        y, x = top + thread - TILE_WIDTH, left
    if y >= height or x >= width or state[pixels + y * width + x] == 0:
        return
    here = y * width + x
    if thread < TILE_WIDTH and y > 0:
        for dx in range(-1, 2):
            if 0 <= x + dx < width and state[pixels + here - width + dx] != 0:
                unite(labels, base, here, here - width + dx)
    if thread >= TILE_WIDTH and x > 0:
        for dy in range(-1, 2):
            if 0 <= y + dy < height and state[pixels + here + dy * width - 1] != 0:
                unite(labels, base, here, here + dy * width - 1)


@kernel
def mark_roots(starts, table, state, labels, state_column, label_column):
    """Mark the roots that have a strong member. A strong root may be marked before its own turn: its mark is all it would leave."""
    block = cuda.blockIdx.x
    owner = find_image(starts, block)
    area = table[owner, HEIGHT] * table[owner, WIDTH]
    pixels, base = table[owner, state_column], table[owner, label_column]
    first = (block - starts[owner]) * FLAT_PIXELS
    for i in range(first + cuda.threadIdx.x, min(first + FLAT_PIXELS, area), FLAT_THREADS):
        if state[pixels + i] == STRONG:
            state[pixels + root(labels, base, i)] = MARKED


@kernel
def keep_marked(starts, table, state, labels, mask, state_column, label_column, mask_column):
    """The mask: candidates whose root is marked."""
    block = cuda.blockIdx.x
    owner = find_image(starts, block)
    area = table[owner, HEIGHT] * table[owner, WIDTH]
    pixels, base = table[owner, state_column], table[owner, label_column]
    first = (block - starts[owner]) * FLAT_PIXELS
    for i in range(first + cuda.threadIdx.x, min(first + FLAT_PIXELS, area), FLAT_THREADS):
        value = 0
        if state[pixels + i] != 0 and state[pixels + root(labels, base, i)] == MARKED:
            value = 255
        mask[table[owner, mask_column] + i] = value


def tile_blocks(height: int, width: int, _params: object) -> int:
    """Tiles of one image."""
    return -(-height // TILE_HEIGHT) * -(-width // TILE_WIDTH)


def flat_blocks(height: int, width: int, _params: object) -> int:
    """Blocks of one image in the kernels that need no neighbours."""
    return -(-height * width // FLAT_PIXELS)


def kernel_specs() -> list[KernelSpec]:
    """The compile check's view of the kernels in this file."""
    tables = ("i8[::1]", "i8[:, ::1]")
    return [
        KernelSpec(merge_tiles, (*tables, "u1[::1]", "i4[::1]", "i4", "i4"), BORDER_THREADS),
        KernelSpec(mark_roots, (*tables, "u1[::1]", "i4[::1]", "i4", "i4"), FLAT_THREADS, moved=1.0, least=1.0),
        KernelSpec(
            keep_marked,
            (*tables, "u1[::1]", "i4[::1]", "u1[::1]", "i4", "i4", "i4"),
            FLAT_THREADS,
            moved=2.0,
            least=2.0,
        ),
    ]
