"""Real serving processes, by the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BOOT = """
import sys
from cuda_ops.cpu_backend import CpuBackend
warm_all = CpuBackend.warm_up
CpuBackend.warm_up = lambda self, operators: warm_all(self, [each for each in operators if each.path in {warm!r}])
from app.__main__ import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def environment(**settings: Any) -> dict[str, str]:
    """This process's environment with these settings of the service."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **{f"VISION_{name.upper()}": str(value) for name, value in settings.items()}}


class Process:
    """A serving process that is ready; it compiles only the operators in `warm`, to be ready soon."""

    def __init__(self, folder: Path, warm: tuple[str, ...] = ("edges/canny",), **settings: Any) -> None:
        script = folder / "boot.py"
        script.write_text(BOOT.format(warm=warm))
        env = environment(**{"port": 0, "drain_lead_s": 0.3, "drain_timeout_s": 20, **settings})
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen([sys.executable, str(script)], env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.popen.stdout is not None
        self.greeting = [self.popen.stdout.readline() for _ in range(4)]
        found = re.search(r"http://[0-9.:]+", self.greeting[0])
        assert found, (self.greeting, self.log.read_text())
        self.url = found.group()

    def end(self) -> None:
        """Kill it where it still runs."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(10)
        assert self.popen.stdout is not None
        self.popen.stdout.close()
