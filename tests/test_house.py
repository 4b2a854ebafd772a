"""The rules of the house that no linter knows: where things stand, how long they are, who may import whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

AT_THE_ROOT = {
    *("app", "cuda_ops", "tests", "locustfiles", "benchmarks", "docs", "deploy"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "pyproject.toml"),
    *("requirements.lock", "requirements-dev.lock", "requirements-cuda.lock"),
    *("Dockerfile", "docker-compose.yml", ".dockerignore", ".gitignore", ".ci"),
}
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-cuda.lock")
MADE_BY_A_TOOL = {".lock", ".json", ".csv", ".css", ".js", ".map", ".svg"}
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "stuff"}
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60

# Whoever matches the pattern may import, of the named packages, none.
FORBIDDEN = (
    ("cuda_ops/**/*.py", {"app", "locustfiles", "fastapi", "starlette", "uvicorn", "httpx", "asyncio"}),
    ("app/**/*.py", {"locustfiles", "benchmarks", "tests", "cv2", "skimage", "numba"}),
    ("locustfiles/**/*.py", {"app", "tests"}),
)
# The dynamic batcher is generic: the standard library, its own parts and the problems it raises.
BATCHER = {f"app.{part}" for part in ("batcher", "forming", "jobs", "scheduling", "admission", "costmodel", "alarms")}
DEVICE_MEMORY = {"device_array", "to_device", "pinned_array", "mapped_array", "copy_to_host", "synchronize"}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the repository that is, or is about to be, under version control."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    return tuple(path for name in listing.stdout.decode().split("\0") if name and (path := Path(name)) and (ROOT / path).exists())


def sources(pattern: str = "**/*.py") -> list[Path]:
    return [path for path in sorted(ROOT.glob(pattern)) if path.relative_to(ROOT) in set(tracked())]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, dotted; `from a import b` counts as a and as a.b."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data[:8192]:
            yield path, data.decode()


def test_the_root_holds_only_what_belongs_there() -> None:
    assert {path.parts[0] for path in tracked()} <= AT_THE_ROOT


def test_every_name_says_something() -> None:
    assert [path for path in tracked() if path.stem in SAYS_NOTHING or set(path.parts[:-1]) & SAYS_NOTHING] == []


def test_no_file_is_too_long() -> None:
    long = {
        str(path): lines
        for path, text in texts()
        if path.suffix not in MADE_BY_A_TOOL and (lines := text.count("\n")) > MOST_LINES_OF_A_FILE
    }
    assert long == {}


FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function, without those of the functions that it makes: a factory of kernels is judged kernel by kernel."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    return total - sum(own_lines(node) for node in ast.walk(function) if isinstance(node, FUNCTION) and node is not function)


def test_no_function_is_too_long() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": lines
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, FUNCTION) and (lines := own_lines(node)) > MOST_LINES_OF_A_FUNCTION
    }
    assert long == {}


@pytest.mark.parametrize(("pattern", "forbidden"), FORBIDDEN, ids=[pattern for pattern, _ in FORBIDDEN])
def test_layers_import_only_downwards(pattern: str, forbidden: set[str]) -> None:
    found = sources(pattern)
    assert found
    wrong = {str(path.relative_to(ROOT)): sorted(names) for path in found if (names := _roots(path) & forbidden)}
    assert wrong == {}


def test_only_the_entry_point_imports_the_wiring() -> None:
    importers = {path.relative_to(ROOT).as_posix() for path in sources("app/**/*.py") if "app.main" in imports(path)}
    assert importers <= {"app/__main__.py"}


def test_the_batcher_knows_nothing_of_pixels_and_http() -> None:
    for module in sorted(BATCHER):
        for name in imports(ROOT / (module.replace(".", "/") + ".py")):
            package = name.split(".")[0]
            known = package in sys.stdlib_module_names or name == "app" or name.startswith(("app.problems", *BATCHER))
            assert known, f"{module} imports {name}"


def test_compiler_flags_and_device_memory_have_one_home() -> None:
    wrong = []
    for path in sources("cuda_ops/**/*.py"):
        name = path.relative_to(ROOT / "cuda_ops").as_posix()
        if name != "jit.py" and {"numba.njit", "numba.jit", "numba.vectorize"} & set(imports(path)):
            wrong.append(f"{name} imports a compiler")
        if name != "cuda_backend.py":
            wrong += [f"{name}:{line} {attribute}" for line, attribute in _attributes(path) if attribute in DEVICE_MEMORY]
    assert wrong == []


def test_every_silenced_check_has_its_reason_beside_it() -> None:
    silenced = re.compile(
        r"#\s*(?:noqa|type:\s*ignore|pragma:\s*no cover)\b(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*|\[[\w, -]+\])?(?P<reason>.*)"
    )
    bare = [
        f"{path}:{number}"
        for path, text in texts()
        if path.suffix == ".py" and path.name != Path(__file__).name
        for number, line in enumerate(text.splitlines(), 1)
        if (mark := silenced.search(line)) and len(mark["reason"].strip(" #-()")) < 8
    ]
    assert bare == []


def test_nothing_names_a_machine_or_a_registry() -> None:
    # In halves, so that this file does not name them either.
    hosts = ("pypi" + ".org", "python" + "hosted", "deb.debian" + ".org", "registry.npm" + "js")
    machine = re.compile("|".join([r"(?<![\w.)/])/" + r"(?:work|root|home|Users)/\w", *map(re.escape, hosts)]))
    found = [f"{path}: {match[0]}" for path, text in texts() if (match := machine.search(text))]
    assert found == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_a_hash_for_everything_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert " @ " not in text
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", text).strip())
    assert len(entries) > 20
    for entry in entries:
        assert re.match(r"[a-z0-9.-]+==\S+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_locks_agree_and_cover_what_is_declared() -> None:
    runtime, dev, cuda = (dict(re.findall(r"(?m)^([a-z0-9.-]+)==(\S+)", (ROOT / name).read_text())) for name in LOCKS)
    assert runtime.items() <= dev.items()
    assert runtime.items() <= cuda.items()
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {re.split(r"[^a-z0-9.-]", line)[0] for line in content["project"]["dependencies"]} <= runtime.keys()


@pytest.mark.parametrize(
    ("folder", "groups"),
    [
        ("cuda_ops", ()),
        ("app", ()),
        ("locustfiles", ("load",)),
        ("benchmarks", ("test", "load")),
        ("tests", ("test", "load", "compile")),
    ],
)
def test_every_import_is_declared(folder: str, groups: tuple[str, ...]) -> None:
    """Nothing is relied upon only because another package happens to bring it."""
    found = sources(f"{folder}/**/*.py")
    declared = _declared(groups, extras=folder != "cuda_ops")
    # Oracles stand beside the operators, for the tests only.
    declared |= {"opencv-contrib-python-headless", "scikit-image"} if folder == "cuda_ops" else set()
    here = {path.stem for path in found} | {"app", "cuda_ops", "locustfiles", "tests", "benchmarks"}
    known = packages_distributions()
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in found
        for name in _roots(path) - sys.stdlib_module_names - here
        if not declared & {_normal(distribution) for distribution in known.get(name, [name])}
    }
    assert missing == set()


def _declared(groups: tuple[str, ...], *, extras: bool) -> set[str]:
    """The names of the distributions that pyproject.toml asks for."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = list(content["project"]["dependencies"])
    if extras:
        lines += [line for extra in content["project"]["optional-dependencies"].values() for line in extra]
    lines += [line for group in groups for line in content["dependency-groups"][group]]
    return {_normal(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in lines}


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def _attributes(path: Path) -> Iterator[tuple[int, str]]:
    return ((node.lineno, node.attr) for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute))
