"""The strongest k of scored pixels, in row-major order, ties to the earlier pixel: exact, without a sort, the same on both twins.

CPU: found pixels are codes (row << 40 | column << 8 | score, int64); whenever their list is full it is cut to the best k in place. CUDA: a
map of scores (0 where there is nothing) and its histogram give the lowest score that still has room and the number of ties to take;
then every stretch of the map is counted, the counts are summed up, and every survivor is written to its place. A map may have several
levels, which follow one another in whole stretches; each has its own limit and its own segment of the columns.

A level whose limit is 0 gives nothing. Ties at the cut: either only as many as the limit leaves room for, or (`ties` > 0) up to that many,
as OpenCV keeps them.

The int32 row of an image describes its map from some column on (`map_row`): the number of levels, then RECORD values for each of them.
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
THREADS = 128
RUN = 16  # values that one thread sums up
RUNS = THREADS // RUN
TOTAL = THREADS + RUNS
SUMS = TOTAL + 1  # size of the shared array for running sums
WORDS = 4  # 32-bit words of the map, so 16 scores, a thread
STRETCH = 4 * WORDS * THREADS  # scores a block
ROW = 64  # a row of the map takes a multiple of this many bytes
MAP, HISTOGRAM, CUT, COUNTS = range(4)  # table columns from `work` on
FOUND, X, Y, SCORE = range(4)  # table columns from `output` on
FIRST_STRETCH, MAP_WORDS, PITCH, LIMIT, TIES, SEGMENT = range(1, 7)  # columns of a level's record, from the level count on
RECORD = 6


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
def keep_strongest(codes, found, limit, ties, histogram):
    """Cut the first `found` > `limit` codes to the strongest, in order, of equals the earlier.

    Returns how many are left, the lowest score among them, and whether equals of it were lost.
    """
    histogram[:] = 0
    for i in range(found):
        histogram[codes[i] & 255] += 1
    cut, room = LEVELS - 1, limit
    while histogram[cut] < room:
        room -= histogram[cut]
        cut -= 1
    if ties > 0:
        room = ties
    lost = histogram[cut] > room
    kept = 0
    for i in range(found):
        score = codes[i] & 255
        if score > cut or (score == cut and room > 0):
            room -= score == cut
            codes[kept] = codes[i]
            kept += 1
    return kept, cut, lost


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


def map_row(levels: Sequence[tuple[int, int, int, int]]) -> list[int]:
    """The description of a map for the kernels; a level is (height, width, limit, ties)."""
    row, stretch, segment = [len(levels)], 0, 0
    for height, width, limit, ties in levels:
        row += [stretch, height * map_pitch(width) // 4, map_pitch(width), limit, ties, segment]
        stretch += map_stretches([(height, width)])
        segment += limit + ties
    return row


def map_scratch(sizes: Sequence[tuple[int, int]]) -> dict[str, ArraySpec]:
    """What the kernels below work on: map (as words) and histogram are the caller's to fill."""
    stretches = map_stretches(sizes)
    return {
        "map": ArraySpec((stretches * STRETCH // 4,), "uint32"),
        "histogram": ArraySpec((len(sizes), LEVELS), "int32", zero=True),
        "cut": ArraySpec((len(sizes), 2), "int32"),
        "counts": ArraySpec((stretches, 2), "int32"),
    }


@device
def stretch_level(rows, owner, row, stretch):
    """The level that a stretch of an image's map belongs to."""
    level = 0
    while level + 1 < rows[owner, row] and rows[owner, row + FIRST_STRETCH + RECORD * (level + 1)] <= stretch:
        level += 1
    return level


@device
def thread_words(rows, owner, row, stretch, level, thread):
    """First word of a thread, relative to the image's map, and how many words of it exist."""
    first = (stretch * THREADS + thread) * WORDS
    record = row + RECORD * level
    end = np.int64(rows[owner, record + FIRST_STRETCH]) * (THREADS * WORDS) + rows[owner, record + MAP_WORDS]
    return first, min(end - first, WORDS)


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
    """The values of all threads before this one, summed; then sums[TOTAL] is the sum of all. Every thread must call it.

    Runs of 16 values are summed one after the other, then the runs: four barriers, where pairwise steps would take sixteen.
    """
    cuda.syncthreads()
    sums[thread] = value
    cuda.syncthreads()
    if thread < RUNS:
        before = int32(0)
        for i in range(RUN * thread, RUN * thread + RUN):
            own = sums[i]
            sums[i] = before
            before += own
        sums[THREADS + thread] = before
    cuda.syncthreads()
    if thread == 0:
        before = int32(0)
        for i in range(THREADS, TOTAL):
            own = sums[i]
            sums[i] = before
            before += own
        sums[TOTAL] = before
    cuda.syncthreads()
    return sums[thread] + sums[THREADS + thread // RUN]


@kernel
def choose_cuts(starts, table, rows, histogram, cut, found, work, output, row):
    """One block an image: per level the lowest score that is taken and how often; and how many that makes, and whether some were lost."""
    bins = cuda.shared.array(LEVELS, int32)
    owner, thread = cuda.blockIdx.x, cuda.threadIdx.x
    for level in range(rows[owner, row]):
        cuda.syncthreads()
        bins[thread] = histogram[table[owner, work + HISTOGRAM] + level * LEVELS + thread]
        cuda.syncthreads()
        limit, ties = rows[owner, row + RECORD * level + LIMIT], rows[owner, row + RECORD * level + TIES]
        above, total = int32(0), int32(0)
        for score in range(1, LEVELS):
            total += bins[score]
            if score > thread:
                above += bins[score]
        at, out = table[owner, work + CUT] + 2 * level, table[owner, output + FOUND] + 2 * level
        if total <= limit or limit == 0:
            if thread == 0:
                cut[at], cut[at + 1] = 0 if total <= limit else LEVELS, 0
                found[out], found[out + 1] = min(total, limit), 0
        elif thread > 0 and above < limit and limit <= above + bins[thread]:
            room = ties if ties > 0 else limit - above
            cut[at], cut[at + 1] = thread, room
            found[out] = above + min(bins[thread], room)
            found[out + 1] = 1 if ties == 0 or bins[thread] > room else 0


@kernel
def count_survivors(starts, table, rows, words, cut, counts, work, row):
    """One block a stretch of a map: how many scores lie above the cut, and how many at it."""
    sums = cuda.shared.array(SUMS, int32)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    owner = find_image(starts, block)
    stretch = block - starts[owner]
    level = stretch_level(rows, owner, row, stretch)
    first, count = thread_words(rows, owner, row, stretch, level, thread)
    total = survivors(words, table[owner, work + MAP] + first, count, cut[table[owner, work + CUT] + 2 * level])
    running_sums(sums, thread, total)
    if thread == 0:
        at = table[owner, work + COUNTS] + 2 * stretch
        counts[at], counts[at + 1] = sums[TOTAL] >> 16, sums[TOTAL] & 0xFFFF


@kernel
def add_up(starts, table, stretch_starts, rows, counts, work, row):
    """One block an image: each stretch's counts become those of the stretches before it in its level."""
    sums = cuda.shared.array(SUMS, int32)
    owner, thread = cuda.blockIdx.x, cuda.threadIdx.x
    stretches, levels = stretch_starts[owner + 1] - stretch_starts[owner], rows[owner, row]
    for level in range(levels):
        above, same = int32(0), int32(0)
        begin = np.int64(rows[owner, row + RECORD * level + FIRST_STRETCH])
        end = stretches if level + 1 == levels else np.int64(rows[owner, row + RECORD * (level + 1) + FIRST_STRETCH])
        for chunk in range(begin, end, THREADS):
            index = table[owner, work + COUNTS] + 2 * (chunk + thread)
            inside = chunk + thread < end
            own_above, own_same = int32(0), int32(0)
            if inside:
                own_above, own_same = counts[index], counts[index + 1]
            above_before = above + running_sums(sums, thread, own_above)
            above += sums[TOTAL]
            same_before = same + running_sums(sums, thread, own_same)
            same += sums[TOTAL]
            if inside:
                counts[index], counts[index + 1] = above_before, same_before


@kernel
def write_survivors(starts, table, rows, words, cut, counts, x, y, score, work, output, row):
    """One block a stretch of a map: each survivor to its place in its level's segment of the columns."""
    sums = cuda.shared.array(SUMS, int32)
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    owner = find_image(starts, block)
    stretch = block - starts[owner]
    level = stretch_level(rows, owner, row, stretch)
    record = row + RECORD * level
    first, count = thread_words(rows, owner, row, stretch, level, thread)
    base = table[owner, work + MAP] + first
    lowest, room = cut[table[owner, work + CUT] + 2 * level], cut[table[owner, work + CUT] + 2 * level + 1]
    before = running_sums(sums, thread, survivors(words, base, count, lowest))
    at = table[owner, work + COUNTS] + 2 * stretch
    above, same = counts[at] + (before >> 16), counts[at + 1] + (before & 0xFFFF)
    begin, pitch = np.int64(rows[owner, record + FIRST_STRETCH]) * STRETCH, np.int64(rows[owner, record + PITCH])
    for i in range(4 * count):
        value = int32((words[base + (i >> 2)] >> (8 * (i & 3))) & 255)
        if value > lowest or (value == lowest and value > 0 and same < room):
            place = rows[owner, record + SEGMENT] + above + min(same, room)
            index = 4 * first + i - begin
            x[table[owner, output + X] + place] = index % pitch
            y[table[owner, output + Y] + place] = index // pitch
            score[table[owner, output + SCORE] + place] = value
        if value > lowest:
            above += 1
        elif value == lowest and value > 0:
            same += 1


def select(batch: CudaBatch, work: int, output: int, row: int) -> None:
    """Queue the four kernels on arrays named as in `map_scratch`, and found (int32 [levels, 2]), x, y, score. Grids: `image`, `stretch`.

    `work` and `output` are the table columns of map and found, which the others follow; `row` the int32 column of the map's description.
    """
    arrays, rows = batch.arrays, batch.ints
    words, histogram, cut, counts = (arrays[name] for name in ("map", "histogram", "cut", "counts"))
    batch.launch(choose_cuts, "image", LEVELS, rows, histogram, cut, arrays["found"], work, output, row)
    batch.launch(count_survivors, "stretch", THREADS, rows, words, cut, counts, work, row)
    batch.launch(add_up, "image", THREADS, batch.starts["stretch"], rows, counts, work, row)
    batch.launch(
        write_survivors, "stretch", THREADS, rows, words, cut, counts, arrays["x"], arrays["y"], arrays["score"], work, output, row
    )


def select_specs() -> Sequence[KernelSpec]:
    """The compile check's view of the four kernels."""
    head = ("i8[::1]", "i8[:, ::1]")
    rows, counters, words = "i4[:, ::1]", "i4[::1]", "u4[::1]"
    return [
        KernelSpec(choose_cuts, (*head, rows, *(counters,) * 3, "i8", "i8", "i8"), LEVELS),
        KernelSpec(count_survivors, (*head, rows, words, counters, counters, "i8", "i8"), THREADS),
        KernelSpec(add_up, (*head, "i8[::1]", rows, counters, "i8", "i8"), THREADS),
        KernelSpec(write_survivors, (*head, rows, words, *(counters,) * 4, "u1[::1]", "i8", "i8", "i8"), THREADS),
    ]
