"""The service's own account of a run: its memory while it lasts, its metrics before and after."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

import gevent
import psutil
from prometheus_client.parser import text_string_to_metric_families

from locustfiles.target import Target, Unreachable

EVERY_S = 0.25

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass
class Observed:
    """Memory as (wall clock, megabytes); how much each counter of /metrics grew."""

    memory: list[tuple[float, float]] = field(default_factory=list)
    grown: Series = field(default_factory=dict)
    has_metrics: bool = False

    def refusals(self) -> dict[str, float]:
        """How often the service says it refused, by code and reason."""
        found = {}
        for (name, labels), value in self.grown.items():
            if name == "vision_refusals_total" and value > 0:
                said = dict(labels)
                reason = said.get("reason")
                found[f"{said.get('code')} ({reason})" if reason else str(said.get("code"))] = value
        return found


def parse(text: str) -> Series:
    """The samples of the Prometheus text format, by name and sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Observer:
    """Watches one deployment. With a process id it sums the memory of that process and its children."""

    def __init__(self, host: str, pid: int = 0) -> None:
        self._target = Target(host, timeout_s=5)
        try:
            self._process = psutil.Process(pid) if pid else None
        except psutil.NoSuchProcess as error:
            raise Unreachable(f"no process has the id {pid}") from error
        self._observed = Observed()
        self._before: Series = {}
        self._watch: gevent.Greenlet | None = None

    def start(self) -> None:
        """Reads the metrics and begins to watch the memory."""
        self._before = self._metrics()
        self._observed.has_metrics = bool(self._before)
        self._watch = gevent.spawn(self._run)

    def stop(self) -> Observed:
        """Ends watching; reads the metrics again."""
        if self._watch is not None:
            self._watch.kill()
        after = self._metrics()
        self._observed.grown = {key: value - self._before.get(key, 0.0) for key, value in after.items()}
        return self._observed

    def _run(self) -> None:
        while True:
            if (used := self._memory_mb()) is not None:
                self._observed.memory.append((time.time(), used))
            gevent.sleep(EVERY_S if self._process else 1.0)

    def _memory_mb(self) -> float | None:
        if self._process is None:
            value = self._metrics().get(("process_resident_memory_bytes", ()))
            return None if value is None else value / 1e6
        total = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [self._process, *self._process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += process.memory_info().rss / 1e6
        return total or None

    def _metrics(self) -> Series:
        try:
            reply = self._target.fetch("/metrics")
        except Unreachable:
            return {}
        return parse(reply.body.decode()) if reply.status == 200 else {}
