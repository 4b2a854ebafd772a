"""When requests start: the phases of a scenario and the instants inside them.

Open model: arrivals come from outside at random (Poisson) and do not wait for answers, as users of a web service do; a
latency is counted from the intended instant, so a stall is felt by every request it delays. Paced: closed users on a fixed
rhythm. Closed: users who ask again as soon as they are answered, which finds the capacity.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Model = Literal["open", "paced", "closed", "idle"]


@dataclass(frozen=True)
class Phase:
    """A stretch of the plan. ``rate`` is in requests per second of all generators together, or, with ``of_capacity``, a
    multiple of what the last closed phase achieved. Only judged phases meet the limits; only reference phases tell how
    fast the machine is (a service that is meant to saturate the machine also slows the control)."""

    name: str
    seconds: float
    model: Model
    rate: float = 0.0
    of_capacity: bool = False
    judged: bool = False
    reference: bool = True


def steady(model: Model, warmup_s: float, duration_s: float, rate: float) -> list[Phase]:
    """Warm-up, then the judged time, at one rate."""
    return [Phase("warmup", warmup_s, model, rate), Phase("main", duration_s, model, rate, judged=True)]


def calibrated(seconds: float) -> list[Phase]:
    """A quiet time in which only the control is asked, then a closed phase that finds the capacity."""
    return [Phase("quiet", 2.5, "idle"), Phase("calibrate", seconds, "closed", reference=False), rest()]


def rest() -> Phase:
    """A pause in which the service works off what it has."""
    return Phase("rest", 0.7, "idle", reference=False)


def poisson(generator: random.Random, begin_s: float, end_s: float, rate: float) -> Iterator[float]:
    """Instants of a Poisson process between two times."""
    at = begin_s
    while rate > 0 and (at := at + generator.expovariate(rate)) < end_s:
        yield at


def rhythm(generator: random.Random, begin_s: float, end_s: float, rate: float) -> Iterator[float]:
    """Instants at a fixed distance between two times, with a random start so that users do not march in step."""
    at = begin_s + generator.random() / rate if rate > 0 else end_s
    while at < end_s:
        yield at
        at += 1 / rate
