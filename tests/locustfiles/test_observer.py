from locustfiles.observer import Observed, parse

TEXT = """
# HELP vision_refusals_total Answers other than success.
# TYPE vision_refusals_total counter
vision_refusals_total{code="overloaded",reason="queue-full"} 12.0
vision_refusals_total{code="body-too-large",reason=""} 3.0
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1.5e+08
"""


def test_metrics_are_read_by_name_and_labels() -> None:
    assert parse(TEXT) == {
        ("vision_refusals_total", (("code", "overloaded"), ("reason", "queue-full"))): 12.0,
        ("vision_refusals_total", (("code", "body-too-large"), ("reason", ""))): 3.0,
        ("process_resident_memory_bytes", ()): 1.5e8,
    }


def test_refusals_are_what_grew_by_code_and_reason() -> None:
    assert Observed(grown=parse(TEXT)).refusals() == {"overloaded (queue-full)": 12.0, "body-too-large": 3.0}
