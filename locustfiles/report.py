"""Verdicts as text: a table for the terminal, Markdown, JUnit XML, and JSON for the next program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from locustfiles.page import page
from locustfiles.tables import HEAD, cells, notes, number, shown
from locustfiles.verdict import Verdict

__all__ = ["exit_code", "markdown", "page", "read", "terminal", "write"]


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Of several scenarios: missed (1) outranks invalid (2) outranks passed (0). Nothing judged is invalid."""
    codes = {verdict.exit_code for verdict in verdicts}
    return 1 if 1 in codes else 2 if 2 in codes or not codes else 0


def terminal(verdicts: Sequence[Verdict]) -> str:
    """A table for each scenario and the reasons below it."""
    blocks = []
    for verdict in verdicts:
        rows = [HEAD, *(cells(line) for line in shown(verdict))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        table = [
            "  ".join(
                cell.rjust(width) if column in (2, 3) else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        title = f"\n{verdict.scenario}: {verdict.word.upper()}  ({verdict.requests:,} requests, {verdict.seconds:.0f} s)"
        blocks.append("\n".join([title, *(f"  {row}" for row in table), *(f"  {note}" for note in notes(verdict))]))
    return "\n".join(blocks)


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The same for a pull request."""
    lines = ["# Service level objectives", "", "| scenario | verdict | requests |", "|---|---|---:|"]
    lines += [f"| {v.scenario} | {v.word} | {v.requests:,} |" for v in verdicts]
    for verdict in verdicts:
        lines += ["", f"## {verdict.scenario}: {verdict.word}", "", "| what | measure | measured | limit | |", "|---|---|---:|---:|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells(line)) + " |" for line in shown(verdict)]
        lines += ["", *(f"- {note}" for note in notes(verdict))]
    return "\n".join(lines) + "\n"


def junit(verdicts: Sequence[Verdict]) -> str:
    """One suite a scenario, one case a line; an invalid run is an error, a missed limit a failure."""
    root = ElementTree.Element("testsuites", name="service level objectives")
    for verdict in verdicts:
        missed = [line for line in verdict.lines if line.state == "missed"]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=verdict.scenario,
            tests=str(len(verdict.lines) + 1),
            failures=str(len(missed)),
            errors=str(int(bool(verdict.reasons))),
            time=f"{verdict.seconds:.1f}",
        )
        whole = ElementTree.SubElement(suite, "testcase", classname=verdict.scenario, name="the run is valid")
        if verdict.reasons:
            ElementTree.SubElement(whole, "error", message="; ".join(verdict.reasons))
        for line in verdict.lines:
            case = ElementTree.SubElement(suite, "testcase", classname=verdict.scenario, name=f"{line.scope}: {line.measure}")
            if line.state == "missed":
                said = f"{number(line.measured, line.unit)}, the limit is {number(line.limit, line.unit)}"
                ElementTree.SubElement(case, "failure", message=said).text = "\n".join(verdict.complaints)
            elif line.state == "invalid":
                ElementTree.SubElement(case, "skipped", message=line.note)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def write(verdicts: Sequence[Verdict], folder: Path) -> None:
    """report.html, report.md, junit.xml, and one JSON file a scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    for verdict in verdicts:
        (folder / f"{verdict.scenario}.json").write_text(verdict.model_dump_json(indent=1), encoding="utf-8")
    (folder / "report.html").write_text(page(verdicts), encoding="utf-8")
    (folder / "report.md").write_text(markdown(verdicts), encoding="utf-8")
    (folder / "junit.xml").write_text(junit(verdicts), encoding="utf-8")


def read(path: Path) -> Verdict:
    """A verdict from its JSON file."""
    return Verdict.model_validate_json(path.read_text(encoding="utf-8"))
