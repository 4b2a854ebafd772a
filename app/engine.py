"""Runs batches on backends, each slot in a thread of its own, and keeps every failure with the job that caused it.

A launch that fails is repeated by halves until the job at fault fails alone. A lost device fails what is in flight and
asks for the end of the process. A run that takes too long fails its jobs, makes the engine unhealthy, and, when its
thread is still not back after as long again, asks for the end of the process too: a thread cannot be killed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from app.jobs import Deliver, Finished, Job, Timing
from app.problems import BackendUnavailable
from cuda_ops.backend import Backend, DeviceLost

logger = logging.getLogger("vision.engine")

Outcome = tuple[int, Any, Timing]


@dataclass(slots=True, eq=False)
class _Run:
    """One batch in a thread. Its jobs are all answered once it is `abandoned`; only the loop's thread touches the flags."""

    jobs: Sequence[Job]
    deliver: Deliver
    finished: Finished
    device: _Device
    pixels: int
    watch: asyncio.TimerHandle = field(init=False)
    abandoned: bool = False
    stalled: bool = False


@dataclass(slots=True, eq=False)
class _Device:
    """A backend, the threads that feed it and what is known of its speed."""

    backend: Backend
    inbox: SimpleQueue[_Run | None] = field(default_factory=SimpleQueue)
    busy: int = 0
    pixels: int = 0
    pace: float = 0.0  # seconds per pixel and slot; a new device is tried first

    def finish_time(self, pixels: int) -> float:
        """Predicted seconds until that many more pixels would be done."""
        return (self.pixels + pixels) * self.pace / self.backend.slots


class Engine:
    """Implements the batcher's `Executor`. All methods belong to the loop's thread."""

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        run_limit_s: float = 20.0,
        on_fatal: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self.name = backends[0].name
        self.slots = sum(backend.slots for backend in backends)
        self.share = all(backend.share for backend in backends)
        self._run_limit_s = run_limit_s
        self._on_fatal = on_fatal
        self._devices = [_Device(backend) for backend in backends]
        self._threads: list[threading.Thread] = []
        self._runs: set[_Run] = set()
        self._stalled = 0
        self._fatal = ""
        self._mail: deque[Callable[[], None]] = deque()
        self._called = False
        self._loop: asyncio.AbstractEventLoop  # set by open()

    @property
    def available(self) -> bool:
        """False when the device is lost or every thread is stuck: nothing can run any more."""
        return not self._fatal and self._stalled < self.slots

    @property
    def trouble(self) -> str | None:
        """Why the service should not be sent more work; None when all is well."""
        if self._fatal:
            return self._fatal
        return f"{self._stalled} of {self.slots} compute threads are stuck" if self._stalled else None

    def open(self) -> None:
        """Start the threads; call from the event loop."""
        self._loop = asyncio.get_running_loop()
        for device in self._devices:
            for slot in range(device.backend.slots):
                # Daemons: a thread that is stuck in a kernel must not keep the process from ending.
                thread = threading.Thread(target=self._work, args=(device,), name=f"{self.name}-{slot}", daemon=True)
                thread.start()
                self._threads.append(thread)

    async def close(self, limit_s: float = 5.0) -> bool:
        """End the threads and close the backends; False when a thread did not end in time."""
        for device in self._devices:
            for _ in range(device.backend.slots):
                device.inbox.put(None)
        await asyncio.to_thread(self._join, time.monotonic() + limit_s)
        if any(thread.is_alive() for thread in self._threads):
            return False  # its backend is in use
        for device in self._devices:
            device.backend.close()
        return True

    def _join(self, until: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def start(self, jobs: Sequence[Job], deliver: Deliver, finished: Finished) -> None:
        """See `Executor.start`. The device with a free slot that should be done first gets the batch."""
        if not self.available:
            self._loop.call_soon(finished, _lost())
            return
        pixels = sum(job.cost for job in jobs)
        free = [device for device in self._devices if device.busy < device.backend.slots]
        device = min(free, key=lambda each: each.finish_time(pixels))
        run = _Run(jobs, deliver, finished, device, pixels)
        run.watch = self._loop.call_later(self._run_limit_s, self._stall, run)
        device.busy += 1
        device.pixels += pixels
        self._runs.add(run)
        device.inbox.put(run)

    # -- on the threads --------------------------------------------------------------------------------------------

    def _work(self, device: _Device) -> None:
        """One slot's thread: blocks until there is a batch, runs it, reports, and blocks again."""
        while (run := device.inbox.get()) is not None:
            began, lost = time.monotonic(), False
            held: list[Outcome] = []
            try:
                self._launch(device.backend, run, range(len(run.jobs)), began, held)
            except DeviceLost as error:
                logger.critical("the device is lost: %s", error)
                lost = True
            except BaseException:
                logger.exception("a compute thread failed outside of a launch")
            self._post(partial(self._end, run, held, time.monotonic() - began, lost))
            del run, held  # waiting for the next batch must not keep the pixels of this one

    def _launch(self, backend: Backend, run: _Run, part: Sequence[int], launched: float, held: list[Outcome]) -> None:
        """Run the jobs numbered in `part`; where the launch fails as a whole, run those left by halves.

        Outcomes are posted as soon as they are there, but the last ones are left in `held`, to be posted together with
        the end of the run: one wake-up of the loop instead of two.
        """
        self._post_outcomes(run, held)
        began, left = time.monotonic(), set(part)
        together: list[tuple[int, Any]] = []
        phases: dict[str, float] = {}

        def deliver(index: int, outcome: Any) -> None:
            nonlocal began
            left.discard(part[index])
            if not backend.share:
                together.append((part[index], outcome))
                return
            ended = time.monotonic()
            held.append((part[index], outcome, Timing(launched, began, ended, {"kernel": ended - began})))
            began = ended
            if left:
                self._post_outcomes(run, held)

        failure: Exception | None = None
        try:
            phases = backend.run([run.jobs[number].payload for number in part], deliver)
        except DeviceLost:
            raise
        except Exception as error:
            failure = error
        timing = Timing(launched, began, time.monotonic(), phases)
        held.extend((number, outcome, timing) for number, outcome in together)
        if failure is None:
            return
        rest = sorted(left)
        logger.warning("a launch of %d jobs failed, %d are left", len(part), len(rest), exc_info=failure)
        if len(rest) == 1:
            held.append((rest[0], _rejected(failure), timing))
            return
        for half in (rest[: len(rest) // 2], rest[len(rest) // 2 :]):
            if half:
                self._launch(backend, run, half, launched, held)

    def _post_outcomes(self, run: _Run, held: list[Outcome]) -> None:
        if held:
            self._post(partial(self._answer, run, held.copy()))
            held.clear()

    def _post(self, letter: Callable[[], None]) -> None:
        """Hand a call to the loop's thread; letters that are posted before the loop wakes share one wake-up."""
        self._mail.append(letter)
        if not self._called:
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._read)
            except RuntimeError:  # the loop is closed: nobody waits for this any more
                logger.warning("a result came after the end of the event loop")

    # -- on the loop -----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._called = False  # first: a letter that comes from now on wakes the loop again
        try:
            while self._mail:
                self._mail.popleft()()
        finally:
            if self._mail:  # whatever went wrong with one letter, the others are read
                self._loop.call_soon(self._read)

    def _answer(self, run: _Run, outcomes: list[Outcome]) -> None:
        if not run.abandoned:
            for number, outcome, timing in outcomes:
                run.deliver(number, outcome, timing)

    def _end(self, run: _Run, outcomes: list[Outcome], seconds: float, lost: bool) -> None:
        """The thread is back."""
        run.watch.cancel()
        self._runs.discard(run)
        device = run.device
        device.busy -= 1
        device.pixels -= run.pixels
        pace = seconds / max(1, run.pixels)
        device.pace = pace if not device.pace else device.pace + 0.1 * (pace - device.pace)
        if run.stalled:
            self._stalled -= 1
            logger.warning("a compute thread is back after %.1f s", seconds)
        try:
            self._answer(run, outcomes)
            if lost:
                self._lose("the device is lost")
        finally:
            run.finished(_lost() if lost else None)

    def _stall(self, run: _Run) -> None:
        """A run has taken too long: fail its jobs now, and give the thread as long again before giving up on it."""
        if run.stalled:
            self._lose("a compute thread is stuck")
            return
        run.stalled = True
        self._stalled += 1
        logger.error("a batch of %d jobs has run for more than %.1f s", len(run.jobs), self._run_limit_s)
        run.watch = self._loop.call_later(self._run_limit_s, self._stall, run)
        self._abandon(run)

    def _lose(self, reason: str) -> None:
        """Nothing can be computed any more: fail what is in flight and ask for the end of the process, once."""
        if self._fatal:
            return
        self._fatal = reason
        for run in list(self._runs):
            self._abandon(run)
        self._on_fatal(reason)

    def _abandon(self, run: _Run) -> None:
        run.abandoned = True
        now = time.monotonic()
        for number in range(len(run.jobs)):
            run.deliver(number, _lost(), Timing(now, now, now))


def _lost() -> BackendUnavailable:
    return BackendUnavailable("The compute device failed; the service is restarting.", retry_after_s=5.0, reason="device")


def _rejected(error: Exception) -> Exception:
    problem = BackendUnavailable("The compute device could not run this job, though it runs others.", retry_after_s=5.0, reason="launch")
    problem.__cause__ = error
    return problem
