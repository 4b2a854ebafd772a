"""Where the process stands: starting -> warming -> ready -> draining -> stopped; who may come in; how it ends.

Draining begins unready but still serving, for a lead time in which balancers notice. Then new work is refused, what was
accepted is answered, and the process stops. A failure that only a new process can leave (a lost device, a stuck thread,
a stuck event loop) makes it unready at once and asks for its end with a code other than 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import partial

from app.jobs import Clock, LoopClock
from app.problems import BackendUnavailable, Draining

logger = logging.getLogger("vision.lifecycle")

FAILED = 70  # EX_SOFTWARE of sysexits.h: the supervisor should start a new process
_LAST_S = 1.0  # of the drain limit, kept to send the answers of what could not be finished


class Phase(IntEnum):
    """The phases, in their only order."""

    STARTING = 0
    WARMING = 1
    READY = 2
    DRAINING = 3
    STOPPED = 4


class Lifecycle:
    """One per process, on the event loop's thread. `checks` give a reason while something is wrong, else None."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.phase = Phase.STARTING
        self.exit_code = 0
        self.active = 0
        self.checks: dict[str, Callable[[], str | None]] = {}
        self._clock = clock or LoopClock()
        self._closed = False
        self._failure: str | None = None
        self._on_failure: Callable[[], None] = lambda: None
        self._idle: asyncio.Future[None] | None = None

    def advance(self, phase: Phase) -> None:
        """Go on to a later phase; ValueError for an earlier one, or the present one."""
        if phase <= self.phase:
            raise ValueError(f"{phase.name} does not come after {self.phase.name}")
        logger.info("phase", extra={"fields": {"phase": phase.name.lower(), "after": self.phase.name.lower()}})
        self.phase = phase

    def troubles(self) -> list[str]:
        """Why the process should get no new work; empty when it is ready."""
        if self._failure is not None:
            return [self._failure]
        if self.phase is not Phase.READY:
            return [self.phase.name.lower()]
        return [f"{name}: {reason}" for name, check in self.checks.items() if (reason := check()) is not None]

    @contextmanager
    def request(self) -> Iterator[None]:
        """Surround one request that does work. BackendUnavailable before the process is warm, Draining at its end."""
        if self.phase < Phase.READY:
            raise BackendUnavailable("The service is warming up.", retry_after_s=2.0, reason="warming")
        if self._failure is not None:
            raise BackendUnavailable("The service failed and is being restarted.", retry_after_s=5.0, reason="device")
        if self._closed:
            raise Draining("This process is shutting down; try again at once.", retry_after_s=1.0, reason="draining")
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            if not self.active and self._idle is not None:
                _resolve(self._idle)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Call this once when the process should end."""
        self._on_failure = callback

    def fail(self, reason: str) -> None:
        """Only a new process can help: be unready, and end with code 70."""
        if self._failure is None:
            self._failure = reason
            self.exit_code = FAILED
            logger.critical("failed", extra={"fields": {"reason": reason}})
            self._on_failure()

    async def drain(self, lead_s: float, limit_s: float, finish: Callable[[float], Awaitable[bool]]) -> bool:
        """Serve on for `lead_s`, answer what was accepted, stop; all within `limit_s`.

        `finish` is told how long it may take and ends what is still in the queue. False when something was cut short.
        """
        ends = self._clock.time() + limit_s
        self.advance(Phase.DRAINING)
        if self._failure is None:
            await self._pause(lead_s, until_idle=False)
        self._closed = True
        last_s = min(_LAST_S, limit_s / 4)
        clean = await self._pause(ends - self._clock.time() - last_s, until_idle=True)
        # Only now: jobs that an accepted request has yet to submit must not be refused.
        clean = await finish(max(0.0, ends - self._clock.time() - last_s)) and clean
        await self._pause(ends - self._clock.time(), until_idle=True)
        self.advance(Phase.STOPPED)
        return clean and not self.active

    async def _pause(self, seconds: float, *, until_idle: bool) -> bool:
        """Wait, if asked only until no request is active; whether none is."""
        if seconds <= 0.0 or (until_idle and not self.active):
            return not self.active
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(seconds, partial(_resolve, over))
        self._idle = over if until_idle else None
        try:
            await over
        finally:
            timer.cancel()
            self._idle = None
        return not self.active


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
