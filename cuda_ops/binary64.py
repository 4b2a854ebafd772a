"""IEEE double arithmetic in integers, for kernels whose answer must equal a float64 formula to the bit without the GPU's float64 units.

A number is its bit pattern as int64: zero, or positive and normal. Patterns then compare as the numbers do. Results are rounded to
nearest, halves to even, as the hardware does; overflow and subnormal results are not provided for.
"""

from __future__ import annotations

import numpy as np

from cuda_ops.jit import device

HIDDEN = 1 << 52  # the leading bit that a pattern does not store
LOW_26 = (1 << 26) - 1
GUARDED = 1 << 55  # a significand with three more bits: guard, round, and whether anything was lost below
ONE = 1023 << 52


def pattern(value: float) -> int:
    """The bit pattern of a positive normal Python float, or of zero."""
    return int(np.float64(value).view(np.int64))


@device
def _significand(a):
    return (a & (HIDDEN - 1)) | HIDDEN


@device
def _rounded(guarded, exponent):
    """The pattern of `guarded` in [2^55, 2^56) times 2^(exponent - 1078); a carry out of the significand runs into the exponent."""
    significand, rest = guarded >> 3, guarded & 7
    if rest > 4 or (rest == 4 and significand & 1):
        significand += 1
    return (exponent << 52) + (significand - HIDDEN)


@device
def _shifted(guarded, places):
    """`guarded` >> places, with its last bit set if a set bit was lost."""
    if places > 56:
        return np.int64(guarded != 0)
    return (guarded >> places) | np.int64(guarded & ((np.int64(1) << places) - 1) != 0)


@device
def from_integer(value):
    """An integer in [0, 2^53)."""
    significand, exponent = np.int64(value), np.int64(1075)
    if significand == 0:
        return significand
    for places in (32, 16, 8, 4, 2, 1):
        if significand < np.int64(1) << (53 - places):
            significand <<= places
            exponent -= places
    return (exponent << 52) + (significand - HIDDEN)


@device
def plus(a, b):
    """a + b."""
    large, small = max(a, b), min(a, b)
    if small == 0:
        return large
    exponent = large >> 52
    total = (_significand(large) << 3) + _shifted(_significand(small) << 3, exponent - (small >> 52))
    if total >= 2 * GUARDED:
        total = _shifted(total, 1)
        exponent += 1
    return _rounded(total, exponent)


@device
def distance(a, b):
    """|a - b|."""
    large, small = max(a, b), min(a, b)
    if small == 0 or large == small:
        return large - small
    exponent = large >> 52
    rest = (_significand(large) << 3) - _shifted(_significand(small) << 3, exponent - (small >> 52))
    for places in (32, 16, 8, 4, 2, 1):
        if rest < np.int64(1) << (56 - places):
            rest <<= places
            exponent -= places
    return _rounded(rest, exponent)


@device
def times(a, b):
    """a * b."""
    if a == 0 or b == 0:
        return np.int64(0)
    p, q = _significand(a), _significand(b)
    p_high, p_low, q_high, q_low = p >> 26, p & LOW_26, q >> 26, q & LOW_26
    low = p_low * q_low
    middle = p_high * q_low + p_low * q_high + (low >> 26)
    high = p_high * q_high + (middle >> 26)
    rest = ((middle & LOW_26) << 26) | (low & LOW_26)
    product = (high << 3) | (rest >> 49) | np.int64(rest & ((np.int64(1) << 49) - 1) != 0)
    exponent = (a >> 52) + (b >> 52) - 1023
    if product >= 2 * GUARDED:
        product = _shifted(product, 1)
        exponent += 1
    return _rounded(product, exponent)


@device
def over(a, b):
    """a / b, b not zero: six digits of ten bits, each estimated in float32 (at most one off) and put right exactly."""
    if a == 0:
        return np.int64(0)
    rest, divisor = _significand(a), _significand(b)
    exponent = (a >> 52) - (b >> 52) + 1023
    if rest < divisor:
        rest <<= 1
        exponent -= 1
    rest -= divisor
    quotient = np.int64(1)
    inverse = np.float32(1024) / np.float32(divisor)
    for _ in range(6):
        digit = np.int64(np.float32(rest) * inverse)
        rest = (rest << 10) - digit * divisor
        if rest < 0:
            rest += divisor
            digit -= 1
        elif rest >= divisor:
            rest -= divisor
            digit += 1
        quotient = (quotient << 10) + digit
    return _rounded((quotient >> 5) | np.int64((quotient & 31) != 0 or rest != 0), exponent)
