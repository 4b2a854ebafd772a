"""The contract of an operator, run over the registry: a new operator file is tested by existing."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from cuda_ops import samples
from cuda_ops.chain import Chain, Item, Step, chain_key, check_chain
from cuda_ops.cpu_backend import CpuBackend
from cuda_ops.operator import ArraySpec, ImageTooSmall, Operator, Result, Sample, operators

EVERY = pytest.mark.parametrize("operator", operators().values(), ids=lambda operator: operator.path)
REFERENCE_PIXELS = 4096  # the references are slow on purpose


def chain_of(operator: Operator, params: Any) -> Chain:
    return check_chain([Step(operator, operator.params(**params))])


def run(items: Sequence[Item]) -> list[Result]:
    outcomes: list[list[Result] | Exception] = [[] for _ in items]
    CpuBackend(1).run(items, outcomes.__setitem__)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome[-1] for outcome in outcomes if not isinstance(outcome, Exception)]


def usable(operator: Operator) -> list[tuple[Sample, Chain]]:
    """The samples at or above the operator's least size."""
    found = []
    for sample in operator.samples():
        chain = chain_of(operator, sample.params)
        least = operator.min_size(chain[0].params)
        if sample.image.shape[0] >= least[0] and sample.image.shape[1] >= least[1]:
            found.append((sample, chain))
    return found


def same_bytes(a: Result, b: Result) -> bool:
    return (
        a.values == b.values
        and a.arrays.keys() == b.arrays.keys()
        and all(a.arrays[name].tobytes() == b.arrays[name].tobytes() and a.arrays[name].dtype == b.arrays[name].dtype for name in b.arrays)
    )


@EVERY
@pytest.mark.timeout(180)
def test_twin_equals_reference(operator: Operator) -> None:
    checked = 0
    for sample, chain in usable(operator):
        if sample.image.size <= REFERENCE_PIXELS:
            (got,) = run([Item(sample.image, chain)])
            difference = operator.agrees(got, operator.reference(sample.image, chain[0].params))
            assert difference is None, f"{sample.name} {sample.params}: {difference}"
            checked += 1
    assert checked >= 5


@EVERY
@pytest.mark.timeout(180)
def test_twin_equals_oracle(operator: Operator) -> None:
    checked = 0
    for sample, chain in usable(operator):
        (got,) = run([Item(sample.image, chain)])
        difference = operator.agrees(got, operator.oracle(sample.image, chain[0].params))
        assert difference is None, f"{sample.name} {sample.params}: {difference}"
        checked += 1
    assert checked >= 10


@EVERY
@pytest.mark.timeout(180)
def test_answer_does_not_depend_on_the_batch(operator: Operator) -> None:
    groups: dict[object, list[Item]] = {}
    for sample, chain in usable(operator):
        if sample.image.size <= 1 << 16:
            groups.setdefault(chain_key(chain), []).append(Item(sample.image, chain))
    shuffle = random.Random(1)
    for items in groups.values():
        alone = {id(item): run([item])[0] for item in items}
        for _ in range(2):
            order = items * 2
            shuffle.shuffle(order)
            for item, result in zip(order, run(order), strict=True):
                assert same_bytes(result, alone[id(item)])


@EVERY
def test_three_hundred_images_of_three_hundred_sizes(operator: Operator) -> None:
    params = operator.params()
    chain = check_chain([Step(operator, params)])
    least = operator.min_size(params)
    items = [Item(samples.smooth(least[0] + 1 + index % 20, least[1] + 1 + index // 20, index), chain) for index in range(300)]
    results = run(items)
    assert len({(result.height, result.width) for result in results}) == 300
    for index in (0, 7, 150, 299):
        assert operator.agrees(results[index], operator.oracle(items[index].pixels, params)) is None


@EVERY
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.timeout(240)
def test_any_size_and_content(operator: Operator, data: st.DataObject) -> None:
    variants = [dict(sample.params) for sample in operator.samples()]
    params = operator.params(**data.draw(st.sampled_from(variants)))
    least = operator.min_size(params)
    height = data.draw(st.integers(least[0], least[0] + 40))
    width = data.draw(st.integers(least[1], least[1] + 40))
    make = data.draw(st.sampled_from([samples.noise, samples.smooth, samples.squares, samples.stripes, samples.checkerboard]))
    image: NDArray[np.uint8] = make(height, width)
    offset = data.draw(st.integers(0, 255))
    image = (image.astype(np.uint16) * data.draw(st.sampled_from([1, 3, 7])) + offset).astype(np.uint8)
    if operator.pixel_class(params) == "rgb":
        image = np.ascontiguousarray(np.stack([image, 255 - image, image // 2], axis=2))
    chain = check_chain([Step(operator, params)])
    (got,) = run([Item(image, chain)])
    for expected in (operator.reference(image, params), operator.oracle(image, params)):
        difference = operator.agrees(got, expected)
        assert difference is None, f"{params}: {difference}"


@EVERY
def test_mistakes_are_refused_and_named(operator: Operator) -> None:
    assert operator.errors()
    for error in operator.errors():
        if error.field is not None:
            with pytest.raises(ValidationError) as refused:
                operator.params(**error.params)
            named = [part for detail in refused.value.errors() for part in detail["loc"]] + [str(refused.value)]
            assert any(error.field in str(part) for part in named), f"{error.name}: {named}"
        else:
            chain = chain_of(operator, error.params)
            with pytest.raises(ImageTooSmall):
                run([Item(samples.noise(*error.size), chain)])


@EVERY
def test_unknown_parameter_is_refused(operator: Operator) -> None:
    with pytest.raises(ValidationError):
        operator.params(no_such_parameter=1)


@EVERY
def test_results_are_finite_and_fit_json(operator: Operator) -> None:
    for sample, chain in usable(operator)[:40]:
        (result,) = run([Item(sample.image, chain)])
        assert result.kind == operator.kind
        assert (result.height, result.width) == sample.image.shape[:2]
        json.dumps(dict(result.values), allow_nan=False)
        for array in result.arrays.values():
            assert array.dtype.kind != "f" or np.isfinite(array).all()


@EVERY
def test_declaration_is_complete(operator: Operator) -> None:
    assert all((operator.summary, operator.description, operator.exactness, operator.cost))
    for name, field in operator.params.model_fields.items():
        assert field.description, f"{operator.path}: {name} has no description"
        assert not field.is_required(), f"{operator.path}: {name} has no default"
    for spec in (ArraySpec((3, 5), "int32"), ArraySpec((0,), "uint8")):
        assert spec.bytes == int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize


@EVERY
def test_source_pixels_are_left_alone(operator: Operator) -> None:
    for sample, chain in usable(operator)[:8]:
        before = sample.image.copy()
        run([Item(sample.image, chain)])
        assert np.array_equal(before, sample.image)
