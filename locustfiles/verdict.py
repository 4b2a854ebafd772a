"""From samples and objectives to one verdict: 0 pass, 1 missed, 2 the run says nothing.

A wrong answer, a refusal without Retry-After and memory that grows are facts: they miss whatever else happened. Times and ratios
are measurements: they are worth nothing where the generator was the limit, the rate was not reached or samples are too few,
and then the run is invalid, not passed and not missed.
"""

from __future__ import annotations

import math
import statistics
from typing import Literal

from pydantic import BaseModel

from locustfiles.arrivals import Phase
from locustfiles.ledger import Ledger
from locustfiles.observer import Observed
from locustfiles.samples import BARE, FAILURES, OK, REFUSED, WRONG, Samples, percentile
from locustfiles.scale import Scale, measured_scale
from locustfiles.series import Charts, charts, recovery_s, steps
from locustfiles.slo import QUANTILES, Limits, ScenarioSlo, SloFile, samples_needed

State = Literal["pass", "missed", "invalid", "info"]
NO_SIDE = "good"
PLANNED = frozenset({NO_SIDE, "unbatched"})  # what follows the plan's rates


class Line(BaseModel):
    """One comparison: what, where, measured against limit. ``fact`` lines hold even where the run is invalid."""

    scope: str
    measure: str
    measured: float | None
    limit: float | None
    unit: str = ""
    state: State = "pass"
    fact: bool = False
    note: str = ""


class Verdict(BaseModel):
    """The outcome of one scenario, with everything the reports show."""

    scenario: str
    lines: list[Line]
    reasons: list[str]  # why the run is invalid
    complaints: list[str]
    scale: Scale
    charts: Charts
    by_first_answer: list[str]
    requests: int
    seconds: float
    where: str = ""  # service, generator and time, for the reader

    @property
    def exit_code(self) -> int:
        """0 pass, 1 missed, 2 invalid."""
        if any(line.fact and line.state == "missed" for line in self.lines):
            return 1
        if self.reasons:
            return 2
        return int(any(line.state == "missed" for line in self.lines))

    @property
    def word(self) -> str:
        """The exit code in a word."""
        return ("pass", "missed", "invalid")[self.exit_code]


def judge(name: str, slo: SloFile, ledger: Ledger, observed: Observed, machine: str | None = None) -> Verdict:
    """Judges one scenario's run."""
    limits = slo.scenarios[name]
    judged = {phase.name for phase in ledger.phases if phase.judged}
    good = ledger.samples.where(lambda label: label.arm == NO_SIDE and label.phase in judged)
    scale = measured_scale(slo, ledger, observed, machine)
    goodput_ms = scale.limit(0.5, limits.goodput_ms) if limits.goodput_ms else None
    lines = [*_facts(ledger.samples), *_generators(slo, limits, ledger)]
    lines += _rate(limits, ledger, judged)
    if limits.max_rss_growth_mb is not None:
        lines.append(_memory(limits.max_rss_growth_mb, ledger, observed))
    reasons = [*ledger.invalid, *_invalid(lines)]
    if not ledger.health and not reasons:
        reasons.append("the run was ended before its plan")
    if scale.doubt and limits.judges_times():
        reasons.append(scale.doubt)
    if not reasons:
        judging = _group("all", limits, good, scale)
        judging += _groups(limits, ledger.samples, good, judged, scale)
        judging += _special(limits, ledger, goodput_ms)
        reasons += _invalid(judging)
        lines += judging
    return Verdict(
        scenario=name,
        lines=lines,
        reasons=reasons,
        complaints=ledger.complaints,
        scale=scale,
        charts=charts(ledger, observed, goodput_ms),
        by_first_answer=sorted(ledger.by_first_answer),
        requests=len(ledger.samples.where(lambda label: label.arm != "control")),
        seconds=sum(phase.seconds for phase in ledger.phases),
    )


def _invalid(lines: list[Line]) -> list[str]:
    return [f"{line.scope}: {line.note}" for line in lines if line.state == "invalid"]


def _facts(samples: Samples) -> list[Line]:
    return [
        Line(
            scope="every answer",
            measure=measure,
            measured=(count := samples.count(outcome)),
            limit=0,
            state="missed" if count else "pass",
            fact=True,
        )
        for measure, outcome in (("wrong answers", WRONG), ("refusals without Retry-After", BARE))
    ]


def _strictest(limits: ScenarioSlo) -> str:
    """The outermost percentile that is judged: the one up to which the generator must have been on time."""
    return max(limits.judged_percentiles(), key=lambda name: QUANTILES[name], default="p50_ms")


def _generators(slo: SloFile, limits: ScenarioSlo, ledger: Ledger) -> list[Line]:
    name, most = _strictest(limits), slo.generator
    lines = []
    for health in ledger.health:
        lag = health.lag_ms[name]
        cpu_line = Line(scope="generator", measure="cpu", measured=health.cpu, limit=most.max_cpu, unit="ratio")
        lag_line = Line(scope="generator", measure=f"lag {name[:3]}", measured=lag, limit=most.max_lag_ms, unit="ms")
        if health.cpu > most.max_cpu:
            cpu_line.state, cpu_line.note = "invalid", "it was saturated"
        if lag > most.max_lag_ms:
            lag_line.state, lag_line.note = "invalid", f"it was starved: it woke {lag:.0f} ms late"
        lines += [cpu_line, lag_line]
    return lines


def _rate(limits: ScenarioSlo, ledger: Ledger, judged: set[str]) -> list[Line]:
    sent = ledger.samples.where(lambda label: label.arm in PLANNED and label.phase in judged)
    intended = sum(requests for phase, requests in ledger.intended.items() if phase in judged)
    if not intended:
        return []
    ratio = len(sent) / intended
    line = Line(scope="all", measure="rate reached", measured=ratio, limit=limits.min_rate_ratio, unit="ratio")
    if ratio < limits.min_rate_ratio:
        line.state, line.note = "invalid", f"{ratio:.0%} of the target rate was reached"
    return [line]


def _group(scope: str, limits: Limits, samples: Samples, scale: Scale) -> list[Line]:
    total = len(samples)
    if total < limits.min_samples:
        note = f"{total} samples, {limits.min_samples} are needed"
        return [Line(scope=scope, measure="samples", measured=total, limit=limits.min_samples, state="invalid", note=note)]
    lines = []
    for measure, outcomes, most in (
        ("failed", FAILURES, limits.max_fail_ratio),
        ("refused", {REFUSED, BARE}, limits.max_shed_ratio),
    ):
        ratio = samples.count(*outcomes) / total
        state: State = "missed" if ratio > most else "pass"
        lines.append(Line(scope=scope, measure=measure, measured=ratio, limit=most, unit="ratio", state=state))
    latencies = samples.where(lambda label: label.outcome == OK).latencies()
    for name, limit_ms in limits.times().items():
        quantile = QUANTILES[name]
        line = Line(scope=scope, measure=name[:3], measured=None, limit=scale.limit(quantile, limit_ms), unit="ms")
        if len(latencies) < samples_needed(quantile):
            line.state = "invalid"
            line.note = f"{name[:3]} of {len(latencies)} right answers, {samples_needed(quantile)} are needed"
        else:
            line.measured = percentile(latencies, quantile)
            line.state = "missed" if line.measured > (line.limit or 0) else "pass"
        lines.append(line)
    return lines


def _groups(limits: ScenarioSlo, samples: Samples, good: Samples, judged: set[str], scale: Scale) -> list[Line]:
    lines = []
    small = good.where(lambda label: label.size == "small")
    for path in sorted({row.label.operator for row in small} | set(limits.operators) - {"each"}):
        if (wanted := limits.operators.get(path, limits.operators.get("each"))) is not None:
            lines += _group(path, wanted, small.where(lambda label, path=path: label.operator == path), scale)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    for group, wanted in limits.groups.items():
        lines += _group(group, wanted, _side(samples, judged, group), scale)
    for pair, most in limits.max_ratio.items():
        first, second = (_side(samples, judged, group).latencies() for group in pair.split("/"))
        if min(len(first), len(second)) < samples_needed(0.5):
            lines.append(Line(scope=pair, measure="p50 ratio", measured=None, limit=most, state="invalid", note="too few samples"))
            continue
        ratio = percentile(first, 0.5) / percentile(second, 0.5)
        state: State = "missed" if ratio > most else "pass"
        lines.append(Line(scope=pair, measure="p50 ratio", measured=ratio, limit=most, unit="×", state=state))
    return lines


def _side(samples: Samples, judged: set[str], group: str) -> Samples:
    return samples.where(lambda label: group in (label.arm, label.form) and label.phase in judged)


def _special(limits: ScenarioSlo, ledger: Ledger, goodput_ms: float | None) -> list[Line]:
    lines = []
    if limits.max_recovery_s is not None:
        lines.append(_at_most("all", "recovery", recovery_s(ledger), limits.max_recovery_s, "s"))
    if limits.min_capacity_cores is not None:
        knee = max((step.goodput for step in steps(ledger, goodput_ms)), default=0.0)
        cores = knee * statistics.mean(ledger.library_ms) / 1e3 if ledger.library_ms else None
        state: State = "pass" if cores is not None and cores >= limits.min_capacity_cores else "missed"
        lines.append(Line(scope="all", measure="capacity", measured=cores, limit=limits.min_capacity_cores, unit="cores", state=state))
    return lines


def _at_most(scope: str, measure: str, measured: float | None, limit: float, unit: str) -> Line:
    line = Line(scope=scope, measure=measure, measured=measured, limit=limit, unit=unit)
    if measured is None:
        line.state, line.note = "invalid", f"{measure} could not be measured"
    elif measured > limit:
        line.state = "missed"
        if math.isinf(measured):
            line.measured, line.note = None, "not within the run"
    return line


def _judged_window(phases: list[Phase]) -> tuple[float, float]:
    at, begin, end = 0.0, None, 0.0
    for phase in phases:
        if phase.judged:
            begin = at if begin is None else begin
            end = at + phase.seconds
        at += phase.seconds
    return begin or 0.0, end


def _memory(most_mb: float, ledger: Ledger, observed: Observed) -> Line:
    """Growth between the first and the last fifth of the judged time: medians, so that one peak is no leak."""
    zero = min(ledger.began, default=0.0)
    begin, end = _judged_window(ledger.phases)
    used = [mb for at, mb in observed.memory if begin <= at - zero <= end]
    fifth = len(used) // 5
    grown = statistics.median(used[-fifth:]) - statistics.median(used[:fifth]) if fifth else None
    line = _at_most("service", "memory growth", grown, most_mb, "MB")
    line.fact = True
    return line
