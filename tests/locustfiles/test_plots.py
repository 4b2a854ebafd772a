import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locustfiles.plots import Chart, linear, logarithmic, tail

NUMBERS = st.lists(st.floats(0.02, 1e5), min_size=1, max_size=20)


@given(NUMBERS)
def test_axes_hold_their_values_and_have_few_ticks(values: list[float]) -> None:
    for axis in (linear("x", values), logarithmic("y", values)):
        assert axis.low <= max(values)
        assert axis.high >= max(values) or axis.high == pytest.approx(max(values))
        assert 2 <= len(axis.ticks) <= 9
        assert [axis.at(tick) for tick, _ in axis.ticks] == sorted(axis.at(tick) for tick, _ in axis.ticks)


def test_each_further_nine_has_the_same_room() -> None:
    axis = tail([0.9, 0.99, 0.999])
    assert axis.at(0.9) == 0
    assert axis.at(0.99) == pytest.approx(0.5)
    assert axis.at(0.999) == 1


def test_a_line_runs_through_its_points_and_names_are_escaped() -> None:
    chart = Chart("a & b", linear("x", [0, 10]), linear("y", [0, 100]))
    chart.line("<p50>", [(0, 0), (10, 100)], 0)
    svg = chart.svg()
    begin, end = re.search(r'd="M([\d.]+ [\d.]+) L([\d.]+ [\d.]+)"', svg).groups()
    assert (begin, end) == ("58.0 258.0", "536.0 14.0")
    assert "&lt;p50&gt;" in svg
    assert "a &amp; b" in svg
