"""Verdicts as one self-contained page: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from locustfiles.plots import Axis, Chart, Points, bars, linear, logarithmic, tail
from locustfiles.series import Charts
from locustfiles.tables import cells, notes, shown
from locustfiles.verdict import Verdict

_STYLE = Path(__file__).with_name("page.css")
_SIGNS = {"pass": "✓", "missed": "✗", "invalid": "?"}
_LEADS = {
    "pass": "Every objective was met.",
    "missed": "An objective was missed.",
    "invalid": "Not everything could be judged.",
}
CONTROL = "direct library call"


def page(verdicts: Sequence[Verdict]) -> str:
    """The whole document."""
    words = {verdict.word for verdict in verdicts}
    word = next((word for word in ("missed", "invalid") if word in words), "pass" if verdicts else "invalid")
    requests = sum(verdict.requests for verdict in verdicts)
    seconds = sum(verdict.seconds for verdict in verdicts)
    tiles = "".join(_tile(verdict) for verdict in verdicts)
    sections = "".join(_section(verdict) for verdict in verdicts)
    count = (
        f"{len(verdicts)} scenario{'s' if len(verdicts) != 1 else ''}, {requests:,} requests, every answer checked, {seconds:.0f} seconds."
    )
    where = escape(verdicts[0].where) if verdicts else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Service levels: {word}</title><style>{_STYLE.read_text(encoding='utf-8')}</style></head><body>"
        f'<header class="{word}"><p class="sign">{_SIGNS[word]}</p><div><h1>Service levels: {word}</h1>'
        f"<p>{_LEADS[word]} {count}</p><p>{where}</p></div></header><nav>{tiles}</nav>{sections}</body></html>"
    )


def _tile(verdict: Verdict) -> str:
    headline = next((line for line in verdict.lines if line.state == "missed"), None)
    said = f"{headline.scope}: {headline.measure}" if headline else f"{verdict.requests:,} requests"
    if verdict.word == "invalid" and verdict.reasons:
        said = verdict.reasons[0]
    return (
        f'<a class="tile {verdict.word}" href="#{verdict.scenario}"><b>{_SIGNS[verdict.word]} {escape(verdict.scenario)}</b>'
        f"<span>{escape(said)}</span></a>"
    )


def _section(verdict: Verdict) -> str:
    rows = "".join(
        f'<tr class="{line.state}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells(line)) + "</tr>" for line in shown(verdict)
    )
    said = "".join(f"<li>{escape(note)}</li>" for note in notes(verdict))
    drawn = "".join(_figures(verdict.charts))
    return (
        f'<section id="{verdict.scenario}"><h2><span class="{verdict.word}">{_SIGNS[verdict.word]}</span> '
        f'{escape(verdict.scenario)}</h2><div class="figures">{drawn}</div><table><thead><tr><th>what</th><th>measure</th>'
        f"<th>measured</th><th>limit</th><th></th></tr></thead><tbody>{rows}</tbody></table><ul>{said}</ul></section>"
    )


def _figures(charts: Charts) -> list[str]:
    """The charts that have something to show."""
    drawn = []
    if charts.steps:
        drawn += [_goodput(charts), _over_rate(charts)]
    if any(charts.over_time.get(name) for name in ("p50", "p95")):
        drawn.append(_latency(charts))
    if charts.percentiles:
        drawn.append(_percentiles(charts))
    lost = {name: charts.over_time.get(name, []) for name in ("refused per second", "failed per second")}
    if any(value for points in lost.values() for _, value in points):
        chart = Chart("Not answered, over time", _seconds(charts), linear("requests per second", _values(lost.values())))
        for number, (name, points) in enumerate(lost.items()):
            chart.line(name, points, (1, 3)[number])
        drawn.append(chart.svg())
    if charts.refusals:
        drawn.append(bars("Refusals by reason, as clients saw them", dict(charts.refusals), 1, "requests"))
    if charts.counted:
        drawn.append(bars("Answers other than success, as the service counts them", charts.counted, 4, "requests"))
    if len(charts.batches) > 1:
        sizes = {f"{size} in a batch": float(count) for size, count in charts.batches.items()}
        drawn.append(bars("Batch sizes", sizes, 2, "requests that shared a batch of this size"))
    if len(charts.memory) > 1:
        chart = Chart("Memory of the service", _seconds(charts), linear("megabytes", [mb for _, mb in charts.memory]))
        _bands(chart, charts)
        chart.line("", charts.memory, 2)
        drawn.append(chart.svg())
    return drawn


def _values(lines: Iterable[Points]) -> list[float]:
    return [y for points in lines for _, y in points]


def _seconds(charts: Charts) -> Axis:
    return linear("seconds", [end for _, _, end in charts.phases])


def _bands(chart: Chart, charts: Charts) -> None:
    for number, (name, begin, end) in enumerate(charts.phases):
        chart.band(begin, end, name, strong=number % 2 == 1)


def _latency(charts: Charts) -> str:
    lines = {name: charts.over_time.get(name, []) for name in ("p50", "p95")}
    chart = Chart("Latency over time, from the intended start", _seconds(charts), logarithmic("milliseconds", _values(lines.values())))
    _bands(chart, charts)
    for number, (name, points) in enumerate(lines.items()):
        chart.line(name, points, number)
    return chart.svg()


def _percentiles(charts: Charts) -> str:
    quantiles = sorted({quantile for points in charts.percentiles.values() for quantile, _ in points})
    chart = Chart("Exact percentiles", tail(quantiles), logarithmic("milliseconds", _values(charts.percentiles.values())))
    color = 0
    for name, points in charts.percentiles.items():
        control = name == CONTROL
        chart.line(name, points, 5 if control else color, dots=True, dashed=control)
        color += not control
    return chart.svg()


def _goodput(charts: Charts) -> str:
    offered = [step.offered for step in charts.steps]
    x = linear("offered requests per second", offered)
    chart = Chart("Goodput over offered rate", x, linear("right answers in time, per second", offered))
    chart.line("offered", [(0, 0), (max(offered), max(offered))], 5, dashed=True)
    chart.line("goodput", [(step.offered, step.goodput) for step in charts.steps], 2, dots=True)
    chart.line("refused", [(step.offered, step.refused) for step in charts.steps], 1, dots=True)
    return chart.svg()


def _over_rate(charts: Charts) -> str:
    lines = {
        "p50": [(step.offered, step.p50_ms) for step in charts.steps if step.p50_ms is not None],
        "p95": [(step.offered, step.p95_ms) for step in charts.steps if step.p95_ms is not None],
    }
    x = linear("offered requests per second", [step.offered for step in charts.steps])
    chart = Chart("Latency over offered rate, from the intended start", x, logarithmic("milliseconds", _values(lines.values())))
    for number, (name, points) in enumerate(lines.items()):
        chart.line(name, points, number, dots=True)
    return chart.svg()
