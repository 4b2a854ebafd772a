"""The ragged batch: images of any size side by side in one flat buffer, found through a table.

Table row of image i (int64): OFFSET, HEIGHT, WIDTH, STRIDE of its source pixels, then from FIRST on the element offset of each array of its
layout, outputs before scratch, in their declared order. Offsets are 64-bit, so a batch may exceed 2 GiB and a side 32,767 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ops.chain import Item, Step, sources
from cuda_ops.operator import ArraySpec, Layout, Params

OFFSET, HEIGHT, WIDTH, STRIDE, FIRST = range(5)

ALIGNMENT = 128  # bytes: one memory transaction of a GPU, and more than any vector load needs


@dataclass(frozen=True)
class CpuImage:
    """What a CPU twin gets: source pixels, parameters (structural ones choose its path), scalar rows and the arrays to fill."""

    source: NDArray[np.uint8]
    params: Any
    ints: NDArray[np.int32]
    floats: NDArray[np.float32]
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CudaBatch:
    """What a CUDA twin gets: device arrays only, and a stream to launch on.

    `source` uint8 flat; `table` int64 [n, FIRST + arrays]; `ints` int32 [n, >= 1]; `floats` float32 [n, >= 1]; `arrays` flat, by name;
    `starts` per named grid int64 [n + 1] prefix sums of blocks; `blocks` their totals; `params` those of the first image, for the
    structural ones.
    """

    count: int
    params: Any
    source: Any
    table: Any
    ints: Any
    floats: Any
    arrays: Mapping[str, Any]
    starts: Mapping[str, Any]
    blocks: Mapping[str, int]
    stream: Any

    def launch(self, kernel: Any, grid: str, threads: int | tuple[int, ...], *arguments: Any) -> None:
        """Queue `kernel(starts, table, *arguments)` over the blocks of a named grid; no blocks, no launch."""
        if self.blocks[grid]:
            kernel[self.blocks[grid], threads, self.stream](self.starts[grid], self.table, *arguments)


def scalar_rows(step: Step, height: int, width: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The int32 and float32 rows of one image; each has at least one column, for a kernel argument cannot be empty."""
    ints, floats = step.operator.scalars(step.params, height, width)
    return np.array(ints or (0,), dtype=np.int32), np.array(floats or (0,), dtype=np.float32)


def aligned(size: int) -> int:
    """`size` in bytes, rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Region:
    """One array of all images of a batch: `start` and `bytes` in the arena, and per image element offset and shape."""

    dtype: np.dtype[Any]
    start: int
    bytes: int
    offsets: NDArray[np.int64]
    shapes: Sequence[tuple[int, ...]]
    zero: bool = False

    def image(self, host: NDArray[np.uint8], index: int) -> NDArray[Any]:
        """The array of one image, as a view of the arena's bytes `host` (host[0] is the arena's first byte)."""
        shape = self.shapes[index]
        begin = self.start + int(self.offsets[index]) * self.dtype.itemsize
        return host[begin : begin + int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize].view(self.dtype).reshape(shape)


class ArenaLayout:
    """Hands out regions of an arena one behind the other."""

    def __init__(self, start: int = 0) -> None:
        self.size = start

    def region(self, dtype: str, shapes: Sequence[tuple[int, ...]], zero: bool = False) -> Region:
        """A region for one array per shape, each at an aligned offset."""
        kind = np.dtype(dtype)
        offsets, cursor = np.zeros(len(shapes), dtype=np.int64), 0
        for index, shape in enumerate(shapes):
            offsets[index] = cursor // kind.itemsize
            cursor += aligned(int(np.prod(shape, dtype=np.int64)) * kind.itemsize)
        region = Region(kind, self.size, max(cursor, ALIGNMENT), offsets, shapes, zero)
        self.size += region.bytes
        return region


def packed_shape(spec: ArraySpec) -> tuple[int, int]:
    """The shape of a `bits` array after packing."""
    return spec.shape[0], -(-spec.shape[1] // 8)


@dataclass(frozen=True)
class StepPlan:
    """Where one step's tables and arrays lie, and the host copies of the tables."""

    step: Step
    params: Sequence[Params]
    regions: Mapping[str, Region]
    packed: Mapping[str, Region]
    source: Region
    blocks: Mapping[str, int]
    tables: Mapping[str, tuple[Region, NDArray[Any]]]


@dataclass(frozen=True)
class BatchPlan:
    """A whole batch in one arena: [0, upload) goes up in one copy, [download_start, download_end) comes down in one copy."""

    count: int
    pixels: Region
    steps: Sequence[StepPlan]
    upload: int
    download_start: int
    download_end: int
    size: int


def plan_batch(items: Sequence[Item]) -> BatchPlan:
    """Lay out a batch of items with equal chain keys: uploads first, then what comes down, then what never leaves the device."""
    sizes = [(int(item.pixels.shape[0]), int(item.pixels.shape[1])) for item in items]
    chain = items[0].chain
    feeds = sources(chain)
    layouts = [
        [item.chain[s].operator.layout(h, w, item.chain[s].params) for item, (h, w) in zip(items, sizes, strict=True)]
        for s in range(len(chain))
    ]
    arena = ArenaLayout()
    pixels = arena.region("uint8", [item.pixels.shape for item in items])
    tables = [_host_tables(items, index, sizes, layout[0]) for index, layout in enumerate(layouts)]
    table_regions = [{name: arena.region(str(array.dtype), [array.shape]) for name, array in table.items()} for table in tables]
    upload = download = arena.size
    regions: list[dict[str, Region]] = [{} for _ in chain]
    packed: list[dict[str, Region]] = [{} for _ in chain]
    for index, step in enumerate(chain):
        for name, spec in layouts[index][0].outputs.items() if step.keep else ():
            shapes = [layout.outputs[name].shape for layout in layouts[index]]
            if spec.bits:
                packed[index][name] = arena.region("uint8", [packed_shape(layout.outputs[name]) for layout in layouts[index]])
                tables[index][f"packed:{name}"][:] = packed[index][name].offsets
            else:
                regions[index][name] = arena.region(spec.dtype, shapes, spec.zero)
    download_end = arena.size
    for index in range(len(chain)):
        for name, spec in layouts[index][0].outputs.items():
            if name not in regions[index]:
                regions[index][name] = arena.region(spec.dtype, [layout.outputs[name].shape for layout in layouts[index]], spec.zero)
    size = base = arena.size
    plans = []
    for index, step in enumerate(chain):
        work = ArenaLayout(base)  # steps run one after another, so their scratch may share memory
        for name, spec in layouts[index][0].scratch.items():
            regions[index][name] = work.region(spec.dtype, [layout.scratch[name].shape for layout in layouts[index]], spec.zero)
        size = max(size, work.size)
        source = pixels if feeds[index] < 0 else regions[feeds[index]][chain[feeds[index]].operator.kind]
        names = [*layouts[index][0].outputs, *layouts[index][0].scratch]
        table = tables[index]["table"]
        channels = 3 if step.operator.pixel_class(step.params) == "rgb" else 1
        table[:, OFFSET], table[:, STRIDE] = source.offsets, table[:, WIDTH] * channels
        for column, name in enumerate(names, FIRST):
            table[:, column] = regions[index][name].offsets
        blocks = {name[7:]: int(array[-1]) for name, array in tables[index].items() if name.startswith("starts:")}
        plans.append(
            StepPlan(
                step=step,
                params=[item.chain[index].params for item in items],
                regions={name: regions[index][name] for name in names},
                packed=packed[index],
                source=source,
                blocks=blocks,
                tables={name: (table_regions[index][name], array) for name, array in tables[index].items()},
            )
        )
    return BatchPlan(len(items), pixels, plans, upload, download, download_end, size)


def _host_tables(items: Sequence[Item], index: int, sizes: Sequence[tuple[int, int]], layout: Layout) -> dict[str, NDArray[Any]]:
    """Table, scalar rows and block prefix sums of one step, on the host; OFFSET, STRIDE and array columns are filled in later."""
    steps = [item.chain[index] for item in items]
    operator = steps[0].operator
    table = np.zeros((len(items), FIRST + len(layout.outputs) + len(layout.scratch)), dtype=np.int64)
    table[:, HEIGHT] = [h for h, _ in sizes]
    table[:, WIDTH] = [w for _, w in sizes]
    rows = [scalar_rows(step, h, w) for step, (h, w) in zip(steps, sizes, strict=True)]
    tables: dict[str, NDArray[Any]] = {
        "table": table,
        "ints": np.stack([ints for ints, _ in rows]),
        "floats": np.stack([floats for _, floats in rows]),
        "starts:image": np.arange(len(items) + 1, dtype=np.int64),
        **{f"packed:{name}": np.zeros(len(items), dtype=np.int64) for name, spec in layout.outputs.items() if spec.bits},
    }
    grids = {"pack": pack_blocks, **operator.blocks}
    for name, count in grids.items():
        starts = np.zeros(len(items) + 1, dtype=np.int64)
        np.cumsum([count(h, w, step.params) for step, (h, w) in zip(steps, sizes, strict=True)], out=starts[1:])
        tables[f"starts:{name}"] = starts
    return tables


PACK_THREADS = 128


def pack_blocks(height: int, width: int, _params: Any) -> int:
    """Blocks that pack one image's mask, one byte a thread."""
    return -(-height * -(-width // 8) // PACK_THREADS)
