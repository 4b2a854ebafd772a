"""Whether a job may wait: predicts when it would be finished, and refuses at the door what could only fail later."""

from __future__ import annotations

from typing import Any

from app.costmodel import CostModel
from app.jobs import Executor, Job, Limits
from app.problems import Overloaded
from app.scheduling import FairQueue

_CAUTION = 1.25  # a predicted wait is taken to be this much longer when a deadline depends on it
_CROWD = 16  # a client may wait with this many jobs (per weight) for each free place of the queue


class Admission:
    """Predicted finish = (what runs + what goes first) / slots + the job's own time, by the learned cost model."""

    def __init__(self, executor: Executor, limits: Limits, queue: FairQueue[Any], target: int) -> None:
        self.model = CostModel()
        self._executor = executor
        self._limits = limits
        self._queue = queue
        self._target = target

    def marginal(self, job: Job) -> float:
        """Seconds that the job adds to a queue: its pixels, and its part of a launch that is as full as it can be."""
        together = 1 if self._executor.share else min(self._limits.batch_count, max(1, self._target // max(1, job.cost)))
        return self.model.seconds(job.key, job.cost, 1 / together)

    def predict(self, job: Job, running_s: float, *, idle: bool) -> tuple[float, float] | None:
        """Seconds that the job would wait and run; None while too little is known.

        `running_s` is what the running batches still take, in all; `idle` tells that a slot is free.
        """
        if self.model.line(job.key) is None:
            return None
        queue, wait = self._queue, self._limits.max_wait_s
        if queue.count or not idle:
            account = queue.account(job.client, job.weight)
            weight = queue.weight + (0.0 if account.waiting else account.weight)
            # A fair queue serves others no more than their share before the client's own work is done.
            own = (account.seconds + self.marginal(job)) * weight / account.weight
            wait += (running_s + min(queue.seconds, own)) / self._executor.slots
        return wait, self.model.seconds(job.key, job.cost)

    def check(self, job: Job, predicted: tuple[float, float] | None, now: float) -> None:
        """Overloaded, with its reason and when to come back, where the job may not wait."""
        limits, queue = self._limits, self._queue
        free = limits.queue_limit - queue.count
        if free <= 0:
            raise Overloaded(
                "The queue is full; try again later.",
                limit=limits.queue_limit,
                measured=queue.count,
                setting="VISION_QUEUE_LIMIT",
                retry_after_s=self._retry_after(queue.seconds / 2),
                reason="queue",
            )
        account = queue.account(job.client, job.weight)
        allowed = _CROWD * account.weight * free
        if account.waiting >= allowed:
            raise Overloaded(
                "The queue is nearly full and its last places are kept for other clients; send fewer requests at once.",
                limit=int(allowed),
                measured=account.waiting,
                setting="VISION_QUEUE_LIMIT",
                retry_after_s=self._retry_after(account.seconds / 2),
                reason="client-share",
            )
        if predicted is None or predicted[0] <= limits.max_wait_s:
            return  # nothing is in its way: it may try, and a model that has grown wrong can learn
        needed = predicted[0] * _CAUTION + predicted[1]
        if now + needed > job.deadline:
            raise Overloaded(
                "The job could not be finished before its deadline; allow more time or try again later.",
                limit=round(1000 * (job.deadline - now), 1),
                measured=round(1000 * needed, 1),
                setting="X-Deadline-Ms",
                retry_after_s=self._retry_after((now + needed - job.deadline) * self._executor.slots),
                reason="deadline",
            )

    def _retry_after(self, work_s: float) -> float:
        """Seconds until that much predicted work is done, between 1 s and 1 min."""
        return round(min(60.0, max(1.0, work_s / self._executor.slots)), 3)
