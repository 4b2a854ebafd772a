"""What is deployed speaks of what exists: metrics, settings, ports and the files that an image takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import Settings
from app.telemetry import Metrics

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\b(?:vision|process)_[a-z0-9_]+")


def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return content


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Every series name that the service can export."""
    return {
        name
        for metric in Metrics().registry.collect()
        for name in (metric.name, *(metric.name + end for end in ("_total", "_bucket", "_sum", "_count")))
    }


def dashboard_queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/visionbatch.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def alert_queries() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("query", [*dashboard_queries(), *alert_queries()])
def test_every_query_asks_for_a_metric_that_exists(query: str, exported: set[str]) -> None:
    names = set(METRIC.findall(query))
    assert names or "up{" in query
    assert names <= exported


def test_the_dashboard_shows_every_metric(exported: set[str]) -> None:
    shown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for query in dashboard_queries() for name in METRIC.findall(query)}
    families = {re.sub(r"_total$", "", name) for name in exported if not name.endswith(("_bucket", "_sum", "_count"))}
    # The pixels of a launch follow from its jobs, the rest from what is shown; they are for a closer look.
    assert families - shown <= {"vision_batch_pixels", "process_start_time_seconds", "process_virtual_memory_bytes"}


def test_every_published_port_is_on_loopback_only() -> None:
    services = compose()["services"]
    assert services
    for name, service in services.items():
        assert service["ports"], name
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port}"


def test_every_variable_of_the_service_is_a_setting() -> None:
    known = {f"VISION_{name.upper()}" for name in Settings.model_fields}
    files = [ROOT / "Dockerfile", ROOT / "docker-compose.yml", *DEPLOY.rglob("*.yml")]
    named = {name for path in files for name in re.findall(r"\bVISION_[A-Z_]+\b", path.read_text())}
    assert {"VISION_HOST", "VISION_ALLOW_ANONYMOUS"} <= named <= known


def test_containers_get_time_to_drain() -> None:
    grace = int(compose()["services"]["service"]["stop_grace_period"].removesuffix("s"))
    assert grace > Settings().drain_timeout_s


def test_mounted_files_exist() -> None:
    mounts = [volume for service in compose()["services"].values() for volume in service.get("volumes", ()) if volume[0] == "."]
    assert mounts
    for mount in mounts:
        assert (ROOT / mount.split(":")[0]).is_dir(), mount


def test_images_take_only_files_that_the_build_context_holds() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"(?m)^COPY (?!--from)(\S+) \S+$", (ROOT / "Dockerfile").read_text())
    assert set(copied) == allowed
    assert all((ROOT / name).exists() for name in copied)
