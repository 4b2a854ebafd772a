"""Token buckets on a clock that only the test moves."""

from __future__ import annotations

import pytest

from app import rates
from app.problems import RateLimited


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_burst_then_rate() -> None:
    clock = Clock()
    limiter = rates.Rates(now=clock)
    for left in (2, 1, 0):
        assert limiter.take("a", 2.0, 3)["RateLimit"].startswith(f'"default";r={left};')
    with pytest.raises(RateLimited) as refused:
        limiter.take("a", 2.0, 3)
    assert refused.value.retry_after_s == pytest.approx(0.5)
    assert refused.value.http_headers()["Retry-After"] == "1"
    assert refused.value.headers["RateLimit-Policy"] == '"default";q=3;w=2'
    clock.time += 0.5
    limiter.take("a", 2.0, 3)
    with pytest.raises(RateLimited):
        limiter.take("a", 2.0, 3)


def test_long_run_rate_is_kept() -> None:
    clock = Clock()
    limiter = rates.Rates(now=clock)
    taken = 0
    for _ in range(1000):
        clock.time += 0.01
        try:
            limiter.take("a", 20.0, 5)
            taken += 1
        except RateLimited:
            pass
    assert 195 <= taken <= 206


def test_clients_do_not_share() -> None:
    limiter = rates.Rates(now=Clock())
    limiter.take("a", 1.0, 1)
    limiter.take("b", 1.0, 1)
    with pytest.raises(RateLimited):
        limiter.take("a", 1.0, 1)


def test_no_rate_no_limit_no_headers() -> None:
    limiter = rates.Rates(now=Clock())
    assert all(limiter.take("a", 0, 1) == {} for _ in range(100))


def test_workers_share_a_rate() -> None:
    clock = Clock()
    limiter = rates.Rates(share=4, now=clock)
    for _ in range(2):
        limiter.take("a", 4.0, 8)
    with pytest.raises(RateLimited) as refused:
        limiter.take("a", 4.0, 8)
    assert refused.value.retry_after_s == pytest.approx(1.0)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_CLIENTS", 10)
    limiter = rates.Rates(now=Clock())
    for client in range(100):
        limiter.take(str(client), 1.0, 1)
    assert len(limiter._buckets) == 10
