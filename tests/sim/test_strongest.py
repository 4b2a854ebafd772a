"""Levels of a pyramid in one table row, as the ranking kernels see them."""

from __future__ import annotations

import numpy as np

from cuda_ops import strongest


def test_a_stretch_belongs_to_the_last_level_that_begins_at_or_before_it() -> None:
    rows = np.zeros((1, 2 + 3 * strongest.RECORD), dtype=np.int64)
    row = 1
    rows[0, row] = 3
    for level, first in enumerate((0, 4, 9)):
        rows[0, row + strongest.FIRST_STRETCH + strongest.RECORD * level] = first
    levels = [strongest.stretch_level(rows, 0, row, stretch) for stretch in range(12)]
    assert levels == [0] * 4 + [1] * 5 + [2] * 3
