"""The registry, chains, the ragged batch and the front door of the package."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

import cuda_ops
from cuda_ops import samples
from cuda_ops.batch import FIRST, OFFSET, plan_batch
from cuda_ops.chain import ChainError, Item, Step, chain_key, check_chain
from cuda_ops.cpu_backend import CpuBackend
from cuda_ops.operator import Operator, load_file, operators, register, unregister


def step(path: str, keep: bool = False, **params: object) -> Step:
    operator = operators()[path]
    return Step(operator, operator.params(**params), keep)


def test_apply_gives_the_mask() -> None:
    image = samples.squares(40, 50)
    result = cuda_ops.apply("edges/canny", image, low=50, high=100)
    assert result.mask.shape == (40, 50)
    assert int((result.mask == 255).sum()) == result.values["edge_pixels"] > 0


def test_apply_says_what_it_reads() -> None:
    with pytest.raises(ValueError, match=r"uint8 array \[height, width\]"):
        cuda_ops.apply("edges/canny", samples.rgb_noise(4, 4))
    with pytest.raises(ValueError, match="not float32"):
        cuda_ops.apply("edges/canny", np.zeros((4, 4), np.float32))
    with pytest.raises(ValidationError, match="aperture"):
        cuda_ops.apply("edges/canny", samples.noise(4, 4), aperture=4)
    with pytest.raises(KeyError):
        cuda_ops.apply("edges/none", samples.noise(4, 4))


def test_apply_takes_a_view_that_is_not_contiguous() -> None:
    image = samples.noise(20, 30)
    assert np.array_equal(
        cuda_ops.apply("edges/sobel", image[::2, ::3]).arrays["image"],
        cuda_ops.apply("edges/sobel", image[::2, ::3].copy()).arrays["image"],
    )


def test_import_needs_no_web_framework() -> None:
    code = (
        "import sys, cuda_ops; cuda_ops.operators(); bad = {'fastapi', 'starlette', 'app', 'cv2'} & set(sys.modules); sys.exit(bool(bad))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_listing_names_every_operator() -> None:
    listing = subprocess.run([sys.executable, "-m", "cuda_ops"], capture_output=True, text=True, check=True).stdout
    for path, operator in operators().items():
        assert path in listing
        assert operator.exactness in listing


def test_duplicate_and_unknown_family_are_refused() -> None:
    operator = operators()["edges/sobel"]
    with pytest.raises(ValueError, match="registered twice"):
        register(operator)
    with pytest.raises(ValueError, match="family"):
        register(dataclasses.replace(operator, family="colors", name="x"))
    with pytest.raises(ValueError, match="structural"):
        register(dataclasses.replace(operator, name="x", structural=("nothing",)))


def test_operator_file_from_anywhere_registers(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    path.write_text(
        "import dataclasses\n"
        "from cuda_ops.operator import operators, register\n"
        "register(dataclasses.replace(operators()['edges/scharr'], name='twice'))\n"
    )
    (operator,) = load_file(path)
    try:
        assert operators()["edges/twice"] is operator
    finally:
        unregister("edges/twice")


def test_a_step_without_a_picture_passes_it_on() -> None:
    image = samples.smooth(40, 40)
    chain = check_chain([step("histograms/equalize", keep=True), step("histograms/histogram", keep=True), step("edges/canny")])
    outcomes: list[object] = [None]
    CpuBackend(1).run([Item(image, chain)], outcomes.__setitem__)
    (results,) = outcomes
    assert isinstance(results, list)
    equalized = cuda_ops.apply("histograms/equalize", image).arrays["image"]
    assert [result.kind for result in results] == ["image", "histogram", "mask"]
    assert np.array_equal(results[1].arrays["grey"], cuda_ops.apply("histograms/histogram", equalized).arrays["grey"])
    assert np.array_equal(results[2].mask, cuda_ops.apply("edges/canny", equalized).mask)


def test_chains_that_lose_an_answer_are_refused() -> None:
    with pytest.raises(ChainError, match="keep: true") as lost:
        check_chain([step("histograms/histogram"), step("edges/canny")])
    assert lost.value.step == 0
    with pytest.raises(ChainError, match="colour"):
        check_chain([step("edges/sobel"), step("histograms/histogram", channels="rgb")])
    with pytest.raises(ChainError, match="decoded once"):
        check_chain([step("histograms/histogram", keep=True, channels="rgb"), step("edges/sobel")])
    with pytest.raises(ChainError, match="at least one"):
        check_chain([])


def test_key_separates_code_paths_and_joins_values() -> None:
    def key(**params: object) -> object:
        return chain_key(check_chain([step("edges/canny", **params)]))

    assert key(low=1, high=2) == key(low=50, high=99)
    assert key(aperture=3) != key(aperture=5)
    assert key(l2_gradient=True) != key()


def test_offsets_of_a_batch_over_two_gibibytes() -> None:
    chain = check_chain([step("edges/sobel")])
    one = np.zeros(1, dtype=np.uint8)
    images = [np.broadcast_to(one, (6000, 6000 + index)) for index in range(64)]
    plan = plan_batch([Item(image, chain) for image in images])
    table = plan.steps[0].tables["table"][1]
    assert table[-1, OFFSET] > 2**31
    assert table[-1, FIRST] > 2**31
    assert (np.diff(table[:, OFFSET]) >= 6000 * 6000).all()
    assert (table[:, OFFSET] % 128 == 0).all()


def test_batch_over_two_gibibytes_on_the_cpu() -> None:
    image = samples.noise(6000, 6000)
    chain = check_chain([step("histograms/equalize")])
    sums: list[int] = []
    CpuBackend(1).run([Item(image, chain)] * 61, lambda _index, outcome: sums.append(int(outcome[0].arrays["image"][::97].sum())))
    assert len(sums) == 61
    assert len(set(sums)) == 1


def test_an_item_that_fails_harms_no_other() -> None:
    operator = operators()["edges/sobel"]

    def break_down(_image: object) -> None:
        raise RuntimeError("broken")

    broken: Operator = dataclasses.replace(operator, cpu=break_down)
    good, bad = check_chain([Step(operator, operator.params())]), check_chain([Step(broken, broken.params())])
    outcomes: list[object] = [None] * 3
    image = samples.noise(5, 5)
    CpuBackend(1).run([Item(image, good), Item(image, bad), Item(image, good)], outcomes.__setitem__)
    assert isinstance(outcomes[1], RuntimeError)
    assert isinstance(outcomes[0], list)
    assert isinstance(outcomes[2], list)
