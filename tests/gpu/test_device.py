"""On a device: real sizes, mixed batches, both slots at once, a hundred times, and how fast."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from cuda_ops import samples
from cuda_ops.chain import Chain, Item, Step, chain_key, check_chain
from cuda_ops.cpu_backend import CpuBackend
from cuda_ops.cuda_backend import CudaBackend
from cuda_ops.operator import Operator, Result, operators

EVERY = pytest.mark.parametrize("operator", operators().values(), ids=lambda operator: operator.path)


def jobs(operator: Operator) -> list[list[Item]]:
    """The operator's samples, grouped as batches."""
    groups: dict[object, list[Item]] = {}
    for sample in operator.samples():
        params = operator.params(**sample.params)
        least = operator.min_size(params)
        if sample.image.shape[0] >= least[0] and sample.image.shape[1] >= least[1]:
            chain = check_chain([Step(operator, params)])
            groups.setdefault(chain_key(chain), []).append(Item(sample.image, chain))
    return list(groups.values())


def run(backend: CpuBackend | CudaBackend, items: list[Item]) -> list[Result]:
    outcomes: list[list[Result] | Exception] = [[] for _ in items]
    backend.run(items, outcomes.__setitem__)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome[-1] for outcome in outcomes if not isinstance(outcome, Exception)]


def same(got: list[Result], expected: list[Result]) -> bool:
    return all(
        a.values == b.values and all(np.array_equal(a.arrays[name], array) for name, array in b.arrays.items())
        for a, b in zip(got, expected, strict=True)
    )


@EVERY
def test_device_equals_cpu_for_every_sample(operator: Operator, backend: CudaBackend) -> None:
    for items in jobs(operator):
        assert same(run(backend, items), run(CpuBackend(1), items))


@EVERY
def test_hundred_runs_are_one_answer(operator: Operator, backend: CudaBackend) -> None:
    items = jobs(operator)[0]
    first = run(backend, items)
    for _ in range(99):
        assert same(run(backend, items), first)


@EVERY
def test_two_slots_at_once_do_not_disturb_each_other(operator: Operator, backend: CudaBackend) -> None:
    groups = jobs(operator)
    expected = [run(CpuBackend(1), items) for items in groups]
    wrong: list[int] = []

    def work() -> None:
        for index, items in enumerate(groups):
            if not same(run(backend, items), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def photograph_chain(operator: Operator) -> Chain:
    return check_chain([Step(operator, operator.params())])


@EVERY
def test_speed(operator: Operator, backend: CudaBackend, record_property: pytest.RecordProperty) -> None:
    image = samples.smooth(1080, 1920, 1)
    items = [Item(image, photograph_chain(operator)) for _ in range(16)]
    run(backend, items)
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        run(backend, items)
        seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    run(CpuBackend(1), items[:1])
    core = (time.perf_counter() - begin) * len(items)
    rate = len(items) * image.size / float(np.median(seconds)) / 1e6
    record_property("megapixels_per_second", rate)
    print(f"{operator.path}: {rate:.0f} MP/s, {core / float(np.median(seconds)):.1f} times one core")
    assert float(np.median(seconds)) < core
