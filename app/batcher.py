"""Dynamic batching on one event loop: knows jobs, keys, costs and deadlines, and never sees a pixel.

A batch is formed only when an executor slot is free (late binding): while all are busy the queue grows, and an idle
service adds no wait. `submit` either refuses at once with a problem, or the job is answered: with its result, with
`DeadlineExceeded` by a timer that no executor can delay, or with the executor's failure. Everything happens on the
loop's thread. docs/adr/0001 and 0002 say why it works this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf

from app.admission import Admission
from app.alarms import Alarms
from app.jobs import Clock, Completed, Executor, Job, Limits, LoopClock, Loss, Observer, Reason, Timing
from app.problems import BackendUnavailable, DeadlineExceeded, Draining, Problem
from app.scheduling import FairQueue, Ticket

_HORIZON_S = 30.0  # a job without a deadline is ordered as if due this long after its arrival
_SHY_S = 5.0  # for this long after an ordinary job, large ones leave one slot alone


@dataclass(slots=True, eq=False)
class _Call:
    """Who waits for a job; let go as a whole when answered, so that no heap holds pixels or results."""

    job: Job
    future: asyncio.Future[Completed]
    submitted: float
    predicted: float | None


@dataclass(slots=True, eq=False, kw_only=True)
class _Waiter(Ticket):
    """A ticket and the call it stands for; `call` is None once answered or abandoned."""

    deadline: float
    scratch: int
    call: _Call | None


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch in a slot; `waiters[i]` becomes None when the executor delivers."""

    key: Hashable
    large: bool
    waiters: list[_Waiter | None]
    reason: Reason
    pixels: int
    formed: float = 0.0
    expected: float = 0.0
    launches: dict[Timing, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Hold:
    """A key that waits for more jobs."""

    key: Hashable


class Batcher:
    """See the module. One per event loop; `submit` is the only way in."""

    def __init__(
        self,
        executor: Executor,
        limits: Limits | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._executor = executor
        self._limits = limits or Limits()
        self._observer = observer or Observer()
        self._clock = clock or LoopClock()
        target = self._limits.share_pixels if executor.share else self._limits.batch_pixels
        self._target = min(target, self._limits.batch_pixels)
        self._large = min(self._limits.large_pixels, self._limits.batch_pixels)
        self._queue: FairQueue[_Waiter] = FairQueue(slack=self._target)
        self._admission = Admission(executor, self._limits, self._queue, self._target)
        self._running: set[_Batch] = set()
        self._large_running = 0
        self._number = 0
        self._waking = self._pumping = False
        self._last_ordinary = -inf
        self._progress = self._clock.time()
        self._expiries = Alarms[_Waiter](self._clock, lambda waiter: waiter.queued, self._expire_due)
        self._holds: dict[Hashable, _Hold] = {}
        self._openings = Alarms[_Hold](self._clock, lambda hold: self._holds.get(hold.key) is hold, self._open_due)
        self._overdue: set[Hashable] = set()
        self._draining = False
        self._drained: asyncio.Future[bool] | None = None

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return self._queue.count

    @property
    def running(self) -> int:
        """Batches in the executor."""
        return len(self._running)

    @property
    def stuck_s(self) -> float:
        """Seconds for which jobs have waited with no batch begun or ended; 0 when nothing waits."""
        return self._clock.time() - self._progress if self._queue.count else 0.0

    async def submit(self, job: Job) -> Completed:
        """The job's result. Overloaded, Draining, BackendUnavailable or DeadlineExceeded when there will be none.

        An exception that the executor returned for this job is raised as it is. A cancelled caller's job is dropped.
        """
        waiter, call = self._accept(job)
        try:
            return await call.future
        finally:
            if waiter.call is not None:
                self._abandon(waiter)
            elif call.future.done() and not call.future.cancelled():
                call.future.exception()  # looked at, even where the caller was cancelled in the same turn

    async def drain(self, limit_s: float) -> bool:
        """Refuse new jobs and answer all others; after `limit_s` fail those that are left and return False."""
        self._draining = True
        for key in list(self._holds):
            self._open(key)
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(limit_s, self._give_up)
        self._pump()
        try:
            return await asyncio.shield(self._drained)
        finally:
            timer.cancel()

    # -- from submit to the queue ----------------------------------------------------------------------------------

    def _accept(self, job: Job) -> tuple[_Waiter, _Call]:
        now = self._clock.time()
        predicted = self._predict(job, now)
        try:
            self._check(job, predicted, now)
        except Problem as problem:
            self._observer.dropped("refused", problem.reason or problem.code)
            raise
        self._number += 1
        call = _Call(job, asyncio.get_running_loop().create_future(), now, sum(predicted) if predicted else None)
        waiter = _Waiter(
            key=job.key,
            cost=job.cost,
            due=min(job.deadline, now + _HORIZON_S) - job.priority * self._limits.age_s,
            large=job.cost > self._large,
            account=self._queue.account(job.client, job.weight),
            number=self._number,
            seconds=self._admission.marginal(job),
            deadline=job.deadline,
            scratch=job.scratch,
            call=call,
        )
        self._enqueue(waiter, now)
        return waiter, call

    def _predict(self, job: Job, now: float) -> tuple[float, float] | None:
        running_s = sum(max(0.0, batch.formed + batch.expected - now) for batch in self._running)
        return self._admission.predict(job, running_s, idle=len(self._running) < self._executor.slots)

    def _check(self, job: Job, predicted: tuple[float, float] | None, now: float) -> None:
        if self._draining:
            raise _draining()
        if not self._executor.available:
            raise _unavailable()
        if job.deadline <= now:
            raise DeadlineExceeded("The deadline passed before the job could wait; allow more time.", reason="late")
        self._admission.check(job, predicted, now)

    def _enqueue(self, waiter: _Waiter, now: float) -> None:
        limits, queue, key = self._limits, self._queue, waiter.key
        if not queue.count:
            self._progress = now
        if not waiter.large:
            self._last_ordinary = now
            if limits.max_wait_s > 0.0 and not queue.waiting(key)[0]:
                queue.hold(key)
                hold = self._holds[key] = _Hold(key)
                self._openings.add(now + limits.max_wait_s, hold)
        queue.add(waiter)
        if key in self._holds and not waiter.large:
            count, pixels = queue.waiting(key)
            hurried = waiter.deadline <= now + 2 * limits.max_wait_s
            if count >= limits.batch_count or pixels >= self._target or hurried:
                self._open(key)
        if waiter.deadline < inf:
            self._expiries.add(waiter.deadline, waiter)
        self._observer.depth(queue.count, queue.pixels)
        if not self._waking:  # in the next turn of the loop, so that what arrives in this one leaves together
            self._waking = True
            self._clock.call_soon(self._wake)

    def _abandon(self, waiter: _Waiter) -> None:
        """The caller has gone."""
        waiter.call = None
        self._observer.dropped("cancelled", "queued" if waiter.queued else "running")
        if waiter.queued:
            self._queue.remove(waiter)
            self._settle()

    def _open(self, key: Hashable) -> None:
        """Let a key that waited for more jobs leave."""
        del self._holds[key]
        self._queue.release(key)

    def _open_due(self, holds: list[_Hold]) -> None:
        for hold in holds:
            self._open(hold.key)
            self._overdue.add(hold.key)
        self._pump()

    def _expire_due(self, waiters: list[_Waiter]) -> None:
        for waiter in waiters:
            self._expire(waiter)
        self._settle()

    def _expire(self, waiter: _Waiter) -> None:
        self._queue.remove(waiter)
        problem = DeadlineExceeded("The deadline passed in the queue; allow more time or try again later.", reason="queue")
        self._fail(waiter, problem, "expired")

    # -- from the queue to the executor ----------------------------------------------------------------------------

    def _wake(self) -> None:
        self._waking = False
        self._pump()

    def _pump(self) -> None:
        """Form batches while slots are free."""
        if self._pumping:  # an executor may finish a batch while it is being started
            return
        self._pumping = True
        try:
            if not self._executor.available:
                self._clear(_unavailable)
            while len(self._running) < self._executor.slots:
                batch = self._form()
                if batch is None:
                    break
                self._launch(batch)
        finally:
            self._pumping = False
        self._settle()

    def _form(self) -> _Batch | None:
        """Take the next batch: whoever is most urgent leads, and others of the same key ride along."""
        now, limits = self._clock.time(), self._limits
        leader = self._lead(now)
        if leader is None:
            return None
        count, pixels = self._queue.waiting(leader.key)
        slots = self._executor.slots if self._executor.share else 1
        most, even = ceil(count / slots), ceil(pixels / slots)
        self._queue.take(leader)
        batch = _Batch(leader.key, leader.large, [leader], "pixels" if leader.large else "idle", leader.cost)
        scratch = leader.scratch
        while not leader.large and len(batch.waiters) < limits.batch_count:
            rider = self._queue.rider(leader.key)
            if rider is None or len(batch.waiters) >= most or batch.pixels >= even:
                break  # the rest is for the other slots
            if rider.deadline <= now:
                self._expire(rider)
                continue
            if batch.pixels + rider.cost > self._target:
                batch.reason = "pixels"
                break
            if scratch + rider.scratch > limits.batch_scratch:
                batch.reason = "scratch"
                break
            self._queue.take(rider)
            batch.waiters.append(rider)
            batch.pixels += rider.cost
            scratch += rider.scratch
        if len(batch.waiters) >= limits.batch_count:
            batch.reason = "full"
        elif batch.reason == "idle" and (self._draining or leader.key in self._overdue):
            batch.reason = "drain" if self._draining else "deadline"
        self._overdue.discard(leader.key)
        return batch

    def _lead(self, now: float) -> _Waiter | None:
        """The ticket that goes next. While ordinary jobs arrive, large ones leave one slot to them."""
        alone = now - self._last_ordinary > _SHY_S
        slots = self._executor.slots
        large = self._large_running < (slots if alone else max(1, slots - 1))
        while (leader := self._queue.lead(large=large)) is not None and leader.deadline <= now:
            self._expire(leader)
        return leader

    def _launch(self, batch: _Batch) -> None:
        jobs = [waiter.call.job for waiter in batch.waiters if waiter is not None and waiter.call is not None]
        batch.formed = self._progress = self._clock.time()
        launches = len(jobs) if self._executor.share else 1
        batch.expected = self._admission.model.seconds(batch.key, batch.pixels, launches)
        self._running.add(batch)
        self._large_running += batch.large
        self._observer.dispatched(len(jobs), batch.pixels, batch.reason)
        self._observer.depth(self._queue.count, self._queue.pixels)
        try:
            self._executor.start(jobs, partial(self._deliver, batch), partial(self._finished, batch))
        except Exception as error:
            self._finished(batch, error)

    def _deliver(self, batch: _Batch, index: int, outcome: object, timing: Timing) -> None:
        """One job's result is there."""
        waiter = batch.waiters[index]
        if waiter is None:
            return
        batch.waiters[index] = None
        if isinstance(outcome, Exception):
            self._fail(waiter, outcome, "failed")
            if not self._executor.available:
                self._pump()
            return
        batch.launches[timing] = batch.launches.get(timing, 0) + waiter.cost
        call, waiter.call = waiter.call, None
        if call is None:
            return
        form_s = timing.launched - batch.formed
        waited = timing.began - call.submitted - form_s
        done = Completed(outcome, len(batch.waiters), waited, form_s, timing.ended - timing.began, timing.phases)
        if not call.future.done():
            call.future.set_result(done)
        self._observer.completed(done)
        if call.predicted is not None:
            self._observer.predicted(call.predicted, timing.ended - call.submitted)

    def _finished(self, batch: _Batch, error: Exception | None) -> None:
        """A slot is free again."""
        if batch not in self._running:
            return
        self._running.remove(batch)
        self._progress = self._clock.time()
        key, large = batch.key, batch.large
        self._large_running -= large
        for waiter in batch.waiters:
            if waiter is not None:
                self._fail(waiter, error if isinstance(error, Problem) else _unavailable(), "failed")
        for timing, pixels in batch.launches.items():
            self._admission.model.observe(key, pixels, timing.ended - timing.began)
        self._pump()

    def _fail(self, waiter: _Waiter, problem: Exception, kind: Loss) -> None:
        call, waiter.call = waiter.call, None
        if call is None:
            return
        if not call.future.done():
            call.future.set_exception(problem)
        self._observer.dropped(kind, (isinstance(problem, Problem) and problem.reason) or type(problem).__name__)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _clear(self, problem: Callable[[], Problem]) -> None:
        """Fail everything that waits."""
        for waiter in list(self._queue):
            self._queue.remove(waiter)
            self._fail(waiter, problem(), "failed")

    def _give_up(self) -> None:
        """The drain limit has passed: nobody is left without an answer."""
        self._clear(_draining)
        for batch in self._running:
            for waiter in batch.waiters:
                if waiter is not None:
                    self._fail(waiter, _draining(), "failed")
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(False)

    def _settle(self) -> None:
        """Where nothing waits or runs: forget who used how much, and end a drain."""
        if self._queue.count or self._running:
            return
        self._queue.settle()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(True)


def _draining() -> Draining:
    return Draining("This process is shutting down; try again, another one will answer.", retry_after_s=1.0, reason="draining")


def _unavailable() -> BackendUnavailable:
    return BackendUnavailable("The compute device failed; the service is restarting.", retry_after_s=5.0, reason="device")
