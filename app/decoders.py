"""The pool of decoder processes: whatever an image does to its decoder, it costs that request and nobody else.

Everything here runs on the event loop, in callbacks: sending a request and taking its answer are a handful of system calls, and pixels
arrive as mapped memory. A decoder that hangs, crashes, outgrows its memory or talks nonsense is killed and replaced.
"""

from __future__ import annotations

import asyncio
from collections import deque

from app.codec import DecodeOptions
from app.decoder_process import Decoded, DecodeJob, Decoder, Nursery
from app.problems import DeadlineExceeded, Draining, Overloaded

__all__ = ["Decoded", "DecoderPool"]

_START_TIMEOUT_S = 60.0
_RESPAWN_PAUSE_S = 0.2  # where a process never became ready
_RETRY_AFTER_S = 1.0


class DecoderPool:
    """`size` decoder processes, each given `timeout_s` seconds and `memory_bytes` bytes an image, and `queue_limit` waiting requests.

    `worker` is the module that is run as the decoders' nursery.
    """

    def __init__(
        self, size: int, *, timeout_s: float, memory_bytes: int, queue_limit: int = 1024, worker: str = "app.decoder_worker"
    ) -> None:
        self.size = size
        self.restarts = 0
        self._timeout_s = timeout_s
        self._queue_limit = queue_limit
        self._nursery = Nursery(worker, memory_bytes, timeout_s)
        self._decoders: list[Decoder] = []
        self._idle: list[Decoder] = []
        self._queue: deque[DecodeJob] = deque()
        self._all_ready: asyncio.Future[None] | None = None
        self._open = False

    @property
    def busy(self) -> int:
        """Decoders that have an image."""
        return sum(decoder.job is not None for decoder in self._decoders)

    @property
    def waiting(self) -> int:
        """Requests that wait for a decoder."""
        return len(self._queue)

    async def start(self) -> None:
        """Start every decoder. Raises OSError or RuntimeError if their nursery does not start, TimeoutError if they do not come up."""
        self._open = True
        self._all_ready = asyncio.get_running_loop().create_future()
        try:
            for _ in range(self.size):
                self._decoders.append(self._decoder())
            await asyncio.wait_for(self._all_ready, _START_TIMEOUT_S)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End every decoder and fail what is left; to be called when the requests have been answered."""
        self._open = False
        gone = Draining("The service is shutting down. Send the request again.", retry_after_s=_RETRY_AFTER_S)
        for decoder in self._decoders:
            decoder.close(gone)
        for job in self._queue:
            if not job.result.done():
                job.result.set_exception(gone)
        for rest in (self._decoders, self._idle, self._queue):
            rest.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._nursery.close)

    async def decode(self, data: bytes, options: DecodeOptions, deadline: float | None = None) -> Decoded:
        """Decode in the next free process, first come first served. `deadline` is in the event loop's time, seconds.

        Raises ImageUnreadable, ImageTooLarge, UnsupportedMediaType; Overloaded if too many wait; DeadlineExceeded; Draining once closed.
        A caller that stops waiting leaves its decoder working until that is done or overdue.
        """
        if not self._open:
            raise Draining("The service is shutting down. Send the request again.", retry_after_s=_RETRY_AFTER_S)
        if not self._idle and len(self._queue) >= self._queue_limit:
            raise Overloaded(
                f"{self._queue_limit} images wait for a decoder already. Try again later.",
                reason="decoders",
                retry_after_s=_RETRY_AFTER_S,
            )
        job = DecodeJob(data, options, asyncio.get_running_loop().create_future())
        self._queue.append(job)
        self._dispatch()
        try:
            async with asyncio.timeout_at(deadline):
                return await job.result
        except TimeoutError:
            raise DeadlineExceeded("The image was not decoded before the deadline. Try again, or allow more time.") from None
        finally:
            if job in self._queue:
                self._queue.remove(job)

    def _dispatch(self) -> None:
        while self._queue and self._idle:
            if self._idle[-1].begin(self._queue[0]):
                self._idle.pop()
                self._queue.popleft()

    def _decoder(self) -> Decoder:
        return Decoder(self._nursery, self._timeout_s, self._freed, self._lost)

    def _respawn(self) -> None:
        if self._open:
            try:
                self._decoders.append(self._decoder())
            except OSError:  # out of descriptors, memory or processes, for the time being
                asyncio.get_running_loop().call_later(_RESPAWN_PAUSE_S, self._respawn)

    def _freed(self, decoder: Decoder) -> None:
        self._idle.append(decoder)
        self._dispatch()
        if self._all_ready and not self._all_ready.done() and sum(each.ready for each in self._decoders) == self.size:
            self._all_ready.set_result(None)

    def _lost(self, decoder: Decoder, unanswered: DecodeJob | None) -> None:
        self.restarts += 1
        if unanswered is not None and not unanswered.result.done():
            self._queue.appendleft(unanswered)
        self._decoders.remove(decoder)
        if decoder in self._idle:
            self._idle.remove(decoder)
        asyncio.get_running_loop().call_later(0 if decoder.ready else _RESPAWN_PAUSE_S, self._respawn)
        self._dispatch()
        code = self._nursery.exit_code
        if code is not None and self._all_ready and not self._all_ready.done():
            self._all_ready.set_exception(RuntimeError(f"the decoders' nursery ended with exit code {code} before it was up"))
