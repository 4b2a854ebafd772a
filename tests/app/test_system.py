from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.lifecycle import Lifecycle
from app.problems import catalog
from app.settings import Settings, describe


@pytest.fixture(autouse=True, scope="module")
def compiled(warmed):
    warmed("edges/sobel")


def test_probes(live):
    assert live.get("/livez").json() == {"status": "alive"}
    assert live.get("/readyz").json() == {"status": "ready"}
    assert live.client.head("/readyz").status_code == 200


def test_readiness_says_why_not(live):
    lifecycle: Lifecycle = live.app.state.runtime.service.lifecycle
    lifecycle.checks["test"] = lambda: "it rains"
    try:
        answer = live.get("/readyz")
    finally:
        del lifecycle.checks["test"]
    body = answer.json()
    assert (answer.status_code, body["code"]) == (503, "backend-unavailable")
    assert body["errors"] == [{"pointer": "", "detail": "test: it rains"}]
    assert "retry-after" in answer.headers


def test_metrics_tell_what_happened(live):
    gradient = "/v1/edges/sobel"
    live.post(gradient, content=b"P5 8 8 255\n" + bytes(64))
    live.post(gradient, content=b"?")
    answer = live.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["vision_requests_total", (("route", gradient), ("status", "200"))] >= 1
    assert samples["vision_requests_total", (("route", gradient), ("status", "415"))] >= 1
    assert samples["vision_refusals_total", (("code", "unsupported-media-type"), ("reason", ""))] >= 1
    for phase in ("receive", "decode", "queue", "form", "kernel", "encode", "send"):
        assert samples["vision_phase_seconds_count", (("phase", phase),)] >= 1, phase
    assert samples["vision_batch_jobs_count", ()] >= 1
    assert samples["vision_batches_total", (("reason", "idle"),)] >= 1
    assert samples["vision_queue_jobs", ()] == 0
    assert samples["vision_ready", ()] == 1
    assert samples["process_resident_memory_bytes", ()] > 1e6
    finest = min(float(labels[0][1]) for name, labels in samples if name == "vision_request_seconds_bucket" and labels[0][0] == "le")
    assert finest < 0.001


def test_a_client_cannot_make_up_metric_labels(live):
    live.get("/made-up-path")
    assert "made-up-path" not in live.get("/metrics").text


def test_limits_are_those_that_hold(live):
    limits = live.get("/v1/limits").json()["limits"]
    settings = Settings()
    assert set(limits) == {row["name"] for row in describe(settings) if row["published"]}
    for name, limit in limits.items():
        assert limit["value"] == getattr(settings, name)
        assert limit["setting"] == f"VISION_{name.upper()}"
        assert limit["unit"]
        assert limit["description"]


def test_unknown_operators_and_problems_are_404(live):
    for path in ("/v1/operators/edges/none", "/v1/operators/none/canny", "/problems/none"):
        answer = live.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


def test_every_problem_type_can_be_looked_up(live):
    for entry in live.get("/problems").json()["problems"]:
        assert live.get(entry["type"]).json() == entry
        assert entry["meaning"]
    assert len(live.get("/problems").json()["problems"]) == len(catalog())


@pytest.mark.parametrize("path", ["/", "/docs", "/redoc"])
def test_pages_need_nothing_from_elsewhere(live, path):
    answer = live.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    references = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert references
    for reference in references:
        assert reference.startswith("/"), reference
        assert live.get(reference).status_code == 200, reference


def test_the_openapi_document_is_served(live):
    document = live.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert "/v1/edges/canny" in document["paths"]


def test_cors_is_off_unless_it_is_set(live, serving):
    headers = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    assert "access-control-allow-origin" not in live.get("/livez", headers=headers).headers
    open_ = serving(cors_origins="https://a.example, https://b.example")
    preflight = open_.client.options("/v1/edges/sobel", headers=headers)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://a.example"
    problem = open_.post("/v1/edges/sobel", content=b"?", headers=headers)
    assert problem.status_code == 415
    assert problem.headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in open_.get("/livez", headers={"Origin": "https://c.example"}).headers
