"""The phases of the process, who may come in, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from batching import FakeClock

from app.lifecycle import FAILED, Lifecycle, Phase
from app.problems import BackendUnavailable, Draining


class House:
    """A ready lifecycle, and a batcher's drain that tests end."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.life = Lifecycle(self.clock)
        self.limits: list[float] = []
        self.clean = True

    def ready(self) -> Lifecycle:
        self.life.advance(Phase.WARMING)
        self.life.advance(Phase.READY)
        return self.life

    async def finish(self, limit_s: float) -> bool:
        self.limits.append(limit_s)
        return self.clean

    def drain(self, lead_s: float = 2.0, limit_s: float = 30.0) -> asyncio.Task[bool]:
        finish: Callable[[float], Awaitable[bool]] = self.finish
        return asyncio.create_task(self.life.drain(lead_s, limit_s, finish))

    async def advance(self, seconds: float = 0.0) -> None:
        await turns()
        self.clock.advance(seconds)
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_phases_only_go_forward() -> None:
    life = House().ready()
    for phase in (Phase.STARTING, Phase.WARMING, Phase.READY):
        with pytest.raises(ValueError, match="does not come after"):
            life.advance(phase)


def test_nothing_is_served_before_the_process_is_warm() -> None:
    house = House()
    for phase in (Phase.WARMING, Phase.READY):
        assert house.life.troubles()
        with pytest.raises(BackendUnavailable) as caught, house.life.request():
            pytest.fail("let in")
        assert caught.value.reason == "warming"
        assert caught.value.retry_after_s
        house.life.advance(phase)
    assert house.life.troubles() == []
    with house.life.request():
        assert house.life.active == 1
    assert house.life.active == 0


def test_readiness_names_what_is_wrong() -> None:
    life = House().ready()
    queue: list[str] = []
    life.checks["queue"] = lambda: queue[0] if queue else None
    life.checks["engine"] = lambda: None
    assert life.troubles() == []
    queue.append("230 of 256 jobs wait")
    assert life.troubles() == ["queue: 230 of 256 jobs wait"]


async def test_draining_serves_on_for_the_lead_time_then_refuses_then_stops() -> None:
    house = House()
    life = house.ready()
    drain = house.drain(lead_s=2.0)
    await house.advance(1.9)
    assert life.troubles() == ["draining"]
    request = life.request()
    request.__enter__()  # still let in
    await house.advance(0.2)
    with pytest.raises(Draining) as caught, life.request():
        pytest.fail("let in")
    assert caught.value.retry_after_s
    await house.advance(5.0)
    assert house.limits == [], "the batcher still takes what an accepted request submits"
    assert not drain.done()
    request.__exit__(None, None, None)
    await house.advance()
    assert await drain is True
    assert life.phase is Phase.STOPPED
    assert life.exit_code == 0
    assert house.clock.pending() == 0


async def test_an_idle_process_stops_after_the_lead_time() -> None:
    house = House()
    house.ready()
    drain = house.drain(lead_s=2.0)
    await house.advance(1.99)
    assert not drain.done()
    await house.advance(0.01)
    assert await drain is True


async def test_what_is_left_at_the_limit_is_cut_short_and_still_answered() -> None:
    house = House()
    life = house.ready()
    request = life.request()
    request.__enter__()
    drain = house.drain(lead_s=2.0, limit_s=10.0)
    await house.advance(2.0)
    await house.advance(7.0)
    assert house.limits == [0.0], "a second before the limit the queue is told to end"
    assert not drain.done()
    request.__exit__(None, None, None)  # its caller has been told
    await house.advance()
    assert await drain is False


async def test_a_request_that_never_ends_does_not_keep_the_process() -> None:
    house = House()
    life = house.ready()
    request = life.request()
    request.__enter__()
    drain = house.drain(lead_s=2.0, limit_s=10.0)
    for _ in range(3):
        await house.advance(4.0)
    assert await drain is False
    assert house.clock.now <= 1012.0
    assert life.phase is Phase.STOPPED
    assert life.active == 1
    request.__exit__(None, None, None)


async def test_a_failure_ends_the_process_without_a_lead() -> None:
    house = House()
    life = house.ready()
    called: list[str] = []
    life.on_failure(lambda: called.append("end"))
    life.fail("the device is lost")
    life.fail("a compute thread is stuck")
    assert called == ["end"], "once"
    assert life.troubles() == ["the device is lost"]
    assert life.exit_code == FAILED != 0
    with pytest.raises(BackendUnavailable), life.request():
        pytest.fail("let in")
    house.clean = False
    drain = house.drain(lead_s=5.0)
    await house.advance()
    assert await drain is False
