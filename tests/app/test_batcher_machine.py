"""Any order of arrivals, cancels, deadlines, deliveries, failures and drains: nothing is lost, answered twice, run in
vain or starved. Hypothesis looks for short counterexamples; the storms below it are long.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from batching import Bench, FakeRun
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.jobs import Completed, Job, Limits
from app.problems import BackendUnavailable, DeadlineExceeded, Draining, Overloaded

WHICH = st.integers(0, 1000)


class Broken(Exception):
    pass


@dataclass(eq=False)
class Sent:
    """One submitted job, and what should have become of it."""

    number: int
    job: Job
    task: asyncio.Task[Completed]
    sent: float
    cancelled: bool = False
    expected: list[Any] = field(default_factory=list)  # what the executor delivered for it


class Machine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 3),
        share=st.booleans(),
        count=st.integers(1, 4),
        wait_s=st.sampled_from([0.0, 0.005]),
        queue_limit=st.integers(2, 20),
    )
    def build(self, slots: int, share: bool, count: int, wait_s: float, queue_limit: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.limits = Limits(
            batch_count=count,
            batch_pixels=100,
            batch_scratch=50,
            share_pixels=60,
            large_pixels=80,
            max_wait_s=wait_s,
            queue_limit=queue_limit,
        )
        self.sent: list[Sent] = []
        self.executed: list[int] = []
        self.drain: asyncio.Task[bool] | None = None
        self.draining = False

        async def make() -> Bench:
            return Bench(slots, share=share, limits=self.limits)

        self.bench = self.loop.run_until_complete(make())
        self.target = 60 if share else 100
        start = self.bench.executor.start

        def checked(jobs: Any, deliver: Any, finished: Any) -> None:
            self.check_batch(jobs)
            start(jobs, deliver, finished)

        self.bench.executor.start = checked

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.finish_everything()
        self.loop.close()

    def settle(self) -> None:
        self.loop.run_until_complete(self.bench.settle())

    def check_batch(self, jobs: list[Job]) -> None:
        """At the moment of dispatch: bounds are kept, and every job is one that still matters."""
        assert jobs
        assert len({job.key for job in jobs}) == 1
        assert len(jobs) <= self.limits.batch_count
        if len(jobs) > 1:
            assert sum(job.cost for job in jobs) <= self.target
            assert sum(job.scratch for job in jobs) <= self.limits.batch_scratch
            assert all(job.cost <= self.limits.large_pixels for job in jobs)
        for job in jobs:
            sent = self.sent[job.payload]
            assert not sent.cancelled, "executed after cancel"
            assert job.deadline > self.bench.clock.now, "executed after its deadline"
            assert not sent.task.done(), "executed after it was answered"
            assert job.payload not in self.executed, "executed twice"
            self.executed.append(job.payload)

    # -- what may happen -------------------------------------------------------------------------------------------

    @rule(
        jobs=st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.integers(1, 120),
                st.sampled_from(["x", "y", "z"]),
                st.one_of(st.none(), st.floats(0.0, 0.1)),
                st.integers(-1, 1),
                st.sampled_from([0, 0, 20]),
                st.sampled_from([0.5, 1.0, 4.0]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def submit(self, jobs: list[tuple[str, int, str, float | None, int, int, float]]) -> None:
        now = self.bench.clock.now
        for key, cost, client, patience, priority, scratch, weight in jobs:
            number = len(self.sent)
            deadline = float("inf") if patience is None else now + patience
            job = Job(key, cost, number, client, deadline, priority, weight, scratch)
            self.sent.append(Sent(number, job, self.loop.create_task(self.bench.batcher.submit(job)), now))
        self.settle()

    @precondition(lambda self: self.sent)
    @rule(which=WHICH, settle=st.booleans())
    def cancel(self, which: int, settle: bool) -> None:
        sent = self.sent[-1 - which % min(8, len(self.sent))]
        if sent.task.cancel():
            sent.cancelled = True
        if settle:  # else something else happens before the caller's own code runs
            self.settle()

    @rule(seconds=st.sampled_from([0.0005, 0.002, 0.01, 0.05, 0.2]))
    def wait(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)
        self.settle()

    @rule(seconds=st.sampled_from([0.01, 0.1]))
    def stall_the_loop(self, seconds: float) -> None:
        """Time passes, but no timer has had a turn yet."""
        self.bench.clock.now += seconds

    @precondition(lambda self: self.bench.executor.running)
    @rule(which=WHICH, fail=st.booleans())
    def deliver_one(self, which: int, fail: bool) -> None:
        run = self.bench.executor.running[which % len(self.bench.executor.running)]
        index = which % len(run.jobs)
        self.answer(run, index, Broken() if fail else f"result {run.payloads[index]}")
        self.settle()

    @precondition(lambda self: self.bench.executor.running)
    @rule(which=WHICH, error=st.sampled_from([None, None, ValueError("launch"), BackendUnavailable("gone")]))
    def finish(self, which: int, error: Exception | None) -> None:
        run = self.bench.executor.running[which % len(self.bench.executor.running)]
        if error is None:
            for index, number in enumerate(run.payloads):
                self.answer(run, index, f"result {number}")
        run._finished(error)
        self.settle()

    @precondition(lambda self: not self.draining and len(self.sent) > 3)
    @rule(limit_s=st.sampled_from([0.02, 10.0]))
    def start_drain(self, limit_s: float) -> None:
        self.draining = True
        self.drain = self.loop.create_task(self.bench.batcher.drain(limit_s))
        self.settle()

    def answer(self, run: FakeRun, index: int, outcome: Any) -> None:
        self.sent[run.payloads[index]].expected.append(outcome)
        run.deliver(index, outcome)

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "bench"):
            return
        batcher = self.bench.batcher
        assert 0 <= batcher.waiting <= self.limits.queue_limit
        assert batcher.running == len(self.bench.executor.running) <= self.bench.executor.slots
        queue = batcher._queue
        assert queue.count == sum(1 for _ in queue)
        assert queue.pixels == sum(waiter.cost for waiter in queue)
        assert queue.count or not queue.weight
        assert self.bench.clock.pending() <= 3, "one timer for deadlines, one for waits, one for a drain"

    @invariant()
    def every_answer_is_the_right_one(self) -> None:
        for sent in getattr(self, "sent", []):
            if sent.task.done() and not sent.cancelled:
                self.check_answer(sent)

    def check_answer(self, sent: Sent) -> None:
        error = sent.task.exception()
        ran = sent.number in self.executed
        if error is None:
            assert sent.task.result().value == sent.expected[0]
            assert ran
        elif isinstance(error, Overloaded):
            assert error.retry_after_s
            assert not ran
        elif isinstance(error, DeadlineExceeded):
            assert sent.job.deadline <= self.bench.clock.now
            assert not ran
        elif isinstance(error, Draining):
            assert self.draining
        else:
            assert isinstance(error, Broken | BackendUnavailable), error
            assert ran

    def finish_everything(self) -> None:
        """Let the executor work on: every job that is left must be answered, the longest waiting within bounds."""
        self.settle()
        for _ in range(len(self.sent) + 1):
            self.bench.clock.advance(0.1 + self.limits.max_wait_s)
            self.settle()
            for run in list(self.bench.executor.running):
                for index, number in enumerate(run.payloads):
                    self.answer(run, index, f"result {number}")
                run._finished(None)
            self.settle()
        for sent in self.sent:
            assert sent.task.done(), "lost, or starved"
            if not sent.cancelled:
                self.check_answer(sent)
            elif not sent.task.cancelled():
                sent.task.exception()
        assert self.bench.batcher.waiting == self.bench.batcher.running == 0
        if self.drain is not None:
            assert self.drain.done()
        assert len(self.executed) == len(set(self.executed))
        lost = sum(self.bench.seen.drops.values())
        assert len(self.bench.seen.done) + lost == len(self.sent), "every job is counted exactly once"


TestBatcherMachine = Machine.TestCase
TestBatcherMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("seed", range(12))
def test_storm(seed: int) -> None:
    rng, machine = random.Random(seed), Machine()
    machine.build(rng.randint(1, 3), rng.random() < 0.5, rng.randint(1, 4), rng.choice([0.0, 0.005]), rng.choice([5, 20, 60]))
    try:
        for step in range(400):
            pick = rng.random()
            if pick < 0.4:
                machine.submit([random_job(rng) for _ in range(rng.randint(1, 6))])
            elif pick < 0.5 and machine.sent:
                machine.cancel(rng.randrange(1000), rng.random() < 0.5)
            elif pick < 0.6:
                machine.wait(rng.choice([0.0005, 0.002, 0.01, 0.05]))
            elif pick < 0.65:
                machine.stall_the_loop(rng.choice([0.01, 0.1]))
            elif pick < 0.75 and machine.bench.executor.running:
                machine.deliver_one(rng.randrange(1000), rng.random() < 0.2)
            elif machine.bench.executor.running:
                machine.finish(rng.randrange(1000), rng.choice([None, None, None, ValueError("launch")]))
            if step == 380:
                machine.start_drain(10.0)
            machine.bounds_hold()
            machine.every_answer_is_the_right_one()
    finally:
        machine.teardown()


def random_job(rng: random.Random) -> tuple[str, int, str, float | None, int, int, float]:
    patience = rng.choice([None, rng.uniform(0.0, 0.1), rng.uniform(0.0, 1.0)])
    return (
        rng.choice("ab"),
        rng.randint(1, 120) if rng.random() < 0.3 else rng.randint(1, 20),
        rng.choice("xyz"),
        patience,
        rng.randint(-1, 1),
        rng.choice([0, 0, 20]),
        rng.choice([0.5, 1.0, 4.0]),
    )
