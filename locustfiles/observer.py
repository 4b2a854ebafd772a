"""The service's own account of a run: its memory while it lasts, its metrics before and after."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

import gevent
import psutil
from prometheus_client.parser import text_string_to_metric_families

from locustfiles.target import Target, Unreachable

EVERY_S = 0.5

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass
class Observed:
    """Memory as (wall clock, megabytes); how much each counter of /metrics grew; how much of this machine was taken by neither
    the service nor the generator (0 to 1), where the service runs here."""

    memory: list[tuple[float, float]] = field(default_factory=list)
    grown: Series = field(default_factory=dict)
    others: float | None = None

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
        self._spent: dict[int, tuple[float, float]] = {}  # seconds of processor time at first and last sight, by process

    def start(self) -> None:
        """Reads the metrics and begins to watch."""
        self._before = self._metrics()
        self._busy_s, self._began = _busy_s(), time.monotonic()
        self._watch = gevent.spawn(self._run)

    def stop(self) -> Observed:
        """Ends watching; reads the metrics again."""
        if self._watch is not None:
            self._watch.kill()
        if self._process is not None:
            self._look()
            ours = sum(last - first for first, last in self._spent.values())
            every = (time.monotonic() - self._began) * (psutil.cpu_count() or 1)
            self._observed.others = max(0.0, _busy_s() - self._busy_s - ours) / every
        after = self._metrics()
        self._observed.grown = {key: value - self._before.get(key, 0.0) for key, value in after.items()}
        return self._observed

    def _run(self) -> None:
        while True:
            used = self._metrics().get(("process_resident_memory_bytes", ())) if self._process is None else self._look()
            if used:
                self._observed.memory.append((time.time(), used / 1e6))
            gevent.sleep(EVERY_S)

    def _look(self) -> int:
        """Bytes that the service's processes hold; notes the processor time of theirs and of ours."""
        held = 0
        for root in (self._process, psutil.Process()):
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [root, *root.children(recursive=True)]:  # type: ignore[union-attr]  # psutil is here: checked above
                    with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
                        times = process.cpu_times()
                        spent = times.user + times.system
                        self._spent[process.pid] = (self._spent.get(process.pid, (spent, spent))[0], spent)
                        held += process.memory_info().rss if root is self._process else 0
        return held

    def _metrics(self) -> Series:
        try:
            reply = self._target.fetch("/metrics")
        except Unreachable:
            return {}
        return parse(reply.body.decode()) if reply.status == 200 else {}


def _busy_s() -> float:
    """Seconds that this machine's cores were not idle, all together."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))
