"""Refuses requests that could not be answered in time, before they cost anything: Little's law over the whole service.

Images in work / images finished per second while the service is saturated = seconds until a new one would be done,
whichever part is the bottleneck: decoding, the backend, encoding or the event loop. The queues inside serve clients by
fair shares, so a client waits for no more of the others' work than their share of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.problems import Overloaded

_FORGET = 0.98  # weight left to an image after the next one: about the last 50 count
_TRUSTED = 20.0  # weight of images before the pace is believed
_CAUTION = 1.25  # predicted times are taken this much longer


class Door:
    """`width` images can be in work before any has to wait: the pace is learned, and anyone refused, only above it."""

    def __init__(self, width: int, now: Callable[[], float] = time.monotonic) -> None:
        self.inside = 0
        self._width = width
        self._now = now
        self._clients: dict[str, tuple[int, float]] = {}  # images in work, weight
        self._weight = 0.0
        self._gaps = 0.0
        self._count = 0.0
        self._last: float | None = None  # when an image was last finished, if the service has been saturated since

    def predict(self, client: str, weight: float) -> float | None:
        """Seconds until one more image of that client would be done; None while nobody waits or too little is known."""
        if self.inside < self._width or self._count < _TRUSTED:
            return None
        own, known = self._clients.get(client, (0, weight))
        everyone = self._weight + (0.0 if own else known)
        ahead = min(self.inside, (own + 1) * everyone / known)
        return (ahead + self._width) * self._gaps / self._count

    def check(self, client: str, weight: float, deadline: float) -> None:
        """Overloaded when one more image of that client would miss its deadline, a time of the clock."""
        predicted = self.predict(client, weight)
        if predicted is None:
            return
        left = deadline - self._now()
        needed = predicted * _CAUTION
        if needed > left:
            raise Overloaded(
                "The service is too busy to answer before the deadline; allow more time or try again later.",
                limit=round(1000 * left, 1),
                measured=round(1000 * needed, 1),
                setting="X-Deadline-Ms",
                retry_after_s=round(min(60.0, max(1.0, needed - left)), 3),
                reason="deadline",
            )

    @contextmanager
    def work(self, client: str, weight: float, deadline: float, images: int = 1) -> Iterator[None]:
        """Surround the work on a request's images, from the moment its body is there. See `check`."""
        self.check(client, weight, deadline)
        count, known = self._clients.get(client, (0, weight))
        self._clients[client] = count + images, known
        self._weight += 0.0 if count else known
        self.inside += images
        try:
            yield
            self._learn(images)
        finally:
            self.inside -= images
            count = self._clients[client][0] - images
            if count:
                self._clients[client] = count, known
            else:
                del self._clients[client]
                self._weight = self._weight - known if self._clients else 0.0

    def _learn(self, images: int) -> None:
        """Images were finished: where the service was saturated, the time since the last ones tells its pace."""
        if self.inside < self._width:
            self._last = None
            return
        now = self._now()
        if self._last is not None:
            kept = _FORGET**images
            self._gaps = self._gaps * kept + now - self._last
            self._count = self._count * kept + images
        self._last = now
