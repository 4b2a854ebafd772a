from pathlib import Path

import pytest
from pydantic import ValidationError

from locustfiles import service
from locustfiles.slo import SLO_FILE, Limits, load_slo, samples_needed

PROFILES = ("full", "short", "quick")
FILES = {path.stem for path in (service.ROOT / "locustfiles").glob("*.py") if "Session(" in path.read_text(encoding="utf-8")}


@pytest.mark.parametrize(("quantile", "needed"), [(0.5, 20), (0.95, 200), (0.99, 1000), (0.999, 10_000)])
def test_a_percentile_needs_ten_samples_beyond_it(quantile: float, needed: int) -> None:
    assert samples_needed(quantile) == needed


@pytest.mark.parametrize("profile", PROFILES)
def test_every_scenario_has_objectives_and_every_objective_a_scenario(profile: str) -> None:
    slo = load_slo(profile=profile)
    assert set(slo.scenarios) == FILES - {"session"}
    assert {name for names in slo.runs.values() for name in names} <= set(slo.scenarios)


@pytest.mark.parametrize("profile", ["short", "quick"])
def test_a_short_profile_judges_no_percentile_that_it_has_no_time_for(profile: str) -> None:
    for name, scenario in load_slo(profile=profile).scenarios.items():
        assert scenario.p99_ms is None, name
        assert scenario.duration_s <= 40


def test_the_short_run_fits_into_four_minutes() -> None:
    slo = load_slo(profile="short")
    planned = sum(slo.scenarios[name].warmup_s + slo.scenarios[name].duration_s for name in slo.runs["short"])
    assert planned < 180  # the rest is for starting the service and the generators


def test_a_profile_lays_its_values_over_the_scenarios(tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(
        """
        reference: {name: here, control_p50_ms: 1, control_p95_ms: 2, connect_ms: 1}
        scenarios:
          mix: {duration_s: 100, p50_ms: 5, p99_ms: 50, operators: {each: {p50_ms: 3, min_samples: 70}}}
        profiles:
          short: {all: {warmup_s: 1}, mix: {duration_s: 7, p99_ms: null, operators: {each: {min_samples: 20}}}}
        """,
        encoding="utf-8",
    )
    mix = load_slo(file, "short").scenarios["mix"]
    assert (mix.duration_s, mix.warmup_s, mix.p50_ms, mix.p99_ms) == (7, 1, 5, None)
    assert mix.operators["each"] == Limits(p50_ms=3, min_samples=20)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(KeyError, match="nightly"):
        load_slo(profile="nightly")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("max_fail_ratio: 1.5", "max_fail_ratio"),
        ("p59_ms: 3", "p59_ms"),
        ("p50_ms: 9\n    p95_ms: 3", "p50_ms <= p95_ms"),
        ("duration_s: 0", "duration_s"),
    ],
)
def test_a_mistake_in_the_file_is_named(wrong: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    text = SLO_FILE.read_text(encoding="utf-8").split("scenarios:")[0]
    lines = ["duration_s: 5", wrong] if "duration" not in wrong else [wrong]
    file.write_text(text + "scenarios:\n  mix:\n    " + "\n    ".join(lines) + "\nprofiles: {full: {}}\n", encoding="utf-8")
    with pytest.raises(ValidationError, match=named):
        load_slo(file)
