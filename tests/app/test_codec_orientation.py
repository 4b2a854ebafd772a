"""Pictures come out upright, in every format and all eight orientations, and broken metadata costs nothing."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from pictures import chunk, encoded, exif, png, scene, xmp

from app.codec import DecodeOptions, decode
from app.codec.image import Pixels
from app.codec.orient import INVERSE, turned

RGB = DecodeOptions(pixels="rgb")
RAW = DecodeOptions(pixels="rgb", orient=False)

# What EXIF says lies at the top and at the left of the stored picture, carried out by hand.
UPRIGHT = {
    1: lambda stored: stored,
    2: np.fliplr,
    3: lambda stored: np.rot90(stored, 2),
    4: np.flipud,
    5: lambda stored: np.fliplr(np.rot90(stored, -1)),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.flipud(np.rot90(stored, -1)),
    8: np.rot90,
}


def check(data: bytes, stored: Pixels, orientation: int) -> None:
    upright = UPRIGHT[orientation](stored)
    pixels, info = decode(data, RGB)
    assert np.array_equal(pixels, upright)
    assert (info.orientation, info.oriented, info.height, info.width) == (orientation, True, *upright.shape[:2])
    pixels, info = decode(data, RAW)
    assert np.array_equal(pixels, stored)
    assert (info.orientation, info.oriented, info.height, info.width) == (orientation, False, *stored.shape[:2])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "tiff"])
def test_exif_orientation(form: str, orientation: int) -> None:
    data = encoded(scene(20, 36), form, exif=exif(orientation), **({"lossless": True} if form == "webp" else {}))
    stored = decode(encoded(scene(20, 36), "jpeg"), RGB)[0] if form == "jpeg" else scene(20, 36)
    check(data, stored, orientation)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif_orientation(orientation: int) -> None:
    stored = decode(encoded(scene(20, 36), "avif"), RGB)[0]
    check(encoded(scene(20, 36), "avif", exif=exif(orientation)), stored, orientation)


@pytest.mark.parametrize("form", ["jpeg", "webp"])
def test_xmp_orientation(form: str) -> None:
    options = {"lossless": True} if form == "webp" else {}
    stored = decode(encoded(scene(20, 36), form, **options), RGB)[0]
    check(encoded(scene(20, 36), form, xmp=xmp(6), **options), stored, 6)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", ["eXIf", "iTXt", "zTXt"])
def test_png_orientation_before_and_after_the_pixels(kind: str, *, late: bool) -> None:
    block = {
        "eXIf": chunk(b"eXIf", exif(8)[6:]),
        "iTXt": chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(8)),
        "zTXt": chunk(b"tEXt", b"Raw profile type exif\0\nexif\n%8d\n" % len(exif(8)) + exif(8).hex().encode()),
    }[kind]
    image = scene(4, 7, 1)
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    data = png(7, 4, 8, 0, rows, *([] if late else [block]))
    if late:
        data = data[:-12] + block + data[-12:]
    check(data, np.repeat(image[..., None], 3, axis=2), 8)


def test_cameras_that_opencv_turns_are_turned_alike(shared_images: Path) -> None:
    for number in range(1, 9):
        data = (shared_images / "orientation" / f"Portrait_{number}.jpg").read_bytes()
        grey, info = decode(data, DecodeOptions())
        assert info.orientation == number
        assert np.array_equal(grey, cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE))


@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0",
        b"Exif\0\0garbage",
        b"Exif\0\0MM\0*\0\0\0\x08\0\xff" + b"\xff" * 40,
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        exif(0),
        exif(9),
        exif(6)[:-8],
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x04up\0\0\0\0\0\0",  # an orientation in words
    ],
    ids=["empty", "garbage", "too many tags", "far away", "zero", "nine", "cut", "words"],
)
def test_broken_exif_costs_nothing(block: bytes) -> None:
    stored = decode(encoded(scene(20, 36), "jpeg"), RGB)[0]
    for form, options in (("jpeg", {}), ("webp", {"lossless": True})):
        pixels, info = decode(encoded(scene(20, 36), form, exif=block, **options), RGB)
        assert info.orientation == 1
        assert np.array_equal(pixels, stored if form == "jpeg" else scene(20, 36))


def test_a_large_picture_is_turned_in_strips() -> None:
    image = scene(300, 700)
    data = encoded(image, "png", exif=exif(6))
    assert np.array_equal(decode(data, RGB)[0], np.rot90(image, -1))


def test_an_orientation_and_its_inverse_give_the_picture_back() -> None:
    image = scene(3, 5)
    for orientation, inverse in INVERSE.items():
        assert np.array_equal(turned(turned(image, orientation), inverse), image)
