"""Every kernel compiles for every architecture without spills, stack or float64."""

from __future__ import annotations

import re

import pytest
from compiling import ARCHITECTURES, compile_kernel, kernels, occupancy

from cuda_ops import cuda_backend
from cuda_ops.operator import KernelSpec, Operator, operators

BACKEND = [
    KernelSpec(cuda_backend.clear, ("i8[::1]",), cuda_backend.CLEAR_THREADS),
    KernelSpec(
        cuda_backend.pack_bits,
        ("i8[::1]", "i8[:, ::1]", "u1[::1]", "u1[::1]", "i8[::1]", "i4"),
        cuda_backend.PACK_THREADS,
        moved=1.125,
        least=1.125,
    ),
]
CASES = [(operator.path, spec) for operator, spec in kernels()] + [("backend", spec) for spec in BACKEND]


@pytest.mark.parametrize("capability", ARCHITECTURES, indirect=True, ids=lambda pair: f"sm_{pair[0]}{pair[1]}")
@pytest.mark.parametrize(
    ("path", "spec"), CASES, ids=[f"{index}-{path}:{spec.kernel.py_func.__name__}" for index, (path, spec) in enumerate(CASES)]
)
def test_kernel_compiles_within_its_registers(path: str, spec: KernelSpec, capability: tuple[int, int], rows: list[str]) -> None:
    compiled = compile_kernel(spec, capability)
    name = spec.kernel.py_func.__name__
    fill = occupancy(compiled, spec.threads, capability)
    moved = f"{spec.moved:5.2f} {spec.least:5.2f}" if spec.moved is not None and spec.least is not None else "    -     -"
    arch = f"sm_{capability[0]}{capability[1]}"
    rows.append(f"{path:22} {name:26} {arch:6} {compiled.registers:4} {compiled.shared:6} {compiled.spills:5} {fill:9.0%} {moved}")
    assert compiled.spills == 0, f"{name} spills {compiled.spills} bytes on {arch}"
    assert compiled.stack == 0, f"{name} keeps {compiled.stack} bytes in local memory on {arch}"
    assert not re.search(r"\.f64", compiled.ptx), f"{name} computes in float64"
    assert fill > 0, f"{name} does not fit a multiprocessor of {arch}"


@pytest.mark.parametrize("operator", operators().values(), ids=lambda operator: operator.path)
def test_operator_declares_its_kernels(operator: Operator) -> None:
    assert operator.kernels(), f"{operator.path} has a CUDA twin but names no kernel for the compile check"
