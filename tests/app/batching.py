"""Stand-ins for the batcher's surroundings: a clock that only tests move, an executor that only tests finish."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from app.batcher import Batcher
from app.jobs import Completed, Deliver, Finished, Job, Limits, Observer, Timing


class FakeTimer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, int, FakeTimer, Callable[[], Any]]] = []
        self.soon: deque[Callable[[], Any]] = deque()
        self._numbers = count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], Any]) -> FakeTimer:
        assert delay >= 0.0
        timer = FakeTimer()
        heappush(self.timers, (self.now + delay, next(self._numbers), timer, callback))
        return timer

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.soon.append(callback)

    def run_soon(self) -> bool:
        ran = bool(self.soon)
        while self.soon:
            self.soon.popleft()()
        return ran

    def pending(self) -> int:
        return sum(not timer.cancelled for _, _, timer, _ in self.timers)

    def advance(self, seconds: float) -> None:
        """Move time on, firing timers at their times."""
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            when, _, timer, callback = heappop(self.timers)
            self.now = max(self.now, when)
            if not timer.cancelled:
                callback()
            self.run_soon()
        self.now = end


class FakeRun:
    """A batch that the executor was given."""

    def __init__(self, clock: FakeClock, jobs: Sequence[Job], deliver: Deliver, finished: Finished) -> None:
        self.clock = clock
        self.jobs = list(jobs)
        self.payloads = [job.payload for job in jobs]
        self.pixels = sum(job.cost for job in jobs)
        self.began = clock.now
        self._deliver = deliver
        self._finished = finished

    def deliver(self, index: int, outcome: Any = None, began: float | None = None) -> None:
        began = self.began if began is None else began
        timing = Timing(self.began, began, self.clock.now, {"kernel": self.clock.now - began})
        self._deliver(index, self.jobs[index].payload if outcome is None else outcome, timing)

    def finish(self, error: Exception | None = None) -> None:
        """Deliver all jobs as one launch, unless there is an error, and give the slot back."""
        if error is None:
            timing = Timing(self.began, self.began, self.clock.now, {"kernel": self.clock.now - self.began})
            for index, job in enumerate(self.jobs):
                self._deliver(index, job.payload, timing)
        self._finished(error)


class FakeExecutor:
    def __init__(self, clock: FakeClock, slots: int = 1, *, share: bool = False) -> None:
        self.slots = slots
        self.share = share
        self.available = True
        self.clock = clock
        self.running: list[FakeRun] = []
        self.started: list[FakeRun] = []
        self.most_running = 0

    def start(self, jobs: Sequence[Job], deliver: Deliver, finished: Finished) -> None:
        run: FakeRun

        def over(error: Exception | None) -> None:
            self.running.remove(run)
            finished(error)

        run = FakeRun(self.clock, jobs, deliver, over)
        self.running.append(run)
        self.started.append(run)
        self.most_running = max(self.most_running, len(self.running))


class Recorder(Observer):
    def __init__(self) -> None:
        self.depths: list[tuple[int, int]] = []
        self.batches: list[tuple[int, int, str]] = []
        self.done: list[Completed] = []
        self.drops: Counter[tuple[str, str]] = Counter()
        self.predictions: list[tuple[float, float]] = []

    def depth(self, jobs: int, pixels: int) -> None:
        self.depths.append((jobs, pixels))

    def dispatched(self, size: int, pixels: int, reason: str) -> None:
        self.batches.append((size, pixels, reason))

    def completed(self, done: Completed) -> None:
        self.done.append(done)

    def dropped(self, kind: str, reason: str) -> None:
        self.drops[kind, reason] += 1

    def predicted(self, seconds: float, actual: float) -> None:
        self.predictions.append((seconds, actual))


class Bench:
    """A batcher among stand-ins."""

    def __init__(self, slots: int = 1, *, share: bool = False, limits: Limits | None = None) -> None:
        self.clock = FakeClock()
        self.executor = FakeExecutor(self.clock, slots, share=share)
        self.seen = Recorder()
        self.batcher = Batcher(self.executor, limits, self.seen, self.clock)

    async def submit(self, *jobs: Job) -> list[asyncio.Task[Completed]]:
        """Submit in one turn of the loop and let everything settle."""
        tasks = self.queue(*jobs)
        await self.settle()
        return tasks

    def queue(self, *jobs: Job) -> list[asyncio.Task[Completed]]:
        return [asyncio.create_task(self.batcher.submit(job)) for job in jobs]

    async def settle(self) -> None:
        """Turn the loop until nothing moves without time passing."""
        moving = True
        while moving:
            for _ in range(3):
                await asyncio.sleep(0)
            moving = self.clock.run_soon()

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()

    async def finish(self, run: int = 0, error: Exception | None = None) -> None:
        """End the oldest running batch."""
        self.executor.running[run].finish(error)
        await self.settle()

    async def finish_all(self, seconds: float = 0.0) -> None:
        while self.executor.running:
            self.clock.advance(seconds)
            await self.finish()

    async def teach(self, seconds: float, pixels: int = 1_000_000, key: str = "k") -> None:
        """Let the cost model see batches of that speed."""
        for _ in range(8):
            await self.submit(Job(key, pixels, "lesson"))
            self.clock.advance(seconds)
            await self.finish()
        self.executor.started.clear()

    @property
    def ran(self) -> list[list[Any]]:
        """The payloads of every batch so far."""
        return [run.payloads for run in self.executor.started]


def job(payload: Any, cost: int = 1_000_000, key: str = "k", **more: Any) -> Job:
    return Job(key, cost, payload, **more)
