"""Whatever the bytes are, the codec gives pixels or one of its three problems, and is done soon."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import FORMATS, encoded, exif, scene, xmp
from PIL import Image

from app.codec import DecodeOptions, decode
from app.problems import ImageTooLarge, ImageUnreadable, UnsupportedMediaType

OPTIONS = DecodeOptions(pixels="rgb", max_pixels=1 << 18)
MAGIC = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"MM\0+", b"P3 ", b"P5\n", b"\0\0\0\x1cftypavif"]


@cache
def originals(form: str) -> list[bytes]:
    """Files of the format in several layouts."""
    image = scene(24, 32)
    files = [encoded(image, form)]
    palette = Image.fromarray(image).convert("P", palette=Image.Palette.ADAPTIVE)
    alpha = Image.fromarray(scene(24, 32, 4))
    if form == "jpeg":
        files += [encoded(image, form, progressive=True, exif=exif(6), xmp=xmp(3)), encoded(scene(24, 32, 1), form)]
        files.append(encoded(Image.fromarray(image).convert("CMYK"), form))
    elif form == "png":
        files += [
            encoded(palette, form, transparency=3),
            encoded(alpha, form, exif=exif(5)),
            encoded(scene(9, 9, 1).astype(np.uint16), form),
        ]
        files.append(encoded(image, form, save_all=True, append_images=[Image.fromarray(255 - image)]))
    elif form == "gif":
        files.append(encoded(palette, form, save_all=True, append_images=[palette.transpose(Image.Transpose.ROTATE_180)], transparency=0))
    elif form == "tiff":
        files += [encoded(image, form, compression=each) for each in ("tiff_lzw", "jpeg", "tiff_adobe_deflate", "packbits")]
        files += [encoded(palette, form), encoded(alpha, form), encoded(Image.fromarray(image).convert("1"), form, compression="group4")]
    elif form in ("webp", "avif"):
        files += [encoded(alpha, form, exif=exif(7)), encoded(image, form, save_all=True, append_images=[Image.fromarray(255 - image)])]
    elif form == "ppm":
        files += [
            encoded(Image.fromarray(image).convert("1"), form),
            b"P3 2 2 255 " + b"7 " * 12,
            b"P6 2 1 999\n" + bytes(12),
            b"P1 3 1 101",
        ]
    elif form == "bmp":
        files += [encoded(palette, form), encoded(alpha, form)]
    return files


def survives(data: bytes) -> None:
    try:
        pixels, info = decode(data, OPTIONS)
    except (ImageUnreadable, ImageTooLarge, UnsupportedMediaType):
        pass
    else:
        assert pixels.shape == (info.height, info.width, 3)
        assert pixels.flags.c_contiguous
        assert info.orientation in range(1, 9)
        assert info.frames >= 1


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_files(form: str, data: st.DataObject) -> None:
    file = bytearray(data.draw(st.sampled_from(originals(form))))
    for _ in range(data.draw(st.integers(1, 4))):
        # Headers are short: half of the damage is done in the first hundred bytes.
        at = data.draw(st.integers(2, min(len(file), 100)) | st.integers(2, max(2, len(file))))
        match data.draw(st.sampled_from(["cut", "flip", "insert", "delete", "repeat"])):
            case "cut":
                del file[at:]
            case "flip":
                file[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "insert":
                file[at:at] = data.draw(st.binary(max_size=9))
            case "delete":
                del file[at : at + data.draw(st.integers(1, 40))]
            case "repeat":
                file[at:at] = file[at : at + data.draw(st.integers(1, 200))]
    survives(bytes(file))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(MAGIC), st.binary(max_size=200))
def test_garbage_behind_a_magic_number(magic: bytes, rest: bytes) -> None:
    survives(magic + rest)


@pytest.mark.parametrize("form", FORMATS)
def test_every_truncation_is_an_answer(form: str) -> None:
    for file in originals(form):
        for length in range(0, len(file), 1 + len(file) // 60):
            survives(file[:length])
