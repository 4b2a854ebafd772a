"""Compile kernels for architectures that this machine lacks, and say what each one takes of a multiprocessor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from numba import cuda, types

from cuda_ops.operator import KernelSpec, Operator, operators

ARCHITECTURES = ((7, 5), (8, 0), (9, 0), (10, 0))

# Per multiprocessor: threads, blocks, shared bytes (CUDA C++ programming guide, "Technical specifications per compute capability").
LIMITS = {(7, 5): (1024, 16, 65536), (8, 0): (2048, 32, 167936), (9, 0): (2048, 32, 233472), (10, 0): (2048, 32, 233472)}
REGISTERS, WARP, REGISTER_UNIT = 65536, 32, 256

SCALARS = {
    "u1": types.uint8,
    "i1": types.int8,
    "u2": types.uint16,
    "i2": types.int16,
    "u4": types.uint32,
    "i4": types.int32,
    "u8": types.uint64,
    "i8": types.int64,
    "f4": types.float32,
    "b1": types.boolean,
}


@dataclass(frozen=True)
class Compiled:
    """What the assembler says of one kernel on one architecture."""

    ptx: str
    registers: int
    stack: int
    spills: int
    shared: int


def signature(names: tuple[str, ...]) -> types.Type:
    """`("u1[::1]", "i4")` as a Numba signature."""
    arguments = []
    for name in names:
        scalar, _, dimensions = name.partition("[")
        base = SCALARS[scalar]
        arguments.append(types.Array(base, dimensions.count(",") + 1, "C") if dimensions else base)
    return types.void(*arguments)


def compile_kernel(spec: KernelSpec, capability: tuple[int, int]) -> Compiled:
    """PTX by NVVM, machine code by nvJitLink; neither needs a device."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    ptx, _ = cuda.compile_ptx(spec.kernel.py_func, signature(tuple(spec.types)), cc=capability)
    options = LinkerOptions(arch=f"sm_{capability[0]}{capability[1]}", ptxas_options=["-v"])
    linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=options)
    linker.link("cubin")
    log = linker.get_info_log()

    def total(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, log)))

    shared = sum(map(int, re.findall(r"\.shared \.align \d+ \.b8 \S+\[(\d+)\]", ptx)))
    return Compiled(
        ptx=ptx,
        registers=total(r"Used (\d+) registers"),
        stack=total(r"(\d+) bytes stack frame"),
        spills=total(r"(\d+) bytes spill (?:stores|loads)"),
        shared=shared,
    )


def occupancy(compiled: Compiled, threads: int, capability: tuple[int, int]) -> float:
    """Share of a multiprocessor's threads that fit, by registers, shared memory and blocks."""
    most_threads, most_blocks, shared = LIMITS[capability]
    per_warp = -(-compiled.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    warps = -(-threads // WARP)
    blocks = min(REGISTERS // (per_warp * warps), most_blocks, most_threads // (warps * WARP))
    if compiled.shared:
        blocks = min(blocks, shared // (compiled.shared + 1024))  # the driver keeps 1 KiB of each block's share
    return blocks * warps * WARP / most_threads


@cache
def kernels() -> list[tuple[Operator, KernelSpec]]:
    """Each distinct kernel once, under the first operator that uses it."""
    seen: dict[int, tuple[Operator, KernelSpec]] = {}
    for operator in operators().values():
        for spec in operator.kernels():
            seen.setdefault(id(spec.kernel), (operator, spec))
    return list(seen.values())
