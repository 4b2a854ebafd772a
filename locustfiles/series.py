"""What the report draws: samples condensed into the few numbers of each chart."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from pydantic import BaseModel

from locustfiles.arrivals import Phase
from locustfiles.ledger import Ledger
from locustfiles.observer import Observed
from locustfiles.samples import FAILURES, OK, REFUSED, Row, percentile

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
MOST_POINTS = 120

Points = list[tuple[float, float]]


class Step(BaseModel):
    """One offered rate and what came of it. Goodput: right answers within the limit, per second."""

    offered: float
    goodput: float
    refused: float
    p50_ms: float | None
    p95_ms: float | None


class Charts(BaseModel):
    """All series of one scenario. Seconds are since the plan began."""

    phases: list[tuple[str, float, float]] = []  # name, begin, end
    over_time: dict[str, Points] = {}  # p50, p95, refused/s, failed/s
    percentiles: dict[str, Points] = {}  # by group: (quantile, ms)
    steps: list[Step] = []
    batches: dict[int, int] = {}
    refusals: dict[str, int] = {}  # as the clients saw them
    counted: dict[str, float] = {}  # as the service counted them
    memory: Points = []


def charts(ledger: Ledger, observed: Observed, limit_ms: float | None) -> Charts:
    """Everything the report draws of one run."""
    good = [row for row in ledger.samples if row.label.arm == "good"]
    zero = min(ledger.began, default=0.0)
    spans, at = [], 0.0
    for phase in ledger.phases:
        spans.append((phase.name, at, at + phase.seconds))
        at += phase.seconds
    return Charts(
        phases=spans,
        over_time=_over_time(good, at),
        percentiles=_percentiles(ledger),
        steps=steps(ledger, limit_ms),
        batches=dict(sorted(Counter(row.batch for row in good if row.batch).items())),
        refusals=dict(Counter(row.label.code for row in ledger.samples if row.label.outcome == REFUSED)),
        counted=observed.refusals(),
        memory=_thinned([(second - zero, mb) for second, mb in observed.memory]) if ledger.began else [],
    )


def _thinned(points: Points) -> Points:
    return points[:: 1 + len(points) // (2 * MOST_POINTS)]


def _over_time(good: list[Row], seconds: float) -> dict[str, Points]:
    width = max(0.5, seconds / MOST_POINTS)
    bins: dict[int, list[Row]] = {}
    for row in good:
        bins.setdefault(int(row.at_s / width), []).append(row)
    series: dict[str, Points] = {"p50": [], "p95": [], "refused per second": [], "failed per second": []}
    for number, rows in sorted(bins.items()):
        at = (number + 0.5) * width
        if answered := sorted(row.latency_ms for row in rows if row.label.outcome == OK):
            series["p50"].append((at, percentile(answered, 0.5)))
            series["p95"].append((at, percentile(answered, 0.95)))
        series["refused per second"].append((at, sum(row.label.outcome == REFUSED for row in rows) / width))
        series["failed per second"].append((at, sum(row.label.outcome in FAILURES for row in rows) / width))
    return series


def _percentiles(ledger: Ledger) -> dict[str, Points]:
    judged = {phase.name for phase in ledger.phases if phase.judged}
    reference = {phase.name for phase in ledger.phases if phase.reference}
    groups: dict[str, list[float]] = {}
    for row in ledger.samples:
        label = row.label
        if label.outcome == OK and label.phase in (reference if label.arm == "control" else judged):
            name = {"good": f"service, {label.size}", "control": "direct library call"}.get(label.arm, label.arm)
            groups.setdefault(name, []).append(row.latency_ms)
    return {
        name: [(quantile, percentile(ordered, quantile)) for quantile in QUANTILES if len(ordered) * (1 - quantile) >= 1]
        for name, ordered in ((name, sorted(values)) for name, values in sorted(groups.items()))
    }


def steps(ledger: Ledger, limit_ms: float | None) -> list[Step]:
    """One for each phase called a step, in order of the rate."""
    return sorted(
        (_step(ledger, phase, limit_ms) for phase in ledger.phases if phase.name.startswith("step ")),
        key=lambda step: step.offered,
    )


def _step(ledger: Ledger, phase: Phase, limit_ms: float | None) -> Step:
    rows = [row for row in ledger.samples if row.label.phase == phase.name and row.label.arm == "good"]
    answered = sorted(row.latency_ms for row in rows if row.label.outcome == OK)
    within = sum(1 for latency in answered if limit_ms is None or latency <= limit_ms)
    return Step(
        offered=ledger.intended.get(phase.name, 0.0) / phase.seconds,
        goodput=within / phase.seconds,
        refused=sum(row.label.outcome == REFUSED for row in rows) / phase.seconds,
        p50_ms=percentile(answered, 0.5) if answered else None,
        p95_ms=percentile(answered, 0.95) if answered else None,
    )


def recovery_s(ledger: Ledger) -> float | None:
    """How long after the burst until service is back to normal: the first of three consecutive half seconds in which every
    request was answered, in the median within twice the median before the burst. Infinite where that never happens; None
    where nothing was asked."""
    at, spans = 0.0, {}
    for phase in ledger.phases:
        spans[phase.name] = at
        at += phase.seconds
    rows = [row for row in ledger.samples if row.label.arm == "good"]
    before = [row.latency_ms for row in rows if row.label.phase == "before" and row.label.outcome == OK]
    after = [row for row in rows if row.label.phase == "recovery"]
    if not before or not after:
        return None
    begin = spans["recovery"]
    normal_ms = 2 * statistics.median(before)
    bins: dict[int, list[Row]] = {}
    for row in after:
        bins.setdefault(int((row.at_s - begin) / 0.5), []).append(row)
    good = {
        number
        for number, inside in bins.items()
        if statistics.median(row.latency_ms for row in inside) <= normal_ms and all(row.label.outcome == OK for row in inside)
    }
    calm = (number for number in sorted(good) if {number, number + 1, number + 2} <= good)
    return next((number * 0.5 for number in calm), math.inf)
