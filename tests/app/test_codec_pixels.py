"""Pixels are made by the written rules: as OpenCV makes them from a JPEG, and for everything else by hand from the samples."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import chunk, encoded, png, scene, tiff
from PIL import Image

from app.codec import DecodeOptions, decode
from app.codec.image import Pixels
from app.problems import ImageUnreadable

GREY, RGB = DecodeOptions(pixels="grey"), DecodeOptions(pixels="rgb")
PINK = (250, 40, 130)
ON_PINK = DecodeOptions(pixels="rgb", background=PINK)
TRANSPARENT = np.array([0, 1, 99, 128, 254, 255])


def opencv(data: bytes, flag: int) -> Pixels:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    assert image is not None
    return image[..., ::-1] if image.ndim == 3 else image


def luma(rgb: NDArray[Any]) -> NDArray[Any]:
    red, green, blue = (rgb[..., channel].astype(np.int64) for channel in range(3))
    return (9798 * red + 19235 * green + 3735 * blue + 16384) >> 15


def over(color: NDArray[Any], alpha: NDArray[Any], background: tuple[int, int, int]) -> NDArray[Any]:
    """Each value rounded once, halves up."""
    mixed = color.astype(np.int64) * alpha[..., None] + np.array(background) * (255 - alpha[..., None].astype(np.int64))
    return (2 * mixed + 255) // 510


def check(data: bytes, expected: NDArray[Any], options: DecodeOptions = RGB) -> tuple[str, ...]:
    """RGB pixels are `expected`, grey ones their luma. Returns what was converted."""
    expected = np.repeat(expected[..., None], 3, axis=2) if expected.ndim == 2 else expected
    pixels, info = decode(data, options)
    assert (info.height, info.width) == expected.shape[:2]
    assert np.array_equal(pixels, expected)
    grey, _ = decode(data, DecodeOptions(pixels="grey", background=options.background))
    assert np.array_equal(grey, luma(expected))
    return info.converted


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (16, 16), (97, 131)])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("extra", [{}, {"progressive": True}, {"quality": 12}, {"restart_marker_blocks": 2}], ids=str)
def test_jpeg_is_what_opencv_decodes(size: tuple[int, int], subsampling: int, extra: dict[str, Any]) -> None:
    data = encoded(scene(*size), "jpeg", subsampling=subsampling, **extra)
    assert np.array_equal(decode(data, GREY)[0], opencv(data, cv2.IMREAD_GRAYSCALE))
    assert np.array_equal(decode(data, RGB)[0], opencv(data, cv2.IMREAD_COLOR))


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_jpeg_in_other_color_spaces_is_what_opencv_decodes(mode: str) -> None:
    image = Image.fromarray(scene()).convert(mode)
    data = encoded(image, "jpeg", **({"keep_rgb": True} if mode == "RGB" else {}))
    pixels, info = decode(data, GREY)
    assert info.mode == mode
    assert np.array_equal(pixels, opencv(data, cv2.IMREAD_GRAYSCALE))
    assert np.array_equal(decode(data, RGB)[0], opencv(data, cv2.IMREAD_COLOR))
    assert any("CMYK" in note for note in info.converted) == (mode == "CMYK")


def test_a_jpeg_that_makes_libjpeg_complain_is_still_what_opencv_decodes() -> None:
    data = encoded(scene(), "jpeg")
    middle = data.index(b"\xff\xdb")
    stray = data[:middle] + b"\0\0\0" + data[middle:]
    for options, flag in ((GREY, cv2.IMREAD_GRAYSCALE), (RGB, cv2.IMREAD_COLOR)):
        assert np.array_equal(decode(stray, options)[0], opencv(data, flag))


def test_photos_are_what_opencv_decodes(shared_images: Path) -> None:
    photos = sorted((shared_images / "photos").glob("*.jpg"))
    assert len(photos) >= 10
    for photo in photos:
        data = photo.read_bytes()
        raw = DecodeOptions(pixels="grey", orient=False)
        assert np.array_equal(decode(data, raw)[0], opencv(data, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION)), photo.name
        assert np.array_equal(decode(data, GREY)[0], opencv(data, cv2.IMREAD_GRAYSCALE)), photo.name
        assert np.array_equal(decode(data, RGB)[0], opencv(data, cv2.IMREAD_COLOR)), photo.name


@pytest.mark.parametrize("form", ["png", "bmp", "tiff", "ppm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_lossless_formats_give_the_samples(form: str, channels: int) -> None:
    image = scene(channels=channels)
    assert check(encoded(image, form), image) == ()


def test_lossless_webp_gives_the_samples() -> None:
    image = scene()
    check(encoded(image, "webp", lossless=True), image)


def test_an_animation_is_its_first_frame() -> None:
    frames = [Image.fromarray(scene(20, 30) // part) for part in (1, 2, 3)]
    for form in ("png", "webp"):
        data = encoded(frames[0], form, save_all=True, append_images=frames[1:], lossless=True)
        check(data, scene(20, 30))
        assert decode(data, GREY)[1].frames == 3


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_grey_png_of_every_depth(depth: int) -> None:
    samples = np.arange(16) % (1 << depth) if depth < 16 else np.arange(16) * 4300 + 255
    key = int(samples[5])
    full = (1 << min(depth, 8)) - 1
    grey = samples >> 8 if depth == 16 else samples * 255 // full
    rows = _packed(samples[None], depth)
    assert check(png(16, 1, depth, 0, rows), grey[None]) == (("16-bit samples cut to 8 (v >> 8)",) if depth == 16 else ())
    keyed = png(16, 1, depth, 0, rows, chunk(b"tRNS", struct.pack(">H", key)))
    expected = np.where((samples == key)[:, None], PINK, grey[:, None])
    assert "alpha composited on #fa2882" in check(keyed, expected[None], ON_PINK)


@pytest.mark.parametrize("depth", [8, 16])
def test_rgb_png_with_one_transparent_color(depth: int) -> None:
    high = np.array([[10, 20, 30], [10, 20, 30], [10, 20, 31]])
    low = np.array([[1, 2, 3], [1, 2, 4], [1, 2, 3]])
    samples = high * 256 + low if depth == 16 else high
    data = png(3, 1, depth, 2, _packed(samples.reshape(1, -1), depth), chunk(b"tRNS", struct.pack(">HHH", *samples[0].tolist())))
    clear = (samples == samples[0]).all(axis=1)
    assert clear.tolist() == ([True, False, False] if depth == 16 else [True, True, False])
    check(data, np.where(clear[:, None], PINK, high)[None], ON_PINK)


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("channels", [2, 4])
@pytest.mark.parametrize("background", [(255, 255, 255), PINK])
def test_png_with_alpha(depth: int, channels: int, background: tuple[int, int, int]) -> None:
    color = np.array([0, 1, 77, 128, 254, 255])
    samples = np.stack(np.meshgrid(color, TRANSPARENT, indexing="ij"), -1).reshape(-1, 2)
    if channels == 4:
        samples = np.column_stack([samples[:, 0], 255 - samples[:, 0], samples[:, 0] // 2, samples[:, 1]])
    data = png(len(samples), 1, depth, 4 if channels == 2 else 6, _packed((samples * (257 if depth == 16 else 1)).reshape(1, -1), depth))
    rgb = samples[:, [0, 0, 0]] if channels == 2 else samples[:, :3]
    check(data, over(rgb, samples[:, -1], background)[None], DecodeOptions(pixels="rgb", background=background))


@pytest.mark.parametrize("alpha", [b"\x00", b"\xff\x00", b"\x80\x20\xff", b""], ids=["first", "second", "partial", "none"])
@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_palette_png(depth: int, alpha: bytes) -> None:
    colors = np.random.default_rng(depth).integers(0, 256, (1 << depth, 3))
    indices = np.arange(32) % (1 << depth)
    given = np.array([*alpha[: 1 << depth], *[255] * 256])[indices]
    extra = [chunk(b"PLTE", colors.astype(np.uint8).tobytes()), *([chunk(b"tRNS", alpha[: 1 << depth])] if alpha else [])]
    notes = check(png(32, 1, depth, 3, _packed(indices[None], depth), *extra), over(colors[indices], given, PINK)[None], ON_PINK)
    assert notes[0] == "palette expanded"
    assert len(notes) == 1 + (given.min() < 255)


def test_gif_with_a_transparent_index() -> None:
    image = Image.fromarray(np.array([[0, 1, 2]], np.uint8))
    image.putpalette([9, 8, 7, 60, 50, 40, 200, 210, 220])
    check(encoded(image, "gif", transparency=1), np.array([[(9, 8, 7), PINK, (200, 210, 220)]]), ON_PINK)


@pytest.mark.parametrize("form", ["webp", "tiff", "avif"])
def test_alpha_of_other_formats(form: str) -> None:
    image = scene(16, 24, 4)
    image[:4] = [10, 20, 30, 0]
    data = encoded(
        image, form, **{"webp": {"lossless": True, "exact": True}, "avif": {"quality": 100, "subsampling": "4:4:4"}}.get(form, {})
    )
    pixels, info = decode(data, ON_PINK)
    tolerance = 8 if form == "avif" else 0
    assert np.abs(pixels - over(image[..., :3], image[..., 3], PINK)).max() <= tolerance
    assert info.converted == ("alpha composited on #fa2882",)


def test_text_called_transparency_is_text() -> None:
    check(png(2, 1, 8, 0, b"\0\x05\x06", chunk(b"tEXt", b"transparency\0yes")), np.array([[5, 6]]))


@pytest.mark.parametrize(
    ("bits", "kind", "samples", "expected"),
    [
        (16, 1, np.array([0, 255, 256, 40000, 65535], "<u2"), [0, 0, 1, 156, 255]),
        (16, 2, np.array([-5, 255, 256, 32767, -32768], "<i2"), [0, 0, 1, 127, 0]),
        (32, 1, np.array([0, 1, 1 << 24, 3 << 30, (1 << 32) - 1], "<u4"), [0, 0, 1, 192, 255]),
        (32, 3, np.array([-1, 0.49, 77.5, 300, np.nan], "<f4"), [0, 0, 78, 255, 0]),
    ],
    ids=["unsigned 16", "signed 16", "unsigned 32", "float"],
)
def test_deep_tiff(bits: int, kind: int, samples: NDArray[Any], expected: list[int]) -> None:
    raw = samples.tobytes()
    entries = [(256, 4, 1, 5), (257, 4, 1, 1), (258, 3, 1, bits), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 0), (277, 3, 1, 1)]
    data = tiff([*entries, (278, 4, 1, 1), (279, 4, 1, len(raw)), (339, 3, 1, kind)], raw)
    assert len(check(data, np.array([expected]))) == 1
    assert decode(data, GREY)[1].depth == bits


def test_cmyk_tiff_is_converted_without_color_management() -> None:
    cmyk = np.array([[[0, 0, 0, 0], [255, 0, 0, 0], [0, 0, 0, 255], [10, 20, 30, 40]]], np.uint8)
    notes = check(encoded(Image.fromarray(cmyk, "CMYK"), "tiff"), np.array([[(255,) * 3, (0, 255, 255), (0, 0, 0), (207, 198, 190)]]))
    assert notes == ("CMYK to RGB without color management",)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"P1 3 2 101 0\n10", [[0, 255, 0], [255, 0, 255]]),
        (b"P2 # half\n2 1 15\n3 # a comment\n15", [[51, 255]]),
        (b"P2 2 1 65535 255 65535", [[0, 255]]),
        (b"P3 1 1 65535 256 512 65535", [[(1, 2, 255)]]),
        (b"P2 1 1 255 7 P2 and something else", [[7]]),
        (b"P5 3 1 7\n\x00\x03\x09", [[0, 109, 255]]),
        (b"P5 2 1 1023\n\x02\x00\x03\xff", [[128, 255]]),
        (b"P6 1 1 65535\n\x01\xff\x02\x00\xff\xff", [[(1, 2, 255)]]),
        (b"P4 3 1\n\xa0", [[0, 255, 0]]),
    ],
)
def test_pnm(data: bytes, expected: list[Any]) -> None:
    check(data, np.array(expected))


@pytest.mark.parametrize(
    "data",
    [
        b"P2 2 1 15 3",
        b"P2 2 1 15 3 16",
        b"P2 1 1 15 -1",
        b"P2 1 1 15 99999999999999999999",
        b"P3 1 1 255 1 x 2",
        b"P5 3 1 7\n\0\0",
        b"P6 1 1 65535\n\0\0\0\0",
    ],
)
def test_pnm_with_samples_missing_or_impossible(data: bytes) -> None:
    with pytest.raises(ImageUnreadable, match="Save or upload it again"):
        decode(data, GREY)


def test_pixels_go_where_the_caller_wants_them() -> None:
    made: list[Pixels] = []

    def allocate(shape: tuple[int, ...]) -> Pixels:
        made.append(np.zeros(shape, np.uint8))
        return made[-1]

    for form in ("jpeg", "png"):
        pixels, _ = decode(encoded(scene(), form), GREY, allocate)
        assert pixels is made[-1]
        assert pixels.flags.c_contiguous


def _packed(samples: NDArray[Any], depth: int) -> bytes:
    """PNG rows without a filter."""
    if depth == 16:
        rows: NDArray[Any] = samples.astype(">u2").view(np.uint8)
    elif depth == 8:
        rows = samples.astype(np.uint8)
    else:
        bits = samples.astype(np.uint8)[..., None] >> np.arange(depth - 1, -1, -1) & 1
        rows = np.packbits(bits.reshape(len(samples), -1), axis=1)
    return b"".join(b"\0" + row.tobytes() for row in rows)
