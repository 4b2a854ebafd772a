"""A stuck event loop is noticed from outside of it."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from app.watchdog import LoopWatchdog


class Watched:
    def __init__(self) -> None:
        self.now = 0.0
        self.ended: list[int] = []
        self.dog = LoopWatchdog(warn_s=1.0, limit_s=30.0, now=lambda: self.now, end=self.ended.append)
        self.dog.attach()


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_loop_that_turns_is_fine() -> None:
    watched = Watched()
    for _ in range(5):
        watched.dog.check()
        watched.now += 0.2
        await turn()
        assert watched.dog.lag_s == pytest.approx(0.2)
        assert watched.dog.trouble() is None
    assert watched.ended == []


async def test_a_loop_that_was_late_is_trouble_until_it_is_in_time_again() -> None:
    watched = Watched()
    watched.dog.check()
    watched.now += 2.5
    await turn()
    assert watched.dog.trouble() == "the event loop was 2.5 s late"
    watched.dog.check()
    await turn()
    assert watched.dog.trouble() is None


async def test_a_stuck_loop_is_logged_once_with_its_stack_and_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    with caplog.at_level(logging.ERROR):
        watched.dog.check()
        for _ in range(3):
            watched.now += 5.0
            watched.dog.check()
        assert watched.ended == []
        watched.now += 20.0
        watched.dog.check()
    stuck = [record for record in caplog.records if record.getMessage() == "loop stuck"]
    assert len(stuck) == 1
    assert "test_a_stuck_loop_is_logged_once" in stuck[0].fields["stack"]
    assert watched.ended == [70]


async def test_its_thread_sees_a_blocked_loop() -> None:
    seen = threading.Event()
    dog = LoopWatchdog(warn_s=0.0, limit_s=0.0, end=lambda _code: seen.set())
    dog.open(interval_s=0.001)
    assert seen.wait(10.0), "this call blocks the loop"
    dog.close()
