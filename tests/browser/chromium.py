"""A headless Chromium with no network but this machine, driven over its debugging pipe; needs the binary and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BINARIES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "about:blank",
)

# The debugging pipe is descriptors 3 and 4 of the browser.
LAUNCH = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for target, pipe in enumerate(pipes, 3):
    os.dup2(pipe, target)
os.execv(sys.argv[3], sys.argv[3:])
"""


def binary() -> str:
    """The browser's path; the tier fails without one."""
    found = next((path for name in BINARIES if (path := shutil.which(name))), None)
    assert found, f"this tier needs one of {', '.join(BINARIES)} on the PATH"
    return found


class Page:
    """One tab. `requests` are all URLs it asked for, `errors` all exceptions and refusals it reported."""

    def __init__(self, profile: Path) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._rest = b""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(to_browser), str(from_browser), binary(), f"--user-data-dir={profile}", *FLAGS]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one protocol method."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **({"sessionId": self._session} if self._session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 25
        while number not in self._answers:
            self._receive(until)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str) -> None:
        """Go there, from an empty page: a new fragment alone would not load anything."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank' && document.readyState === 'complete'")
        self.requests.clear()
        self.errors.clear()
        self.call("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def until(self, expression: str, seconds: float = 20) -> Any:
        """Wait until the expression is true; its value where it is text."""
        expression = f"(value => typeof value === 'string' ? value : Boolean(value))({expression})"
        end = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, (expression, self.errors, self.evaluate("document.body.innerText.slice(0, 2000)"))
            time.sleep(0.05)
        return value

    def choose_file(self, selector: str, path: Path) -> None:
        """Put a file into a file picker."""
        handle = self.call("Runtime.evaluate", expression=f"document.querySelector({selector!r})")["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=handle)

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        os.close(self._write)
        os.close(self._read)

    def _receive(self, until: float) -> None:
        ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
        assert ready, "the browser does not answer"
        data = os.read(self._read, 1 << 20)
        assert data, "the browser ended"
        *messages, self._rest = (self._rest + data).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._note(message["method"], message["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
