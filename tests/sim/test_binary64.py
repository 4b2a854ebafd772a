"""Binary64 arithmetic in integers, step by step against the processor's own."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from cuda_ops import binary64


def pattern(value: float) -> np.int64:
    return np.int64(struct.unpack("<q", struct.pack("<d", value))[0])


def values() -> list[tuple[float, float]]:
    """Positive pairs: near each other, far apart, with long and with short significands."""
    generate = random.Random(3)
    pairs = [(1.0, 1.0), (1.0, 2.0**-80), (2.0**-80, 1.0), (1.0, 1.0 - 2.0**-53), (3.0, 1.0), (1e-9, 1e9), (0.1, 0.3)]
    for _ in range(400):
        a = generate.uniform(0.5, 2.0) * 2.0 ** generate.randint(-40, 40)
        b = generate.choice([a * (1 + generate.uniform(-1, 1) * 2.0 ** -generate.randint(1, 50)), generate.uniform(1e-12, 1e12)])
        pairs.append((a, b))
        pairs.append((float(generate.randint(1, 1 << 30)), float(generate.randint(1, 1 << 20))))
        # Quotients that end: an estimate in float32 falls short of them as often as not.
        divisor = generate.randint(1 << 39, 1 << 40)
        pairs.append((float(divisor * generate.randint(1 << 10, 1 << 11)), float(divisor)))
    return pairs


@pytest.mark.parametrize(
    ("ours", "real"),
    [
        (binary64.distance, lambda a, b: abs(a - b)),
        (binary64.times, lambda a, b: a * b),
        (binary64.over, lambda a, b: a / b),
    ],
    ids=["distance", "times", "over"],
)
def test_every_result_has_the_same_bits(ours, real) -> None:  # type: ignore[no-untyped-def]  # the kernels have no types either
    for a, b in values():
        assert int(ours(pattern(a), pattern(b))) == int(pattern(real(a, b))), f"{a!r}, {b!r}"


def test_zero() -> None:
    zero, one = pattern(0.0), pattern(1.0)
    assert binary64.times(zero, one) == binary64.over(zero, one) == 0
    assert binary64.distance(one, zero) == binary64.distance(zero, one) == one
