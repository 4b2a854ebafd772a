"""A made-up current device for the compiler, and the table at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import numba.cuda.dispatcher
import pytest

ROWS = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def rows(pytestconfig: pytest.Config) -> list[str]:
    """Lines of the table that ends the run."""
    return pytestconfig.stash[ROWS]


@pytest.fixture(autouse=True)
def capability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The architecture under test. A kernel that calls a device function asks the current device for it; here the device is made up."""
    chosen: tuple[int, int] = getattr(request, "param", (9, 0))
    monkeypatch.setattr(numba.cuda.dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=chosen))
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """The table: one line per kernel and architecture."""
    yield
    header = f"{'operator':22} {'kernel':26} {'arch':6} {'regs':>4} {'shared':>6} {'spill':>5} {'occupancy':>9} {'B/px':>5} {'least':>5}"
    terminalreporter.write_line(os.linesep.join([header, *sorted(config.stash[ROWS])]))
