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
    scale = _known(slo, machine) if machine is not None else _measured(slo, ledger)
    if ledger.connect_ms:
        scale.distance_ms = max(0.0, statistics.median(ledger.connect_ms) - slo.reference.connect_ms)
    if busy := _busy(slo, scale, observed):
        scale.doubt = busy
    return scale


def _known(slo: SloFile, machine: str) -> Scale:
    factor = slo.machines.get(machine)
    doubt = None if factor else f"machine class {machine!r} is not in the file, which has {', '.join(slo.machines)}"
    return Scale(how=f"those of machine class {machine}", median=factor or 1, tail=factor or 1, doubt=doubt)


def _measured(slo: SloFile, ledger: Ledger) -> Scale:
    reference = {phase.name for phase in ledger.phases if phase.reference}
    control = ledger.samples.where(lambda label: label.arm == "control" and label.phase in reference)
    if len(control) < samples_needed(0.5):
        few = f"only {len(control)} answers of the control: how fast this machine is, is not known" if len(control) else None
        return Scale(how="as on the reference machine: the direct library call was not measured", doubt=few)
    ordered = control.latencies()
    median, tail = percentile(ordered, 0.5), percentile(ordered, 0.95)
    factor = median / slo.reference.control_p50_ms
    return Scale(
        how="multiples of the direct library call, measured beside the run",
        median=factor,
        tail=max(factor, tail / slo.reference.control_p95_ms),
        control_p50_ms=median,
        control_p95_ms=tail,
        library_ms=statistics.median(row.service_ms for row in control),
    )


def _busy(slo: SloFile, scale: Scale, observed: Observed) -> str | None:
    """Why this machine is no place to judge times: seen in its processors where the service runs here, else in the control.

    A service has more processes to wake for a request than the control has, so on a busy machine it is slowed more.
    """
    if observed.others is not None:
        busy = observed.others > slo.generator.max_others
        return f"this machine is busy: others take {observed.others:.0%} of its processors" if busy else None
    if scale.control_p50_ms is None or scale.library_ms is None:
        return None
    busy = scale.control_p50_ms > slo.generator.max_control_ratio * scale.library_ms
    return (
        f"this machine is busy: a direct call of {scale.library_ms:.1f} ms is answered after {scale.control_p50_ms:.1f}" if busy else None
    )
