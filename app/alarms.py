"""Many appointments, one timer: rings for each item at its time, unless the item is no longer live by then."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from app.jobs import Clock, Timer

T = TypeVar("T")

_LEAST_S = 0.001  # uvloop rounds to whole milliseconds, so a shorter timer could fire early and spin
_SPARE = 64  # dead items that are always tolerated


class Alarms(Generic[T]):
    """A heap of (time, item). Adding is O(log n); dead items cost nothing but their place until the heap is rebuilt."""

    def __init__(self, clock: Clock, live: Callable[[T], bool], ring: Callable[[list[T]], None]) -> None:
        self._clock = clock
        self._live = live
        self._ring = ring
        self._items: list[tuple[float, int, T]] = []
        self._numbers = count()
        self._sweep_at = 2 * _SPARE
        self._timer: tuple[float, Timer] | None = None

    def add(self, when: float, item: T) -> None:
        """Ring for the item at `when`, a time of the clock."""
        if len(self._items) >= self._sweep_at:
            self._items = [entry for entry in self._items if self._live(entry[2])]
            heapify(self._items)
            self._sweep_at = 2 * len(self._items) + 2 * _SPARE
        heappush(self._items, (when, next(self._numbers), item))
        self._arm()

    def _arm(self) -> None:
        """Keep a timer for the earliest item; one that was set for an item that is dead by now fires for nothing."""
        first = self._items[0][0]
        if self._timer is not None:
            if self._timer[0] <= first:
                return
            self._timer[1].cancel()
        delay = max(_LEAST_S, first - self._clock.time())
        self._timer = (first, self._clock.call_later(delay, self._fire))

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.time()
        due = []
        while self._items and (self._items[0][0] <= now or not self._live(self._items[0][2])):
            item = heappop(self._items)[2]
            if self._live(item):
                due.append(item)
        if self._items:
            self._arm()
        if due:
            self._ring(due)
