"""Fixtures that every tier may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Machines differ in speed: what takes how long is judged elsewhere.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

SHARED_IMAGES = Path(__file__).resolve().parents[2] / "shared" / "images"


@pytest.fixture(scope="session")
def shared_images() -> Path:
    """The folder of photographs and odd images that lies beside a checkout where there is one."""
    if not SHARED_IMAGES.is_dir():
        pytest.skip(f"{SHARED_IMAGES} is not there")
    return SHARED_IMAGES
