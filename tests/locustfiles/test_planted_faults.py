"""Real runs of Locust against the real service, sound and with planted faults: each must turn the verdict as it should.

An invalid run is no verdict on the service, so it is repeated, as `python -m locustfiles.run` does; a missed one never is. Where
times have to be judged and other work keeps taking the processors, run after run, the test says so and is skipped.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from locustfiles import report, service
from locustfiles.verdict import Verdict

HERE = Path(__file__).parent
OPERATORS = "edges/canny,histograms/equalize,features/fast"
PASS, MISSED, INVALID = 0, 1, 2
MOST_RUNS = 3

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[service.Service]:
    command = (sys.executable, str(HERE / "faulty.py"))
    log = tmp_path_factory.mktemp("faulty") / "server.log"
    with service.running(log, {"PYTHONPATH": str(service.ROOT)}, command) as started:
        yield started


@pytest.fixture
def plant(served: service.Service) -> Iterator[Callable[..., None]]:
    def send(**faults: Any) -> None:
        body = json.dumps(faults).encode()
        urllib.request.urlopen(urllib.request.Request(f"{served.host}/faults", body, method="PUT"), timeout=10).close()

    yield send
    send()


@pytest.fixture
def judged(served: service.Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verdict]:
    monkeypatch.setenv("VISION_OPERATORS", OPERATORS)

    def run(scenario: str, *options: str, file: Path | None = None, repeat: bool = True) -> Verdict:
        file = file or service.ROOT / "locustfiles" / f"{scenario}.py"
        command = [sys.executable, "-m", "locust", "-f", str(file), "--headless", "--only-summary", "--host", served.host]
        command += ["--slo-profile", "quick", "--slo-out", str(tmp_path), "--server-pid", str(served.pid), *options]
        for _ in range(MOST_RUNS if repeat else 1):
            ended = subprocess.run(command, cwd=service.ROOT, capture_output=True, text=True, check=False)
            verdict = report.read(tmp_path / f"{scenario}.json")
            assert ended.returncode == verdict.exit_code, ended.stderr
            if verdict.exit_code != INVALID:
                break
        print(report.terminal([verdict]))
        if repeat and verdict.exit_code == INVALID and any("others take" in reason for reason in verdict.reasons):
            pytest.skip(f"times cannot be judged here and now: {'; '.join(verdict.reasons)}")
        return verdict

    return run


def missed(verdict: Verdict) -> set[tuple[str, str]]:
    return {(line.scope, line.measure) for line in verdict.lines if line.state == "missed"}


@pytest.mark.parametrize(("scenario", "time"), [("mix", 1), ("mix", 2), ("mix", 3), ("poisson", 4), ("soak", 5)])
def test_an_unharmed_server_passes_every_time(scenario: str, time: int, judged: Callable[..., Verdict]) -> None:
    verdict = judged(scenario)
    assert verdict.exit_code == PASS, report.terminal([verdict])


def test_an_operator_slowed_by_30_ms_is_missed(plant: Callable[..., None], judged: Callable[..., Verdict]) -> None:
    plant(slow_ms=30)
    verdict = judged("mix")
    assert verdict.exit_code == MISSED
    assert ("edges/canny", "p50") in missed(verdict)
    assert ("features/fast", "p50") not in missed(verdict)


def test_one_wrong_pixel_is_missed(plant: Callable[..., None], judged: Callable[..., Verdict]) -> None:
    plant(wrong=True)
    verdict = judged("smoke")
    assert verdict.exit_code == MISSED
    assert ("every answer", "wrong answers") in missed(verdict)
    assert any("1 of 307200 pixels of the mask are wrong" in complaint for complaint in verdict.complaints)


def test_refusals_without_retry_after_are_missed(plant: Callable[..., None], judged: Callable[..., Verdict]) -> None:
    plant(bare=True)
    verdict = judged("poisson")
    assert verdict.exit_code == MISSED
    assert ("every answer", "refusals without Retry-After") in missed(verdict)


def test_a_leak_of_100_kilobytes_a_request_is_missed(plant: Callable[..., None], judged: Callable[..., Verdict]) -> None:
    plant(leak=100_000)
    verdict = judged("soak")
    assert verdict.exit_code == MISSED
    assert missed(verdict) == {("service", "memory growth")}


def test_a_starved_generator_is_invalid(judged: Callable[..., Verdict]) -> None:
    verdict = judged("mix", file=HERE / "starved_mix.py", repeat=False)
    assert verdict.exit_code == INVALID
    assert any(reason.startswith("generator:") for reason in verdict.reasons)


def test_a_rate_out_of_reach_is_invalid(judged: Callable[..., Verdict]) -> None:
    verdict = judged("mix", "--offered-rate", "100000", repeat=False)
    assert verdict.exit_code == INVALID
    assert any("of the target rate was reached" in reason for reason in verdict.reasons)


def test_a_target_that_does_not_answer_is_invalid(judged: Callable[..., Verdict]) -> None:
    verdict = judged("smoke", "--host", f"http://127.0.0.1:{service.free_port()}", repeat=False)
    assert verdict.exit_code == INVALID
    assert any("cannot be connected to" in reason or "does not answer" in reason for reason in verdict.reasons)


def test_two_worker_processes_give_the_same_verdict(plant: Callable[..., None], judged: Callable[..., Verdict]) -> None:
    plant(slow_ms=30)
    verdict = judged("mix", "--processes", "2")
    assert verdict.exit_code == MISSED
    assert ("edges/canny", "p50") in missed(verdict)
    assert ("features/fast", "p50") not in missed(verdict)
    assert sum(line.scope == "generator" and line.measure == "cpu" for line in verdict.lines) == 2
