"""Every request as one row of columns: exact percentiles, and small enough for an hour.

Locust rounds response times to two digits above 100 ms and cannot count from an intended start, so the verdict is drawn
from these instead. A worker's rows travel to the master in Locust's own report messages.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

OK = "ok"  # the right picture
WRONG = "wrong"  # a 200 that is not the answer
REFUSED = "refused"  # 429, 503 or a missed deadline, said as it should be
BARE = "bare-refusal"  # 429 or 503 without Retry-After
ERROR = "error"  # anything else: another status, no answer at all
FAILURES = frozenset({WRONG, BARE, ERROR})


class Label(NamedTuple):
    """What kind of request a row is. ``arm`` is "good" for ordinary traffic, else the name of the side traffic."""

    arm: str
    operator: str
    size: str
    form: str
    phase: str
    outcome: str
    code: str


class Row(NamedTuple):
    """One request: seconds since the plan began, milliseconds from the intended start and from the real one."""

    label: Label
    at_s: float
    latency_ms: float
    service_ms: float
    batch: int


def percentile(ordered: list[float], quantile: float) -> float:
    """The exact percentile (nearest rank) of a sorted, non-empty list."""
    return ordered[max(0, math.ceil(quantile * len(ordered)) - 1)]


class Samples:
    """Columns of rows with interned labels."""

    def __init__(self) -> None:
        self._numbers: dict[Label, int] = {}
        self._labels: list[Label] = []
        self._label = array("H")
        self._at = array("d")
        self._latency = array("d")
        self._service = array("d")
        self._batch = array("H")

    def __len__(self) -> int:
        return len(self._label)

    def __iter__(self) -> Iterator[Row]:
        columns = zip(self._label, self._at, self._latency, self._service, self._batch, strict=True)
        return (Row(self._labels[label], at, latency, service, batch) for label, at, latency, service, batch in columns)

    def add(self, label: Label, at_s: float, latency_ms: float, service_ms: float, batch: int = 0) -> None:
        """Appends one row."""
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self._labels)
            self._labels.append(label)
        self._label.append(number)
        self._at.append(at_s)
        self._latency.append(latency_ms)
        self._service.append(service_ms)
        self._batch.append(min(batch, 0xFFFF))

    def extend(self, rows: Iterable[Row]) -> None:
        """Appends many rows."""
        for row in rows:
            self.add(*row)

    def where(self, wanted: Callable[[Label], bool]) -> Samples:
        """The rows whose label is wanted."""
        chosen = Samples()
        kept = [wanted(label) for label in self._labels]
        chosen.extend(row for number, row in zip(self._label, self, strict=True) if kept[number])
        return chosen

    def latencies(self) -> list[float]:
        """Milliseconds from the intended start, sorted."""
        return sorted(self._latency)

    def count(self, *outcomes: str) -> int:
        """How many rows have one of these outcomes."""
        numbers = {number for number, label in enumerate(self._labels) if label.outcome in outcomes}
        return sum(1 for number in self._label if number in numbers)

    def to_wire(self) -> list[Any]:
        """Plain lists for a message."""
        columns = [list(column) for column in (self._label, self._at, self._latency, self._service, self._batch)]
        return [[list(label) for label in self._labels], *columns]

    @classmethod
    def from_wire(cls, wire: list[Any]) -> Self:
        """The inverse of ``to_wire``."""
        labels = [Label(*label) for label in wire[0]]
        samples = cls()
        samples.extend(Row(labels[number], *rest) for number, *rest in zip(*wire[1:], strict=True))
        return samples
