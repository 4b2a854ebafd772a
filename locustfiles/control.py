"""The control: the direct library call on this machine, behind the plainest HTTP server there is.

It answers the same picture with OpenCV and nothing else, and the generator asks it all through the run, beside the
service. A noisy neighbour slows both, so limits that are multiples of the control keep their meaning; a slow service does
not slow the control. It runs in its own process: ``python -m locustfiles.control`` prints its port and ends with its parent.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVERY_S = 0.1  # between two questions to the control: under 5 % of one core


def available() -> bool:
    """Whether OpenCV can be imported here."""
    return importlib.util.find_spec("cv2") is not None


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave in one segment
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        begun = time.perf_counter()
        pixels = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_GRAYSCALE)
        cv2.Canny(np.asarray(pixels), 100, 200)
        spent = f"{(time.perf_counter() - begun) * 1e3:.3f}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(spent)))
        self.end_headers()
        self.wfile.write(spent)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the parent's name)
        """Silent: its output is the port and nothing else."""


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


@contextmanager
def running() -> Iterator[str]:
    """A control process on a free port; yields its address."""
    command = [sys.executable, "-m", "locustfiles.control"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError("the control did not start")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


if __name__ == "__main__":
    import cv2
    import numpy as np

    cv2.setNumThreads(1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    server.daemon_threads = True
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(server.server_address[1], flush=True)
    server.serve_forever()
