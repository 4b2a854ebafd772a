"""Jobs that get no result: refused at the door, expired, cancelled, failed, drained. None is ever executed or lost."""

from __future__ import annotations

import asyncio

import pytest
from batching import Bench, job

from app.jobs import Limits
from app.problems import BackendUnavailable, DeadlineExceeded, Draining, Overloaded

MP = 1_000_000


async def test_a_deadline_is_answered_in_time_although_the_executor_is_busy() -> None:
    bench = Bench()
    await bench.submit(job("busy"))
    [task] = await bench.submit(job("late", deadline=bench.clock.now + 0.05))
    await bench.advance(0.049)
    assert not task.done()
    await bench.advance(0.001)
    with pytest.raises(DeadlineExceeded):
        await task
    await bench.finish_all()
    assert bench.ran == [["busy"]], "never executed"
    assert bench.seen.drops == {("expired", "queue"): 1}


async def test_one_timer_serves_all_deadlines_in_any_order() -> None:
    bench = Bench()
    await bench.submit(job("busy"))
    now = bench.clock.now
    tasks = await bench.submit(*(job(s, deadline=now + s) for s in (5, 2, 9, 1, 7)))
    assert bench.clock.pending() == 1
    for second in range(1, 10):
        await bench.advance(1.0)
        assert [task.done() for task in tasks] == [now + s <= bench.clock.now for s in (5, 2, 9, 1, 7)], second
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, DeadlineExceeded)


async def test_a_job_that_runs_is_not_stopped_by_its_deadline() -> None:
    bench = Bench()
    [task] = await bench.submit(job("a", deadline=bench.clock.now + 0.05))
    await bench.advance(1.0)
    assert not task.done()
    await bench.finish()
    assert (await task).value == "a"


async def test_a_deadline_that_passes_while_the_loop_is_late_still_counts() -> None:
    bench = Bench()
    await bench.submit(job("busy"))
    [late, good] = await bench.submit(job("late", deadline=bench.clock.now + 0.05), job("good"))
    bench.clock.now += 1.0  # the timer has had no turn yet when the slot becomes free
    await bench.finish()
    assert bench.ran[1:] == [["good"]]
    assert late.done()
    assert not good.done()


async def test_a_deadline_in_the_past_is_refused() -> None:
    bench = Bench()
    [task] = await bench.submit(job("late", deadline=bench.clock.now))
    with pytest.raises(DeadlineExceeded):
        await task
    assert bench.ran == []


async def test_a_cancelled_job_is_dropped_before_dispatch() -> None:
    bench = Bench()
    await bench.submit(job("busy"))
    tasks = await bench.submit(*(job(i) for i in range(5)))
    tasks[1].cancel()
    tasks[3].cancel()
    await bench.settle()
    await bench.finish_all()
    assert bench.ran == [["busy"], [0, 2, 4]]
    assert bench.seen.drops == {("cancelled", "queued"): 2}
    assert bench.batcher.waiting == 0


async def test_two_hundred_clients_that_hang_up_cause_no_work() -> None:
    bench = Bench(slots=2, limits=Limits(queue_limit=500))
    await bench.submit(job("busy"))
    await bench.submit(job("busy"))
    tasks = await bench.submit(*(job(i, client=str(i), deadline=bench.clock.now + 10.0) for i in range(200)))
    for task in tasks:
        task.cancel()
    await bench.settle()
    await bench.finish_all()
    assert bench.ran == [["busy"], ["busy"]]
    assert bench.seen.drops == {("cancelled", "queued"): 200}
    assert bench.seen.depths[-1] == (0, 0)


async def test_a_caller_that_is_cancelled_in_the_turn_of_the_dispatch_is_not_served() -> None:
    bench = Bench()
    tasks = bench.queue(job("gone"), job("kept"))
    await asyncio.sleep(0)  # submitted, and the batcher is about to wake
    tasks[0].cancel()  # its own code has not run since
    bench.clock.run_soon()
    assert bench.ran == [["kept"]]
    await bench.settle()
    assert bench.seen.drops == {("cancelled", "queued"): 1}


async def test_nobody_who_is_gone_or_late_rides_along() -> None:
    bench = Bench()
    await bench.submit(job("busy"))
    now = bench.clock.now
    await bench.submit(job("urgent", priority=5, deadline=now + 9.0), job("late", deadline=now + 1.0))
    [gone, _] = await bench.submit(job("gone", deadline=now + 8.0), job("good", deadline=now + 9.0))
    gone.cancel()
    bench.clock.now += 2.0
    bench.executor.running[0].finish()
    assert bench.ran == [["busy"], ["urgent", "good"]]
    await bench.settle()
    assert bench.seen.drops == {("expired", "queue"): 1, ("cancelled", "queued"): 1}


async def test_the_result_of_a_cancelled_running_job_is_dropped() -> None:
    bench = Bench()
    gone, kept = await bench.submit(job("gone"), job("kept"))
    gone.cancel()
    await bench.settle()
    await bench.finish()
    assert (await kept).value == "kept"
    assert bench.seen.drops == {("cancelled", "running"): 1}
    assert len(bench.seen.done) == 1


async def test_the_queue_has_a_limit_and_says_when_to_come_back() -> None:
    bench = Bench(limits=Limits(queue_limit=3))
    await bench.submit(job("busy"))
    tasks = await bench.submit(*(job(i, client=str(i)) for i in range(4)))
    with pytest.raises(Overloaded) as caught:
        await tasks[3]
    problem = caught.value
    assert (problem.reason, problem.limit, problem.measured) == ("queue", 3, 3)
    assert problem.retry_after_s is not None
    assert problem.retry_after_s >= 1.0
    assert bench.seen.drops == {("refused", "queue"): 1}
    await bench.finish_all()
    assert bench.ran == [["busy"], [0, 1, 2]]


async def test_one_client_cannot_fill_the_queue_for_all_others() -> None:
    bench = Bench(limits=Limits(queue_limit=64))
    await bench.submit(job("busy"))
    await bench.submit(*(job(i, client="heavy") for i in range(100)))
    assert bench.seen.drops == {("refused", "client-share"): 100 - bench.batcher.waiting}
    assert 56 <= bench.batcher.waiting < 64, "a lone client may have nearly all of it"
    [task] = await bench.submit(job("light", client="light"))
    assert not task.done(), "a newcomer finds a place"


async def test_a_job_that_cannot_be_done_in_time_is_refused_at_once() -> None:
    bench = Bench(limits=Limits(batch_count=1))
    await bench.teach(0.100)
    now = bench.clock.now
    await bench.submit(job("busy"))
    await bench.submit(*(job(i) for i in range(5)))
    [hopeless, feasible] = await bench.submit(job("x", deadline=now + 0.4), job("y", deadline=now + 1.5))
    with pytest.raises(Overloaded) as caught:
        await hopeless
    problem = caught.value
    assert problem.reason == "deadline"
    assert problem.limit == pytest.approx(400)
    assert problem.measured == pytest.approx(1.25 * 600 + 100, rel=0.05), "six ahead, cautiously, and its own time"
    assert problem.retry_after_s is not None
    assert not feasible.done()
    await bench.finish_all(0.100)
    assert (await feasible).value == "y"


async def test_where_nothing_waits_a_job_may_try_and_the_model_learns() -> None:
    bench = Bench()
    await bench.teach(0.500)  # all cores were busy elsewhere; the true time is 10 ms
    deadline_s = 0.1
    for _ in range(60):
        [task] = await bench.submit(job("x", deadline=bench.clock.now + deadline_s))
        await bench.finish_all(0.010)
        assert task.exception() is None
    predicted = bench.batcher.check(job("x"))
    assert predicted is not None
    assert sum(predicted) < deadline_s


async def test_a_body_that_would_be_refused_need_not_be_read() -> None:
    bench = Bench(limits=Limits(queue_limit=2, batch_count=1))
    await bench.teach(0.100)
    unread = {"cost": 0, "key": None}
    predicted = bench.batcher.check(job(None, **unread, deadline=bench.clock.now + 0.2))
    assert predicted is not None
    assert predicted[0] == 0.0
    await bench.submit(job("busy"))
    await bench.submit(job("a", client="a"), job("b", client="b"))
    with pytest.raises(Overloaded) as caught:
        bench.batcher.check(job(None, **unread))
    assert caught.value.reason == "queue"
    await bench.finish_all(0.100)
    with pytest.raises(DeadlineExceeded):
        bench.batcher.check(job(None, **unread, deadline=bench.clock.now - 1.0))
    await bench.batcher.drain(1.0)
    with pytest.raises(Draining):
        bench.batcher.check(job(None, **unread))
    assert bench.batcher.waiting == 0


async def test_a_heavy_clients_backlog_does_not_make_another_clients_deadline_hopeless() -> None:
    bench = Bench(limits=Limits(batch_count=1, batch_pixels=2 * MP))
    await bench.teach(0.100)
    now = bench.clock.now
    await bench.submit(*(job(i, client="heavy") for i in range(50)))
    [same, other] = await bench.submit(job("same", client="heavy", deadline=now + 1.0), job("other", client="light", deadline=now + 1.0))
    assert isinstance(same.exception(), Overloaded)
    assert not other.done()
    await bench.finish_all(0.100)
    assert (await other).value == "other", "and the prediction holds"


async def test_retry_after_grows_with_the_backlog() -> None:
    waits = []
    for queued in (20, 60):
        bench = Bench(limits=Limits(batch_count=1, queue_limit=queued))
        await bench.teach(0.500)
        await bench.submit(job("busy"))
        tasks = await bench.submit(*(job(i, client=str(i)) for i in range(queued + 1)))
        problem = tasks[-1].exception()
        assert isinstance(problem, Overloaded)
        assert problem.retry_after_s is not None
        waits.append(problem.retry_after_s)
    assert waits == pytest.approx([5.0, 15.0], rel=0.1), "until half of the queue is done"


async def test_predictions_are_compared_with_what_happened() -> None:
    bench = Bench(limits=Limits(batch_count=1))
    await bench.teach(0.100)
    bench.seen.predictions.clear()
    await bench.submit(job("a"), job("b"), job("c"))
    await bench.finish_all(0.100)
    for predicted, actual in bench.seen.predictions:
        assert predicted == pytest.approx(actual, abs=0.101), "all three came before any of them was running"
    assert [actual for _, actual in bench.seen.predictions] == pytest.approx([0.1, 0.2, 0.3])


async def test_draining_refuses_new_jobs_and_answers_all_others() -> None:
    bench = Bench(limits=Limits(batch_count=2, max_wait_s=5.0))
    tasks = await bench.submit(*(job(i) for i in range(3)), job("held", key="other"))
    drain = asyncio.create_task(bench.batcher.drain(10.0))
    await bench.settle()
    [refused] = await bench.submit(job("new"))
    with pytest.raises(Draining) as caught:
        await refused
    assert caught.value.retry_after_s
    assert not drain.done()
    await bench.finish_all()
    assert await drain is True
    assert sorted(str(task.result().value) for task in tasks) == ["0", "1", "2", "held"]
    assert {reason for _, _, reason in bench.seen.batches[1:]} == {"drain"}
    assert bench.clock.pending() == 1, "only the timer that opened nothing is left"


async def test_an_idle_batcher_is_drained_at_once_and_may_be_drained_twice() -> None:
    bench = Bench()
    assert await bench.batcher.drain(1.0) is True
    assert await bench.batcher.drain(1.0) is True
    assert bench.clock.pending() == 0


async def test_after_the_drain_limit_everyone_left_gets_an_answer() -> None:
    bench = Bench()
    tasks = await bench.submit(job("stuck"))
    tasks += await bench.submit(job("queued"))
    drain = asyncio.create_task(bench.batcher.drain(10.0))
    await bench.settle()
    await bench.advance(10.0)
    assert await drain is False
    for task in tasks:
        assert isinstance(task.exception(), Draining)
    await bench.finish()  # a late result finds nobody
    assert bench.ran == [["stuck"]]


async def test_a_lost_device_fails_what_waits_and_what_comes() -> None:
    bench = Bench()
    tasks = await bench.submit(job("running"))
    tasks += await bench.submit(job("queued"))
    bench.executor.available = False
    bench.executor.running[0].deliver(0, BackendUnavailable("gone", reason="device"))
    await bench.settle()
    tasks += await bench.submit(job("new"))
    for task in tasks:
        assert isinstance(task.exception(), BackendUnavailable)
    assert bench.ran == [["running"]]


async def test_waiting_without_progress_can_be_seen() -> None:
    bench = Bench()
    await bench.submit(job("hangs"))
    await bench.advance(3.0)
    assert bench.batcher.stuck_s == 0.0, "nothing waits"
    await bench.submit(job("waits"))
    await bench.advance(4.0)
    assert bench.batcher.stuck_s == pytest.approx(4.0)
    await bench.finish()
    assert bench.batcher.stuck_s == 0.0


async def test_clients_are_not_remembered_for_ever() -> None:
    bench = Bench()
    for i in range(2000):
        await bench.submit(job(i, client=f"address {i}"))
        await bench.finish()
    assert bench.batcher._queue.clients < 300
