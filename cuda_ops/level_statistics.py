"""Statistics of counted levels, from integer sums, so that they do not depend on an order of summation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ops.jit import host


@host
def _sums(counts):
    """Lowest, highest level; number, sum and sum of squares of the levels; the sum of the middle two; entropy in bits."""
    size = np.int64(0)
    for count in counts:
        size += count
    low, high, below, total, squares, middle, entropy = -1, 0, np.int64(0), np.int64(0), np.int64(0), 0, 0.0
    for level in range(counts.size):
        count = np.int64(counts[level])
        if count == 0:
            continue
        if low < 0:
            low = level
        high = level
        for rank in ((size - 1) // 2, size // 2):
            if below <= rank < below + count:
                middle += level
        below += count
        total += count * level
        squares += count * level * level
        entropy -= count / size * math.log2(count / size)
    return low, high, size, total, squares, middle, entropy


def statistics(counts: NDArray[Any]) -> dict[str, float]:
    """Finite statistics of the levels 0..n-1 that were counted, at least one of them; entropy in bits, to 12 decimals."""
    low, high, size, total, squares, middle, entropy = _sums(counts)
    return {
        "min": float(low),
        "max": float(high),
        "mean": total / size,
        "std": math.sqrt((size * squares - total * total) / (size * size)),
        "median": middle / 2,
        "entropy": abs(round(entropy, 12)),
    }
