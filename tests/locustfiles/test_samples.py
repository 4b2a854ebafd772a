import pytest
from hypothesis import given
from hypothesis import strategies as st

from locustfiles.samples import ERROR, OK, WRONG, Label, Row, Samples, percentile

LABEL = Label("good", "edges/canny", "small", "raw", "main", OK, "200")


def samples(*latencies: float, outcome: str = OK) -> Samples:
    made = Samples()
    for number, latency in enumerate(latencies):
        made.add(LABEL._replace(outcome=outcome), float(number), latency, latency / 2, 3)
    return made


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 0.999))
def test_a_percentile_is_a_sample_that_enough_samples_do_not_exceed(values: list[float], quantile: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, quantile)
    assert found in values
    assert sum(value <= found for value in values) >= quantile * len(values) * (1 - 1e-9)
    assert sum(value < found for value in values) < quantile * len(values) * (1 + 1e-9)


def test_percentiles_above_100_ms_are_not_rounded() -> None:
    assert percentile(sorted([147.3, 12.0, 3432.7]), 0.5) == 147.3
    assert percentile(sorted([147.3, 12.0, 3432.7]), 0.99) == 3432.7


def test_rows_survive_the_wire_and_add_up() -> None:
    first, second = samples(1.5, 2.5), samples(9.25, outcome=WRONG)
    first.extend(Samples.from_wire(second.to_wire()))
    assert list(first) == [
        Row(LABEL, 0.0, 1.5, 0.75, 3),
        Row(LABEL, 1.0, 2.5, 1.25, 3),
        Row(LABEL._replace(outcome=WRONG), 0.0, 9.25, 4.625, 3),
    ]
    assert first.latencies() == [1.5, 2.5, 9.25]


def test_rows_are_chosen_and_counted_by_label() -> None:
    mixed = samples(1.0, 2.0)
    mixed.extend(samples(3.0, outcome=ERROR))
    assert mixed.count(OK) == 2
    assert mixed.count(ERROR, WRONG) == 1
    assert mixed.where(lambda label: label.outcome == ERROR).latencies() == [3.0]


@pytest.mark.parametrize("batch", [0, 70_000])
def test_a_batch_size_fits_its_column(batch: int) -> None:
    made = Samples()
    made.add(LABEL, 0.0, 1.0, 1.0, batch)
    assert [row.batch for row in made] == [min(batch, 65_535)]
