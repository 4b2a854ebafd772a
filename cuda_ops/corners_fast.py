"""The FAST segment test: the score of a pixel on each of the three rings, and the CPU detector that scores a whole picture.

The score of a pixel is the largest d such that an arc of more than half the ring is everywhere at least d brighter, or everywhere at least
d darker, than the center: the maximum over arcs of the minimum over the arc. The pixel is a corner at threshold t when its score is above
t, and OpenCV's response is score - 1, the largest threshold at which it still is one. With suppression a corner must exceed the scores of
all eight neighbors, so that two equal neighbors both go; the outer three pixels of a picture have no score.

OpenCV asks more of the two smaller rings: before it looks for an arc it tests the pixels k and k + 8 of the ring, one of which must pass.
On the ring of 16 these face each other and an arc implies it; on the ring of 12 they do not, and on the ring of 8 they are the same pixel,
so that all eight must pass. The score is that of the arc all the same. This is kept, for OpenCV's answer is the promise.

Both twins find the score without a search over thresholds: minima over sliding arcs in the lanes of the pixels. Darker is brighter in the
complement, so one formula serves both.
"""

from __future__ import annotations

import numpy as np

from cuda_ops.jit import device, host
from cuda_ops.strongest import collect, keep_strongest

RING_16, RING_12, RING_8 = range(3)  # the `mode` of every function below
REACH = (3, 2, 1)  # distance of the ring's outermost pixels from the center, by mode
MARGIN = 3  # pixels along the border that no ring of OpenCV's detectors is tried on
LEAST_SIDE = 2 * MARGIN + 1

GROUP = 64  # pixels that the CPU twin tries together: two vector registers, and a loop bound known when it is compiled
FRAME = GROUP + 2 * MARGIN  # the least width of the CPU twin's picture


@device
def arc_16(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15):
    """Maximum over the arcs of 9 of a ring of 16 of the minimum over the arc; two arcs share the 8 pixels between their ends."""
    a, b, c, d = min(p1, p2), min(p3, p4), min(p5, p6), min(p7, p8)
    e, f, g, h = min(p9, p10), min(p11, p12), min(p13, p14), min(p15, p0)
    ab, bc, cd, de, ef, fg, gh, ha = min(a, b), min(b, c), min(c, d), min(d, e), min(e, f), min(f, g), min(g, h), min(h, a)
    first = max(min(min(ab, cd), max(p0, p9)), min(min(bc, de), max(p2, p11)))
    second = max(min(min(cd, ef), max(p4, p13)), min(min(de, fg), max(p6, p15)))
    third = max(min(min(ef, gh), max(p8, p1)), min(min(fg, ha), max(p10, p3)))
    fourth = max(min(min(gh, ab), max(p12, p5)), min(min(ha, bc), max(p14, p7)))
    return max(max(first, second), max(third, fourth))


@device
def arc_12(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11):
    """Maximum over the arcs of 7 of a ring of 12 of the minimum over the arc."""
    a, b, c, d, e, f = min(p1, p2), min(p3, p4), min(p5, p6), min(p7, p8), min(p9, p10), min(p11, p0)
    ab, cd, ef, bc, de, fa = min(a, b), min(c, d), min(e, f), min(b, c), min(d, e), min(f, a)
    first = max(min(min(ab, c), max(p0, p7)), min(min(bc, d), max(p2, p9)))
    second = max(min(min(cd, e), max(p4, p11)), min(min(de, f), max(p6, p1)))
    third = max(min(min(ef, a), max(p8, p3)), min(min(fa, b), max(p10, p5)))
    return max(max(first, second), third)


@device
def pairs_12(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11):
    """Minimum over the pairs eight apart of the maximum of the pair."""
    even = min(min(max(p0, p8), max(p2, p10)), min(max(p4, p0), max(p6, p2)))
    odd = min(min(max(p1, p9), max(p3, p11)), min(max(p5, p1), max(p7, p3)))
    return min(even, odd)


@device
def arc_8(p0, p1, p2, p3, p4, p5, p6, p7):
    """Maximum over the arcs of 5 of a ring of 8 of the minimum over the arc."""
    a, b, c, d = min(p1, p2), min(p3, p4), min(p5, p6), min(p7, p0)
    first = max(min(min(a, b), max(p0, p5)), min(min(b, c), max(p2, p7)))
    second = max(min(min(c, d), max(p4, p1)), min(min(d, a), max(p6, p3)))
    return max(first, second)


@device
def score_16(pixels, pitch, at):
    """Score on the ring of 16, and the bound that must exceed the threshold too (here the same).

    `at` is the flat index of the 7 x 7 window's first pixel, `pitch` the elements from row to row.
    """
    lane = pixels.dtype.type
    v = pixels[at + 3 * pitch + 3]
    p0, p1, p2, p3 = pixels[at + 6 * pitch + 3], pixels[at + 6 * pitch + 4], pixels[at + 5 * pitch + 5], pixels[at + 4 * pitch + 6]
    p4, p5, p6, p7 = pixels[at + 3 * pitch + 6], pixels[at + 2 * pitch + 6], pixels[at + pitch + 5], pixels[at + 4]
    p8, p9, p10, p11 = pixels[at + 3], pixels[at + 2], pixels[at + pitch + 1], pixels[at + 2 * pitch]
    p12, p13, p14, p15 = pixels[at + 3 * pitch], pixels[at + 4 * pitch], pixels[at + 5 * pitch + 1], pixels[at + 6 * pitch + 2]
    bright = arc_16(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15)
    q0, q1, q2, q3, q4, q5 = lane(255 - p0), lane(255 - p1), lane(255 - p2), lane(255 - p3), lane(255 - p4), lane(255 - p5)
    q6, q7, q8, q9, q10 = lane(255 - p6), lane(255 - p7), lane(255 - p8), lane(255 - p9), lane(255 - p10)
    q11, q12, q13, q14, q15 = lane(255 - p11), lane(255 - p12), lane(255 - p13), lane(255 - p14), lane(255 - p15)
    dark = arc_16(q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, q12, q13, q14, q15)
    score = above(lane, v, bright, dark)
    return score, score


@device
def score_12(pixels, pitch, at):
    """Score on the ring of 12, and OpenCV's second condition; see `score_16`."""
    lane = pixels.dtype.type
    v = pixels[at + 3 * pitch + 3]
    p0, p1, p2 = pixels[at + 5 * pitch + 3], pixels[at + 5 * pitch + 4], pixels[at + 4 * pitch + 5]
    p3, p4, p5 = pixels[at + 3 * pitch + 5], pixels[at + 2 * pitch + 5], pixels[at + pitch + 4]
    p6, p7, p8 = pixels[at + pitch + 3], pixels[at + pitch + 2], pixels[at + 2 * pitch + 1]
    p9, p10, p11 = pixels[at + 3 * pitch + 1], pixels[at + 4 * pitch + 1], pixels[at + 5 * pitch + 2]
    bright = arc_12(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11)
    q0, q1, q2, q3, q4, q5 = lane(255 - p0), lane(255 - p1), lane(255 - p2), lane(255 - p3), lane(255 - p4), lane(255 - p5)
    q6, q7, q8, q9, q10, q11 = lane(255 - p6), lane(255 - p7), lane(255 - p8), lane(255 - p9), lane(255 - p10), lane(255 - p11)
    dark = arc_12(q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11)
    bright_pairs = pairs_12(p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11)
    dark_pairs = pairs_12(q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11)
    return above(lane, v, bright, dark), above(lane, v, min(bright, bright_pairs), min(dark, dark_pairs))


@device
def score_8(pixels, pitch, at):
    """Score on the ring of 8, and OpenCV's second condition; see `score_16`."""
    lane = pixels.dtype.type
    v = pixels[at + 3 * pitch + 3]
    p0, p1, p2, p3 = pixels[at + 4 * pitch + 3], pixels[at + 4 * pitch + 4], pixels[at + 3 * pitch + 4], pixels[at + 2 * pitch + 4]
    p4, p5, p6, p7 = pixels[at + 2 * pitch + 3], pixels[at + 2 * pitch + 2], pixels[at + 3 * pitch + 2], pixels[at + 4 * pitch + 2]
    bright = arc_8(p0, p1, p2, p3, p4, p5, p6, p7)
    q0, q1, q2, q3 = lane(255 - p0), lane(255 - p1), lane(255 - p2), lane(255 - p3)
    q4, q5, q6, q7 = lane(255 - p4), lane(255 - p5), lane(255 - p6), lane(255 - p7)
    bright_all = min(min(min(p0, p1), min(p2, p3)), min(min(p4, p5), min(p6, p7)))
    dark_all = min(min(min(q0, q1), min(q2, q3)), min(min(q4, q5), min(q6, q7)))
    return above(lane, v, bright, arc_8(q0, q1, q2, q3, q4, q5, q6, q7)), above(lane, v, bright_all, dark_all)


@device
def above(lane, v, bright, dark):
    """How far the better of the two sides lies above the center, at least 0; `dark` is measured in the complement."""
    w = lane(255 - v)
    return max(lane(max(bright, v) - v), lane(max(dark, w) - w))


@device
def cross(pixels, pitch, near, far, at):
    """An upper bound of the score: an arc of more than half a ring holds one pixel of every two that face each other.

    `near` and `far` are MARGIN - reach and MARGIN + reach of the ring.
    """
    lane = pixels.dtype.type
    v = pixels[at + 3 * pitch + 3]
    up, down = pixels[at + near * pitch + 3], pixels[at + far * pitch + 3]
    left, right = pixels[at + 3 * pitch + near], pixels[at + 3 * pitch + far]
    bright = min(max(up, down), max(left, right))
    dark = max(min(up, down), min(left, right))
    return max(lane(max(bright, v) - v), lane(v - min(dark, v)))


@device
def peak(up, middle, down, x):
    """The score in the middle of 3 x 3, or 0 where a neighbor's is as high."""
    score = middle[x + 1]
    sides = max(middle[x], middle[x + 2])
    above_it = max(max(up[x], up[x + 1]), up[x + 2])
    below_it = max(max(down[x], down[x + 1]), down[x + 2])
    return score if score > max(sides, max(above_it, below_it)) else score - score


@host
def score_groups(window, pitch, groups, start, threshold, floor, mode, line, active, count):
    """Score groups of GROUP pixels along a row: `line` gets the scores of corners above `floor`, else 0, and `active` the groups with any.

    `window` is flat, from the first pixel of the first 7 x 7 window on. `pitch` and `first` are unsigned: an index that could be negative
    would keep the loops from vectorizing. Groups without a pixel that passes the cross test are skipped; the line is 0 there.
    """
    near, far = np.uint32(MARGIN - REACH[mode]), np.uint32(MARGIN + REACH[mode])
    for group in range(groups):
        first = np.uint32(GROUP * group)
        best = np.uint8(0)
        for x in range(GROUP):
            best = max(best, cross(window, pitch, near, far, first + x))
        if best <= floor:
            continue
        best = np.uint8(0)
        if mode == RING_16:
            for x in range(GROUP):
                score, bound = score_16(window, pitch, first + x)
                score = score if score > floor and bound > threshold else np.uint8(0)
                line[first + x] = score
                best = max(best, score)
        elif mode == RING_12:
            for x in range(GROUP):
                score, bound = score_12(window, pitch, first + x)
                score = score if score > floor and bound > threshold else np.uint8(0)
                line[first + x] = score
                best = max(best, score)
        else:
            for x in range(GROUP):
                score, bound = score_8(window, pitch, first + x)
                score = score if score > floor and bound > threshold else np.uint8(0)
                line[first + x] = score
                best = max(best, score)
        if best > 0:
            active[count] = start + first
            count += 1
    return count


@host
def suppress(up, middle, down, kept):
    """The peaks of one group: `kept` gets their scores, 0 elsewhere. Returns the best."""
    best = np.uint8(0)
    for x in range(GROUP):
        score = peak(up, middle, down, x)
        kept[x] = score
        best = max(best, score)
    return best


@host
def detect(pixels, region, rim, threshold, suppressed, mode, lines, active, codes, limit, ties, histogram):
    """The strongest corners of a picture, row by row, as codes. Returns how many, whether there were others, and whether ties were lost.

    `region` is (top, left, height, width) of the pixels to score, MARGIN or more from every side; corners on its outermost `rim` (0 or 1)
    pixels only suppress. `limit`, `ties` and `codes` are those of `strongest`; scratch: `lines` uint8 [4, line_bytes(width)], `active`
    uint32 [2, groups + 1]. Once `limit` corners are known, the floor rises to the weakest of them.

    Pixels to the right of the region may be read, so `pixels` must have GROUP of them there, or rows enough below to run into.
    """
    top, left, rows, span = region
    pitch = np.uint32(pixels.shape[1])
    flat = pixels.reshape(-1)[(top - MARGIN) * pixels.shape[1] + left - MARGIN :]
    least = np.uint8(threshold)
    floor = max(least, np.uint8(1)) if suppressed else least  # a score of 1 is OpenCV's 0, which exceeds no neighbor
    tail = max(span - GROUP, 0)  # the last group ends with the row, and may repeat pixels of the one before
    lines[:] = 0
    kept, count, found, more, enough = lines[3], 0, 0, False, limit + limit // 4
    for y in range(rows + 1):
        line, earlier = lines[y % 3, GROUP:], count
        line[:] = 0
        count = 0
        if y < rows:
            window = flat[y * pixels.shape[1] :]
            count = score_groups(window, pitch, span // GROUP, 0, least, floor, mode, line, active[y % 2], count)
            if span % GROUP:
                count = score_groups(window[tail:], pitch, 1, tail, least, floor, mode, line[tail:], active[y % 2], count)
                line[span:] = 0
        if suppressed and rim < y <= rows - rim:
            up, middle = lines[(y + 1) % 3], lines[(y + 2) % 3]
            for i in range(earlier):
                x = np.int64(active[(y + 1) % 2, i])
                first, end = x + GROUP - 1, x + 2 * GROUP + 1
                if suppress(up[first:end], middle[first:end], lines[y % 3, first:end], kept[first + 1 : end - 1]):
                    if rim:
                        kept[GROUP] = kept[GROUP + span - 1] = 0
                    found = collect(kept[GROUP:], -(-x // GROUP) * GROUP, GROUP, top + y - 1, left, codes, found)
        elif not suppressed:
            for i in range(count):
                x = np.int64(active[y % 2, i])
                found = collect(line, -(-x // GROUP) * GROUP, GROUP, top + y, left, codes, found)
        if found > enough or found + span + GROUP > codes.size:
            found, cut, _ = keep_strongest(codes, found, limit, ties + (ties > 0), histogram)  # one tie too many tells that some were lost
            floor, more, enough = max(floor, np.uint8(cut - (ties > 0))), True, found + found // 4
    lost = False
    if found > limit:
        found, _, lost = keep_strongest(codes, found, limit, ties, histogram)
        more = True
    return found, more, lost


def line_bytes(width: int) -> int:
    """Bytes of a line of scores: a group before it, and room for the last group to be a whole one."""
    return -(-width // GROUP) * GROUP + 3 * GROUP
