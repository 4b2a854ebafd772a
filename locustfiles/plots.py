"""Charts as inline SVG: lines and bars, nothing else, readable in the dark as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 14, 42
COLORS = 6  # classes c0 to c5 of the page's style sheet

Points = Sequence[tuple[float, float]]


def short(value: float) -> str:
    """A number for an axis: 0.5, 25, 1.2k."""
    if abs(value) >= 1000:
        return f"{value / 1000:.3g}k"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Axis:
    """One axis: its text, its ticks, and where a value lies between 0 and 1."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    transform: Callable[[float], float] = float

    def at(self, value: float) -> float:
        """Position of a value, 0 to 1."""
        low, high = self.transform(self.low), self.transform(self.high)
        return min(1.0, max(0.0, (self.transform(value) - low) / (high - low)))


def linear(label: str, values: Iterable[float]) -> Axis:
    """An axis from zero with about five round ticks."""
    high = max(values, default=0.0) or 1.0
    raw = high / 5
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= raw * 0.999)
    ticks = [step * number for number in range(math.ceil(high / step - 1e-9) + 1)]
    return Axis(label, ticks[0], ticks[-1], [(tick, short(tick)) for tick in ticks])


def logarithmic(label: str, values: Iterable[float]) -> Axis:
    """An axis over whole steps of 1, 2, 5."""
    known = [value for value in values if value > 0] or [1.0]
    marks = [factor * 10.0**power for power in range(-2, 7) for factor in (1, 2, 5)]
    low = max(mark for mark in marks if mark <= min(known) or mark == marks[0])
    high = min(mark for mark in marks if mark >= max(known) * 1.0001 or mark == marks[-1])
    if high <= low:
        high = low * 10
    inside = [mark for mark in marks if low <= mark <= high]
    if len(inside) > 8:
        inside = [mark for mark in inside if f"{mark:e}"[0] == "1"]
    return Axis(label, low, high, [(mark, short(mark)) for mark in inside], lambda value: math.log10(max(value, 1e-9)))


def tail(quantiles: Sequence[float]) -> Axis:
    """An axis of percentiles that gives each further nine the same room."""
    ticks = [(quantile, f"{quantile * 100:.4g} %") for quantile in quantiles]
    return Axis("of requests are answered within", quantiles[0], quantiles[-1], ticks, lambda q: -math.log10(1 - q))


@dataclass
class Chart:
    """A frame with two axes; lines and bands are added, then it is drawn."""

    title: str
    x: Axis
    y: Axis
    _marks: list[str] = field(default_factory=list)
    _legend: list[tuple[str, str]] = field(default_factory=list)

    def _x(self, value: float) -> float:
        return LEFT + self.x.at(value) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.y.at(value) * (HEIGHT - TOP - BOTTOM)

    def band(self, begin: float, end: float, text: str, *, strong: bool) -> None:
        """A stretch of the x axis with a name."""
        x, width = self._x(begin), self._x(end) - self._x(begin)
        kind = "band strong" if strong else "band"
        self._marks.append(f'<rect class="{kind}" x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}"/>')
        if width > 7 * len(text):
            self._marks.append(f'<text class="tick" x="{x + 4:.1f}" y="{TOP + 11}">{escape(text)}</text>')

    def line(self, name: str, points: Points, color: int, *, dots: bool = False, dashed: bool = False) -> None:
        """A line through points, in the order given."""
        at = [(self._x(x), self._y(y), x, y) for x, y in points]
        if not at:
            return
        kind = f"line c{color % COLORS}" + (" dashed" if dashed else "")
        path = " ".join(f"{'L' if number else 'M'}{px:.1f} {py:.1f}" for number, (px, py, _, _) in enumerate(at))
        self._marks.append(f'<path class="{kind}" d="{path}"/>')
        if dots:
            for px, py, x, y in at:
                said = escape(f"{name}: {short(y)} at {short(x)}")
                self._marks.append(
                    f'<circle class="dot c{color % COLORS}" cx="{px:.1f}" cy="{py:.1f}" r="3"><title>{said}</title></circle>'
                )
        if name:
            self._legend.append((name, kind))

    def svg(self) -> str:
        """The finished figure, with its legend."""
        parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">']
        for value, text in self.y.ticks:
            y = self._y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(text)}</text>')
        for value, text in self.x.ticks:
            x = self._x(value)
            parts.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}">{escape(text)}</text>')
        parts += self._marks
        parts.append(f'<text class="axis" x="{LEFT}" y="{HEIGHT - 6}">{escape(self.x.label)}</text>')
        middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
        parts.append(
            f'<text class="axis" text-anchor="middle" transform="translate(13 {middle:.0f}) rotate(-90)">{escape(self.y.label)}</text>'
        )
        parts.append("</svg>")
        return figure(self.title, "".join(parts), self._legend)


def bars(title: str, values: Mapping[str, float], color: int, label: str) -> str:
    """Horizontal bars, longest name left, value at the end."""
    height = 26 * len(values) + 26
    left = min(300, 12 + 7 * max(len(name) for name in values))
    most = max(values.values()) or 1.0
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for number, (name, value) in enumerate(values.items()):
        y = 26 * number + 4
        width = (WIDTH - left - 70) * value / most
        parts.append(f'<text class="tick" text-anchor="end" x="{left - 8}" y="{y + 14}">{escape(name)}</text>')
        parts.append(f'<rect class="bar c{color}" x="{left}" y="{y}" width="{max(width, 1):.1f}" height="18" rx="2"/>')
        parts.append(f'<text class="tick" x="{left + width + 6:.1f}" y="{y + 14}">{short(value)}</text>')
    parts.append(f'<text class="axis" x="{left}" y="{height - 6}">{escape(label)}</text></svg>')
    return figure(title, "".join(parts), [])


def figure(title: str, svg: str, legend: Sequence[tuple[str, str]]) -> str:
    """A drawing with its caption and legend."""
    keys = "".join(
        f'<span><svg viewBox="0 0 22 8" class="key"><path class="{kind}" d="M1 4L21 4"/></svg>{escape(name)}</span>'
        for name, kind in legend
    )
    return f'<figure><figcaption>{escape(title)}</figcaption>{svg}<p class="legend">{keys}</p></figure>'
