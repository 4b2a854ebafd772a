"""The ledger never passes its limit, gives everything back, and leaves room for other clients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger import Claim, Ledger
from app.problems import Overloaded


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_body_that_does_not_fit_is_refused_before_it_is_read() -> None:
    ledger = Ledger(1000)
    claim = ledger.admit(600)
    with pytest.raises(Overloaded) as caught:
        ledger.admit(500, "other")
    problem = caught.value
    assert (problem.reason, problem.limit, problem.measured) == ("bytes", 1000, 1100)
    assert problem.setting == "VISION_INFLIGHT_BYTES"
    assert problem.retry_after_s is not None
    claim.release()
    assert ledger.admit(1000).bytes == 1000


def test_a_body_of_unknown_length_is_counted_as_it_comes() -> None:
    ledger = Ledger(1000)
    with ledger.admit() as claim:
        claim.hold("body", 400)
        claim.hold("body", 900)
        with pytest.raises(Overloaded):
            claim.hold("body", 1001)
        assert claim.bytes == ledger.bytes == 900, "a refusal changes nothing"
    assert (ledger.bytes, ledger.claims) == (0, 0)


def test_a_body_becomes_pixels() -> None:
    ledger = Ledger(1000, limit_pixels=250)
    with ledger.admit(100) as claim:
        claim.hold("decoded", 600, pixels=200)
        claim.drop("body")
        assert ledger.stages == {"body": 0, "decoded": 600, "staged": 0, "result": 0}
        assert (ledger.bytes, ledger.pixels, ledger.peak_bytes) == (600, 200, 700)
        with ledger.admit(1, "other") as other, pytest.raises(Overloaded) as caught:
            other.hold("decoded", 60, pixels=51)
        assert caught.value.reason == "pixels"
    assert (ledger.bytes, ledger.pixels, sum(ledger.stages.values())) == (0, 0, 0)


def test_everything_is_given_back_when_the_request_fails() -> None:
    ledger = Ledger(1000)
    claim = ledger.admit(10)

    def fail() -> None:
        with claim:
            claim.hold("decoded", 500, pixels=5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (ledger.bytes, ledger.pixels, ledger.claims) == (0, 0, 0)
    claim.release()
    assert (ledger.bytes, ledger.pixels, ledger.claims) == (0, 0, 0), "twice is as good as once"


def test_a_refused_claim_holds_nothing() -> None:
    ledger = Ledger(10)
    with pytest.raises(Overloaded):
        ledger.admit(11)
    assert (ledger.bytes, ledger.claims, ledger._clients) == (0, 0, {})


def test_one_client_cannot_take_the_room_of_all_others() -> None:
    ledger = Ledger(1000)
    for _ in range(8):
        ledger.admit(100, "heavy")
    with pytest.raises(Overloaded) as caught:
        ledger.admit(100, "heavy")
    assert caught.value.reason == "client-share"
    assert ledger.admit(100, "light").bytes == 100


def test_a_clients_only_request_may_take_everything() -> None:
    ledger = Ledger(1000)
    with ledger.admit(100, "a") as claim:
        claim.hold("decoded", 900)
        assert ledger.bytes == 1000


def test_retry_after_follows_the_rate_at_which_memory_comes_free() -> None:
    waits = []
    for per_second in (10, 100):
        time = Time()
        ledger = Ledger(1000, now=time)
        for _ in range(50):
            with ledger.admit(per_second):
                time.now += 1.0
        ledger.admit(1000, "hog")
        with pytest.raises(Overloaded) as caught:
            ledger.admit(400, "other")
        assert caught.value.retry_after_s is not None
        waits.append(caught.value.retry_after_s)
    assert waits == pytest.approx([40.0, 4.0], rel=0.15)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["body", "decoded", "result", "drop", "release"]),
            st.integers(0, 70),
            st.integers(0, 9),
        ),
        max_size=80,
    )
)
def test_the_sum_is_always_right_and_within_the_limit(steps: list[tuple[int, str, int, int]]) -> None:
    ledger = Ledger(100, limit_pixels=20)
    claims: dict[int, Claim] = {}
    for who, what, size, pixels in steps:
        try:
            if who not in claims:
                claims[who] = ledger.admit(size, str(who % 2))
            elif what == "release":
                claims.pop(who).release()
            elif what == "drop":
                claims[who].drop("body")
            else:
                claims[who].hold(what, size, pixels)
        except Overloaded:
            pass
        assert ledger.bytes == sum(claim.bytes for claim in claims.values()) == sum(ledger.stages.values()) <= 100
        assert ledger.pixels == sum(claim.pixels for claim in claims.values()) <= 20
        assert ledger.claims == len(claims)
        assert sum(ledger._clients.values()) == ledger.bytes
        assert all(amount > 0 for amount in ledger._clients.values())
    for claim in claims.values():
        claim.release()
    assert (ledger.bytes, ledger.pixels, ledger._clients) == (0, 0, {})
