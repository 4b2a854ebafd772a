import itertools
import random
import statistics

import pytest

from locustfiles.arrivals import calibrated, poisson, rhythm, steady


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    instants = list(poisson(random.Random(7), 10.0, 1010.0, 20.0))
    gaps = [later - earlier for earlier, later in itertools.pairwise(instants)]
    assert len(instants) == pytest.approx(20_000, rel=0.03)
    assert min(instants) >= 10.0
    assert max(instants) < 1010.0
    assert statistics.pstdev(gaps) == pytest.approx(1 / 20, rel=0.05)


def test_a_rhythm_is_even_and_starts_anywhere_in_its_first_beat() -> None:
    starts = set()
    for seed in range(5):
        instants = list(rhythm(random.Random(seed), 5.0, 15.0, 4.0))
        assert len(instants) == 40
        assert 5.0 <= instants[0] < 5.25
        assert {round(later - earlier, 9) for earlier, later in itertools.pairwise(instants)} == {0.25}
        starts.add(instants[0])
    assert len(starts) == 5


@pytest.mark.parametrize("arrivals", [poisson, rhythm])
def test_no_rate_is_no_arrivals(arrivals: object) -> None:
    assert list(arrivals(random.Random(1), 0.0, 10.0, 0.0)) == []


def test_the_warm_up_is_not_judged() -> None:
    assert [(phase.name, phase.judged) for phase in steady("open", 2, 30, 5)] == [("warmup", False), ("main", True)]


def test_the_control_counts_while_the_service_is_quiet_only() -> None:
    assert [phase.name for phase in calibrated(3) if phase.reference] == ["quiet"]
