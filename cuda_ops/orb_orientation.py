"""The direction of an ORB keypoint, and its sine and cosine: the same bits as OpenCV's, without float64.

Direction: from the keypoint to the center of brightness of the disc of radius 15 around it, by integer moments, in degrees by OpenCV's
fastAtan2, an odd polynomial in float32 with every step rounded.

Sine and cosine: correctly rounded to float32, as by a float64 library but for one case in some hundred thousand, where the last bit of a
descriptor's sampling point could differ. They are worked out in integers of 46 fractional bits: a table over multiples of 1/64, and three
terms of the series for what is left.
"""

from __future__ import annotations

import math

import numpy as np

from cuda_ops.device import add, mul
from cuda_ops.jit import device, host

RADIUS = 15
HALF_WIDTHS = (15, 15, 15, 15, 14, 14, 14, 13, 13, 12, 11, 10, 9, 8, 6, 3)  # of the disc's rows, from the middle one
SIDE = 2 * RADIUS + 1
LANES = SIDE + 1  # a row of the disc in whole vector registers

_INSIDE = [[abs(x) <= HALF_WIDTHS[abs(y)] for x in range(-RADIUS, LANES - RADIUS)] for y in range(-RADIUS, RADIUS + 1)]
INSIDE = np.array(_INSIDE, dtype=np.int32)  # [31, 32]: 1 in the disc
ACROSS = INSIDE * np.arange(-RADIUS, LANES - RADIUS, dtype=np.int32)  # [31, 32]: x in the disc, else 0

_DEGREES = np.float32(180 / math.pi)
P1, P3, P5, P7 = (
    np.float32(np.float32(p) * _DEGREES) for p in (0.9997878412794807, -0.3258083974640975, 0.1555786518463281, -0.04432655554792128)
)
LEAST = np.float32(np.finfo(np.float64).eps)
RADIANS = np.float32(math.pi / 180)

FRACTION = 46
STEP = FRACTION - 6  # the table's arguments are multiples of 2^-6
TURN = np.array(
    [round(f(i / 64) * 2**FRACTION) for i in range(math.ceil(64 * 2 * math.pi) + 2) for f in (math.cos, math.sin)], dtype=np.int64
)  # cosine and sine in turn
TO_FIXED, FROM_FIXED = np.float32(2.0**FRACTION), np.float32(2.0**-FRACTION)


@host
def moments(pixels, y, x, inside, across):
    """First moments (x, y) of the brightness in the disc around a pixel."""
    along, down = np.int32(0), np.int32(0)
    for row in range(SIDE):
        line = pixels[y - RADIUS + row, x - RADIUS : x - RADIUS + LANES]
        ones, weights = inside[row], across[row]
        total = np.int32(0)
        for k in range(LANES):
            value = np.int32(line[k])
            total += np.int32(ones[k] * value)
            along += np.int32(weights[k] * value)
        down += np.int32(total * np.int32(row - RADIUS))
    return along, down


@device
def direction(along, down):
    """The angle of a vector of integers in degrees, 0 <= angle <= 360: cv::fastAtan2."""
    x, y = np.float32(along), np.float32(down)
    width, height = abs(x), abs(y)
    ratio = min(width, height) / add(max(width, height), LEAST)
    square = mul(ratio, ratio)
    angle = mul(add(mul(add(mul(add(mul(P7, square), P5), square), P3), square), P1), ratio)
    if height > width:
        angle = add(np.float32(90), -angle)
    if along < 0:
        angle = add(np.float32(180), -angle)
    if down < 0:
        angle = add(np.float32(360), -angle)
    return angle


@device
def cosine_sine(degrees, turn):
    """Cosine and sine of an angle of 0 to 360 degrees; `turn` is TURN.

    angle = base + rest with |rest| <= 1/128; powers of the rest keep 46 fractional bits, products are arranged to fit 63 bits.
    """
    fixed = np.int64(mul(mul(degrees, RADIANS), TO_FIXED))
    index = (fixed + (np.int64(1) << (STEP - 1))) >> STEP
    rest = fixed - (index << STEP)
    square = ((rest >> 8) * (rest >> 8)) >> (FRACTION - 16)
    cube = ((rest >> 10) * square) >> (FRACTION - 10)
    sine = rest - cube // 6 + ((cube * square) >> FRACTION) // 120
    versine = (square >> 1) - (((square >> 2) * (square >> 2)) >> (FRACTION - 4)) // 24  # 1 - cosine
    c, s = turn[2 * index], turn[2 * index + 1]
    cosine_all = c - _scaled(c, versine) - _scaled(s, sine)
    sine_all = s - _scaled(s, versine) + _scaled(c, sine)
    return mul(np.float32(cosine_all), FROM_FIXED), mul(np.float32(sine_all), FROM_FIXED)


@device
def _scaled(a, b):
    """The product of two fixed-point numbers, |a| <= 1 and |b| <= 1/128: the upper and the lower half of `a` one after the other."""
    half = FRACTION // 2
    upper = a >> half
    lower = a - (upper << half)
    return ((upper * b) >> half) + ((lower * b) >> FRACTION)
