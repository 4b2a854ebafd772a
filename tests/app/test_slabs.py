"""A slab is lent as long as anything refers to it, and not a moment longer."""

from __future__ import annotations

import os

import numpy as np
import pytest

from app.slabs import SLAB_BYTES, Slabs


@pytest.fixture
def slabs() -> Slabs:
    memory = Slabs.memory()
    try:
        return Slabs(memory)
    finally:
        os.close(memory)


def test_slabs_are_lent_and_come_back(slabs: Slabs) -> None:
    kept = [slabs.take(slabs.free(), (2, 3)) for _ in range(3)]
    assert slabs.free() == 3
    view = kept[1][1:].T.reshape(-1)[::2]
    kept.clear()
    assert (slabs.free(), slabs.take(0, (1,)).base is not None) == (0, True)
    held = slabs.take(0, (1, 1))
    assert slabs.free() == 2
    del view
    assert slabs.free() == 1
    del held
    assert slabs.free() == 0


def test_the_last_slab_is_copied(slabs: Slabs) -> None:
    lent = []
    while (index := slabs.free()) not in [number for number, _ in lent]:
        slabs.write(index, bytes([index] * 6))
        lent.append((index, slabs.take(index, (2, 3))))
    assert index == slabs.free() == len(lent) - 1
    slabs.write(index, b"\xff" * 6)
    assert all((pixels == number).all() for number, pixels in lent)


def test_two_maps_of_one_memory(slabs: Slabs) -> None:
    memory = Slabs.memory()
    ours, theirs = Slabs(memory), Slabs(memory)
    os.close(memory)
    ours.write(5, b"file")
    assert theirs.read(5, 4) == b"file"
    theirs.pixels(5, (2, 2))[:] = 7
    theirs.mark = True
    assert ours.mark
    assert ours.take(5, (2, 2)).tolist() == [[7, 7], [7, 7]]
    assert not slabs.mark


def test_a_slab_cannot_be_cut_short_or_overrun(slabs: Slabs) -> None:
    memory = Slabs.memory()
    try:
        for size in (0, 1 << 40):
            with pytest.raises(PermissionError):
                os.ftruncate(memory, size)
    finally:
        os.close(memory)
    assert slabs.pixels(0, (SLAB_BYTES,)).dtype == np.uint8
    with pytest.raises(ValueError, match="smaller than requested"):
        slabs.pixels(0, (SLAB_BYTES + 1,))
