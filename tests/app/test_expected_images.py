"""The table of odd images, row by row, in process and through the pool of decoders."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from app.codec import DecodeOptions, ImageInfo, decode
from app.decoders import DecoderPool
from app.problems import Problem


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "expected.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def told(outcome: ImageInfo | Problem, row: dict[str, str]) -> dict[str, str]:
    """The row as the codec would write it; where the picture is refused, only status and code are told."""
    if isinstance(outcome, Problem):
        return row | {"status": str(outcome.status), "code": outcome.code}
    names = ("width", "height", "mode", "frames", "orientation")
    return row | {"status": "200", "code": ""} | {name: str(getattr(outcome, name)) for name in names}


@pytest.mark.parametrize("pixels", ["grey", "rgb"])
def test_every_row_holds(shared_images: Path, pixels: str) -> None:
    table = rows(shared_images)
    assert len(table) > 100
    for row in table:
        try:
            outcome: ImageInfo | Problem = decode((shared_images / row["file"]).read_bytes(), DecodeOptions(pixels=pixels))[1]
        except Problem as problem:
            outcome = problem
        assert told(outcome, row) == row
        if isinstance(outcome, ImageInfo) and row["sniffed"] != "PPM":
            assert outcome.format == row["sniffed"].lower()


async def test_every_row_holds_through_the_pool_and_no_decoder_dies(shared_images: Path) -> None:
    pool = DecoderPool(2, timeout_s=20, memory_bytes=1 << 30)
    await pool.start()
    try:
        for row in rows(shared_images):
            try:
                outcome: ImageInfo | Problem = (await pool.decode((shared_images / row["file"]).read_bytes(), DecodeOptions())).info
            except Problem as problem:
                outcome = problem
            assert told(outcome, row) == row
        assert pool.restarts == 0
    finally:
        await pool.close()
