"""The simulator tier also counts lines: every line of every kernel and device function must have run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from cuda_ops.jit import SIMULATED

PACKAGE = Path(__file__).parents[2] / "cuda_ops"
DECORATORS = {"kernel", "device", "cuda_device"}
KEY = pytest.StashKey[coverage.Coverage]()


def pytest_configure(config: pytest.Config) -> None:
    if not SIMULATED:
        raise pytest.UsageError("run `make sim`: NUMBA_ENABLE_CUDASIM=1 and NUMBA_DISABLE_JIT=1 must be set before Python starts")
    config.stash[KEY] = coverage.Coverage(include=[f"{PACKAGE}/*"], data_file=None, concurrency=["thread"], config_file=False)
    config.stash[KEY].start()


def kernel_functions(source: str) -> Iterator[ast.FunctionDef]:
    """Functions that run on the device: decorated ones, and those that a factory passes to `kernel(...)`."""
    tree = ast.parse(source)
    passed = {
        argument.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DECORATORS
        for argument in node.args
        if isinstance(argument, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = {decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)}
            if names & DECORATORS or node.name in passed:
                yield node


def missed_lines(measured: coverage.Coverage) -> list[str]:
    missed = []
    for path in sorted(PACKAGE.rglob("*.py")):
        functions = list(kernel_functions(path.read_text()))
        if functions:
            _, _, _, missing, _ = measured.analysis2(str(path))
            for function in functions:
                lines = [str(line) for line in missing if function.body[0].lineno <= line <= (function.end_lineno or 0)]
                if lines:
                    missed.append(f"{path.relative_to(PACKAGE.parent)}, {function.name}: never ran in the simulator: {', '.join(lines)}")
    return missed


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    yield
    whole = not config.option.keyword and not config.option.markexpr and not any("::" in str(argument) for argument in config.args)
    if whole and config.stash.get(MISSED, None) is not None:
        for line in config.stash[MISSED]:
            terminalreporter.write_line(line, red=True)
        terminalreporter.write_line(f"device functions with lines that never ran: {len(config.stash[MISSED])}")


MISSED = pytest.StashKey[list[str]]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    measured = session.config.stash[KEY]
    measured.stop()
    session.config.stash[MISSED] = missed_lines(measured)
    partial = session.config.option.keyword or any("::" in str(argument) for argument in session.config.args)
    if session.config.stash[MISSED] and not partial and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
