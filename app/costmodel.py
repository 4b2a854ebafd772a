"""How long work takes: seconds = a + b * pixels, learned online per operator chain.

One observation is one launch (or one image, on a backend that runs a batch image by image). The fit is a least-squares
line over exponentially forgotten observations; each observation is first pulled to within a few deviations of the
prediction (Huber's way), so that one stall or one page fault does not move the line, while a lasting change does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

MEGAPIXEL = 1e6
_FORGET = 0.95  # weight left to an observation after the next one: about the last 20 count
_TRUSTED = 5  # observations before a line is believed
_CLIP = 3.0  # deviations beyond which an observation is pulled in
_ANCHOR = 0.05  # weight of an imagined observation (0 pixels, 0 s): settles the slope while all images have one size
_MOST_KEYS = 1024


@dataclass(slots=True)
class Line:
    """One fitted line. `base` is in seconds, `slope` in seconds per megapixel; neither is ever negative."""

    seen: int = 0
    base: float = 0.0
    slope: float = 0.0
    deviation: float = 0.0
    _w: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    @property
    def trusted(self) -> bool:
        """Enough was seen to act on it."""
        return self.seen >= _TRUSTED

    def seconds(self, pixels: float) -> float:
        """The predicted time of a launch of that many pixels."""
        return self.base + self.slope * pixels / MEGAPIXEL

    def observe(self, pixels: float, seconds: float) -> None:
        """Learn from one launch."""
        if self.trusted:
            predicted = self.seconds(pixels)
            reach = _CLIP * max(self.deviation, 0.05 * predicted, 1e-6)
            seconds = min(max(seconds, predicted - reach), predicted + reach)
            # The clipped error still widens the deviation, so a lasting change is followed within a few launches.
            self.deviation += 0.1 * (abs(seconds - predicted) - self.deviation)
        self.seen += 1
        x = pixels / MEGAPIXEL
        self._w = self._w * _FORGET + 1.0
        self._x = self._x * _FORGET + x
        self._y = self._y * _FORGET + seconds
        self._xx = self._xx * _FORGET + x * x
        self._xy = self._xy * _FORGET + x * seconds
        self._fit()
        if not self.trusted:
            self.deviation = max(self.deviation, abs(seconds - self.seconds(pixels)))

    def _fit(self) -> None:
        weight = self._w + _ANCHOR
        spread = weight * self._xx - self._x * self._x
        slope = (weight * self._xy - self._x * self._y) / spread if spread > 0.0 else 0.0
        self.slope = max(0.0, slope)
        self.base = (self._y - self.slope * self._x) / self._w
        if self.base < 0.0:  # a line through the origin fits best among the allowed ones
            self.base, self.slope = 0.0, self._xy / self._xx


class CostModel:
    """Lines per chain key, and one over all keys for a chain that is new."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, Line] = OrderedDict()
        self._any = Line()

    def line(self, key: Hashable) -> Line | None:
        """The line to predict with; None while nothing is known."""
        line = self._lines.get(key)
        if line is not None and line.trusted:
            return line
        return self._any if self._any.trusted else None

    def seconds(self, key: Hashable, pixels: float, share: float = 1.0) -> float:
        """Predicted seconds of that many pixels, with `share` of the cost of a launch; 0 while nothing is known."""
        line = self.line(key)
        return line.base * share + line.slope * pixels / MEGAPIXEL if line is not None else 0.0

    def observe(self, key: Hashable, pixels: float, seconds: float) -> None:
        """Learn from one launch; the keys that were not seen for longest are forgotten."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line()
            if len(self._lines) > _MOST_KEYS:
                self._lines.popitem(last=False)
        else:
            self._lines.move_to_end(key)
        line.observe(pixels, seconds)
        self._any.observe(pixels, seconds)
