"""Corner responses on the CPU: row by row, each row of gradients entering and leaving sliding column sums.

Everything is a vector loop over one row. Sums stay exact: int32, or integers in float64 where int32 is too narrow. The responses of three
rows at a time are searched for peaks, so no map of them is stored.
"""

from __future__ import annotations

import numpy as np

from cuda_ops.device import REFLECT, border_index, mul
from cuda_ops.edges.sobel import TAPS
from cuda_ops.jit import device, host
from cuda_ops.operator import ArraySpec
from cuda_ops.patterns import filter_columns, lane_type
from cuda_ops.ranking import RESPONSE_BITS
from cuda_ops.structure_tensor import DIGIT, HARRIS, digits_to_float, eigenvalue, harris


@host
def gradient_row(source, y, lines, taps, dx, dy):
    """Both derivatives of row y."""
    rows_smooth, rows_outer = lines
    smooth, outer = taps
    lane = rows_smooth.dtype.type
    filter_columns(source, y, rows_smooth, rows_outer, smooth, outer, REFLECT)
    for x in range(source.shape[1]):
        a, b = lane(0), lane(0)
        for k in range(len(smooth)):
            a = lane(a + lane(lane(outer[k]) * rows_smooth[x + k]))
            b = lane(b + lane(lane(smooth[k]) * rows_outer[x + k]))
        dx[x], dy[x] = a, b


@host
def slide(entering, leaving, sums, pad):
    """Add the products of one row of gradients to the column sums and take those of another away, then reflect the sums at both ends."""
    lane = sums.dtype.type
    width = entering.shape[1]
    dx, dy, old_dx, old_dy = entering[0], entering[1], leaving[0], leaving[1]
    xx, xy, yy = sums[0, pad : pad + width], sums[1, pad : pad + width], sums[2, pad : pad + width]
    for x in range(width):
        p, q, s, t = lane(dx[x]), lane(dy[x]), lane(old_dx[x]), lane(old_dy[x])
        xx[x] = lane(xx[x] + lane(lane(p * p) - lane(s * s)))
        xy[x] = lane(xy[x] + lane(lane(p * q) - lane(s * t)))
        yy[x] = lane(yy[x] + lane(lane(q * q) - lane(t * t)))
    for i in range(3):
        for x in range(pad):
            sums[i, x] = sums[i, pad + border_index(x - pad, width, REFLECT)]
        for x in range(pad + width, sums.shape[1]):
            sums[i, x] = sums[i, pad + border_index(x - pad, width, REFLECT)]


@host
def box_row(line, spare, total, size):
    """total[x] = line[x] + ... + line[x + size - 1]: the span doubles, and takes one more where `size` has a bit; a vector pass per bit."""
    width, span, level = total.shape[0], 1, 0
    while size >> (level + 1):
        level += 1
    if level == 0:
        for x in range(width):
            total[x] = line[x]
    current = line
    while level > 0:
        level -= 1
        target = spare[level & 1] if level else total
        length = width if level == 0 else line.shape[0] - (size >> level) + 1
        ahead, beyond = current[span:], line[2 * span :]
        if (size >> level) & 1:
            for x in range(length):
                target[x] = current[x] + ahead[x] + beyond[x]
        else:
            for x in range(length):
                target[x] = current[x] + ahead[x]
        current, span = target, size >> level


@device
def small_terms(a, b, c):
    """float32 (det, trace, a - c, 2 b) of sums below 2^26: every product is exact in float64."""
    a, b, c = np.float64(a), np.float64(b), np.float64(c)
    return np.float32(a * c - b * b), np.float32(a + c), np.float32(a - c), np.float32(b + b)


@device
def large_terms(a, b, c):
    """The same of sums up to 2^46, from digits: every step is exact in float64 up to the last."""
    a, b, c = np.float64(a), np.float64(b), np.float64(c)
    up, down = np.float64(1 << DIGIT), np.float64(1) / np.float64(1 << DIGIT)
    a1, b1, c1 = np.floor(a * down), np.floor(b * down), np.floor(c * down)
    a0, b0, c0 = a - a1 * up, b - b1 * up, c - c1 * up
    low, middle, high = a0 * c0 - b0 * b0, a1 * c0 + a0 * c1 - (b1 * b0 + b1 * b0), a1 * c1 - b1 * b1
    carry = np.floor(low * down)
    low, middle = low - carry * up, middle + carry
    carry = np.floor(middle * down)
    middle, high = middle - carry * up, high + carry
    return digits_to_float(high, middle, low), np.float32(a + c), np.float32(a - c), np.float32(b + b)


@host
def respond(xx, xy, yy, large, rule, k, factor, row):
    """One row of responses; a loop for each rule and size of sums, for a branch inside would keep them from vectorising."""
    if rule == HARRIS and large:
        for x in range(row.shape[0]):
            determinant, trace, _, _ = large_terms(xx[x], xy[x], yy[x])
            row[x] = harris(determinant, trace, k, factor)
    elif rule == HARRIS:
        for x in range(row.shape[0]):
            determinant, trace, _, _ = small_terms(xx[x], xy[x], yy[x])
            row[x] = harris(determinant, trace, k, factor)
    elif large:
        for x in range(row.shape[0]):
            determinant, trace, difference, twice_b = large_terms(xx[x], xy[x], yy[x])
            row[x] = eigenvalue(determinant, trace, difference, twice_b, factor)
    else:
        for x in range(row.shape[0]):
            determinant, trace, difference, twice_b = small_terms(xx[x], xy[x], yy[x])
            row[x] = eigenvalue(determinant, trace, difference, twice_b, factor)


@host
def collect(above, here, below, columns, flags, floor, first, keys, count):
    """Append the keys of the peaks of a row above `floor`; rows are response bits, for positive floats compare like their bits.

    `first` is the key's pixel field at x = 0. Flags are found for the whole row, then looked through eight at a time.
    """
    width = here.shape[0]
    for x in range(width):
        columns[x] = max(above[x], here[x], below[x])
    left, right, inner = columns[0 : width - 2], columns[2:width], columns[1 : width - 1]
    centre, marks = here[1 : width - 1], flags[1 : width - 1]
    for x in range(width - 2):
        value = centre[x]
        peak = np.uint8(value >= left[x]) & np.uint8(value >= right[x]) & np.uint8(value >= inner[x]) & np.uint8(value > floor)
        marks[x] = peak
    words = flags.view(np.uint64)
    for word in range(words.shape[0]):
        if words[word]:
            for x in range(8 * word, 8 * word + 8):
                if flags[x]:
                    keys[count] = (np.int64(RESPONSE_BITS - here[x]) << 32) | np.int64(first - x)
                    count += 1
    return count


@host
def find_peaks(source, lines, work, keys, taps, block_size, large, rule, factors):
    """Keys of the peaks in raster order; returns their number and the bits of the floor: float32(quality) x largest response.

    While rows go by, the floor of what was seen so far, which only rises, keeps weak peaks out.
    """
    ring, sums, spare, boxes, rows, columns, flags, floor = work
    k, factor, quality = factors
    height, width = source.shape
    pad, slots = block_size // 2, block_size + 1
    bits, floor_bits = rows.view(np.int32), floor.view(np.int32)
    sums[:] = 0
    ring[slots] = 0
    floor[0] = 0
    flags[:] = 0
    newest, count, top = -1, 0, np.int32(0)
    for y in range(1 - block_size, height):
        entering = border_index(y - pad + block_size - 1, height, REFLECT)
        while newest < entering:
            newest += 1
            gradient_row(source, newest, lines, taps, ring[newest % slots, 0], ring[newest % slots, 1])
        leaving = border_index(y - pad - 1, height, REFLECT) % slots if y > 0 else slots
        slide(ring[entering % slots], ring[leaving], sums, pad)
        if y < 0:
            continue
        for i in range(3):
            box_row(sums[i], spare, boxes[i], block_size)
        respond(boxes[0], boxes[1], boxes[2], large, rule, k, factor, rows[y % 3])
        here = bits[y % 3]
        for x in range(width):
            top = max(top, here[x])
        floor_bits[0] = top
        floor[0] = mul(quality, floor[0])
        if y > 1 and width > 2:
            first = (height - y + 1) * width - 1
            count = collect(bits[(y + 1) % 3], bits[(y + 2) % 3], here, columns, flags, floor_bits[0], first, keys, count)
    return count, floor_bits[0]


def cpu_scratch(width: int, ksize: int, block_size: int) -> dict[str, ArraySpec]:
    """The CPU twin's rows: `work_arrays` takes them in this order."""
    smooth, outer = TAPS[ksize]
    gradient = lane_type(smooth, outer)
    lane = "int32" if ksize <= 3 else "float64"
    span = width + block_size - 1
    return {
        "rows_smooth": ArraySpec((width + len(smooth) - 1,), gradient),
        "rows_outer": ArraySpec((width + len(smooth) - 1,), gradient),
        "ring": ArraySpec((block_size + 2, 2, width), gradient),
        "sums": ArraySpec((3, span), lane),
        "spare": ArraySpec((2, span), lane),
        "boxes": ArraySpec((3, width), lane),
        "responses": ArraySpec((3, width), "float32"),
        "columns": ArraySpec((width,), "int32"),
        "flags": ArraySpec((-(-width // 8) * 8,), "uint8"),
        "floor": ArraySpec((1,), "float32"),
    }
