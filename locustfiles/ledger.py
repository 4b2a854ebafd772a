"""What a generator has measured, in a form that several generators' can be added up in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from locustfiles.arrivals import Phase
from locustfiles.samples import Samples

MOST_COMPLAINTS = 20


@dataclass
class Health:
    """One generator process over the judged time: its share of one core, and how late its loop woke, by percentile field."""

    cpu: float
    lag_ms: dict[str, float]


@dataclass
class Ledger:
    """Everything the verdict is drawn from that the generators know. Times are seconds since each one's plan began."""

    samples: Samples = field(default_factory=Samples)
    phases: list[Phase] = field(default_factory=list)
    intended: dict[str, float] = field(default_factory=dict)  # requests each phase was to offer, so far
    capacity: float = 0.0  # requests per second of the last closed phase
    library_ms: list[float] = field(default_factory=list)  # direct library call, mean over the deck, one a generator
    connect_ms: list[float] = field(default_factory=list)
    health: list[Health] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)  # why nothing can be judged
    by_first_answer: set[str] = field(default_factory=set)  # operators compared with their first answer, not with OpenCV
    began: list[float] = field(default_factory=list)  # wall clock, one a generator
    finished: int = 0  # generators whose plan has ended

    def intend(self, phase: str, requests: float = 1.0) -> None:
        """Counts requests that were to be sent."""
        self.intended[phase] = self.intended.get(phase, 0.0) + requests

    def complain(self, text: str) -> None:
        """Keeps the first few complaints."""
        if len(self.complaints) < MOST_COMPLAINTS:
            self.complaints.append(text)

    def to_wire(self) -> dict[str, Any]:
        """Plain values for a message."""
        plain = {name: value for name, value in vars(self).items() if name not in ("samples", "phases", "health")}
        return plain | {
            "by_first_answer": sorted(self.by_first_answer),
            "samples": self.samples.to_wire(),
            "phases": [asdict(phase) for phase in self.phases],
            "health": [asdict(health) for health in self.health],
        }

    def merge(self, wire: dict[str, Any]) -> None:
        """Adds what another ledger has gathered. Rates and counts add up; phases are the same in all."""
        self.samples.extend(Samples.from_wire(wire["samples"]))
        self.phases = self.phases or [Phase(**phase) for phase in wire["phases"]]
        for phase, requests in wire["intended"].items():
            self.intend(phase, requests)
        self.capacity += wire["capacity"]
        self.health += [Health(**health) for health in wire["health"]]
        for complaint in wire["complaints"]:
            self.complain(complaint)
        self.invalid += wire["invalid"]
        self.by_first_answer.update(wire["by_first_answer"])
        for name in ("library_ms", "connect_ms", "began"):
            getattr(self, name).extend(wire[name])
        self.finished += wire["finished"]
