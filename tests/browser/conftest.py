"""A running service and a browser, once for the tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Page

from tests.app.processes import Process

WARM = ("edges/canny", "edges/sobel", "features/fast", "histograms/histogram", "histograms/otsu")


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service."""
    process = Process(tmp_path_factory.mktemp("service"), WARM)
    yield process.url
    process.end()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a fresh browser."""
    page = Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture
def page(browser: Page, url: str) -> Iterator[Page]:
    """The tab; afterwards it must have asked nobody but the service, and complained of nothing."""
    yield browser
    elsewhere = [each for each in browser.requests if not each.startswith((url, "data:", "blob:", "about:"))]
    assert elsewhere == []
    assert browser.errors == []


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """An image file to choose."""
    path = tmp_path / "squares.pgm"
    rows = [bytes(240 if 20 < x < 60 and 15 < y < 40 else 10 for x in range(80)) for y in range(60)]
    path.write_bytes(b"P5 80 60 255\n" + b"".join(rows))
    return path
