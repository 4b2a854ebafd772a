"""Forms batches out of the queue: who leads, who rides along, what closes a batch, and how long a key may wait for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import ceil, inf

from app.alarms import Alarms
from app.jobs import Clock, Completed, Executor, Job, Limits, Reason, Timing
from app.scheduling import FairQueue, Ticket

_SHY_S = 5.0  # for this long after an ordinary job, large ones leave one slot alone


@dataclass(slots=True, eq=False)
class Call:
    """Who waits for a job; let go as a whole when answered, so that no heap holds pixels or results."""

    job: Job
    future: asyncio.Future[Completed]
    submitted: float
    predicted: float | None


@dataclass(slots=True, eq=False, kw_only=True)
class Waiter(Ticket):
    """A ticket and the call it stands for; `call` is None once answered or abandoned."""

    deadline: float
    scratch: int
    call: Call | None


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that leaves; `waiters[i]` becomes None when the executor delivers."""

    key: Hashable
    large: bool
    waiters: list[Waiter | None]
    pixels: int
    scratch: int
    reason: Reason = "idle"
    formed: float = 0.0
    expected: float = 0.0
    launches: dict[Timing, int] = field(default_factory=dict)

    def add(self, waiter: Waiter) -> None:
        """Take one more along."""
        self.waiters.append(waiter)
        self.pixels += waiter.cost
        self.scratch += waiter.scratch


@dataclass(slots=True, eq=False)
class _Hold:
    """A key that waits for more jobs."""

    key: Hashable


class Former:
    """Owns the queue's way out. `dead` removes a waiter that must not run (expired, caller gone) and says so."""

    def __init__(
        self,
        queue: FairQueue[Waiter],
        limits: Limits,
        executor: Executor,
        clock: Clock,
        dead: Callable[[Waiter, float], bool],
        wake: Callable[[], None],
    ) -> None:
        self.target = min(limits.share_pixels if executor.share else limits.batch_pixels, limits.batch_pixels)
        self.large = min(limits.large_pixels, limits.batch_pixels)
        self._queue = queue
        self._limits = limits
        self._executor = executor
        self._dead = dead
        self._wake = wake
        self._last_ordinary = -inf
        self._draining = False
        self._holds: dict[Hashable, _Hold] = {}
        self._openings = Alarms[_Hold](clock, lambda hold: self._holds.get(hold.key) is hold, self._open_due)
        self._overdue: set[Hashable] = set()

    def add(self, waiter: Waiter, now: float) -> None:
        """Let the waiter queue; the first of its key may have to wait `max_wait_s` for others."""
        limits, queue, key = self._limits, self._queue, waiter.key
        if waiter.large:
            queue.add(waiter)
            return
        self._last_ordinary = now
        if limits.max_wait_s > 0.0 and not self._draining and not queue.waiting(key)[0]:
            queue.hold(key)
            hold = self._holds[key] = _Hold(key)
            self._openings.add(now + limits.max_wait_s, hold)
        queue.add(waiter)
        if key in self._holds:
            count, pixels = queue.waiting(key)
            hurried = waiter.deadline <= now + 2 * limits.max_wait_s
            if count >= limits.batch_count or pixels >= self.target or hurried:
                self._open(key)

    def drain(self) -> None:
        """From now on nothing waits for more."""
        self._draining = True
        for key in list(self._holds):
            self._open(key)

    def form(self, now: float, large_running: int) -> Batch | None:
        """Take the next batch: whoever is most urgent leads, and others of the same key ride along."""
        leader = self._lead(now, large_running)
        if leader is None:
            return None
        batch = Batch(leader.key, leader.large, [leader], leader.cost, leader.scratch)
        if leader.large:
            batch.reason = "pixels"
            self._queue.take(leader)
            return batch
        count, pixels = self._queue.waiting(leader.key)
        slots = self._executor.slots if self._executor.share else 1
        most, even = ceil(count / slots), ceil(pixels / slots)
        self._queue.take(leader)
        while not self._closed(batch) and len(batch.waiters) < most and batch.pixels < even:
            rider = self._queue.rider(leader.key)
            if rider is None:
                break
            if self._dead(rider, now):
                continue
            if not self._fits(batch, rider):
                break
            self._queue.take(rider)
            batch.add(rider)
        if batch.reason == "idle" and leader.key in self._overdue:
            batch.reason = "deadline"
        self._overdue.discard(leader.key)
        return batch

    def _lead(self, now: float, large_running: int) -> Waiter | None:
        """The one that goes next. While ordinary jobs arrive, large ones leave one slot to them."""
        slots = self._executor.slots
        alone = now - self._last_ordinary > _SHY_S
        large = large_running < (slots if alone else max(1, slots - 1))
        leader = self._queue.lead(large=large)
        while leader is not None and self._dead(leader, now):
            leader = self._queue.lead(large=large)
        return leader

    def _closed(self, batch: Batch) -> bool:
        """Whether no further job can go along, and why."""
        if len(batch.waiters) >= self._limits.batch_count:
            batch.reason = "full"
        elif batch.pixels >= self.target:
            batch.reason = "pixels"
        else:
            batch.reason = "drain" if self._draining else "idle"
            return False
        return True

    def _fits(self, batch: Batch, rider: Waiter) -> bool:
        """Whether the rider still fits, and if not, why."""
        if batch.pixels + rider.cost > self.target:
            batch.reason = "pixels"
        elif batch.scratch + rider.scratch > self._limits.batch_scratch:
            batch.reason = "scratch"
        else:
            return True
        return False

    def _open(self, key: Hashable) -> None:
        """Let a key that waited for more jobs leave."""
        del self._holds[key]
        self._queue.release(key)

    def _open_due(self, holds: list[_Hold]) -> None:
        for hold in holds:
            self._open(hold.key)
            self._overdue.add(hold.key)
        self._wake()
