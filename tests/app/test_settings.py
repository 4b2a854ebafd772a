from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.settings import MIB, Settings, available_cores, describe


def test_defaults_are_those_of_the_contract():
    settings = Settings()
    assert (settings.host, settings.port, settings.backend, settings.workers) == ("127.0.0.1", 8000, "auto", 1)
    assert (settings.max_body_bytes, settings.max_json_bytes) == (20 * MIB, 28 * MIB)
    assert (settings.max_pixels, settings.max_side) == (40_000_000, 16_384)
    assert (settings.max_images, settings.max_batch_pixels, settings.max_steps, settings.max_parts) == (16, 80_000_000, 8, 20)
    assert (settings.receive_timeout_s, settings.min_receive_rate, settings.deadline_ms) == (15, 32_000, 10_000)


def test_the_environment_sets_them(monkeypatch):
    monkeypatch.setenv("VISION_PORT", "8123")
    monkeypatch.setenv("VISION_WORKERS", "3")
    settings = Settings()
    assert (settings.port, settings.workers) == (8123, 3)
    assert settings.queue_limit == 8 * settings.batch_count * 3
    assert settings.share(settings.queue_limit) == 8 * settings.batch_count


def test_every_field_is_described_with_a_unit_and_numbers_are_bounded():
    rows = describe(Settings())
    assert len(rows) == len(Settings.model_fields)
    for row in rows:
        assert len(row["description"]) > 15, row["name"]
        assert row["unit"]
        if isinstance(row["value"], int | float) and not isinstance(row["value"], bool):
            with pytest.raises(ValidationError, match="less than or equal"):
                Settings(**{row["name"]: 1e30 if isinstance(row["value"], float) else 10**30})
            with pytest.raises(ValidationError, match="greater than or equal"):
                Settings(**{row["name"]: -1})


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError):
        Settings().port = 1


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"host": "0.0.0.0"}, ["VISION_HOST=0.0.0.0", "VISION_KEYS_FILE", "VISION_ALLOW_ANONYMOUS"]),
        ({"host": "vision.example"}, ["VISION_HOST=vision.example"]),
        ({"queue_limit": 31}, ["VISION_QUEUE_LIMIT=31", "VISION_BATCH_COUNT=32"]),
        ({"queue_limit": 20, "batch_count": 1, "max_images": 21}, ["VISION_QUEUE_LIMIT=20", "VISION_MAX_IMAGES=21"]),
        ({"max_side": 6000}, ["VISION_MAX_PIXELS", "VISION_MAX_SIDE=6000"]),
        ({"max_batch_pixels": 1}, ["VISION_MAX_BATCH_PIXELS=1", "VISION_MAX_PIXELS"]),
        ({"max_json_bytes": 20 * MIB}, ["VISION_MAX_JSON_BYTES", "VISION_MAX_BODY_BYTES"]),
        ({"inflight_bytes": 100 * MIB}, ["VISION_INFLIGHT_BYTES", "VISION_MAX_PIXELS"]),
        ({"decode_memory_bytes": 64 * MIB}, ["VISION_DECODE_MEMORY_BYTES", "VISION_MAX_PIXELS"]),
        ({"max_wait_ms": 100, "deadline_ms": 100}, ["VISION_MAX_WAIT_MS=100", "VISION_DEADLINE_MS=100"]),
        ({"drain_lead_s": 30}, ["VISION_DRAIN_LEAD_S=30", "VISION_DRAIN_TIMEOUT_S=30"]),
    ],
)
def test_contradictions_are_refused_and_named(values, named):
    with pytest.raises(ValidationError) as refused:
        Settings(**values)
    for name in named:
        assert name in str(refused.value)


@pytest.mark.parametrize("values", [{"host": "::1"}, {"host": "localhost"}, {"host": "127.9.9.9"}, {"host": "::", "allow_anonymous": True}])
def test_hosts_that_may_be_listened_on(values):
    assert Settings(**values).host == values["host"]


def test_shares_are_whole_and_at_least_one():
    settings = Settings(workers=4)
    assert settings.share(10) == 2
    assert settings.share(3) == 1
    assert settings.share(0) == max(1, available_cores() // 4)
