"""The real process, by its command line and its signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest
from processes import BOOT, ROOT, Process, environment


def run(*arguments, **settings):
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, env=environment(**settings), cwd=ROOT, capture_output=True, text=True, timeout=50)


@pytest.fixture
def start(tmp_path) -> Iterator:
    started = []

    def begin(**settings):
        started.append(Process(tmp_path, **settings))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def picture():
    noise = np.random.default_rng(3).integers(0, 256, (600, 800), dtype=np.uint8)
    return cv2.imencode(".png", cv2.GaussianBlur(noise, (0, 0), 3))[1].tobytes()


class Load:
    """Clients that post one picture again and again until they are told to stop or the service is gone."""

    def __init__(self, url, clients):
        self.outcomes = Counter()
        self._url = f"{url}/v1/edges/canny?mask_encoding=none"
        self._picture = picture()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self):
        with httpx.Client(timeout=40) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post(self._url, content=self._picture, headers={"Content-Type": "image/png"})
                except httpx.ConnectError:
                    self.outcomes["refused at the door"] += 1
                    return
                except httpx.HTTPError as error:
                    self.outcomes[f"lost: {error!r}"] += 1
                    return
                self.outcomes[answer.json().get("code", answer.status_code)] += 1

    def join(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(40)
            assert not thread.is_alive()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_answers_what_was_accepted(start, workers):
    process = start(workers=workers)
    load = Load(process.url, 12)
    while load.outcomes[200] < 30:
        assert process.popen.poll() is None, process.log.read_text()
        time.sleep(0.05)
    began = time.monotonic()
    process.popen.send_signal(signal.SIGTERM)
    readiness = []
    while process.popen.poll() is None and time.monotonic() - began < 30:
        try:
            readiness.append(httpx.get(f"{process.url}/readyz").status_code)
        except httpx.HTTPError:
            break
        time.sleep(0.02)
    assert process.popen.wait(30) == 0, process.log.read_text()
    assert time.monotonic() - began < 20
    load.join()
    lost = {outcome: count for outcome, count in load.outcomes.items() if outcome not in (200, "draining", "refused at the door")}
    assert not lost
    assert load.outcomes[200] > 30
    if workers == 1:
        assert 503 in readiness
        assert readiness[-1] == 503
        assert load.outcomes["draining"] > 0


@pytest.mark.timeout(120)
def test_the_greeting_works_and_so_does_the_health_command(start):
    process = start()
    listens, documentation, playground, line = process.greeting
    assert httpx.get(documentation.split()[-1]).status_code == 200
    assert httpx.get(playground.split()[-1]).status_code == 200
    command = line.removeprefix("try").strip()
    answer = subprocess.run(command, shell=True, capture_output=True, timeout=30, check=True).stdout
    assert json.loads(answer)["result"]["edge_pixels"] > 1000
    port = int(listens.split()[3].rsplit(":", 1)[1])
    assert run("health", port=port).returncode == 0
    process.popen.send_signal(signal.SIGINT)
    assert process.popen.wait(30) == 0
    assert run("health", port=port).returncode == 1


@pytest.mark.timeout(120)
def test_metrics_of_all_workers_are_added_up(start):
    process = start(workers=2)
    body = picture()
    end = time.monotonic() + 40
    while "vision_ready 2.0" not in httpx.get(f"{process.url}/metrics").text:
        assert time.monotonic() < end
        time.sleep(0.1)
    for _ in range(20):
        httpx.post(f"{process.url}/v1/edges/canny?mask_encoding=none", content=body, headers={"Content-Type": "image/png"})
    counts = set()
    for _ in range(6):
        text = httpx.get(f"{process.url}/metrics").text
        counts |= set(re.findall(r'vision_requests_total\{route="/v1/edges/canny",status="200"\} (\S+)', text))
    assert counts == {"20.0"}
    assert "vision_queue_jobs 0.0" in text


@pytest.mark.timeout(120)
def test_a_worker_that_dies_is_replaced(start):
    process = start(workers=2)
    parent = process.popen.pid

    def workers():
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return {pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}

    before = workers()
    assert len(before) == 2
    os.kill(int(min(before)), signal.SIGKILL)
    end = time.monotonic() + 40
    while len(workers() - before) < 1 or len(workers()) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert httpx.get(f"{process.url}/livez").status_code == 200
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(40) == 0, process.log.read_text()


@pytest.mark.timeout(120)
def test_sigterm_while_it_warms_up_is_not_waited_out(tmp_path):
    script = tmp_path / "boot.py"
    script.write_text(BOOT.format(warm=()).replace("warm_all(self", "__import__('time').sleep(60) or warm_all(self"))
    command = [sys.executable, str(script)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = environment(port=port, drain_lead_s=0.1, drain_timeout_s=5)
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 40
        while process.poll() is None and time.monotonic() < end:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 503
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def test_contradictory_settings_do_not_start():
    done = run(queue_limit=3, host="0.0.0.0")
    assert done.returncode == 2
    assert "VISION_QUEUE_LIMIT=3" in done.stderr
    assert "VISION_ALLOW_ANONYMOUS" in done.stderr
    done = run(port="many")
    assert done.returncode == 2
    assert "VISION_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(port=taken.getsockname()[1])
    assert done.returncode == 3
    assert "Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_configuration_can_be_printed():
    done = run("--print-config", port=8123)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["port"]["value"] == 8123
    assert rows["port"]["variable"] == "VISION_PORT"
    assert rows["max_pixels"]["unit"] == "pixels"
