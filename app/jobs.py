"""What the batcher, its executor and its observers agree on: jobs, their answers, limits and protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, Protocol

Reason = Literal["full", "pixels", "scratch", "idle", "deadline", "drain"]
Loss = Literal["refused", "expired", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One piece of work. Jobs with equal `key` may share a batch.

    `cost` is in pixels, `scratch` in bytes of executor memory, `deadline` a time of the batcher's clock. Clients share
    the executor by `weight`; a job of the next higher `priority` is ordered as if due `Limits.age_s` earlier.
    """

    key: Hashable
    cost: int
    payload: Any
    client: str = ""
    deadline: float = inf
    priority: int = 0
    weight: float = 1.0
    scratch: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """When a launch left the queue's hands (`launched`), began and ended, by the batcher's clock; seconds per phase.

    All jobs of one launch carry the same object. Where jobs run one after another, each is a launch of its own.
    """

    launched: float
    began: float
    ended: float
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Completed:
    """A job's result. Seconds waiting (`queue_s`), from forming its batch to the launch (`form_s`), running (`compute_s`).

    `phases` are the executor's own parts of `compute_s`.
    """

    value: Any
    batch_size: int
    queue_s: float
    form_s: float
    compute_s: float
    phases: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a batch and the queue. Counts in jobs, costs in pixels, scratch in bytes, times in seconds.

    An executor that runs a batch's jobs one after another is given no more than `share_pixels` at once: there a long
    batch gains nothing and decides too early. Jobs above `large_pixels` go alone and leave one slot to the others.
    """

    batch_count: int = 32
    batch_pixels: int = 64_000_000
    batch_scratch: int = 4 << 30
    share_pixels: int = 2_000_000
    large_pixels: int = 16_000_000
    max_wait_s: float = 0.0
    queue_limit: int = 256
    age_s: float = 1.0


Deliver = Callable[[int, Any, Timing], None]
Finished = Callable[[Exception | None], None]


class Executor(Protocol):
    """Runs batches, `slots` at a time. Where `share` is true, the jobs of a batch run one after another."""

    @property
    def slots(self) -> int:
        """Batches that may run at once."""

    @property
    def share(self) -> bool:
        """Whether a queue is best shared out between the slots."""

    @property
    def available(self) -> bool:
        """False when nothing can run any more."""

    def start(self, jobs: Sequence[Job], deliver: Deliver, finished: Finished) -> None:
        """Begin a batch and return at once.

        On the loop's thread call `deliver(index, value or exception, timing)` at most once per job, and then
        `finished(error or None)` exactly once, when the slot is free again. Jobs not delivered by then fail.
        """


class Timer(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> Any:
        """Forget the call."""


class Clock(Protocol):
    """Time and timers."""

    def time(self) -> float:
        """Now, in seconds."""

    def call_later(self, delay: float, callback: Callable[[], Any]) -> Timer:
        """Call back once, `delay` seconds from now."""

    def call_soon(self, callback: Callable[[], Any]) -> Any:
        """Call back in the next turn of the loop."""


class LoopClock:
    """Monotonic time and the running loop's timers. The loop's own time is not used: uvloop keeps whole milliseconds."""

    def time(self) -> float:
        """Seconds of `time.monotonic`."""
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], Any]) -> Timer:
        """See `Clock`."""
        return asyncio.get_running_loop().call_later(delay, callback)

    def call_soon(self, callback: Callable[[], Any]) -> Any:
        """See `Clock`."""
        return asyncio.get_running_loop().call_soon(callback)


class Observer:
    """Told of everything that happens to jobs; this one ignores it. Its methods must not raise."""

    def depth(self, jobs: int, pixels: int) -> None:
        """What waits, after a change."""

    def dispatched(self, size: int, pixels: int, reason: Reason) -> None:
        """A batch left; `reason` says what closed it."""

    def completed(self, done: Completed) -> None:
        """A job was answered with its result."""

    def dropped(self, kind: Loss, reason: str) -> None:
        """A job got no result; `reason` is one of a few fixed words."""

    def predicted(self, seconds: float, actual: float) -> None:
        """A job's time from submit to result, as predicted at its submit and as it was."""
