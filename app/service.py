"""One image through a chain of operators: admission, decode, batcher, encode. The endpoints only say what to run.

A client that hangs up cancels its work wherever it is: while it is decoded or queued nothing is executed for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from app import results
from app.batcher import Batcher
from app.codec import DecodeOptions, ImageInfo
from app.decoders import Decoded, DecoderPool
from app.decoding import Decoding
from app.door import Door
from app.frame import Trace
from app.intake import Intake, Picture
from app.jobs import Completed, Job
from app.keys import Keyring
from app.ledger import Claim, Ledger
from app.lifecycle import Lifecycle
from app.parameters import Options, refusal
from app.problems import ClientGone, ImageTooSmall, Problem
from app.rates import Rates
from app.settings import Settings
from app.telemetry import Metrics
from cuda_ops import Backend, Chain, Item, Operator, Result, chain_key, pixel_class
from cuda_ops import ImageTooSmall as BelowLeastSize

T = TypeVar("T")

# Compressing this much takes about as long as handing it to a thread and back.
INLINE_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, until when (a time of the monotonic clock), and with which share of the service."""

    client: str
    deadline: float
    priority: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Analysis:
    """One image's answer: one result per kept step, and how it came about."""

    info: ImageInfo
    results: list[Result]
    decode_s: float
    done: Completed


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a request needs, wired once by `main.create_app`."""

    settings: Settings
    operators: Mapping[str, Operator]
    intake: Intake
    decoders: DecoderPool
    decoding: Decoding
    batcher: Batcher
    door: Door
    backend: Backend
    ledger: Ledger
    lifecycle: Lifecycle
    metrics: Metrics
    encoders: ThreadPoolExecutor
    keyring: Keyring
    rates: Rates

    def sample(self) -> None:
        """Set the metrics that are states, not events."""
        self.metrics.ready.set(0 if self.lifecycle.troubles() else 1)
        self.metrics.inflight_bytes.set(self.ledger.bytes)
        self.metrics.decoder_restarts.set(self.decoders.restarts)

    def caller(self, request: Request) -> Caller:
        """The caller by its key, else by its address. Raises why it may not come in, or InvalidParameter when X-Deadline-Ms is none."""
        trace: Trace = request.scope["vision.trace"]
        key = self.keyring.identify(request.headers, request.scope["path"].split("/")[2])
        if key is None:
            client = (request.scope.get("client") or ("",))[0]
            trace.headers |= self.rates.take(client, self.settings.rate_per_s, self.settings.rate_burst)
        else:
            client = trace.fields["key"] = f"key:{key.name}"
            trace.headers |= self.rates.take(client, key.rate_per_s, key.burst)
        deadline_ms = self.settings.deadline_ms
        asked = request.headers.get("x-deadline-ms")
        if asked is not None:
            if not (asked.isdecimal() and len(asked) < 10 and 0 < int(asked) <= deadline_ms):
                detail = f"X-Deadline-Ms should be a whole number from 1 to {deadline_ms}, in milliseconds."
                raise refusal("X-Deadline-Ms", detail, "/headers")
            deadline_ms = int(asked)
        started = time.monotonic() - (time.perf_counter() - trace.started)
        priority, weight = (key.priority, key.weight) if key else (0, 1.0)
        return Caller(client, started + deadline_ms / 1000, priority, weight)

    def admit(self, request: Request, caller: Caller) -> Claim:
        """The request's claim on memory, before its body is read. Overloaded when that, a queue or the time left is too short."""
        self.door.check(caller.client, caller.weight, caller.deadline)
        unread = Job(None, 0, None, caller.client, caller.deadline, caller.priority, caller.weight)
        self.decoding.batcher.check(unread)
        self.batcher.check(unread)
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() and len(declared) < 16 else 0
        # A longer body is refused for its length, so it must not be refused for its memory.
        limit = max(self.settings.max_json_bytes, self.settings.max_body_bytes)
        return self.ledger.admit(min(size, limit), caller.client)

    def work(self, caller: Caller, images: int = 1) -> AbstractContextManager[None]:
        """Surround the work on images whose bytes are there. Overloaded when it could not be done in time."""
        return self.door.work(caller.client, caller.weight, caller.deadline, images)

    async def decode(self, picture: bytes, chain: Chain, options: Options, caller: Caller) -> Decoded:
        """The pixels that the chain reads. ImageTooSmall where a step needs a larger image, else what the codec says."""
        decoded = await self.decoding.decode(
            picture,
            DecodeOptions(
                pixels=pixel_class(chain),
                orient=options.orient,
                background=options.rgb,
                max_pixels=self.settings.max_pixels,
                max_side=self.settings.max_side,
                max_frames=self.settings.max_frames,
            ),
            client=caller.client,
            deadline=caller.deadline,
            priority=caller.priority,
            weight=caller.weight,
        )
        height, width = decoded.pixels.shape[:2]
        for step in chain:
            try:
                step.operator.check_size(step.params, height, width)
            except BelowLeastSize as error:
                raise ImageTooSmall(f"{error}. Send a larger image, or pad this one.") from None
        return decoded

    async def run(self, decoded: Decoded, chain: Chain, caller: Caller) -> Analysis:
        """Queue the pixels and wait for the answer."""
        height, width = decoded.pixels.shape[:2]
        item = Item(decoded.pixels, chain)
        job = Job(
            key=chain_key(chain),
            cost=height * width,
            payload=item,
            client=caller.client,
            deadline=caller.deadline,
            priority=caller.priority,
            weight=caller.weight,
            # Where a batch's jobs run one after another, their scratch does not add up.
            scratch=0 if self.backend.share else self.backend.scratch_bytes(item),
        )
        done = await self.batcher.submit(job)
        return Analysis(decoded.info, done.value, decoded.seconds, done)

    async def analyze(self, picture: Picture, chain: Chain, options: Options, caller: Caller, claim: Claim) -> Analysis:
        """Decode one image and run the chain on it, with its memory on the claim; raises the problem with either."""
        if isinstance(picture, Problem):
            raise picture
        claim.hold("body", len(picture))
        decoded = await self.decode(picture, chain, options, caller)
        claim.hold("decoded", decoded.pixels.nbytes, decoded.info.width * decoded.info.height)
        return await self.run(decoded, chain, caller)

    async def encode_json(self, analysis: Analysis, options: Options) -> list[dict[str, Any]]:
        """The contract's JSON object of each result."""
        size = results.bytes_to_encode(analysis.results, "json" if options.mask_encoding != "none" else "npy")
        return await self._encode(lambda: [results.to_json(each, options) for each in analysis.results], size)

    async def encode_bytes(self, analysis: Analysis, form: str) -> bytes:
        """The last result as a file."""
        size = results.bytes_to_encode(analysis.results[-1:], form)
        return await self._encode(lambda: results.to_bytes(analysis.results[-1], form), size)

    async def _encode(self, work: Callable[[], T], size: int) -> T:
        """`work()`, on a thread when it compresses more than a few bytes."""
        if size <= INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.encoders, work)


@asynccontextmanager
async def unless_gone(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block, and raise ClientGone, when the client closes the connection; the body must have been read."""
    task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]  # a request is always a task
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
        raise ClientGone("The client closed the connection before its answer was ready.") from None
    finally:
        watcher.cancel()


def image_object(info: ImageInfo) -> dict[str, Any]:
    """The contract's `image` object."""
    return {
        "format": info.format,
        "width": info.width,
        "height": info.height,
        "mode": info.mode,
        "depth": info.depth,
        "frames": info.frames,
        "orientation": info.orientation,
        "oriented": info.oriented,
        "converted": list(info.converted),
    }


def phases(analysis: Analysis) -> dict[str, float]:
    """Seconds per phase, by the names of `telemetry.PHASES`."""
    done = analysis.done
    return {"decode": analysis.decode_s, "queue": done.queue_s, "form": done.form_s, **done.phases}
