"""How long things take on this machine.

Times in slo.yaml are the reference machine's. Elsewhere they are multiplied by how much longer the direct library call takes
(the control, asked beside the service all through the run), or, for a machine class known by name, by its fixed factor.
The distance to the service is added.
"""

from __future__ import annotations

import statistics

from pydantic import BaseModel

from locustfiles.ledger import Ledger
from locustfiles.observer import Observed
from locustfiles.samples import percentile
from locustfiles.slo import SloFile, samples_needed


class Scale(BaseModel):
    """How times are carried over from the reference machine."""

    how: str
    median: float = 1.0
    tail: float = 1.0
    distance_ms: float = 0.0
    control_p50_ms: float | None = None
    control_p95_ms: float | None = None
    library_ms: float | None = None
    doubt: str | None = None  # why times cannot be judged here and now

    def limit(self, quantile: float, limit_ms: float) -> float:
        """A limit of slo.yaml, on this machine."""
        return limit_ms * (self.median if quantile <= 0.5 else self.tail) + self.distance_ms


def measured_scale(slo: SloFile, ledger: Ledger, observed: Observed, machine: str | None = None) -> Scale:
    """The scale of one run. ``machine`` is the name of a known class."""
    distance = max(0.0, statistics.median(ledger.connect_ms) - slo.reference.connect_ms) if ledger.connect_ms else 0.0
    if machine is not None:
        known = slo.machines.get(machine)
        doubt = None if known else f"machine class {machine!r} is not in the file, which has {', '.join(slo.machines)}"
        return Scale(how=f"those of machine class {machine}", median=known or 1, tail=known or 1, distance_ms=distance, doubt=doubt)
    reference = {phase.name for phase in ledger.phases if phase.reference}
    control = ledger.samples.where(lambda label: label.arm == "control" and label.phase in reference)
    if len(control) < samples_needed(0.5):
        few = f"only {len(control)} answers of the control: how fast this machine is, is not known" if len(control) else None
        how = "as on the reference machine: the direct library call was not measured"
        return Scale(how=how, distance_ms=distance, doubt=few)
    ordered = control.latencies()
    median, tail = percentile(ordered, 0.5), percentile(ordered, 0.95)
    library_ms = statistics.median(row.service_ms for row in control)
    slowed = median > slo.generator.max_control_ratio * library_ms
    by_others = observed.others is None or observed.others > slo.generator.max_others
    factor = median / slo.reference.control_p50_ms
    return Scale(
        how="multiples of the direct library call, measured beside the run",
        median=factor,
        tail=max(factor, tail / slo.reference.control_p95_ms),
        distance_ms=distance,
        control_p50_ms=median,
        control_p95_ms=tail,
        library_ms=library_ms,
        doubt=_busy(library_ms, median, observed) if slowed and by_others else None,
    )


def _busy(library_ms: float, median_ms: float, observed: Observed) -> str:
    taken = "" if observed.others is None else f", and others take {observed.others:.0%} of the processors"
    return f"this machine is busy: a direct call of {library_ms:.1f} ms is answered after {median_ms:.1f}{taken}"
