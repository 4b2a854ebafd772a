"""Bombs are refused from the header: at once, in flat memory, with the limit that they hit."""

from __future__ import annotations

import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from pictures import chunk, encoded, gif, grey_tiff, png, scene
from PIL import ImageFile

from app.codec import DecodeOptions, decode
from app.codec.frames import gif_frames, tiff_frames
from app.problems import ImageTooLarge, ImageUnreadable, Problem

OPTIONS = DecodeOptions()


def jpeg_announcing(width: int, height: int) -> bytes:
    """A real JPEG whose header is changed to announce another size."""
    data = bytearray(encoded(scene(), "jpeg"))
    at = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, at + 5, height, width)
    return bytes(data)


def webp_announcing(width: int, height: int) -> bytes:
    payload = b"VP8X" + struct.pack("<I", 10) + b"\x10\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", 4 + len(payload)) + b"WEBP" + payload


def bmp_announcing(width: int, height: int) -> bytes:
    data = bytearray(encoded(scene(), "bmp"))
    struct.pack_into("<ii", data, 18, width, height)
    return bytes(data)


TOO_MANY_PIXELS = {
    "gif of 4 gigapixels": (gif(65535, 65535, 1), 65535**2),
    "png of 2**32 pixels": (png(65536, 65536, 8, 0, b""), 2**32),
    "jpeg of 280 megapixels": (jpeg_announcing(20000, 14000), 280_000_000),
    "progressive jpeg of 60 megapixels": (jpeg_announcing(10000, 6000), 60_000_000),
    "webp of 268 megapixels": (webp_announcing(16383, 16383), 16383**2),
    "bmp of 6 terapixels": (bmp_announcing(3_000_000, 2_000_000), 6 * 10**12),
    "tiff of 2**62 pixels": (grey_tiff(2**31 - 1, 2**31 - 1, b"\0"), (2**31 - 1) ** 2),
    "ppm of 10**18 pixels": (b"P6 999999999 999999999 255\n", 999_999_999**2),
    "one pixel more": (png(10001, 4000, 1, 0, b""), 10001 * 4000),
}


def quickest(attempt: Callable[[], object]) -> float:
    """Seconds of processor time, the best of three: what other processes do does not count."""
    times = []
    for _ in range(3):
        started = time.process_time()
        attempt()
        times.append(time.process_time() - started)
    return min(times)


def refusal(data: bytes, options: DecodeOptions = OPTIONS) -> Problem:
    with pytest.raises(Problem) as caught:
        decode(data, options)
    return caught.value


@pytest.mark.parametrize(("data", "pixels"), TOO_MANY_PIXELS.values(), ids=TOO_MANY_PIXELS)
def test_too_many_pixels(data: bytes, pixels: int) -> None:
    problem = refusal(data)
    assert isinstance(problem, ImageTooLarge)
    assert (problem.limit, problem.measured, problem.setting) == (40_000_000, pixels, "VISION_MAX_PIXELS")


@pytest.mark.parametrize("data", [data for data, _ in TOO_MANY_PIXELS.values()], ids=TOO_MANY_PIXELS)
def test_a_bomb_is_refused_in_20_ms_and_flat_memory(data: bytes) -> None:
    refusal(data)  # the first of a kind imports its plugin
    tracemalloc.start()
    try:
        refusal(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(data) + (1 << 20)
    assert quickest(lambda: refusal(data)) < 0.02


def test_too_long_a_side() -> None:
    problem = refusal(png(16385, 1, 8, 0, b""))
    assert isinstance(problem, ImageTooLarge)
    assert (problem.limit, problem.measured, problem.setting) == (16384, 16385, "VISION_MAX_SIDE")


def test_the_limits_themselves_are_allowed() -> None:
    options = DecodeOptions(max_pixels=48 * 64, max_side=64)
    pixels, _ = decode(encoded(scene(48, 64), "png"), options)
    assert pixels.shape == (48, 64)


def test_a_later_frame_beyond_the_limit_costs_nothing() -> None:
    frame = b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x44\x01\x00;"
    pixels, info = decode(gif(4, 4, 1)[:-1] + frame, OPTIONS)
    assert (pixels.shape, info.frames) == ((4, 4), 2)


def test_a_first_frame_beyond_its_screen_is_measured() -> None:
    frame = b"," + struct.pack("<HHHHB", 0, 0, 60000, 60000, 0) + b"\x02\x02\x44\x01\x00;"
    assert isinstance(refusal(gif(4, 4, 0)[:-1] + frame), ImageTooLarge)


@pytest.mark.parametrize(
    "data",
    [
        png(0, 5, 8, 0, b""),
        gif(0, 0, 0),
        jpeg_announcing(5, 0),
        jpeg_announcing(0, 5),
        b"P5 0 4 255\n",
        b"P5 -3 4 255\n" + bytes(12),
        bmp_announcing(0, 4),
        grey_tiff(0, 4, b"\0"),
    ],
)
def test_no_pixels_is_unreadable(data: bytes) -> None:
    assert isinstance(refusal(data), ImageUnreadable)


@pytest.mark.parametrize("before", ["zTXt", "iTXt", "iCCP"])
@pytest.mark.parametrize("broken", [False, True])
def test_compressed_text_bombs_are_refused_quickly(before: str, *, broken: bool) -> None:
    head = {"zTXt": b"k\0\0", "iTXt": b"k\0\x01\0\0\0", "iCCP": b"k\0\0"}[before]
    bomb = zlib.compress(bytes(1 << 20), 9)
    bomb = bomb[:-4] + b"oops" if broken else bomb
    many = png(1, 1, 8, 0, b"\0\0", *[chunk(before.encode(), head + bomb)] * 2000)
    problem = refusal(many)
    assert isinstance(problem, ImageUnreadable)
    assert problem.limit == 2 << 20
    assert quickest(lambda: refusal(many)) < 0.02
    one = png(1, 1, 8, 0, b"\0\0", chunk(before.encode(), head + zlib.compress(bytes(1 << 26), 9)))
    assert isinstance(refusal(one), ImageUnreadable)
    assert quickest(lambda: refusal(one)) < 0.02


def test_ordinary_texts_and_profiles_are_no_bombs() -> None:
    texts = [
        chunk(b"iCCP", b"sRGB\0\0" + zlib.compress(bytes(300_000))),
        chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"hello" * 100_000)),
        chunk(b"zTXt", b"Broken\0\0nonsense"),
        chunk(b"iTXt", b"Plain\0\0\0\0\0" + b"x" * 3_000_000),
        chunk(b"tEXt", b"Long\0" + b"y" * 3_000_000),
        chunk(b"tEXt", b"no separator"),
        chunk(b"iTXt", b"cut"),
    ]
    assert decode(png(1, 1, 8, 0, b"\0\x07", *texts), OPTIONS)[0].tolist() == [[7]]


def test_a_png_of_very_many_chunks_is_refused() -> None:
    assert isinstance(refusal(png(1, 1, 8, 0, b"\0\0", *[chunk(b"prVt", b"")] * 70_000)), ImageUnreadable)


def test_a_progressive_jpeg_of_very_many_scans_is_refused() -> None:
    data = encoded(scene(), "jpeg", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    assert decode(data, OPTIONS)[0].shape == (48, 64)
    problem = refusal(data[:-2] + scan * 200 + data[-2:])
    assert isinstance(problem, ImageUnreadable)
    assert problem.limit == 100


@pytest.mark.parametrize("make", [lambda frames: gif(1, 1, frames), lambda frames: grey_tiff(1, 1, b"\x07", frames)], ids=["gif", "tiff"])
def test_frames_are_counted_up_to_their_limit(make: Callable[[int], bytes]) -> None:
    assert decode(make(1000), OPTIONS)[1].frames == 1000
    data = make(10_000)
    problem = refusal(data)
    assert isinstance(problem, ImageTooLarge)
    assert (problem.limit, problem.measured, problem.setting) == (1000, 1001, "VISION_MAX_FRAMES")
    assert quickest(lambda: refusal(data)) < 0.02


def test_an_animated_png_of_very_many_frames_is_refused() -> None:
    data = png(1, 1, 8, 0, b"\0\0", chunk(b"acTL", struct.pack(">II", 10_000, 0)))
    assert refusal(data).setting == "VISION_MAX_FRAMES"


def test_counting_frames_ends_on_a_loop_and_on_hostile_blocks() -> None:
    loop = bytearray(grey_tiff(1, 1, b"\x07", 3))
    size = 2 + 12 * 9 + 4
    struct.pack_into("<I", loop, 8 + 3 * size - 4, 8)
    assert tiff_frames(bytes(loop), 100) == 3
    assert gif_frames(gif(1, 1, 2)[:-3], 100) == 2
    assert gif_frames(b"GIF89a", 100) == 1
    blocks = gif(1, 1, 1)[:-2] + b"\x01\x00" * (10 << 20)
    started = time.process_time()
    gif_frames(blocks, 100)
    assert time.process_time() - started < 1


def test_truncated_files_are_never_loaded_in_part() -> None:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    assert np.array_equal(decode(encoded(scene(), "bmp"), DecodeOptions(pixels="rgb"))[0], scene())
