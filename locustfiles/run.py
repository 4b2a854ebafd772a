"""``python -m locustfiles.run short``: starts a server, plays scenarios against it, judges, stops it.

The argument is a run of slo.yaml (several scenarios, their short profile) or one scenario (its full profile). Exit codes: 0
every objective was met, 1 one was missed, 2 a scenario could not be judged. An invalid scenario is played once more: invalid
is not a verdict. A missed one is not: playing until it passes is not one either.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from locustfiles import report, service
from locustfiles.service import ROOT, Service
from locustfiles.slo import SLO_FILE, load_slo
from locustfiles.target import Unreachable
from locustfiles.verdict import Verdict

ATTEMPTS = 2
SECOND_HOST = "batching"  # the scenario that compares two services
UNBATCHED = {"VISION_BATCH_COUNT": "1", "VISION_QUEUE_LIMIT": "256"}  # else the queue is derived from the batch


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays, judges and reports; returns the exit code."""
    options = _options(arguments)
    slo = load_slo(options.slo_file)
    scenarios = slo.runs.get(options.what) or [options.what]
    if unknown := set(scenarios) - set(slo.scenarios):
        known = ", ".join([*slo.runs, *slo.scenarios])
        print(f"{', '.join(unknown)} is neither a run nor a scenario: {known}", file=sys.stderr)
        return 2
    options.profile = options.profile or ("short" if options.what in slo.runs else "full")
    begun = time.monotonic()
    verdicts: list[Verdict] = []
    try:
        with contextlib.ExitStack() as stack:
            served = _serve(stack, options, "server", {}) if options.host is None else Service(options.host, options.server_pid)
            for name in scenarios:
                verdicts.append(_play(name, served, options))
                print(report.terminal([verdicts[-1]]), flush=True)
    except Unreachable as error:
        print(f"cannot be judged: {error}", file=sys.stderr)
        return 2
    finally:
        if verdicts:
            report.write(verdicts, options.out)
    code = report.exit_code(verdicts)
    summary = ", ".join(f"{verdict.scenario} {verdict.word}" for verdict in verdicts)
    print(f"\n{('PASS', 'MISSED', 'INVALID')[code]} in {time.monotonic() - begun:.0f} s: {summary}")
    print(f"reports: {options.out / 'report.html'}, report.md, junit.xml")
    return code


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m locustfiles.run", description=__doc__)
    parser.add_argument("what", help="a run of slo.yaml, such as short, or one scenario")
    parser.add_argument("--host", help="judge this deployment instead of starting one")
    parser.add_argument("--unbatched-host", default="", help="with --host, for the scenario batching")
    parser.add_argument("--server-pid", type=int, default=0, help="with --host: the process whose memory is watched")
    parser.add_argument("--profile", help="full, short or quick; short for a run, full for one scenario")
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second, instead of slo.yaml's")
    parser.add_argument("--processes", type=int, default=0, help="generator processes; 0 is one, without a master")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "slo", help="folder of the reports")
    parser.add_argument("--slo-file", type=Path, default=SLO_FILE)
    return parser.parse_args(arguments)


def _serve(stack: contextlib.ExitStack, options: argparse.Namespace, name: str, settings: dict[str, str]) -> Service:
    print(f"starting the service ({name}) ...", flush=True)
    return stack.enter_context(service.running(options.out / f"{name}.log", settings))


def _play(name: str, served: Service, options: argparse.Namespace) -> Verdict:
    with contextlib.ExitStack() as stack:
        unbatched = options.unbatched_host
        if name == SECOND_HOST and options.host is None:
            unbatched = _serve(stack, options, "unbatched", UNBATCHED).host
        for attempt in range(1, ATTEMPTS + 1):
            verdict = _locust(name, served, unbatched, options)
            if verdict.exit_code != 2 or attempt == ATTEMPTS:
                return verdict
            print(f"\n{name}: invalid ({'; '.join(verdict.reasons)}): once more", flush=True)
    raise AssertionError("the last attempt returns")


def _locust(name: str, served: Service, unbatched: str, options: argparse.Namespace) -> Verdict:
    out = options.out / name
    result = out / f"{name}.json"
    result.unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles" / f"{name}.py"), "--headless", "--only-summary"]
    command += ["--host", served.host, "--slo-out", str(out), "--slo-file", str(options.slo_file), "--slo-profile", options.profile]
    command += ["--server-pid", str(served.pid), "--offered-rate", str(options.rate), "--unbatched-host", unbatched]
    if options.processes:
        command += ["--processes", str(options.processes)]
    log = out / "locust.log"
    with log.open("wb") as output:
        limits = load_slo(options.slo_file, options.profile).scenarios[name]
        patience_s = 2 * (limits.warmup_s + limits.duration_s) + 180
        try:
            ended = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False, timeout=patience_s)
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{name} did not end within {patience_s:.0f} s; see {log}") from error
    if not result.exists():
        said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise Unreachable(f"{name} ended with {ended.returncode} and no verdict:\n{said}")
    return report.read(result)


if __name__ == "__main__":
    sys.exit(main())
