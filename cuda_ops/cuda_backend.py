"""The CUDA backend: slots that each own a stream, pinned staging memory and a device arena.

A batch goes up in one copy, runs without host synchronisation or allocation, and comes down in one copy; successive batches overlap on
different slots. Kernels find their image through the tile table, so mixed sizes share a launch.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from cuda_ops.backend import Deliver, DeviceLost
from cuda_ops.batch import FIRST, HEIGHT, PACK_THREADS, WIDTH, BatchPlan, CudaBatch, Region, StepPlan, plan_batch
from cuda_ops.chain import Item, warming_items
from cuda_ops.device import find_image
from cuda_ops.jit import kernel
from cuda_ops.operator import Operator, Result

# CUresult codes after which the context is unusable: ECC, illegal address, timeouts, assert, launch failure and the like.
STICKY = frozenset({214, 219, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})
CLEAR_THREADS = 256
FIRST_ARENA_BYTES = 64 << 20


@kernel
def clear(words):
    """Zero an int64 array, grid-stride."""
    for i in range(cuda.grid(1), words.shape[0], cuda.gridsize(1)):
        words[i] = 0


@kernel
def pack_bits(starts, table, mask, packed, offsets, column):
    """Pack a 0/255 mask to one bit a pixel, most significant bit first, rows padded to whole bytes; one byte a thread."""
    block = cuda.blockIdx.x
    image = find_image(starts, block)
    height, width = table[image, HEIGHT], table[image, WIDTH]
    stride = (width + 7) >> 3
    index = (block - starts[image]) * cuda.blockDim.x + cuda.threadIdx.x
    if index >= height * stride:
        return
    y = index // stride
    x = (index - y * stride) << 3
    row = table[image, column] + y * width
    value = 0
    for bit in range(8):
        value <<= 1
        if x + bit < width and mask[row + x + bit] != 0:
            value |= 1
    packed[offsets[image] + index] = value


@dataclass
class Slot:
    """What one batch in flight owns."""

    stream: Any
    device: Any
    upload: NDArray[np.uint8]
    download: NDArray[np.uint8]


class CudaBackend:
    """Two slots by default: while one batch computes, the next one's pixels travel."""

    name = "cuda"
    share = False

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for _ in range(slots):
            self._free.put(
                Slot(
                    cuda.stream(),
                    cuda.device_array(FIRST_ARENA_BYTES, dtype=np.uint8),
                    cuda.pinned_array(FIRST_ARENA_BYTES, dtype=np.uint8),
                    cuda.pinned_array(FIRST_ARENA_BYTES // 4, dtype=np.uint8),
                )
            )

    def run(self, items: Sequence[Item], deliver: Deliver) -> dict[str, float]:
        """See `Backend.run`. DeviceLost on a sticky CUDA error."""
        slot = self._free.get()
        try:
            marks = [time.perf_counter()]
            plan = plan_batch(items)
            self._fit(slot, plan)
            self._upload(slot, plan, items)
            slot.stream.synchronize()
            marks.append(time.perf_counter())
            for step in plan.steps:
                self._step(slot, plan, step)
            slot.stream.synchronize()
            marks.append(time.perf_counter())
            host = self._download(slot, plan)
            marks.append(time.perf_counter())
        except Exception as error:
            if getattr(error, "code", None) in STICKY:
                raise DeviceLost(str(error)) from error
            raise
        finally:
            self._free.put(slot)
        self._deliver(plan, items, host, deliver)
        return dict(zip(("h2d", "kernel", "d2h"), np.diff(marks).tolist(), strict=True))

    def scratch_bytes(self, item: Item) -> int:
        """Arena bytes of the item alone; those of a batch add up."""
        return plan_batch([item]).size

    def warm_up(self, operators: Iterable[Operator]) -> None:
        """See `Backend.warm_up`."""
        for item in warming_items(operators):
            self.run([item], _raise)

    def close(self) -> None:
        """Drop arenas and staging memory."""
        for _ in range(self.slots):
            self._free.get()

    def _fit(self, slot: Slot, plan: BatchPlan) -> None:
        """Grow the slot for a batch above its memory; the old memory is dropped first."""
        if slot.device.size < plan.size:
            slot.device = None
            slot.device = cuda.device_array(plan.size, dtype=np.uint8)
        if slot.upload.size < plan.upload:
            slot.upload = cuda.pinned_array(plan.upload, dtype=np.uint8)
        if slot.download.size < plan.download_end - plan.download_start:
            slot.download = cuda.pinned_array(plan.download_end - plan.download_start, dtype=np.uint8)

    def _upload(self, slot: Slot, plan: BatchPlan, items: Sequence[Item]) -> None:
        for index, item in enumerate(items):
            plan.pixels.image(slot.upload, index)[:] = item.pixels
        for step in plan.steps:
            for region, array in step.tables.values():
                region.image(slot.upload, 0)[:] = array
        slot.device[: plan.upload].copy_to_device(slot.upload[: plan.upload], stream=slot.stream)

    def _step(self, slot: Slot, plan: BatchPlan, step: StepPlan) -> None:
        tables = {name: _view(slot.device, region)[: array.size].reshape(array.shape) for name, (region, array) in step.tables.items()}
        starts = {name[7:]: array for name, array in tables.items() if name.startswith("starts:")}
        arrays = {name: _view(slot.device, region) for name, region in step.regions.items()}
        for region in step.regions.values():
            if region.zero:
                words = slot.device[region.start : region.start + region.bytes].view(np.int64)
                clear[min(4096, -(-words.size // CLEAR_THREADS)), CLEAR_THREADS, slot.stream](words)
        batch = CudaBatch(
            count=plan.count,
            params=step.params[0],
            source=_view(slot.device, step.source),
            table=tables["table"],
            ints=tables["ints"],
            floats=tables["floats"],
            arrays=arrays,
            starts=starts,
            blocks={**step.blocks, "image": plan.count},
            stream=slot.stream,
        )
        step.step.operator.cuda(batch)
        for name, region in step.packed.items():
            column = FIRST + list(step.regions).index(name)
            offsets = tables[f"packed:{name}"]
            batch.launch(pack_bits, "pack", PACK_THREADS, arrays[name], _view(slot.device, region), offsets, column)

    def _download(self, slot: Slot, plan: BatchPlan) -> NDArray[np.uint8]:
        """The result bytes, copied out of the pinned memory that the next batch will use."""
        size = plan.download_end - plan.download_start
        slot.device[plan.download_start : plan.download_end].copy_to_host(slot.download[:size], stream=slot.stream)
        slot.stream.synchronize()
        return slot.download[:size].copy()

    def _deliver(self, plan: BatchPlan, items: Sequence[Item], host: NDArray[np.uint8], deliver: Deliver) -> None:
        for index, item in enumerate(items):
            height, width = item.pixels.shape[:2]
            results = []
            try:
                for step, own in zip(plan.steps, item.chain, strict=True):
                    if step.step.keep:
                        regions = {**step.regions, **step.packed}
                        names = own.operator.layout(height, width, own.params).outputs
                        arrays = {name: _shift(regions[name], plan.download_start).image(host, index) for name in names}
                        results.append(own.operator.finish(arrays, own.params, height, width))
            except Exception as error:
                deliver(index, error)
            else:
                deliver(index, results)


def _view(device: Any, region: Region) -> Any:
    """A region of the arena as a flat device array of its dtype."""
    return device[region.start : region.start + region.bytes].view(region.dtype)


def _shift(region: Region, origin: int) -> Region:
    return Region(region.dtype, region.start - origin, region.bytes, region.offsets, region.shapes)


def _raise(_index: int, outcome: list[Result] | Exception) -> None:
    if isinstance(outcome, Exception):
        raise outcome
