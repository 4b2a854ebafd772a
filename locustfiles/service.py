"""Starts the service on a free port and stops it again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from locustfiles.target import Target, Unreachable

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN_S = 180.0  # the first start compiles every operator
STOPPED_WITHIN_S = 40.0

COMMAND = (sys.executable, "-m", "app")


@dataclass(frozen=True)
class Service:
    """A running service: its address and its process."""

    host: str
    pid: int


def free_port() -> int:
    """A TCP port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(log: Path, settings: Mapping[str, str], command: tuple[str, ...] = COMMAND) -> Iterator[Service]:
    """The service with these VISION_* settings, ready; its output goes to ``log``. Unreachable where it does not start."""
    port = free_port()
    environment = os.environ | dict(settings) | {"VISION_HOST": "127.0.0.1", "VISION_PORT": str(port)}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            service = Service(f"http://127.0.0.1:{port}", process.pid)
            _await_ready(process, service.host, log)
            yield service
        finally:
            process.terminate()
            try:
                process.wait(STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    target = Target(host, timeout_s=2)
    give_up = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up:
        if process.poll() is not None:
            said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise Unreachable(f"the service ended at its start with {process.returncode}:\n{said}")
        try:
            if target.fetch("/readyz").status == 200:
                return
        except Unreachable:
            pass
        time.sleep(0.1)
    raise Unreachable(f"the service was not ready within {READY_WITHIN_S:.0f} s; see {log}")
