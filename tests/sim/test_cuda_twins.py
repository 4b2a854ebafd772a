"""The CUDA twins, line by line in Numba's simulator: ragged batches of small images against reference and CPU twin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cuda_ops import samples
from cuda_ops.chain import Item, Step, chain_key, check_chain
from cuda_ops.cpu_backend import CpuBackend
from cuda_ops.cuda_backend import CudaBackend
from cuda_ops.operator import Operator, Result, Sample, operators

MOST_PIXELS = 1300  # one Python thread a CUDA thread: larger images take minutes
RAGGED = ("1x1", "nx1", "7x7", "squares")


def chosen(operator: Operator) -> list[list[Sample]]:
    """One ragged batch for the first code path, one image for every other; or what the operator marks."""
    groups: dict[object, list[Sample]] = {}
    marked = any(sample.simulate for sample in operator.samples())
    for sample in operator.samples():
        params = operator.params(**sample.params)
        least = operator.min_size(params)
        fits = sample.image.shape[0] >= least[0] and sample.image.shape[1] >= least[1]
        if fits and (sample.simulate if marked else sample.image.size <= MOST_PIXELS):
            groups.setdefault(chain_key(check_chain([Step(operator, params)])), []).append(sample)
    if marked:
        return list(groups.values())
    batches = []
    for index, group in enumerate(groups.values()):
        ragged = [sample for sample in group if sample.name in RAGGED] if index == 0 else []
        batches.append([*ragged, max(group, key=lambda sample: sample.image.size)])
    return batches


def run(backend: CpuBackend | CudaBackend, operator: Operator, batch: Sequence[Sample]) -> list[Result]:
    items = [Item(sample.image, check_chain([Step(operator, operator.params(**sample.params))])) for sample in batch]
    outcomes: list[list[Result] | Exception] = [[] for _ in items]
    backend.run(items, outcomes.__setitem__)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome[-1] for outcome in outcomes if not isinstance(outcome, Exception)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("operator", operators().values(), ids=lambda operator: operator.path)
def test_cuda_twin_equals_cpu_twin_and_reference(operator: Operator) -> None:
    batches = chosen(operator)
    assert batches
    for batch in batches:
        device, host = run(CudaBackend(1), operator, batch), run(CpuBackend(1), operator, batch)
        for sample, got, expected in zip(batch, device, host, strict=True):
            label = f"{sample.name} {dict(sample.params)}"
            assert got.values == expected.values, label
            for name, array in expected.arrays.items():
                assert got.arrays[name].dtype == array.dtype, label
                assert np.array_equal(got.arrays[name], array), f"{label}: {name}"
            difference = operator.agrees(got, operator.reference(sample.image, operator.params(**sample.params)))
            assert difference is None, f"{label}: {difference}"


def test_chain_stays_on_the_device() -> None:
    def step(path: str, keep: bool = False, **params: object) -> Step:
        return Step(operators()[path], operators()[path].params(**params), keep)

    chain = check_chain([step("edges/sobel", keep=True), step("edges/prewitt"), step("edges/canny", low=20, high=60)])
    items = [Item(image, chain) for image in (samples.squares(12, 17), samples.noise(5, 9))]
    outcomes: dict[str, list[object]] = {}
    for backend in (CpuBackend(1), CudaBackend(1)):
        outcomes[backend.name] = [None] * len(items)
        backend.run(items, outcomes[backend.name].__setitem__)
    for host, device in zip(outcomes["cpu"], outcomes["cuda"], strict=True):
        assert isinstance(host, list)
        assert isinstance(device, list)
        for expected, got in zip(host, device, strict=True):
            assert expected.values == got.values
            assert all(np.array_equal(got.arrays[name], array) for name, array in expected.arrays.items())


def test_slot_grows_for_a_batch_above_its_memory() -> None:
    backend = CudaBackend(1)
    slot = backend._free.get()
    slot.device, slot.upload, slot.download = slot.device[:256], slot.upload[:256], slot.download[:256]
    backend._free.put(slot)
    operator = operators()["edges/scharr"]
    sample = Sample("noise", samples.noise(9, 9))
    (got,) = run(backend, operator, [sample])
    assert operator.agrees(got, operator.reference(sample.image, operator.params())) is None
