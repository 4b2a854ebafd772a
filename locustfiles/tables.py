"""The rows and remarks that every form of report shows."""

from __future__ import annotations

from locustfiles.verdict import Line, Verdict

HEAD = ("what", "measure", "measured", "limit", "")

_MARKS = {"pass": "ok", "missed": "MISSED", "invalid": "INVALID", "info": ""}


def number(value: float | None, unit: str) -> str:
    """A value with its unit, in as many digits as matter."""
    if value is None:
        return "-"
    if unit == "ratio":
        return f"{value * 100:.4g} %"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit}".strip()


def cells(line: Line) -> tuple[str, str, str, str, str]:
    return (
        line.scope,
        line.measure,
        number(line.measured, line.unit),
        number(line.limit, line.unit),
        f"{_MARKS[line.state]} {line.note}".strip(),
    )


def shown(verdict: Verdict) -> list[Line]:
    """All lines but the ratios of single operators that are as they should be: nothing is learned from forty zeros."""
    return [line for line in verdict.lines if "/" not in line.scope or line.measure not in ("failed", "refused") or line.state != "pass"]


def notes(verdict: Verdict) -> list[str]:
    """What a reader needs beside the table: why, on which machine, compared with what."""
    scale = verdict.scale
    text = [f"invalid: {reason}" for reason in verdict.reasons]
    text += [f"complaint: {complaint}" for complaint in verdict.complaints]
    if scale.control_p50_ms is not None and scale.library_ms is not None:
        text.append(
            f"times are {scale.how}: {scale.library_ms:.1f} ms; behind plain HTTP {scale.control_p50_ms:.1f} ms "
            f"(p95 {scale.control_p95_ms:.1f}), so {scale.median:.2f} times the reference at the median, "
            f"{scale.tail:.2f} in the tail"
        )
    else:
        text.append(f"times: {scale.how}")
    if verdict.by_first_answer:
        text.append(f"compared with the first answer, given alone, not with OpenCV: {', '.join(verdict.by_first_answer)}")
    return text
