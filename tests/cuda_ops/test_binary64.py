"""Doubles in integers: every operation rounds as the hardware does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_ops import binary64
from cuda_ops.jit import host

values = st.floats(min_value=2.0**-200, max_value=2.0**200, allow_nan=False)
OPERATIONS = {
    "plus": (binary64.plus, np.add),
    "distance": (binary64.distance, lambda a, b: abs(a - b)),
    "times": (binary64.times, np.multiply),
    "over": (binary64.over, np.divide),
}


@host
def _all(a, b, out):
    for i in range(a.size):
        out[0, i] = binary64.plus(a[i], b[i])
        out[1, i] = binary64.distance(a[i], b[i])
        out[2, i] = binary64.times(a[i], b[i])
        out[3, i] = binary64.over(a[i], b[i])


def _check(a, b):
    out = np.empty((4, a.size), dtype=np.int64)
    _all(a.view(np.int64), b.view(np.int64), out)
    for row, (name, (_, expected)) in zip(out, OPERATIONS.items(), strict=True):
        np.testing.assert_array_equal(row, expected(a, b).view(np.int64), err_msg=name)


def _structured(rng, count):
    """Significands made of runs of ones and zeros, where carries travel far and ties happen."""
    significand = np.zeros(count, dtype=np.int64)
    for _ in range(4):
        significand ^= (np.int64(1) << rng.integers(0, 53, count)) - 1
    return ((rng.integers(990, 1060, count) << 52) | (significand & (binary64.HIDDEN - 1))).view(np.float64)


@pytest.mark.parametrize("seed", range(3))
def test_each_operation_equals_the_hardware(seed):
    rng = np.random.default_rng(seed)
    close = rng.random(200_000) + 0.25
    _check(_structured(rng, 400_000), _structured(rng, 400_000))
    _check(rng.random(200_000) + 1e-9, rng.random(200_000) + 1e-9)
    _check(close, (close.view(np.int64) + rng.integers(-4, 5, close.size)).view(np.float64))
    _check(rng.integers(1, 300, 200_000).astype(np.float64), rng.integers(1, 300, 200_000).astype(np.float64))


@given(values, values)
def test_any_pair(a, b):
    _check(np.array([a]), np.array([b]))


def test_zero():
    _check(np.zeros(3), np.array([1.0, 0.3, 2.0**90]))
    one = np.int64(binary64.ONE)
    assert binary64.plus(one, np.int64(0)) == one
    assert binary64.times(one, np.int64(0)) == 0
    assert binary64.distance(one, np.int64(0)) == one


@given(st.integers(0, 2**53 - 1))
def test_integers(value):
    assert binary64.from_integer(value) == binary64.pattern(float(value))


@given(values)
def test_pattern_orders_like_the_number(value):
    assert (binary64.pattern(value) < binary64.ONE) == (value < 1.0)
