"""Dynamic batching on one event loop: knows jobs, keys, costs and deadlines, and never sees a pixel.

A batch is formed only when an executor slot is free (late binding): while all are busy the queue grows, and an idle
service adds no wait. `submit` either refuses at once with a problem, or the job is answered: with its result, with
`DeadlineExceeded` by a timer that no executor can delay, or with the executor's failure. Everything happens on the
loop's thread. docs/adr/0001 and 0002 say why it works this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf

from app.admission import Admission
from app.alarms import Alarms
from app.forming import Batch, Call, Former, Waiter
from app.jobs import Clock, Completed, Executor, Job, Limits, LoopClock, Loss, Observer, Timing
from app.problems import BackendUnavailable, DeadlineExceeded, Draining, Problem
from app.scheduling import FairQueue

_HORIZON_S = 30.0  # a job without a deadline is ordered as if due this long after its arrival


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
        self._queue: FairQueue[Waiter] = FairQueue()
        self._former = Former(self._queue, self._limits, executor, self._clock, self._dead, self._pump)
        self._queue.slack = self._former.target
        self._admission = Admission(executor, self._limits, self._queue, self._former.target)
        self._expiries = Alarms[Waiter](self._clock, lambda waiter: waiter.queued, self._expire_due)
        self._running: set[Batch] = set()
        self._large_running = 0
        self._number = self._unanswered = 0
        self._waking = self._pumping = False
        self._progress = self._clock.time()
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

    def check(self, job: Job) -> tuple[float, float] | None:
        """Raise what `submit` would raise for this job now; else the seconds that it would wait and run, where known.

        For a request whose body is still to come, `cost` is 0 and `key` may be None.
        """
        now = self._clock.time()
        predicted = self._predict(job, now)
        try:
            if self._draining:
                raise _draining()
            if not self._executor.available:
                raise _unavailable()
            if job.deadline <= now:
                raise DeadlineExceeded("The deadline passed before the job could wait; allow more time.", reason="late")
            self._admission.check(job, predicted, now)
        except Problem as problem:
            self._observer.dropped("refused", problem.reason or problem.code)
            raise
        return predicted

    async def drain(self, limit_s: float) -> bool:
        """Refuse new jobs and answer all others; after `limit_s` fail those that are left and return False."""
        self._draining = True
        self._former.drain()
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            if not self._unanswered:
                self._drained.set_result(True)
        timer = self._clock.call_later(limit_s, self._give_up)
        self._pump()
        try:
            return await asyncio.shield(self._drained)
        finally:
            timer.cancel()

    # -- from submit to the queue ----------------------------------------------------------------------------------

    def _accept(self, job: Job) -> tuple[Waiter, Call]:
        now = self._clock.time()
        predicted = self.check(job)
        self._number += 1
        self._unanswered += 1
        call = Call(job, asyncio.get_running_loop().create_future(), now, sum(predicted) if predicted else None)
        waiter = Waiter(
            key=job.key,
            cost=job.cost,
            due=min(job.deadline, now + _HORIZON_S) - job.priority * self._limits.age_s,
            large=job.cost > self._former.large,
            account=self._queue.account(job.client, job.weight),
            number=self._number,
            seconds=self._admission.marginal(job),
            deadline=job.deadline,
            scratch=job.scratch,
            call=call,
        )
        if not self._queue.count:
            self._progress = now
        self._former.add(waiter, now)
        if job.deadline < inf:
            self._expiries.add(job.deadline, waiter)
        self._observer.depth(self._queue.count, self._queue.pixels)
        if not self._waking:  # in the next turn of the loop, so that what arrives in this one leaves together
            self._waking = True
            self._clock.call_soon(self._wake)
        return waiter, call

    def _predict(self, job: Job, now: float) -> tuple[float, float] | None:
        running_s = sum(max(0.0, batch.formed + batch.expected - now) for batch in self._running)
        return self._admission.predict(job, running_s, idle=len(self._running) < self._executor.slots)

    def _abandon(self, waiter: Waiter) -> None:
        """The caller has gone."""
        self._close(waiter)
        self._observer.dropped("cancelled", "queued" if waiter.queued else "running")
        if waiter.queued:
            self._remove(waiter)

    def _remove(self, waiter: Waiter) -> None:
        self._queue.remove(waiter)
        self._observer.depth(self._queue.count, self._queue.pixels)

    def _expire_due(self, waiters: list[Waiter]) -> None:
        for waiter in waiters:
            self._expire(waiter)

    def _expire(self, waiter: Waiter) -> None:
        self._remove(waiter)
        problem = DeadlineExceeded("The deadline passed in the queue; allow more time or try again later.", reason="queue")
        self._fail(waiter, problem, "expired")

    def _dead(self, waiter: Waiter, now: float) -> bool:
        """Drop a waiter whose time is up or whose caller has been cancelled but has not run since."""
        if waiter.deadline <= now:
            self._expire(waiter)
        elif waiter.call is not None and waiter.call.future.done():
            self._abandon(waiter)
        else:
            return False
        return True

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
                batch = self._former.form(self._clock.time(), self._large_running)
                if batch is None:
                    break
                self._launch(batch)
        finally:
            self._pumping = False

    def _launch(self, batch: Batch) -> None:
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

    def _deliver(self, batch: Batch, index: int, outcome: object, timing: Timing) -> None:
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
        call = self._close(waiter)
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

    def _finished(self, batch: Batch, error: Exception | None) -> None:
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
        if not self._running and not self._queue.count:
            self._queue.settle()

    def _close(self, waiter: Waiter) -> Call | None:
        """The call, for the one who answers it; None when it was answered or abandoned before."""
        call, waiter.call = waiter.call, None
        if call is not None:
            self._unanswered -= 1
            if not self._unanswered and self._drained is not None and not self._drained.done():
                self._drained.set_result(True)
        return call

    def _fail(self, waiter: Waiter, problem: Exception, kind: Loss) -> None:
        call = self._close(waiter)
        if call is None:
            return
        if not call.future.done():
            call.future.set_exception(problem)
        self._observer.dropped(kind, (isinstance(problem, Problem) and problem.reason) or type(problem).__name__)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _clear(self, problem: Callable[[], Problem]) -> None:
        """Fail everything that waits."""
        for waiter in list(self._queue):
            self._remove(waiter)
            self._fail(waiter, problem(), "failed")

    def _give_up(self) -> None:
        """The drain limit has passed: nobody is left without an answer."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(False)
        self._clear(_draining)
        for batch in self._running:
            for waiter in batch.waiters:
                if waiter is not None:
                    self._fail(waiter, _draining(), "failed")


def _draining() -> Draining:
    return Draining("This process is shutting down; try again, another one will answer.", retry_after_s=1.0, reason="draining")


def _unavailable() -> BackendUnavailable:
    return BackendUnavailable("The compute device failed; the service is restarting.", retry_after_s=5.0, reason="device")
