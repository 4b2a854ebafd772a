"""The judge alone: samples in, verdict out."""

from typing import Any

import pytest

from locustfiles.arrivals import Phase
from locustfiles.ledger import Health, Ledger
from locustfiles.observer import Observed
from locustfiles.samples import BARE, ERROR, OK, REFUSED, WRONG, Label
from locustfiles.slo import Generator, Limits, Reference, ScenarioSlo, SloFile
from locustfiles.verdict import Line, Verdict, judge

PATH = "edges/canny"
PHASES = [Phase("warmup", 1, "open"), Phase("main", 10, "open", judged=True)]
ON_TIME = {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0}


def slo(**limits: Any) -> SloFile:
    return SloFile(
        reference=Reference(name="test", control_p50_ms=4, control_p95_ms=8, connect_ms=1),
        machines={"twice": 2.0},
        generator=Generator(max_cpu=0.9, max_lag_ms=40),
        scenarios={"mix": ScenarioSlo(duration_s=10, **{"min_samples": 20, **limits})},
    )


def ledger(*latencies: float, control: float = 4.0, intended: float | None = None, **more: Any) -> Ledger:
    """Right answers with these latencies in the judged phase, and a control that always takes the same."""
    made = Ledger(phases=PHASES, connect_ms=[1.0], health=[Health(0.1, ON_TIME)], library_ms=[2.0], began=[1000.0], **more)
    for number, latency in enumerate(latencies):
        add(made, latency, at=1 + 10 * number / len(latencies))
    for number in range(40):
        made.samples.add(Label("control", "", "small", "raw", "main", OK, ""), number / 4, control, control / 2)
    made.intend("main", len(latencies) if intended is None else intended)
    return made


def add(made: Ledger, latency: float = 5.0, outcome: str = OK, *, at: float = 5.0, arm: str = "good", path: str = PATH) -> None:
    label = Label(arm, path, "small", "raw", "main", outcome, "200")
    made.samples.add(label, at, latency, latency, 1)


def line(verdict: Verdict, scope: str, measure: str) -> Line:
    return next(line for line in verdict.lines if (line.scope, line.measure) == (scope, measure))


def test_what_keeps_every_limit_passes() -> None:
    verdict = judge("mix", slo(p50_ms=10, p95_ms=20), ledger(*[5.0] * 300), Observed())
    assert verdict.exit_code == 0
    assert line(verdict, "all", "p95").measured == 5.0


@pytest.mark.parametrize(("latency", "code"), [(9.9, 0), (10.1, 1)])
def test_a_time_limit_is_a_limit(latency: float, code: int) -> None:
    assert judge("mix", slo(p50_ms=10), ledger(*[latency] * 30), Observed()).exit_code == code


@pytest.mark.parametrize(("control", "code"), [(4.0, 1), (8.0, 0)])
def test_times_are_multiples_of_the_control(control: float, code: int) -> None:
    verdict = judge("mix", slo(p50_ms=10), ledger(*[15.0] * 30, control=control), Observed())
    assert verdict.exit_code == code
    assert line(verdict, "all", "p50").limit == 10 * control / 4


def test_a_known_machine_class_has_a_fixed_factor_and_needs_no_control() -> None:
    made = ledger(*[15.0] * 30, control=4.0)
    assert judge("mix", slo(p50_ms=10), made, Observed(), "twice").exit_code == 0
    assert judge("mix", slo(p50_ms=10), made, Observed(), "unheard of").exit_code == 2


def test_the_distance_is_added_to_every_limit() -> None:
    made = ledger(*[15.0] * 30)
    made.connect_ms = [7.0]
    assert judge("mix", slo(p50_ms=10), made, Observed()).exit_code == 0


def test_the_warm_up_does_not_count() -> None:
    made = ledger(*[5.0] * 30)
    for _ in range(100):
        made.samples.add(Label("good", PATH, "small", "raw", "warmup", OK, "200"), 0.5, 500.0, 500.0, 1)
    assert judge("mix", slo(p50_ms=10), made, Observed()).exit_code == 0


@pytest.mark.parametrize(("percentile", "enough"), [("p50_ms", 20), ("p95_ms", 200), ("p99_ms", 1000)])
def test_too_few_samples_for_a_percentile_are_invalid(percentile: str, enough: int) -> None:
    limits = slo(**{percentile: 10}, min_samples=1)
    assert judge("mix", limits, ledger(*[5.0] * (enough - 1)), Observed()).exit_code == 2
    assert judge("mix", limits, ledger(*[5.0] * enough), Observed()).exit_code == 0


def test_fewer_samples_than_the_file_asks_for_are_invalid() -> None:
    assert judge("mix", slo(min_samples=31), ledger(*[5.0] * 30), Observed()).exit_code == 2


def test_one_slow_operator_among_many_is_found() -> None:
    made = ledger(*[5.0] * 300)
    for _ in range(20):
        add(made, 35.0, path="features/slow")
    verdict = judge("mix", slo(p50_ms=10, operators={"each": Limits(p50_ms=10)}), made, Observed())
    assert verdict.exit_code == 1
    assert [entry.scope for entry in verdict.lines if entry.state == "missed"] == ["features/slow"]


def test_an_operator_that_was_never_asked_is_invalid() -> None:
    verdict = judge("mix", slo(operators={"edges/gone": Limits(p50_ms=10)}), ledger(*[5.0] * 30), Observed())
    assert verdict.exit_code == 2


@pytest.mark.parametrize("outcome", [WRONG, BARE])
@pytest.mark.parametrize("valid", [True, False])
def test_a_wrong_answer_is_a_fact_even_in_an_invalid_run(outcome: str, valid: bool) -> None:
    made = ledger(*[5.0] * 30, intended=30 if valid else 1000)
    add(made, outcome=outcome)
    assert judge("mix", slo(max_fail_ratio=1.0, max_shed_ratio=1.0), made, Observed()).exit_code == 1


def test_failures_and_refusals_have_their_own_limits() -> None:
    made = ledger(*[5.0] * 80)
    for outcome in [REFUSED] * 15 + [ERROR] * 5:
        add(made, outcome=outcome)
    made.intend("main", 20)
    assert judge("mix", slo(max_shed_ratio=0.15, max_fail_ratio=0.05), made, Observed()).exit_code == 0
    assert judge("mix", slo(max_shed_ratio=0.14, max_fail_ratio=0.05), made, Observed()).exit_code == 1
    assert judge("mix", slo(max_shed_ratio=0.15, max_fail_ratio=0.04), made, Observed()).exit_code == 1


@pytest.mark.parametrize(("intended", "code"), [(31, 0), (40, 2)])
def test_a_rate_that_was_not_reached_is_invalid(intended: float, code: int) -> None:
    assert judge("mix", slo(), ledger(*[5.0] * 30, intended=intended), Observed()).exit_code == code


@pytest.mark.parametrize(
    ("health", "code"),
    [
        (Health(0.5, ON_TIME), 0),
        (Health(0.95, ON_TIME), 2),
        (Health(0.5, ON_TIME | {"p50_ms": 50}), 2),
        (Health(0.5, ON_TIME | {"p99_ms": 500}), 0),
    ],
)
def test_a_generator_that_was_the_limit_is_invalid(health: Health, code: int) -> None:
    made = ledger(*[50.0] * 30)
    made.health.append(health)
    assert judge("mix", slo(p50_ms=100), made, Observed()).exit_code == code


def test_a_missed_time_of_an_invalid_run_is_invalid() -> None:
    made = ledger(*[500.0] * 30)
    made.health = [Health(0.99, ON_TIME)]
    assert judge("mix", slo(p50_ms=10), made, Observed()).exit_code == 2


def test_a_run_without_a_generator_is_invalid() -> None:
    assert judge("mix", slo(), Ledger(phases=PHASES), Observed()).exit_code == 2
    assert judge("mix", slo(), Ledger(invalid=["nobody answers"]), Observed()).reasons == ["nobody answers"]


@pytest.mark.parametrize(("mb_per_s", "code"), [(0.5, 0), (4.0, 1)])
def test_memory_that_grows_is_missed(mb_per_s: float, code: int) -> None:
    observed = Observed(memory=[(1000 + second / 4, 300 + mb_per_s * second / 4) for second in range(44)])
    assert judge("mix", slo(max_rss_growth_mb=20), ledger(*[5.0] * 30), observed).exit_code == code


def test_one_peak_is_no_leak_and_no_memory_is_no_verdict() -> None:
    peak = Observed(memory=[(1000 + second / 4, 900 if second == 42 else 300) for second in range(44)])
    assert judge("mix", slo(max_rss_growth_mb=20), ledger(*[5.0] * 30), peak).exit_code == 0
    assert judge("mix", slo(max_rss_growth_mb=20), ledger(*[5.0] * 30), Observed()).exit_code == 2


def test_side_traffic_is_judged_by_its_own_group() -> None:
    made = ledger(*[5.0] * 30)
    for _ in range(30):
        add(made, 80.0, arm="livez")
    assert judge("mix", slo(p50_ms=10, groups={"livez": Limits(p50_ms=100)}), made, Observed()).exit_code == 0
    assert judge("mix", slo(p50_ms=10, groups={"livez": Limits(p50_ms=50)}), made, Observed()).exit_code == 1


@pytest.mark.parametrize(("most", "code"), [(3.1, 0), (2.9, 1)])
def test_two_groups_are_compared(most: float, code: int) -> None:
    made = ledger(*[5.0] * 30)
    for _ in range(30):
        add(made, 15.0, arm="unbatched")
    made.intend("main", 30)
    assert judge("mix", slo(max_ratio={"unbatched/good": most}), made, Observed()).exit_code == code


def staged(*phases: tuple[str, float, float, str]) -> Ledger:
    """Phases of two seconds, each with 40 answers of one latency and outcome. The rate is 20 a second."""
    made = Ledger(
        phases=[Phase(name, 2, "open", rate, judged=True) for name, rate, _, _ in phases],
        health=[Health(0.1, ON_TIME)],
        library_ms=[50.0],
    )
    for at, (name, _, latency, outcome) in enumerate(phases):
        for number in range(40):
            made.samples.add(Label("good", PATH, "small", "raw", name, outcome, "200"), 2 * at + number / 20, latency, latency, 1)
        made.intend(name, 40)
    return made


@pytest.mark.parametrize(("after", "outcome", "code"), [(9.0, OK, 0), (11.0, OK, 1), (5.0, REFUSED, 1)])
def test_recovery_is_the_time_until_latency_and_answers_are_back(after: float, outcome: str, code: int) -> None:
    made = staged(("before", 1, 5, OK), ("burst", 10, 900, REFUSED), ("recovery", 1, after, outcome))
    verdict = judge("mix", slo(max_recovery_s=1.0, max_shed_ratio=1.0), made, Observed())
    assert verdict.exit_code == code
    assert line(verdict, "all", "recovery").measured == (0.0 if code == 0 else None)


@pytest.mark.parametrize(("least", "code"), [(0.9, 0), (1.1, 1)])
def test_the_capacity_is_counted_in_cores_of_direct_calls(least: float, code: int) -> None:
    made = staged(("step 0.5", 10, 5, OK), ("step 1.5", 30, 900, OK))
    verdict = judge("mix", slo(min_capacity_cores=least, goodput_ms=100), made, Observed(), "twice")
    assert verdict.exit_code == code  # 20 answers in time a second, 50 ms of direct calls each: one core
    assert [step.goodput for step in verdict.charts.steps] == [20, 0]


def test_ledgers_of_several_workers_add_up_to_the_verdict_of_one() -> None:
    whole, merged = ledger(*[5.0] * 30, *[35.0] * 31), Ledger()
    for part in (ledger(*[5.0] * 30), ledger(*[35.0] * 31)):
        merged.merge(part.to_wire())
    limits = slo(p50_ms=10)
    first, second = judge("mix", limits, whole, Observed()), judge("mix", limits, merged, Observed())
    assert (first.exit_code, line(first, "all", "p50")) == (second.exit_code, line(second, "all", "p50"))
    assert second.exit_code == 1


@pytest.mark.parametrize(("others", "limits", "code"), [(0.1, {"p50_ms": 10}, 0), (0.5, {"p50_ms": 10}, 2), (0.5, {}, 0)])
def test_times_are_not_judged_on_a_machine_that_others_keep_busy(others: float, limits: dict[str, float], code: int) -> None:
    assert judge("mix", slo(**limits), ledger(*[5.0] * 30), Observed(others=others)).exit_code == code


@pytest.mark.parametrize(("library", "code"), [(1.0, 0), (0.5, 2)])
def test_a_control_that_waits_long_shows_a_busy_machine_where_nothing_else_does(library: float, code: int) -> None:
    made = Ledger(phases=PHASES, health=[Health(0.1, ON_TIME)])
    for number in range(30):
        add(made)
        made.samples.add(Label("control", "", "small", "raw", "main", OK, ""), number / 4, 3.0, library)
    assert judge("mix", slo(p50_ms=10), made, Observed()).exit_code == code


def test_a_leak_is_a_fact_on_a_busy_machine_too() -> None:
    leaking = Observed(memory=[(1000 + second / 4, 300 + second) for second in range(44)], others=0.9)
    assert judge("mix", slo(max_rss_growth_mb=20, p50_ms=10), ledger(*[5.0] * 30), leaking).exit_code == 1
