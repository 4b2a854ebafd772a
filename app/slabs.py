"""Memory that the service and one decoder keep mapped: an image file goes in, its pixels come out in the same place, nothing is copied.

Pages of a new memfd cost more than decoding into them, and copying what another core has just written costs nearly as much again. So a
picture is handed on as it lies, and its slab is used again once nobody refers to it any more.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import sys
from typing import Any

import numpy as np

from app.codec.image import Pixels

SLAB_BYTES = 16 << 20  # a grey photograph of a telephone; pages that were never needed take no memory
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_COUNT = 16


class Slabs:
    """Sixteen slabs and a mark. `memory` makes the memfd that two processes map."""

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, SLAB_BYTES * _COUNT + 1)
        whole = ctypes.c_ubyte * SLAB_BYTES
        # Not arrays of NumPy's: a view of a view of those refers to the memory, and skips what lies between.
        self._slabs: list[Any] = [whole.from_buffer(self._map, SLAB_BYTES * index) for index in range(_COUNT)]
        self._unused = [sys.getrefcount(self._slabs[index]) for index in range(_COUNT)]

    @staticmethod
    def memory() -> int:
        """A new memfd, sealed: neither side can cut it short under the other, whom the kernel would kill."""
        descriptor = os.memfd_create("slabs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, SLAB_BYTES * _COUNT + 1)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        return descriptor

    @property
    def mark(self) -> bool:
        """One bit of news from the other side."""
        return self._map[-1] == 1

    @mark.setter
    def mark(self, value: bool) -> None:
        self._map[-1] = value

    def free(self) -> int:
        """A slab that no array refers to. Arrays hold on to the slab they were made over, however they are sliced."""
        return next((index for index in range(_COUNT - 1) if sys.getrefcount(self._slabs[index]) == self._unused[index]), _COUNT - 1)

    def write(self, index: int, data: bytes) -> None:
        """Put a file into a slab."""
        start = SLAB_BYTES * index
        self._map[start : start + len(data)] = data

    def read(self, index: int, size: int) -> bytes:
        """The file in a slab."""
        start = SLAB_BYTES * index
        return self._map[start : start + size]

    def pixels(self, index: int, shape: tuple[int, ...]) -> Pixels:
        """A slab as an array, not copied. Raises ValueError if it is too small."""
        pixels: Pixels = np.frombuffer(self._slabs[index], np.uint8, math.prod(shape)).reshape(shape)
        return pixels

    def take(self, index: int, shape: tuple[int, ...]) -> Pixels:
        """Pixels to keep. Those in the last slab are copied: that one is there for when no other is free."""
        pixels = self.pixels(index, shape)
        return pixels if index < _COUNT - 1 else pixels.copy()
