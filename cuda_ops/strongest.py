"""The strongest k of scored pixels, in row-major order, ties to the earlier pixel: exact, without a sort, the same on both twins.

CPU: found pixels are codes (row << 40 | column << 8 | score, int64); whenever their list is full it is cut to the best k in place. CUDA: a
map of scores (0 where there is nothing) and its histogram give the lowest score that still has room and the number of ties to take;
then every stretch of the map is counted, the counts are summed up, and every survivor is written to its place. A map may have several
levels, each with its own cut; they follow one another in whole stretches, and survivors come out level by level.

The int32 row of an image describes its map from some column on (`map_row`): the number of levels, then per level its first stretch, its
size in 32-bit words and the bytes from row to row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import cuda, int32

from cuda_ops.batch import CudaBatch
from cuda_ops.device import find_image
from cuda_ops.jit import cuda_device, device, host, kernel
from cuda_ops.operator import ArraySpec, KernelSpec

LEVELS = 256
NO_LIMIT = 1 << 30
THREADS = 128
WORDS = 4  # 32-bit words of the map, so 16 scores, a thread
STRETCH = 4 * WORDS * THREADS  # scores a block
ROW = 64  # a row of the map takes a multiple of this many bytes
MAP, HISTOGRAM, CUT, COUNTS = range(4)  # table columns from `work` on


@host
def collect(line, first, length, y, margin, codes, found):
    """Append the nonzero scores of line[first : first + length] (whole words) to `codes`; returns how many there are now.

    Every byte of a word that is not zero is written and only the found ones are kept, which spares a branch that cannot be foretold.
    """
    words = line[first : first + length].view(np.uint64)
    for i in range(words.size):
        if words[i]:
            at = first + 8 * i
            for x in range(at, at + 8):
                score = np.int64(line[x])
                codes[found] = (y << 40) + ((x + margin) << 8) + score
                found += score != 0
    return found


@host
def keep_strongest(codes, found, limit, histogram):
    """Cut the first `found` > `limit` codes to the strongest `limit`, in order, of equals the earlier. Returns the lowest score kept."""
    histogram[:] = 0
    for i in range(found):
        histogram[codes[i] & 255] += 1
    cut, room = LEVELS - 1, limit
    while histogram[cut] < room:
        room -= histogram[cut]
        cut -= 1
    kept = 0
    for i in range(found):
        score = codes[i] & 255
        if score > cut or (score == cut and room > 0):
            room -= score == cut
            codes[kept] = codes[i]
            kept += 1
    return cut


@host
def decode(codes, found, x, y, score):
    """Spread codes over columns."""
    for i in range(found):
        y[i] = codes[i] >> 40
        x[i] = (codes[i] >> 8) & 0xFFFFFFFF
        score[i] = codes[i] & 255


def map_pitch(width: int) -> int:
    """Bytes of one row of a map of scores."""
    return -(-width // ROW) * ROW


def map_stretches(sizes: Sequence[tuple[int, int]]) -> int:
    """Blocks that count or write the map of an image with levels of these sizes (height, width)."""
    return sum(-(-height * map_pitch(width) // STRETCH) for height, width in sizes)


def map_row(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """The description of a map for the kernels."""
    row, first = [len(sizes)], 0
    for height, width in sizes:
        row += [first, height * map_pitch(width) // 4, map_pitch(width)]
        first += map_stretches([(height, width)])
    return row


def map_scratch(sizes: Sequence[tuple[int, int]]) -> dict[str, ArraySpec]:
    """What the kernels below work on: map (as words) and histogram are the caller's to fill."""
    stretches = map_stretches(sizes)
    return {
        "map": ArraySpec((stretches * STRETCH // 4,), "uint32"),
        "histogram": ArraySpec((len(sizes), LEVELS), "int32", zero=True),
        "cut": ArraySpec((1 + len(sizes),), "int32"),
        "counts": ArraySpec((stretches, 2), "int32"),
    }


@device
def stretch_level(rows, owner, column, stretch):
    """The level that a stretch of an image's map belongs to."""
    level = 0
    while level + 1 < rows[owner, column] and rows[owner, column + 4 + 3 * level] <= stretch:
        level += 1
    return level


@device
def thread_words(rows, owner, column, stretch, level, thread):
    """First word of a thread, relative to the image's map, and how many words of it exist."""
    first = (stretch * THREADS + thread) * WORDS
    begin = np.int64(rows[owner, column + 1 + 3 * level]) * (THREADS * WORDS)
    return first, min(begin + rows[owner, column + 2 + 3 * level] - first, WORDS)


@device
def survivors(words, first, count, cut):
    """Scores above the cut and at it in one thread's words, packed: above << 16 | at (a block has at most 2048 of each)."""
    total = int32(0)
    for i in range(first, first + count):
        word = words[i]
        if word != 0:
            for shift in range(0, 32, 8):
                score = int32((word >> shift) & 255)
                if score > cut:
                    total += 1 << 16
                elif score == cut and score > 0:
                    total += 1
    return total


@cuda_device
def running_sums(sums, thread, value):
    """The values of all threads before this one, summed; then sums[THREADS - 1] is the sum of all. Every thread must call it."""
    cuda.syncthreads()
    sums[thread] = value
    cuda.syncthreads()
    step = 1
    while step < THREADS:
        before = int32(0)
        if thread >= step:
            before = sums[thread - step]
        cuda.syncthreads()
        sums[thread] += before
        cuda.syncthreads()
        step *= 2
    return sums[thread] - value


@kernel
def choose_cuts(starts, table, rows, histogram, cut, work, row, limits, ties):
    """One block an image: cut[1 + level] is the lowest score that still has room in the level's limit, cut[0] how many of it to take.

    `ties` takes them all; without it there is one level. The cut is 0 where the limit leaves room for everything.
    """
    bins = cuda.shared.array(LEVELS, int32)
    owner, thread = cuda.blockIdx.x, cuda.threadIdx.x
    out = table[owner, work + CUT]
    for level in range(rows[owner, row]):
        cuda.syncthreads()
        bins[thread] = histogram[table[owner, work + HISTOGRAM] + level * LEVELS + thread]
        cuda.syncthreads()
        limit = rows[owner, limits + level]
        above, total = int32(0), int32(0)
        for score in range(1, LEVELS):
            total += bins[score]
            if score > thread:
                above += bins[score]
        if total <= limit:
            if thread == 0:
                cut[out], cut[out + 1 + level] = NO_LIMIT, 0
        elif thread > 0 and above < limit and limit <= above + bins[thread]:
            cut[out], cut[out + 1 + level] = NO_LIMIT if ties else limit - above, thread


@kernel
def count_survivors(starts, table, rows, words, cut, counts, work, row):
    """One block a stretch of a map: how many scores lie above the cut, and how many at it."""
    sums = cuda.shared.array(THREADS, int32)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    owner = find_image(starts, block)
    stretch = block - starts[owner]
    level = stretch_level(rows, owner, row, stretch)
    first, count = thread_words(rows, owner, row, stretch, level, thread)
    total = survivors(words, table[owner, work + MAP] + first, count, cut[table[owner, work + CUT] + 1 + level])
    running_sums(sums, thread, total)
    if thread == 0:
        at = table[owner, work + COUNTS] + 2 * stretch
        counts[at], counts[at + 1] = sums[THREADS - 1] >> 16, sums[THREADS - 1] & 0xFFFF


@kernel
def add_up(starts, table, stretch_starts, rows, cut, counts, found, work, output, capacity):
    """One block an image: each stretch's counts become those of all before it. found = survivors that fit, and whether there were more."""
    sums = cuda.shared.array(THREADS, int32)
    owner, thread = cuda.blockIdx.x, cuda.threadIdx.x
    stretches = stretch_starts[owner + 1] - stretch_starts[owner]
    above, same = int32(0), int32(0)
    for chunk in range(0, stretches, THREADS):
        index = table[owner, work + COUNTS] + 2 * (chunk + thread)
        inside = chunk + thread < stretches
        own_above, own_same = int32(0), int32(0)
        if inside:
            own_above, own_same = counts[index], counts[index + 1]
        above_before = above + running_sums(sums, thread, own_above)
        above += sums[THREADS - 1]
        same_before = same + running_sums(sums, thread, own_same)
        same += sums[THREADS - 1]
        if inside:
            counts[index], counts[index + 1] = above_before, same_before
    if thread == 0:
        room = cut[table[owner, work + CUT]]
        total = above + min(same, room)
        out = table[owner, output]
        found[out] = min(total, rows[owner, capacity])
        found[out + 1] = 1 if room < NO_LIMIT or total > rows[owner, capacity] else 0


@kernel
def write_survivors(starts, table, rows, words, cut, counts, x, y, score, work, output, row, capacity):
    """One block a stretch of a map: each survivor to its place in the columns, as far as they reach."""
    sums = cuda.shared.array(THREADS, int32)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    owner = find_image(starts, block)
    stretch = block - starts[owner]
    level = stretch_level(rows, owner, row, stretch)
    first, count = thread_words(rows, owner, row, stretch, level, thread)
    base = table[owner, work + MAP] + first
    room, lowest = cut[table[owner, work + CUT]], cut[table[owner, work + CUT] + 1 + level]
    before = running_sums(sums, thread, survivors(words, base, count, lowest))
    at = table[owner, work + COUNTS] + 2 * stretch
    above, same = counts[at] + (before >> 16), counts[at + 1] + (before & 0xFFFF)
    begin, pitch = np.int64(rows[owner, row + 1 + 3 * level]) * STRETCH, np.int64(rows[owner, row + 3 + 3 * level])
    for i in range(4 * count):
        value = int32((words[base + (i >> 2)] >> (8 * (i & 3))) & 255)
        if value > lowest or (value == lowest and value > 0 and same < room):
            place = above + min(same, room)
            if place < rows[owner, capacity]:
                index = 4 * first + i - begin
                x[table[owner, output + 1] + place] = index % pitch
                y[table[owner, output + 2] + place] = index // pitch
                score[table[owner, output + 3] + place] = value
        if value > lowest:
            above += 1
        elif value == lowest and value > 0:
            same += 1


def select(batch: CudaBatch, work: int, output: int, row: int, limits: int, capacity: int, ties: bool) -> None:
    """Queue the four kernels on arrays named as in `map_scratch`, and found, x, y and score. Grids: `image` and `stretch`.

    `work` and `output` are the table columns of map and found (the others follow them); `row`, `limits` (one a level) and `capacity` are
    int32 columns.
    """
    arrays, rows = batch.arrays, batch.ints
    words, histogram, cut, counts = (arrays[name] for name in ("map", "histogram", "cut", "counts"))
    batch.launch(choose_cuts, "image", LEVELS, rows, histogram, cut, work, row, limits, ties)
    batch.launch(count_survivors, "stretch", THREADS, rows, words, cut, counts, work, row)
    batch.launch(add_up, "image", THREADS, batch.starts["stretch"], rows, cut, counts, arrays["found"], work, output, capacity)
    columns = arrays["x"], arrays["y"], arrays["score"]
    batch.launch(write_survivors, "stretch", THREADS, rows, words, cut, counts, *columns, work, output, row, capacity)


def select_specs() -> Sequence[KernelSpec]:
    """The compile check's view of the four kernels."""
    head = ("i8[::1]", "i8[:, ::1]")
    rows, counters, words = "i4[:, ::1]", "i4[::1]", "u4[::1]"
    return [
        KernelSpec(choose_cuts, (*head, rows, counters, counters, "i8", "i8", "i8", "b1"), LEVELS),
        KernelSpec(count_survivors, (*head, rows, words, counters, counters, "i8", "i8"), THREADS),
        KernelSpec(add_up, (*head, "i8[::1]", rows, counters, counters, counters, "i8", "i8", "i8"), THREADS),
        KernelSpec(write_survivors, (*head, rows, words, counters, counters, counters, counters, "u1[::1]", *("i8",) * 4), THREADS),
    ]
