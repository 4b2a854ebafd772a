"""Every metric and every log field, named once; the observer that the batcher reports to; the one log line a request.

With several workers prometheus_client keeps its values in files below PROMETHEUS_MULTIPROC_DIR (set by the parent before
this module is imported), and any worker's /metrics adds them up.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from app.jobs import Completed, Loss, Observer, Reason

PHASES = ("receive", "decode", "queue", "form", "h2d", "kernel", "d2h", "encode", "send")
PROBES = ("/livez", "/readyz", "/metrics")
FAST_BUCKETS = (
    *(0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
SIZE_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
PIXEL_BUCKETS = (1e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 3e8)
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.33, 2.0, 4.0, 10.0)

logger = logging.getLogger("vision")


class Metrics:
    """The metrics, in a registry of their own so that several applications can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        in_registry: dict[str, Any] = {"registry": self.registry}
        added = {**in_registry, "multiprocess_mode": "livesum"}
        self.requests = Counter("vision_requests", "Answered requests.", ("route", "status"), **in_registry)
        self.request_seconds = Histogram(
            "vision_request_seconds", "From headers to last byte.", ("route",), buckets=FAST_BUCKETS, **in_registry
        )
        self.phase_seconds = Histogram(
            "vision_phase_seconds", "Time in one phase of a request.", ("phase",), buckets=FAST_BUCKETS, **in_registry
        )
        self.received_bytes = Counter("vision_received_bytes", "Bytes of bodies received.", **in_registry)
        self.sent_bytes = Counter("vision_sent_bytes", "Bytes of bodies sent.", **in_registry)
        self.refusals = Counter("vision_refusals", "Answers other than success.", ("code", "reason"), **in_registry)
        self.queue_jobs = Gauge("vision_queue_jobs", "Jobs that wait.", **added)
        self.queue_pixels = Gauge("vision_queue_pixels", "Pixels that wait.", **added)
        self.inflight_bytes = Gauge("vision_inflight_bytes", "Bytes of bodies and pixels in flight.", **added)
        self.batch_jobs = Histogram("vision_batch_jobs", "Jobs of a launch.", buckets=SIZE_BUCKETS, **in_registry)
        self.batch_pixels = Histogram("vision_batch_pixels", "Pixels of a launch.", buckets=PIXEL_BUCKETS, **in_registry)
        self.batches = Counter("vision_batches", "Launches, by what closed the batch.", ("reason",), **in_registry)
        self.dropped = Counter("vision_dropped_jobs", "Jobs that got no result.", ("kind", "reason"), **in_registry)
        self.prediction_ratio = Histogram(
            "vision_prediction_ratio", "Actual over predicted time of a job.", buckets=RATIO_BUCKETS, **in_registry
        )
        self.decoder_restarts = Gauge("vision_decoder_restarts", "Decoder processes replaced since the start.", **added)
        self.ready = Gauge("vision_ready", "Processes that are ready.", **added)
        self._phase = {phase: self.phase_seconds.labels(phase) for phase in PHASES}
        self._request_children: dict[tuple[str, int], tuple[Any, Any]] = {}

    def phase(self, name: str, seconds: float) -> None:
        """One phase of one request (or of one launch, for h2d, kernel and d2h)."""
        self._phase[name].observe(seconds)

    def request(self, route: str, status: int, seconds: float) -> None:
        """One answered request. `route` is a template, never a path that a client chose."""
        children = self._request_children.get((route, status))
        if children is None:
            children = self.requests.labels(route, str(status)), self.request_seconds.labels(route)
            self._request_children[route, status] = children
        children[0].inc()
        children[1].observe(seconds)

    def render(self) -> bytes:
        """The exposition text; of all workers together when there are several."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]  # the library's gap
        return generate_latest(merged)


class BatchObserver(Observer):
    """Turns what the batcher reports into metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def depth(self, jobs: int, pixels: int) -> None:
        """See `Observer`."""
        self._metrics.queue_jobs.set(jobs)
        self._metrics.queue_pixels.set(pixels)

    def dispatched(self, size: int, pixels: int, reason: Reason) -> None:
        """See `Observer`."""
        self._metrics.batch_jobs.observe(size)
        self._metrics.batch_pixels.observe(pixels)
        self._metrics.batches.labels(reason).inc()

    def completed(self, done: Completed) -> None:
        """See `Observer`."""
        self._metrics.phase("queue", done.queue_s)
        self._metrics.phase("form", done.form_s)

    def dropped(self, kind: Loss, reason: str) -> None:
        """See `Observer`."""
        self._metrics.dropped.labels(kind, reason).inc()

    def predicted(self, seconds: float, actual: float) -> None:
        """See `Observer`."""
        if seconds > 0.0:
            self._metrics.prediction_ratio.observe(actual / seconds)


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, event, and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        line: dict[str, Any] = {
            "time": _timestamp(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def configure_logging(level: str) -> None:
    """Send this process's logs to standard error as JSON lines, the server's own included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("vision", "uvicorn", "uvicorn.error"):
        target = logging.getLogger(name)
        target.handlers = [handler] if name != "uvicorn.error" else []
        target.setLevel(level.upper() if name == "vision" else "WARNING")
        target.propagate = name == "uvicorn.error"


class RequestLog:
    """The one line a request, in the form of `JsonLines`. Written directly: the logging module takes ten times as long."""

    def __init__(self, level: str, stream: BinaryIO) -> None:
        self._least = logging.getLevelNamesMapping()[level.upper()]
        self._stream = stream

    def write(self, fields: Mapping[str, Any]) -> None:
        """5xx answers are warnings; probes that find nothing wrong are for debugging."""
        quiet = fields["route"] in PROBES and fields["status"] < 400
        level = logging.WARNING if fields["status"] >= 500 else logging.DEBUG if quiet else logging.INFO
        if level < self._least:
            return
        time = _timestamp(datetime.now(UTC))
        line = {"time": time, "level": logging.getLevelName(level).lower(), "logger": "vision", "event": "request", **fields}
        try:
            self._stream.write(orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE))
            self._stream.flush()
        except OSError:  # a full disk or a closed pipe must not cost an answer
            return
