"""What is in flight, in bytes and pixels: the one place that is asked before memory is spent.

Every request holds one claim from before its body is read until its answer is sent. A claim is a sum of stages (body,
decoded, result, ...); a stage is raised before its memory is taken and dropped when it is free, so the total never
passes the limit, whatever arrives. Memory of the process <= what it takes when idle + the limit; decoder processes and
device arenas have fixed sizes of their own. Belongs to the event loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import exp
from types import TracebackType
from typing import Literal, Self

from app.problems import Overloaded

Stage = Literal["body", "decoded", "staged", "result"]

_MEMORY_S = 5.0  # time constant of the measured release rate
_CROWD = 4  # a client may hold this many bytes for each byte that is free


class Ledger:
    """Counts claims. `limit_pixels` bounds decoded pixels in flight, where given."""

    def __init__(self, limit_bytes: int, limit_pixels: int | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.limit_bytes = limit_bytes
        self.limit_pixels = limit_pixels
        self.bytes = 0
        self.pixels = 0
        self.claims = 0
        self.peak_bytes = 0
        self.stages: dict[Stage, int] = {"body": 0, "decoded": 0, "staged": 0, "result": 0}
        self._clients: dict[str, int] = {}
        self._now = now
        self._rate = 0.0  # bytes released per second
        self._rated = now()

    def admit(self, size: int = 0, client: str = "") -> Claim:
        """A claim on `size` bytes of body (0 when the length is unknown). Overloaded when they do not fit."""
        claim = Claim(self, client)
        claim.hold("body", size)
        self.claims += 1
        claim.open = True
        return claim

    def check(self, claim: Claim, size: int, pixels: int) -> None:
        """Overloaded when that many more bytes or pixels do not fit, or would leave too little to other clients."""
        free = self.limit_bytes - self.bytes - size
        if free < 0:
            raise self._full("bytes", self.limit_bytes, self.bytes + size, -free)
        if self.limit_pixels is not None and pixels > 0 and self.pixels + pixels > self.limit_pixels:
            raise self._full("pixels", self.limit_pixels, self.pixels + pixels, size)
        held = self._clients.get(claim.client, 0)
        # A client's only request may take what is there; its further ones leave room for other clients.
        if held > claim.bytes and held + size > _CROWD * free:
            raise self._full("client-share", _CROWD * free, held + size, size)

    def book(self, claim: Claim, stage: Stage, size: int, pixels: int) -> None:
        """Add (or, negative, give back) bytes and pixels of a claim."""
        self.bytes += size
        self.pixels += pixels
        self.stages[stage] += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        held = self._clients.get(claim.client, 0) + size
        if held:
            self._clients[claim.client] = held
        else:
            self._clients.pop(claim.client, None)
        if size < 0:
            self._decay()
            self._rate -= size / _MEMORY_S

    def _decay(self) -> None:
        now = self._now()
        self._rate *= exp((self._rated - now) / _MEMORY_S)
        self._rated = now

    def _full(self, reason: str, limit: int, measured: int, wanted: int) -> Overloaded:
        self._decay()
        wait = wanted / self._rate if self._rate > 0.0 else _MEMORY_S
        return Overloaded(
            "The service holds as much as its memory allows; try again later.",
            limit=limit,
            measured=measured,
            setting="VISION_INFLIGHT_BYTES",
            retry_after_s=round(min(60.0, max(1.0, wait)), 3),
            reason=reason,
        )


class Claim:
    """One request's part of the ledger; a context manager that gives everything back."""

    __slots__ = ("_ledger", "_stages", "bytes", "client", "open", "pixels")

    def __init__(self, ledger: Ledger, client: str) -> None:
        self._ledger = ledger
        self._stages: dict[Stage, int] = {}
        self.client = client
        self.bytes = 0
        self.pixels = 0
        self.open = False

    def hold(self, stage: Stage, size: int, pixels: int = 0) -> None:
        """Set what a stage holds, and add decoded pixels; Overloaded, with nothing changed, when it does not fit."""
        more = size - self._stages.get(stage, 0)
        if more > 0 or pixels:
            self._ledger.check(self, max(0, more), pixels)
        self._ledger.book(self, stage, more, pixels)
        self._stages[stage] = size
        self.bytes += more
        self.pixels += pixels

    def drop(self, stage: Stage) -> None:
        """Give a stage back: its memory is free."""
        size = self._stages.pop(stage, 0)
        self._ledger.book(self, stage, -size, 0)
        self.bytes -= size

    def release(self) -> None:
        """Give everything back; harmless when repeated."""
        for stage in list(self._stages):
            self.drop(stage)
        self._ledger.pixels -= self.pixels
        self.pixels = 0
        if self.open:
            self.open = False
            self._ledger.claims -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
