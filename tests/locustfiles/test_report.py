import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from locustfiles import report
from locustfiles.series import Charts, Step
from locustfiles.verdict import Line, Scale, Verdict

CHARTS = Charts(
    phases=[("warmup", 0, 2), ("main", 2, 10)],
    over_time={"p50": [(1, 5), (9, 6)], "p95": [(1, 9), (9, 12)], "refused per second": [(1, 3)], "failed per second": [(1, 0)]},
    percentiles={"service, small": [(0.5, 5), (0.95, 9), (0.99, 12)], "direct library call": [(0.5, 3), (0.95, 4)]},
    steps=[Step(offered=10, goodput=10, refused=0, p50_ms=5, p95_ms=9), Step(offered=20, goodput=12, refused=8, p50_ms=50, p95_ms=None)],
    batches={1: 10, 4: 30},
    refusals={"overloaded": 8},
    counted={"overloaded (queue-full)": 8},
    memory=[(0, 300), (10, 320)],
)


def verdict(name: str = "mix", state: str = "pass", *reasons: str) -> Verdict:
    lines = [Line(scope="all", measure="p95", measured=12.3456, limit=10, unit="ms", state=state)]
    return Verdict(
        scenario=name,
        lines=lines,
        reasons=list(reasons),
        complaints=["a <wrong> mask & more"],
        scale=Scale(how="measured", median=1.5, tail=2, control_p50_ms=6, control_p95_ms=9, library_ms=3),
        charts=CHARTS,
        by_first_answer=["features/new"],
        requests=1234,
        seconds=12,
    )


@pytest.mark.parametrize(
    ("states", "code"),
    [(["pass", "pass"], 0), (["pass", "missed"], 1), (["pass", "invalid"], 2), (["missed", "invalid"], 1), ([], 2)],
)
def test_the_exit_code_of_several_scenarios(states: list[str], code: int) -> None:
    made = [verdict("mix", "pass" if state == "invalid" else state, *(["late"] if state == "invalid" else [])) for state in states]
    assert report.exit_code(made) == code


def test_the_table_says_what_was_measured_against_what() -> None:
    text = report.terminal([verdict(state="missed")])
    assert re.search(r"all +p95 +12\.3 ms +10 ms +MISSED", text)
    assert "a <wrong> mask & more" in text
    assert "not with OpenCV: features/new" in text


def test_every_form_is_written_and_the_json_can_be_read_back(tmp_path: Path) -> None:
    made = [verdict("mix"), verdict("soak", "missed"), verdict("spike", "pass", "a generator was starved")]
    report.write(made, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("report.html", "report.md", "junit.xml"),
        *("mix.json", "soak.json", "spike.json"),
    }
    assert [report.read(tmp_path / f"{one.scenario}.json") for one in made] == made
    assert json.loads((tmp_path / "mix.json").read_text(encoding="utf-8"))["requests"] == 1234
    assert "| soak | missed | 1,234 |" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_junit_has_a_failure_for_a_missed_limit_and_an_error_for_an_invalid_run(tmp_path: Path) -> None:
    report.write([verdict("soak", "missed"), verdict("spike", "pass", "starved")], tmp_path)
    soak, spike = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert soak.attrib | {"name": "soak", "tests": "2", "failures": "1", "errors": "0"} == soak.attrib
    assert [failure.attrib["message"] for failure in soak.iter("failure")] == ["12.3 ms, the limit is 10 ms"]
    assert [error.attrib["message"] for error in spike.iter("error")] == ["starved"]


def test_the_page_is_one_file_that_loads_nothing_and_is_well_formed() -> None:
    html = report.page([verdict("mix"), verdict("soak", "missed")])
    assert not re.search(r"<script|<link|<img|src=|url\(|@import|https?://", html)
    body = html.removeprefix("<!doctype html>").replace('<meta charset="utf-8">', "")
    tree = ElementTree.fromstring(re.sub(r"<meta [^>]*>", "", body))
    assert len(list(tree.iter("figure"))) == 2 * 9
    assert "a &lt;wrong&gt; mask &amp; more" in html
    assert "Service levels: missed" in html


def test_a_chart_without_samples_is_not_drawn() -> None:
    bare = verdict().model_copy(update={"charts": Charts()})
    assert "<figure" not in report.page([bare])
