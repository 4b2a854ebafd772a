"""The CPU backend: one image a thread, kernels without the GIL, scratch memory kept per thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ops.backend import Deliver
from cuda_ops.batch import ALIGNMENT, CpuImage, aligned, scalar_rows
from cuda_ops.chain import PICTURES, Chain, Item, Step, warming_items
from cuda_ops.operator import ArraySpec, Layout, Operator, Result

KEEP_BYTES = 64 << 20  # an arena above this is given back once images are small again


class Arena:
    """Memory that grows to the need and is carved anew for every image."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint8)
        self._used = 0

    def reset(self, size: int) -> None:
        """Start over with at least `size` bytes."""
        if not size + ALIGNMENT <= self._buffer.size <= max(KEEP_BYTES, 4 * size):
            self._buffer = np.empty(0, dtype=np.uint8)  # free the old one first
            self._buffer = np.empty(size + ALIGNMENT, dtype=np.uint8)
        self._used = -self._buffer.ctypes.data % ALIGNMENT

    def take(self, spec: ArraySpec) -> NDArray[Any]:
        """An array of that shape and dtype, uninitialised unless it asks for zeros."""
        size = spec.bytes
        array = self._buffer[self._used : self._used + size].view(spec.dtype).reshape(spec.shape)
        self._used += aligned(size)
        if spec.zero:
            array.fill(0)
        return array


class CpuBackend:
    """`slots` batches at once; within a batch the items run in order on the caller's thread."""

    name = "cpu"
    share = True

    def __init__(self, threads: int) -> None:
        self.slots = threads
        self._local = threading.local()

    def run(self, items: Sequence[Item], deliver: Deliver) -> dict[str, float]:
        """See `Backend.run`; an item that fails is delivered as its exception and harms no other."""
        begin = time.perf_counter()
        for index, item in enumerate(items):
            try:
                outcome: list[Result] | Exception = self._run_chain(item.pixels, item.chain)
            except Exception as error:
                outcome = error
            deliver(index, outcome)
        return {"kernel": time.perf_counter() - begin}

    def scratch_bytes(self, item: Item) -> int:
        """The largest step's arrays, and the picture handed on."""
        height, width = item.pixels.shape[:2]
        needs = [_bytes(step.operator.layout(height, width, step.params)) for step in item.chain]
        return max(needs) + (max(needs) if len(needs) > 1 else 0)

    def warm_up(self, operators: Iterable[Operator]) -> None:
        """See `Backend.warm_up`."""
        for item in warming_items(operators):
            self._run_chain(item.pixels, item.chain)

    def close(self) -> None:
        """Forget this thread's arenas; those of other threads end with them."""
        self._local = threading.local()

    def _run_chain(self, pixels: NDArray[np.uint8], chain: Chain) -> list[Result]:
        height, width = pixels.shape[:2]
        picture, side = pixels, 1
        results = []
        for step in chain:
            operator = step.operator
            operator.check_size(step.params, height, width)
            arrays, outputs = self._arrays(step, height, width, 1 - side)
            ints, floats = scalar_rows(step, height, width)
            operator.cpu(CpuImage(picture, step.params, ints, floats, arrays))
            if operator.kind in PICTURES:
                picture, side = arrays[operator.kind], 1 - side
            if step.keep:
                leaving = {name: np.packbits(arrays[name], axis=1) if spec.bits else arrays[name] for name, spec in outputs.items()}
                results.append(operator.finish(leaving, step.params, height, width))
        return results

    def _arrays(self, step: Step, height: int, width: int, side: int) -> tuple[dict[str, NDArray[Any]], Mapping[str, ArraySpec]]:
        """The arrays of one step: packed and unkept ones from the arena of that side (the other side holds the picture that feeds it)."""
        layout = step.operator.layout(height, width, step.params)
        arena = self._arenas()[side]
        arena.reset(_bytes(layout))
        arrays: dict[str, NDArray[Any]] = {}
        for name, spec in layout.outputs.items():
            if spec.bits or not step.keep:
                arrays[name] = arena.take(spec)
            else:
                arrays[name] = np.zeros(spec.shape, spec.dtype) if spec.zero else np.empty(spec.shape, spec.dtype)
        for name, spec in {**layout.scratch, **layout.cpu}.items():
            arrays[name] = arena.take(spec)
        return arrays, layout.outputs

    def _arenas(self) -> tuple[Arena, Arena]:
        if not hasattr(self._local, "arenas"):
            self._local.arenas = (Arena(), Arena())
        arenas: tuple[Arena, Arena] = self._local.arenas
        return arenas


def _bytes(layout: Layout) -> int:
    return sum(aligned(spec.bytes) for specs in (layout.outputs, layout.scratch, layout.cpu) for spec in specs.values())
