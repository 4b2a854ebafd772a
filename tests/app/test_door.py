"""Who is turned away before anything is spent on them."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager

import pytest

from app.door import Door
from app.problems import Overloaded

FOREVER = float("inf")


class Street:
    """A service behind a door that finishes one image every `pace` seconds while it has any."""

    def __init__(self, width: int = 4, pace: float = 0.010) -> None:
        self.now = 0.0
        self.pace = pace
        self.door = Door(width, lambda: self.now)
        self.inside: deque[AbstractContextManager[None]] = deque()

    def enter(self, client: str = "c", deadline: float = FOREVER, weight: float = 1.0, images: int = 1) -> None:
        work = self.door.work(client, weight, deadline, images)
        work.__enter__()
        self.inside.append(work)

    def finish(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += self.pace
            self.inside.popleft().__exit__(None, None, None)

    def saturate(self, count: int = 20, rounds: int = 100) -> None:
        for _ in range(count):
            self.enter()
        for _ in range(rounds):
            self.finish()
            self.enter()


def test_nobody_is_refused_while_nothing_is_known() -> None:
    street = Street()
    for _ in range(1000):
        street.enter(deadline=street.now + 0.001)
    assert street.door.inside == 1000


def test_the_time_until_an_answer_is_what_is_inside_over_the_pace() -> None:
    street = Street(width=4, pace=0.010)
    street.saturate(20)
    assert street.door.predict("c", 1.0) == pytest.approx(24 * 0.010, rel=0.05)
    street.door.check("c", 1.0, street.now + 0.31)
    with pytest.raises(Overloaded) as caught:
        street.door.check("c", 1.0, street.now + 0.29)
    problem = caught.value
    assert problem.reason == "deadline"
    assert problem.limit == pytest.approx(290)
    assert problem.measured == pytest.approx(300, rel=0.05)
    assert problem.retry_after_s == 1.0


def test_below_the_width_nobody_is_refused_so_the_pace_can_be_learned_anew() -> None:
    street = Street(width=4, pace=1.0)
    street.saturate(6)
    street.finish(3)
    assert street.door.inside == 3
    street.door.check("c", 1.0, street.now + 0.001)
    street.pace = 0.001
    for _ in range(800):
        street.enter(deadline=street.now + 0.1)
        street.finish()
    street.enter(deadline=street.now + 0.1)
    assert street.door.inside == 4
    street.enter(deadline=street.now + 0.1)
    assert street.door.predict("c", 1.0) == pytest.approx(9 * 0.001, rel=0.1)


def test_an_idle_time_is_not_taken_for_slowness() -> None:
    street = Street(width=4, pace=0.010)
    street.saturate(20)
    street.finish(20)
    street.now += 3600.0
    street.saturate(20, rounds=10)
    assert street.door.predict("c", 1.0) == pytest.approx(24 * 0.010, rel=0.1)


def test_a_client_waits_for_its_share_of_the_others_only() -> None:
    street = Street(width=4, pace=0.010)
    street.saturate(100)
    heavy, light = street.door.predict("c", 1.0), street.door.predict("new", 1.0)
    assert heavy == pytest.approx(104 * 0.010, rel=0.05)
    assert light == pytest.approx(6 * 0.010, rel=0.05), "its own and one of the other client's"
    assert street.door.predict("new", 0.5) == pytest.approx(7 * 0.010, rel=0.05), "half the weight, two of the other's"


def test_a_request_with_many_images_counts_for_as_many() -> None:
    street = Street(width=4, pace=0.160)
    for _ in range(4):
        street.enter(images=16)
    for _ in range(50):
        street.finish()
        street.enter(images=16)
    assert street.door.inside == 64
    assert street.door.predict("c", 1.0) == pytest.approx(68 * 0.010, rel=0.05)


def test_failed_work_leaves_but_teaches_nothing() -> None:
    street = Street()
    street.saturate(20)
    before = street.door.predict("c", 1.0)
    for _ in range(10):
        work = street.inside.popleft()
        assert not work.__exit__(ValueError, ValueError("bad image"), None)
        street.enter()
    assert street.door.predict("c", 1.0) == before
    street.finish(20)
    assert street.door.inside == 0
    assert street.door._clients == {}
    assert street.door._weight == 0.0


def test_whoever_is_refused_does_not_count() -> None:
    street = Street()
    street.saturate(20)
    with pytest.raises(Overloaded):
        street.enter("other", deadline=street.now + 0.001)
    assert street.door.inside == 20
    assert "other" not in street.door._clients
