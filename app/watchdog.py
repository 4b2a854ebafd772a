"""Watches the event loop from a thread: a loop that does not turn can report nothing itself."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from app.lifecycle import FAILED

logger = logging.getLogger("vision.watchdog")


class LoopWatchdog:
    """Asks the loop for a sign of life; logs where it is stuck after `warn_s`, ends the process after `limit_s`."""

    def __init__(
        self,
        *,
        warn_s: float = 1.0,
        limit_s: float = 30.0,
        now: Callable[[], float] = time.monotonic,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.lag_s = 0.0
        self._warn_s = warn_s
        self._limit_s = limit_s
        self._now = now
        self._end = end
        self._asked: float | None = None
        self._warned = False
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop  # set by open()
        self._loop_thread = 0

    def open(self, interval_s: float = 0.5) -> None:
        """Begin to watch the running loop."""
        self.attach()
        threading.Thread(target=self._watch, args=(interval_s,), name="loop-watchdog", daemon=True).start()

    def attach(self) -> None:
        """Note which loop, and which thread, is watched."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def close(self) -> None:
        """Watch no more."""
        self._stop.set()

    def trouble(self) -> str | None:
        """Why the process should get no new work: the loop was late at its last sign of life."""
        return f"the event loop was {self.lag_s:.1f} s late" if self.lag_s > self._warn_s else None

    def check(self) -> None:
        """Ask once, or see how long the last question has gone unanswered."""
        if self._asked is None:
            self._asked, self._warned = self._now(), False
            self._loop.call_soon_threadsafe(self._answer)
            return
        silent_s = self._now() - self._asked
        if silent_s > self._warn_s and not self._warned:
            self._warned = True
            frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - documented, despite its name
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            logger.error("loop stuck", extra={"fields": {"seconds": round(silent_s, 3), "stack": stack}})
        if silent_s > self._limit_s:
            logger.critical("loop stuck for too long, ending the process")
            self._end(FAILED)

    def _answer(self) -> None:
        if self._asked is not None:
            self.lag_s = self._now() - self._asked
            self._asked = None

    def _watch(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            try:
                self.check()
            except RuntimeError:  # the loop is closed
                return
