"""The life of one process: everything is started, warmed up, drained and stopped here, in this order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from app.engine import Engine
from app.lifecycle import Phase
from app.service import Service
from app.settings import Settings
from app.watchdog import LoopWatchdog

logger = logging.getLogger("vision.runtime")

SAMPLE_S = 1.0
CLOSING_S = 2.0


@dataclass(slots=True)
class Runtime:
    """What a process consists of. With `listen_warm` starting includes warming up."""

    settings: Settings
    service: Service
    engine: Engine
    watchdog: LoopWatchdog = field(default_factory=LoopWatchdog)
    warming: asyncio.Task[None] | None = None
    sampling: asyncio.Task[None] | None = None
    listen_warm: bool = False

    async def start(self) -> None:
        """Open everything and begin to warm up; the process is alive but not ready until `warming` is done."""
        self.engine.open()
        await self.service.decoders.start()
        self.watchdog.open()
        self.service.lifecycle.advance(Phase.WARMING)
        self.warming = asyncio.create_task(self._warm_up())
        self.sampling = asyncio.create_task(self._sample())
        if self.listen_warm:
            await self.warming

    async def drain(self) -> bool:
        """See `Lifecycle.drain`."""
        settings = self.settings
        return await self.service.lifecycle.drain(settings.drain_lead_s, settings.drain_timeout_s, self._finish)

    async def _finish(self, limit_s: float) -> bool:
        """Answer whatever still waits, in both queues at once."""
        clean = await asyncio.gather(self.service.decoding.batcher.drain(limit_s), self.service.batcher.drain(limit_s))
        return all(clean)

    async def stop(self) -> None:
        """Close everything."""
        for task in (self.warming, self.sampling):
            if task is not None:
                task.cancel()
        self.watchdog.close()
        await self.service.decoders.close()
        await self.engine.close()
        self.service.encoders.shutdown(wait=False)

    async def _sample(self) -> None:
        """Another worker may be asked for the metrics, so each keeps its own states up to date."""
        while True:
            self.service.sample()
            await asyncio.sleep(SAMPLE_S)

    async def _warm_up(self) -> None:
        lifecycle = self.service.lifecycle
        try:
            await _in_daemon(partial(self.service.backend.warm_up, list(self.service.operators.values())))
        except Exception:
            logger.exception("warm-up failed")
            lifecycle.fail("warm-up failed")
            return
        # What lives now lives on. The compiler leaves millions of objects, which each full collection would walk through.
        gc.collect()
        gc.freeze()
        if lifecycle.phase is Phase.WARMING:
            lifecycle.advance(Phase.READY)


def _in_daemon(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` in a thread that the end of the process does not wait for: a compiler cannot be interrupted."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=run, name="warm-up", daemon=True).start()
    return done
