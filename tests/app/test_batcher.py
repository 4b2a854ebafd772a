"""How batches form: late binding, what closes them, who rides along, and that every job gets its own answer."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from batching import Bench, job

from app.jobs import Limits
from app.problems import BackendUnavailable, ImageTooSmall

MP = 1_000_000


async def test_an_idle_executor_gets_a_job_without_any_wait() -> None:
    bench = Bench()
    [task] = await bench.submit(job("a"))
    assert bench.ran == [["a"]]
    assert bench.clock.pending() == 0, "no timer was needed"
    bench.clock.advance(0.25)
    await bench.finish()
    done = await task
    assert (done.value, done.batch_size) == ("a", 1)
    assert (done.queue_s, done.form_s, done.compute_s) == pytest.approx((0.0, 0.0, 0.25))
    assert done.phases == {"kernel": 0.25}


async def test_what_arrives_in_one_turn_of_the_loop_leaves_together() -> None:
    bench = Bench(slots=2)
    await bench.submit(*(job(i) for i in range(5)))
    assert bench.ran == [[0, 1, 2, 3, 4]]
    assert bench.seen.batches == [(5, 5 * MP, "idle")]


async def test_a_batch_grows_while_every_slot_is_busy_and_leaves_when_one_is_free() -> None:
    bench = Bench(slots=1)
    await bench.submit(job("first"))
    for i in range(4):
        await bench.submit(job(i))
        await bench.advance(5.0)
    assert bench.ran == [["first"]], "bound late: nothing is formed while no slot is free"
    await bench.finish()
    assert bench.ran == [["first"], [0, 1, 2, 3]]


async def test_queue_time_is_the_time_until_the_launch() -> None:
    bench = Bench()
    await bench.submit(job("first"))
    [task] = await bench.submit(job("second"))
    bench.clock.advance(0.5)
    await bench.finish()
    bench.clock.advance(0.125)
    await bench.finish()
    done = await task
    assert (done.queue_s, done.compute_s) == pytest.approx((0.5, 0.125))


async def test_sizes_and_parameters_mix_but_keys_do_not() -> None:
    bench = Bench()
    await bench.submit(job("busy"))
    await bench.submit(job("a", 10), job("x", 10, key="other"), job("b", 3 * MP), job("y", 999, key="other"))
    await bench.finish_all()
    assert sorted(map(sorted, bench.ran[1:])) == [["a", "b"], ["x", "y"]]


@pytest.mark.parametrize(
    ("limits", "costs", "scratch", "sizes", "reason"),
    [
        (Limits(batch_count=3), [MP] * 5, 0, [3, 2], "full"),
        (Limits(batch_pixels=4 * MP), [MP, 2 * MP, MP, 2 * MP], 0, [3, 1], "pixels"),
        (Limits(batch_pixels=4 * MP), [3 * MP, 2 * MP], 0, [1, 1], "pixels"),
        (Limits(batch_scratch=100), [MP] * 5, 40, [2, 2, 1], "scratch"),
    ],
)
async def test_a_batch_closes_on_whichever_bound_comes_first(
    limits: Limits, costs: list[int], scratch: int, sizes: list[int], reason: str
) -> None:
    bench = Bench(limits=limits)
    await bench.submit(job("busy", 1, key="other"))
    await bench.submit(*(job(i, cost, scratch=scratch) for i, cost in enumerate(costs)))
    await bench.finish_all()
    assert [len(payloads) for payloads in bench.ran[1:]] == sizes
    assert bench.seen.batches[1][2] == reason
    assert bench.seen.batches[-1][2] == "idle", "the last batch left because a slot was free"
    assert [payload for payloads in bench.ran[1:] for payload in payloads] == list(range(len(costs))), "arrival order"


async def test_a_job_that_fills_the_batch_exactly_closes_it() -> None:
    bench = Bench(limits=Limits(batch_count=2))
    await bench.submit(job(0), job(1))
    assert bench.seen.batches == [(2, 2 * MP, "full")]


async def test_a_job_above_the_pixel_target_goes_alone() -> None:
    bench = Bench(limits=Limits(batch_pixels=4 * MP))
    await bench.submit(job("busy"))
    await bench.submit(job("huge", 9 * MP), job("a"), job("b"))
    await bench.finish_all()
    assert bench.ran[1:] == [["huge"], ["a", "b"]]
    assert bench.seen.batches[1] == (1, 9 * MP, "pixels")


async def test_large_jobs_leave_a_slot_to_small_ones() -> None:
    bench = Bench(slots=3, limits=Limits(large_pixels=4 * MP))
    await bench.submit(job("small"))
    await bench.finish()
    await bench.submit(*(job(f"large {i}", 9 * MP) for i in range(4)))
    assert bench.ran[1:] == [["large 0"], ["large 1"]], "one slot stays free"
    await bench.submit(job("small"))
    assert bench.ran[3:] == [["small"]], "and a small job has it at once"
    await bench.finish(2)
    assert bench.ran[4:] == []
    await bench.finish()
    assert bench.ran[4:] == [["large 2"]]


async def test_large_jobs_use_every_slot_while_no_small_ones_come() -> None:
    bench = Bench(slots=2, limits=Limits(large_pixels=4 * MP))
    await bench.submit(*(job(i, 9 * MP) for i in range(4)))
    assert bench.ran == [[0], [1]]
    await bench.submit(job("small", key="other"))
    await bench.finish()
    assert bench.ran[2:] == [["small"]], "from the first small job on one slot is kept"
    await bench.finish()
    assert bench.ran[3:] == [[2]], "and the other is for large ones"
    await bench.finish()
    assert bench.ran[4:] == []
    await bench.advance(10.0)
    await bench.submit(job(4, 9 * MP))
    assert bench.ran[4:] == [[3]], "until no small one has come for a while"


async def test_the_only_slot_is_not_kept_from_large_jobs() -> None:
    bench = Bench(slots=1, limits=Limits(large_pixels=4 * MP))
    await bench.submit(job("small"))
    await bench.finish()
    await bench.submit(job("large", 9 * MP))
    assert bench.ran[1:] == [["large"]]


async def test_a_sharing_executor_gets_the_queue_in_equal_parts() -> None:
    bench = Bench(slots=4, share=True, limits=Limits(share_pixels=100 * MP, batch_pixels=100 * MP))
    await bench.submit(*(job(i) for i in range(8)))
    assert [len(payloads) for payloads in bench.ran] == [2, 2, 1, 1], "ceil(8/4), ceil(6/4), ceil(4/4), ceil(3/4)"
    await bench.finish_all()
    assert sorted(payload for payloads in bench.ran for payload in payloads) == list(range(8))


async def test_a_sharing_executor_is_balanced_by_pixels() -> None:
    bench = Bench(slots=2, share=True, limits=Limits(share_pixels=100 * MP, batch_pixels=100 * MP))
    await bench.submit(job("big", 8 * MP), *(job(i) for i in range(4)))
    assert bench.ran == [["big"], [0, 1]], "the big one is already more than half of the pixels"


async def test_a_sharing_executor_gets_small_batches() -> None:
    bench = Bench(slots=2, share=True, limits=Limits(share_pixels=2 * MP))
    await bench.submit(*(job(i, MP // 2) for i in range(32)))
    assert [len(payloads) for payloads in bench.ran] == [4, 4]
    assert {reason for _, _, reason in bench.seen.batches} == {"pixels"}


async def test_results_are_handed_over_one_by_one() -> None:
    bench = Bench()
    first, second = await bench.submit(job("a"), job("b"))
    bench.clock.advance(0.1)
    bench.executor.running[0].deliver(0)
    await bench.settle()
    assert first.done()
    assert not second.done()
    bench.clock.advance(0.1)
    bench.executor.running[0].deliver(1, began=bench.clock.now - 0.1)
    await bench.settle()
    done = await second
    assert done.batch_size == 2
    assert (done.queue_s, done.compute_s) == pytest.approx((0.1, 0.1)), "waiting for its batch mate is waiting"


async def test_one_bad_job_does_not_fail_its_batch_mates() -> None:
    bench = Bench()
    tasks = await bench.submit(job("a"), job("bad"), job("c"))
    run = bench.executor.running[0]
    run.deliver(1, ImageTooSmall("The image is too small."))
    run.deliver(0)
    run.deliver(2)
    run.deliver(1, "a second answer is ignored")
    await bench.settle()
    good, bad, also_good = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(bad, ImageTooSmall)
    assert (good.value, also_good.value) == ("a", "c")
    assert bench.seen.drops == {("failed", "ImageTooSmall"): 1}


@pytest.mark.parametrize("error", [None, ValueError("launch"), BackendUnavailable("gone", reason="device")])
async def test_jobs_that_the_executor_forgot_fail_when_the_slot_is_free(error: Exception | None) -> None:
    bench = Bench()
    [task] = await bench.submit(job("a"))
    run = bench.executor.running[0]
    bench.executor.running.clear()
    bench.executor.running.append(run)
    run._finished(error)
    await bench.settle()
    with pytest.raises(BackendUnavailable) as caught:
        await task
    assert caught.value.retry_after_s or caught.value is error
    await bench.submit(job("b"))
    assert bench.ran[1:] == [["b"]], "and the next batch runs"


async def test_an_executor_that_cannot_start_a_batch_fails_it_and_gets_the_next() -> None:
    bench = Bench()
    start, bench.executor.start = bench.executor.start, None
    [task] = await bench.submit(job("a"))
    with pytest.raises(BackendUnavailable):
        await task
    bench.executor.start = start
    await bench.submit(job("b"))
    assert bench.ran == [["b"]]


async def test_an_executor_may_finish_while_it_is_being_started() -> None:
    bench = Bench()
    start, depths = bench.executor.start, []

    def at_once(*args: Any) -> None:
        depths.append(len(inspect.stack(0)))
        start(*args)
        bench.executor.running[0].finish()

    bench.executor.start = at_once
    tasks = await bench.submit(*(job(i, key=str(i)) for i in range(50)))
    assert [done.value for done in await asyncio.gather(*tasks)] == list(range(50))
    assert max(depths) == min(depths), "batch follows batch without recursion"


async def test_results_and_pixels_are_not_kept_alive_by_the_queue() -> None:
    import gc
    import weakref

    class Pixels:
        pass

    bench = Bench()
    pixels = Pixels()
    alive = weakref.ref(pixels)
    [task] = await bench.submit(job(pixels, deadline=bench.clock.now + 10.0))
    await bench.finish()
    assert (await task).value is pixels
    bench.executor.started.clear()
    bench.seen.done.clear()
    del pixels, task
    gc.collect()
    assert alive() is None


async def test_with_a_wait_a_key_waits_for_more_from_its_first_job_on() -> None:
    bench = Bench(limits=Limits(max_wait_s=0.010, batch_count=4))
    await bench.submit(job("a"))
    await bench.advance(0.006)
    await bench.submit(job("b"))
    assert bench.ran == []
    await bench.advance(0.004)
    assert bench.ran == [["a", "b"]], "10 ms after the first job, not after the last"
    assert bench.seen.batches == [(2, 2 * MP, "deadline")]


async def test_a_full_batch_does_not_wait() -> None:
    bench = Bench(limits=Limits(max_wait_s=0.010, batch_count=2))
    await bench.submit(job("a"), job("b"))
    assert bench.ran == [["a", "b"]]
    await bench.finish()
    await bench.advance(0.5)
    await bench.submit(job("c"))
    await bench.advance(0.005)
    assert len(bench.ran) == 1, "the old timer does not open the key that waits now"
    await bench.advance(0.005)
    assert bench.ran[1:] == [["c"]]


async def test_a_job_in_a_hurry_does_not_wait_for_more() -> None:
    bench = Bench(limits=Limits(max_wait_s=0.010))
    await bench.submit(job("a", deadline=bench.clock.now + 0.015))
    assert bench.ran == [["a"]]


async def test_a_key_that_waits_does_not_hold_up_another() -> None:
    bench = Bench(limits=Limits(max_wait_s=0.010, batch_count=2))
    await bench.submit(job("a"))
    await bench.submit(job("x", key="other"), job("y", key="other"))
    assert bench.ran == [["x", "y"]]
    await bench.finish()
    await bench.advance(0.010)
    assert bench.ran[1:] == [["a"]]


async def test_waiting_keys_share_one_timer() -> None:
    bench = Bench(limits=Limits(max_wait_s=0.010))
    await bench.submit(*(job(i, key=str(i)) for i in range(20)))
    assert bench.clock.pending() == 1
