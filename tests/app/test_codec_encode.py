"""What is encoded is what two other readers read."""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pictures import scene
from PIL import Image

from app.codec import encode_mask_png, encode_npy, encode_png, encode_webp, rle
from app.problems import NotAcceptable

SIZES = [(1, 1), (1, 9), (7, 1), (8, 8), (33, 65), (257, 300)]


def both(data: bytes) -> tuple[NDArray[Any], NDArray[Any], Image.Image]:
    opencv = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert opencv is not None
    pillow = Image.open(io.BytesIO(data))
    pillow.verify()
    pillow = Image.open(io.BytesIO(data))
    return opencv[..., ::-1] if opencv.ndim == 3 else opencv, np.asarray(pillow), pillow


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_png(size: tuple[int, int], channels: int) -> None:
    image = scene(*size, channels)
    for read in both(encode_png(image))[:2]:
        assert np.array_equal(read, image)


def test_png_of_a_view() -> None:
    image = scene(40, 30)[::-1, 2:-3]
    for read in both(encode_png(image))[:2]:
        assert np.array_equal(read, image)


def test_png_is_no_larger_than_pillows_quick_one() -> None:
    image = scene(256, 256)
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG", compress_level=1)
    assert len(encode_png(image)) < 1.1 * len(stream.getvalue())


@pytest.mark.parametrize("size", SIZES)
def test_mask_png_has_one_bit_a_pixel(size: tuple[int, int]) -> None:
    mask = np.random.default_rng(3).random(size) < 0.1
    opencv, pillow, image = both(encode_mask_png(np.packbits(mask, axis=1), size[1]))
    assert image.mode == "1"
    assert np.array_equal(opencv, mask * np.uint8(255))
    assert np.array_equal(pillow, mask)


@pytest.mark.parametrize("channels", [1, 3])
def test_webp_is_lossless(channels: int) -> None:
    image = scene(33, 65, channels)
    opencv, pillow, _ = both(encode_webp(image))
    expected = np.repeat(image[..., None], 3, axis=2) if channels == 1 else image
    assert np.array_equal(opencv, expected)
    assert np.array_equal(pillow, expected)


def test_webp_has_a_longest_side() -> None:
    with pytest.raises(NotAcceptable, match="image/png"):
        encode_webp(np.zeros((1, 16384), np.uint8))


@pytest.mark.parametrize("array", [scene(3, 4), np.arange(6, dtype=np.int64), np.zeros((2, 3, 9), np.float32)])
def test_npy(array: NDArray[Any]) -> None:
    read = np.load(io.BytesIO(encode_npy(array)), allow_pickle=False)
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


@given(st.integers(1, 40).flatmap(lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=6)))
def test_rle_is_row_major_and_starts_with_zeros(rows: list[list[bool]]) -> None:
    mask = np.array(rows)
    runs = rle(np.packbits(mask, axis=1), mask.shape[1])
    assert sum(runs) == mask.size
    assert all(run > 0 for run in runs[1:])
    assert all(type(run) is int for run in runs)
    assert np.array_equal(np.repeat(np.arange(len(runs)) % 2 == 1, runs), mask.ravel())


@pytest.mark.parametrize(("mask", "runs"), [([[0, 0]], [2]), ([[1, 1]], [0, 2]), ([[0, 1, 1], [1, 0, 0]], [1, 3, 2])])
def test_rle_examples(mask: list[list[int]], runs: list[int]) -> None:
    assert rle(np.packbits(np.array(mask, np.uint8), axis=1), len(mask[0])) == runs
