"""Bytes to 8-bit grey or RGB pixels: sniffed, probed, then decoded, oriented and composited by the written rules."""

from __future__ import annotations

import re
import warnings

import numpy as np
import simplejpeg
from PIL import Image

from app.codec.convert import CMYK, to_pixels
from app.codec.formats import identify
from app.codec.image import Allocate, DecodeOptions, ImageInfo, Pixels
from app.codec.orient import INVERSE, place
from app.codec.probe import read_header, read_orientation, too_many_pixels
from app.problems import ImageUnreadable, Problem


def _empty(shape: tuple[int, ...]) -> Pixels:
    return np.empty(shape, np.uint8)


def decode(data: bytes, options: DecodeOptions, allocate: Allocate = _empty) -> tuple[Pixels, ImageInfo]:
    """The first frame as uint8 [h, w] or [h, w, 3], C-contiguous, in an array that `allocate` made.

    Raises UnsupportedMediaType, ImageTooLarge (from the header, before anything is decoded) or ImageUnreadable, and nothing else.
    """
    name = identify(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata is no reason to refuse a picture
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _decode(data, name, options, allocate)
    except Problem:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as bomb:
        announced = re.search(r"\((\d+) pixels", str(bomb))
        raise too_many_pixels(int(announced[1]) if announced else None, options) from None
    except MemoryError:
        raise ImageUnreadable(
            f"Decoding this {name.upper()} image takes more memory than one image may. Scale it down, or save it plainly: 8 bits a "
            "sample, not progressive, without alpha.",
            setting="VISION_DECODE_MEMORY_BYTES",
        ) from None
    except Exception as error:  # codecs raise whatever they like on hostile bytes
        what = "ends before its last pixel" if "truncated" in str(error) else "is damaged"
        raise ImageUnreadable(f"The {name.upper()} image {what}. Save or upload it again.") from None


def _decode(data: bytes, name: str, options: DecodeOptions, allocate: Allocate) -> tuple[Pixels, ImageInfo]:
    header = read_header(data, name, options)
    image, mode = header.image, header.image.mode
    if name == "png":
        image.load()  # its metadata may stand after the pixels; Pillow would decode them to find it, and hide what is wrong with them
    orientation = read_orientation(image)
    turn = orientation if options.orient else 1
    pixels = _libjpeg(data, image.size, options, _empty if turn > 1 else allocate) if name == "jpeg" else None
    notes = [CMYK] if mode == "CMYK" else []
    if pixels is None:
        pixels, notes = to_pixels(data, header, options)
        if name == "tiff":  # Pillow has oriented it already
            turn = 1 if options.orient else INVERSE[orientation]
        pixels = place(pixels, turn, options.pixels, allocate)
    elif turn > 1:
        pixels = place(pixels, turn, options.pixels, allocate)
    height, width = pixels.shape[:2]
    info = ImageInfo(name, width, height, mode, header.depth, header.frames, orientation, options.orient, tuple(notes))
    return pixels, info


def _libjpeg(data: bytes, size: tuple[int, int], options: DecodeOptions, allocate: Allocate) -> Pixels | None:
    """The luma plane or RGB, as OpenCV shows them, before orientation. None where libjpeg has the least complaint.

    Many harmless files make it complain, and so do truncated ones; Pillow, which is slower, tells them apart.
    """
    width, height = size
    grey = options.pixels == "grey"
    pixels = allocate((height, width) if grey else (height, width, 3))
    try:
        found = simplejpeg.decode_jpeg(data, "GRAY" if grey else "RGB", buffer=pixels)
    except ValueError:
        return None
    return pixels if found.shape[:2] == (height, width) else None
