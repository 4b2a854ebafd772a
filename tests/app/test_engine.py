"""The engine's threads on a stand-in backend: delivery, isolation of failures, lost devices, stuck threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.batcher import Batcher
from app.engine import Engine
from app.jobs import Completed, Job, Limits
from app.problems import BackendUnavailable
from cuda_ops.backend import DeviceLost

WAIT_S = 20.0


class Backend:
    """Answers every item with ("done", item); items may be functions that it calls first."""

    def __init__(self, slots: int = 1, *, share: bool = True) -> None:
        self.name = "cpu" if share else "cuda"
        self.slots = slots
        self.share = share
        self.launches: list[list[Any]] = []
        self.threads: set[str] = set()
        self.closed = False

    def run(self, items: Sequence[Any], deliver: Callable[[int, Any], None]) -> dict[str, float]:
        self.launches.append(list(items))
        self.threads.add(threading.current_thread().name)
        if not self.share:
            for item in items:
                if callable(item):
                    item()
        for index, item in enumerate(items):
            if self.share and callable(item):
                item()
            deliver(index, item if isinstance(item, Exception) else ("done", item))
        return {"h2d": 0.1, "kernel": 0.2, "d2h": 0.3}

    def scratch_bytes(self, item: Any) -> int:
        return 0

    def warm_up(self, operators: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Gate:
    """An item that keeps its thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(WAIT_S)


class Bomb:
    """An item that makes its launch fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or ValueError("launch failed")

    def __call__(self) -> None:
        raise self.error


class Works:
    """An engine and a batcher on it."""

    def __init__(self, *backends: Backend, run_limit_s: float = WAIT_S, **limits: int) -> None:
        self.fatal: list[str] = []
        self.backend = backends[0]
        self.engine = Engine(backends, run_limit_s=run_limit_s, on_fatal=self.fatal.append)
        self.engine.open()
        self.batcher = Batcher(self.engine, Limits(**limits))

    def submit(self, *items: Any, key: str = "k", cost: int = 1000) -> list[asyncio.Task[Completed]]:
        return [asyncio.create_task(self.batcher.submit(Job(key, cost, item))) for item in items]

    async def outcomes(self, *items: Any) -> list[Any]:
        async with asyncio.timeout(WAIT_S):
            found = await asyncio.gather(*self.submit(*items), return_exceptions=True)
        return [each.value if isinstance(each, Completed) else each for each in found]

    async def close(self) -> None:
        assert await self.engine.close(WAIT_S)


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.wait, WAIT_S)


@pytest.mark.parametrize("share", [True, False])
async def test_every_job_gets_its_own_result(share: bool) -> None:
    works = Works(Backend(2, share=share))
    assert await works.outcomes(*range(100)) == [("done", i) for i in range(100)]
    assert sorted(item for launch in works.backend.launches for item in launch) == list(range(100))
    await works.close()
    assert works.backend.closed


async def test_each_slot_is_a_thread_of_its_own_and_all_work_at_once() -> None:
    works = Works(Backend(3))
    gates = [Gate() for _ in range(3)]
    tasks = [works.submit(gate, key=str(i))[0] for i, gate in enumerate(gates)]
    for gate in gates:
        await entered(gate)
    for gate in gates:
        gate.opened.set()
    await asyncio.gather(*tasks)
    assert len(works.backend.threads) == 3
    await works.close()


async def test_a_result_is_there_while_its_batch_mates_still_run() -> None:
    works, gate = Works(Backend()), Gate()
    first, second, third = works.submit("first", "second", gate)
    await entered(gate)
    async with asyncio.timeout(WAIT_S):
        assert [(await first).value, (await second).value] == [("done", "first"), ("done", "second")]
    assert not third.done()
    gate.opened.set()
    assert (await third).batch_size == 3
    await works.close()


async def test_where_jobs_run_together_they_share_times_and_phases() -> None:
    works = Works(Backend(share=False))
    done = await asyncio.gather(*works.submit("a", "b"))
    for each in done:
        assert each.phases == {"h2d": 0.1, "kernel": 0.2, "d2h": 0.3}
        assert each.batch_size == 2
        assert each.queue_s >= 0.0
        assert each.form_s >= 0.0
    assert done[0].compute_s == done[1].compute_s
    await works.close()


async def test_an_error_for_one_item_reaches_only_its_caller() -> None:
    works = Works(Backend(share=False))
    error = KeyError("this one")
    assert await works.outcomes("a", error, "b") == [("done", "a"), error, ("done", "b")]
    await works.close()


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("position", [0, 3, 7])
async def test_a_job_that_fails_its_launch_is_found_by_halving_and_fails_alone(share: bool, position: int) -> None:
    works = Works(Backend(share=share))
    items: list[Any] = list(range(8))
    items[position] = Bomb()
    outcomes = await works.outcomes(*items)
    bad = outcomes.pop(position)
    assert isinstance(bad, BackendUnavailable)
    assert bad.reason == "launch"
    assert isinstance(bad.__cause__, ValueError)
    assert outcomes == [("done", item) for item in range(8) if item != position]
    assert len(works.backend.launches) <= 1 + 2 * 3, "log2(8) times two halves"
    alone = [launch for launch in works.backend.launches if launch == [items[position]]]
    assert len(alone) <= 1, "it is not tried again for ever"
    assert works.engine.available
    assert works.engine.trouble is None
    await works.close()


async def test_when_every_job_is_bad_every_one_fails_and_the_engine_goes_on() -> None:
    works = Works(Backend(share=False))
    assert all(isinstance(each, BackendUnavailable) for each in await works.outcomes(*(Bomb() for _ in range(5))))
    assert len(works.backend.launches) == 9
    assert await works.outcomes("next") == [("done", "next")]
    await works.close()


async def test_what_was_delivered_before_the_failure_is_not_run_again() -> None:
    works = Works(Backend(share=True))
    outcomes = await works.outcomes("a", "b", Bomb(), "c")
    assert outcomes[0] == ("done", "a")
    assert outcomes[3] == ("done", "c")
    assert sum(launch.count("a") for launch in works.backend.launches) == 1
    await works.close()


async def test_the_good_half_is_answered_before_the_other_half_runs() -> None:
    works, gate = Works(Backend(share=False)), Gate()
    good, bad, slow, last = works.submit("good", Bomb(), gate, "last")
    await entered(gate)
    async with asyncio.timeout(WAIT_S):
        assert (await good).value == ("done", "good")
        with pytest.raises(BackendUnavailable):
            await bad
    gate.opened.set()
    await asyncio.gather(slow, last)
    await works.close()


async def test_a_lost_device_fails_all_in_flight_and_asks_once_for_the_end() -> None:
    works, gate = Works(Backend(2)), Gate()
    other = works.submit(gate, key="other")
    await entered(gate)
    bomb = Bomb(DeviceLost("sticky error 700"))
    lost = works.submit("fine", bomb, "never run")
    queued = works.submit("queued", key="third")
    async with asyncio.timeout(WAIT_S):
        outcomes = await asyncio.gather(*other, *lost, *queued, return_exceptions=True)
    assert isinstance(outcomes[1], Completed), "what was delivered before is good"
    for outcome in [outcomes[0], *outcomes[2:]]:
        assert isinstance(outcome, BackendUnavailable), outcome
        assert outcome.retry_after_s
    assert works.fatal == ["the device is lost"]
    assert works.engine.trouble == "the device is lost"
    assert not works.engine.available
    with pytest.raises(BackendUnavailable):
        await works.batcher.submit(Job("k", 1, "new"))
    gate.opened.set()
    assert await works.batcher.drain(WAIT_S)
    await works.close()
    assert sum(launch.count("queued") for launch in works.backend.launches) == 0


async def test_a_stuck_thread_fails_its_jobs_and_readiness_but_not_the_rest() -> None:
    works, gate = Works(Backend(2), run_limit_s=0.05), Gate()
    [stuck] = works.submit(gate)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(BackendUnavailable):
            await stuck
    assert works.engine.trouble == "1 of 2 compute threads are stuck"
    assert works.engine.available
    assert await works.outcomes("a", "b") == [("done", "a"), ("done", "b")]
    gate.opened.set()
    async with asyncio.timeout(WAIT_S):
        while works.engine.trouble is not None:  # noqa: ASYNC110 - turns the loop, does not wait for time
            await asyncio.sleep(0)
    assert works.fatal == []
    await works.close()


async def test_when_every_thread_is_stuck_nobody_waits_in_vain() -> None:
    works, gate = Works(Backend(1), run_limit_s=0.05), Gate()
    tasks = works.submit(gate)
    await entered(gate)
    tasks += works.submit("queued", key="other")
    async with asyncio.timeout(WAIT_S):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, BackendUnavailable) for outcome in outcomes), outcomes
        with pytest.raises(BackendUnavailable):
            await works.batcher.submit(Job("k", 1, "new"))
        while not works.fatal:  # noqa: ASYNC110 - turns the loop until the timer fires
            await asyncio.sleep(0)
    assert works.fatal == ["a compute thread is stuck"]
    assert await works.engine.close(0.01) is False
    assert not works.backend.closed, "a backend in use is not closed"
    gate.opened.set()
    await works.close()


async def test_wake_ups_are_shared() -> None:
    works = Works(Backend(share=False))
    loop, calls = asyncio.get_running_loop(), []
    threadsafe = loop.call_soon_threadsafe

    def counted(callback: Callable[..., Any], *args: Any, **more: Any) -> asyncio.Handle:
        calls.append(callback)
        return threadsafe(callback, *args, **more)

    loop.call_soon_threadsafe = counted
    await works.outcomes(*range(32))
    loop.call_soon_threadsafe = threadsafe
    assert len(calls) == 1
    await works.close()


async def test_one_letter_that_fails_does_not_lose_the_others() -> None:
    works = Works(Backend())
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))

    def broken() -> None:
        raise RuntimeError("an observer failed")

    works.engine._mail.extend([broken, broken])
    assert await works.outcomes("a") == [("done", "a")]
    assert len(failures) == 2
    await works.close()


async def test_several_devices_are_fed_by_predicted_finish() -> None:
    slow, fast = Backend(2, share=False), Backend(2, share=False)
    works = Works(slow, fast, batch_count=1)
    devices = works.engine._devices
    devices[0].pace, devices[1].pace = 4e-6, 1e-6
    gates = [Gate() for _ in range(4)]
    tasks = []
    for gate in gates:
        tasks += works.submit(gate)
        await entered(gate)
    used = [(len(slow.launches), len(fast.launches)) for _ in [0]]
    assert used == [(2, 2)], "all four slots work"
    order = [gate in [launch[0] for launch in fast.launches] for gate in gates]
    assert order == [True, True, False, False], "the fast device is done with two before the slow one with one"
    for gate in gates:
        gate.opened.set()
    await asyncio.gather(*tasks)
    await works.close()


async def test_pixels_are_not_kept_after_the_answer() -> None:
    import gc
    import weakref

    class Pixels:
        pass

    works, pixels = Works(Backend()), Pixels()
    alive = weakref.ref(pixels)
    await works.outcomes(pixels)
    works.backend.launches.clear()
    del pixels
    await works.outcomes("another")  # the thread is back at its inbox
    gc.collect()
    assert alive() is None
    await works.close()


async def test_a_result_after_the_end_of_the_loop_harms_nobody() -> None:
    works, gate = Works(Backend()), Gate()
    [task] = works.submit(gate)
    await entered(gate)
    closed = asyncio.new_event_loop()
    closed.close()
    works.engine._loop = closed
    gate.opened.set()
    for _ in range(works.backend.slots):
        works.engine._devices[0].inbox.put(None)
    await asyncio.to_thread(works.engine._threads[0].join, WAIT_S)
    assert not works.engine._threads[0].is_alive()
    task.cancel()
