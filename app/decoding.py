"""Decoding as an executor: one batcher in front of the decoder processes gives images the same fair order, deadlines and
refusals as the backend's queue gives to jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from math import inf

from app.batcher import Batcher
from app.codec import DecodeOptions, sniff
from app.decoders import Decoded, DecoderPool
from app.jobs import Clock, Deliver, Finished, Job, Limits, Timing

_TARGET_BYTES = 4 << 20


class DecodeExecutor:
    """Runs batches of one image: payload (bytes, DecodeOptions), cost in bytes."""

    share = False
    available = True

    def __init__(self, pool: DecoderPool) -> None:
        self._pool = pool
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def slots(self) -> int:
        """Images that are decoded at once."""
        return self._pool.size

    def start(self, jobs: Sequence[Job], deliver: Deliver, finished: Finished) -> None:
        """See `Executor.start`."""
        task = asyncio.get_running_loop().create_task(self._run(jobs[0], deliver, finished))
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job, deliver: Deliver, finished: Finished) -> None:
        data, options = job.payload
        began = time.monotonic()
        outcome: Decoded | Exception
        try:
            outcome = await self._pool.decode(data, options, job.deadline if job.deadline < inf else None)
        except Exception as error:
            outcome = error
        deliver(0, outcome, Timing(began, began, time.monotonic()))
        finished(None)


class Decoding:
    """The queue of the decoder processes."""

    def __init__(self, pool: DecoderPool, queue_limit: int, clock: Clock | None = None) -> None:
        # Cost is in bytes here: larger files leave one decoder to the others, and a fair share is kept to within a target.
        limits = Limits(batch_count=1, batch_pixels=_TARGET_BYTES, large_pixels=_TARGET_BYTES, queue_limit=queue_limit)
        self.batcher = Batcher(DecodeExecutor(pool), limits, clock=clock)

    async def decode(
        self, data: bytes, options: DecodeOptions, *, client: str, deadline: float, priority: int = 0, weight: float = 1.0
    ) -> Decoded:
        """Decode in the next free process, in fair order. Raises what the pool and `Batcher.submit` raise."""
        kind = sniff(data) or ""
        job = Job(kind, len(data), (data, options), client, deadline, priority, weight)
        decoded: Decoded = (await self.batcher.submit(job)).value
        return decoded
