"""Several serving processes on one socket: started, watched, replaced when they end, drained together."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import sys
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from app.server import FAILED_START, CreateApp, listen, serve_one
from app.settings import Settings
from app.telemetry import configure_logging

logger = logging.getLogger("vision.workers")

_POLL_S = 0.1
_PAUSE_S = 1.0  # before a worker that ended is replaced, so that a broken device is not hammered
_GRACE_S = 5.0  # beyond the drain limit, before a worker is killed


def serve_many(settings: Settings, create_app: CreateApp, metrics_folder: Path) -> int:
    """Serve with `settings.workers` processes until SIGTERM or SIGINT; 0 when every worker drained cleanly."""
    configure_logging(settings.log_level)
    try:
        listener = listen(settings)
    except OSError as error:
        sys.stderr.write(f"visionbatch does not start: {settings.host}:{settings.port}: {error.strerror}\n")
        return FAILED_START
    return Supervisor(settings, create_app, listener, metrics_folder).run()


class Supervisor:
    """The parent process."""

    def __init__(self, settings: Settings, create_app: CreateApp, listener: socket.socket, metrics_folder: Path) -> None:
        self._settings = settings
        self._create_app = create_app
        self._listener = listener
        self._metrics_folder = metrics_folder
        self._workers = [self._start(first=number == 0) for number in range(settings.workers)]
        self._stopping = False

    def run(self) -> int:
        """Watch the workers; the exit status."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._stop)
        while not self._stopping:
            time.sleep(_POLL_S)
            for index, worker in enumerate(self._workers):
                if worker.exitcode == FAILED_START:
                    self._stopping = True
                elif worker.exitcode is not None and not self._stopping:
                    self._replace(index)
        return self._drain()

    def _start(self, *, first: bool) -> SpawnProcess:
        context = multiprocessing.get_context("spawn")
        worker = context.Process(target=_work, args=(self._settings, self._create_app, self._listener, first), name="worker")
        worker.start()
        return worker

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _replace(self, index: int) -> None:
        ended = self._workers[index]
        logger.warning("worker ended", extra={"fields": {"pid": ended.pid, "exit_code": ended.exitcode}})
        # Its gauges must not be added to those of the living; counters and histograms stay.
        for path in self._metrics_folder.glob(f"gauge_live*_{ended.pid}.db"):
            path.unlink()
        time.sleep(_PAUSE_S)
        if not self._stopping:
            self._workers[index] = self._start(first=False)

    def _drain(self) -> int:
        ends = time.monotonic() + self._settings.drain_timeout_s + _GRACE_S
        self._listener.close()  # nobody would answer on it once the last worker has stopped listening
        for worker in self._workers:
            if worker.is_alive():
                worker.terminate()
        for worker in self._workers:
            worker.join(max(0.0, ends - time.monotonic()))
            if worker.is_alive():
                worker.kill()
                worker.join()
        # A worker that the signal ends had not begun to serve: from then on it handles the signal and drains.
        return max(0 if worker.exitcode == -signal.SIGTERM else abs(worker.exitcode or 0) for worker in self._workers)


def _work(settings: Settings, create_app: CreateApp, listener: socket.socket, first: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(serve_one(settings, create_app, listener, first=first))
