"""The learned line: right, quick to be useful, calm under outliers, quick to follow a lasting change."""

from __future__ import annotations

import random

import pytest

from app.costmodel import CostModel, Line

MP = 1_000_000


def taught(base: float, slope: float, sizes: list[int], noise: float = 0.0, count: int = 200) -> Line:
    line, rng = Line(), random.Random(0)
    for _ in range(count):
        pixels = rng.choice(sizes)
        line.observe(pixels, (base + slope * pixels / MP) * (1 + noise * rng.uniform(-1, 1)))
    return line


def test_nothing_is_predicted_before_enough_was_seen() -> None:
    model = CostModel()
    for _ in range(4):
        model.observe("a", MP, 0.01)
        assert model.line("a") is None
        assert model.seconds("a", MP) == 0.0
    model.observe("a", MP, 0.01)
    assert model.seconds("a", MP) == pytest.approx(0.01)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_base_and_slope_are_found(noise: float) -> None:
    line = taught(0.002, 0.004, [100_000, MP, 4 * MP, 12 * MP], noise)
    assert line.slope == pytest.approx(0.004, rel=0.02 + noise / 2)
    assert line.base == pytest.approx(0.002, rel=0.05 + 2 * noise)


def test_one_size_only_still_scales_with_pixels() -> None:
    line = taught(0.0, 0.005, [2 * MP])
    assert line.seconds(2 * MP) == pytest.approx(0.010)
    assert line.seconds(4 * MP) == pytest.approx(0.020), "a line through the origin, until sizes differ"
    assert line.seconds(0) == pytest.approx(0.0)


def test_base_and_slope_are_never_negative() -> None:
    falling, rising = Line(), Line()
    for _ in range(50):
        for pixels, up, down in ((MP, 0.001, 0.010), (2 * MP, 0.009, 0.002)):
            rising.observe(pixels, up)
            falling.observe(pixels, down)
    for line in (falling, rising):
        assert line.base >= 0.0
        assert line.slope >= 0.0
    assert rising.slope > 0.0
    assert rising.base == 0.0
    assert falling.seconds(MP) == pytest.approx(0.006, rel=0.1)


def test_work_without_pixels_is_no_division_by_zero() -> None:
    line = taught(0.003, 0.0, [0])
    assert line.seconds(0) == pytest.approx(0.003)


def test_a_stall_does_not_move_the_line() -> None:
    line = taught(0.001, 0.004, [MP, 4 * MP], 0.05)
    before = line.seconds(2 * MP)
    for _ in range(3):
        line.observe(2 * MP, 5.0)
    assert line.seconds(2 * MP) == pytest.approx(before, rel=0.1), "5 s against 9 ms, three times"


def test_a_lasting_change_is_followed() -> None:
    line = taught(0.001, 0.004, [MP, 4 * MP], 0.05)
    for _ in range(60):
        line.observe(2 * MP, 0.027)
    assert line.seconds(2 * MP) == pytest.approx(0.027, rel=0.15)


def test_a_slow_first_launch_is_outgrown() -> None:
    line = Line()
    line.observe(MP, 3.0)  # compiled while it ran
    for _ in range(40):
        line.observe(MP, 0.004)
    assert line.seconds(MP) < 0.04
    for _ in range(200):
        line.observe(MP, 0.004)
    assert line.seconds(MP) == pytest.approx(0.004, rel=0.1)


def test_keys_are_learned_apart_and_a_new_one_borrows_from_all() -> None:
    model = CostModel()
    for _ in range(50):
        model.observe("fast", MP, 0.001)
        model.observe("slow", MP, 0.020)
    assert model.seconds("fast", MP) == pytest.approx(0.001, rel=0.05)
    assert model.seconds("slow", MP) == pytest.approx(0.020, rel=0.05)
    assert 0.001 < model.seconds("new", MP) < 0.020


def test_a_launch_can_be_shared() -> None:
    model = CostModel()
    for i in range(200):
        pixels = (1 + i % 4) * MP
        model.observe("k", pixels, 0.008 + 0.001 * pixels / MP)
    assert model.seconds("k", MP) == pytest.approx(0.009, rel=0.02)
    assert model.seconds("k", MP, share=1 / 8) == pytest.approx(0.002, rel=0.05)


def test_memory_for_keys_is_bounded() -> None:
    model = CostModel()
    for i in range(5000):
        model.observe(i, MP, 0.001)
        model.observe("kept", MP, 0.002)
    assert len(model._lines) <= 1024
    assert model.seconds("kept", MP) == pytest.approx(0.002, rel=0.05)
