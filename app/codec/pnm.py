"""PNM samples that Pillow reads one by one in Python, and rounds where 16 bits must be cut to 8: plain ones and odd maxvals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ImageFile

from app.codec.image import Pixels


def read_pnm(data: bytes, image: ImageFile.ImageFile, maxval: int) -> Pixels:
    """Samples as uint8 [h, w] or [h, w, 3], from where the header ends. Raises ValueError if some are missing or impossible.

    A maxval below 256 is stretched to 255. A larger one is stretched to 65535, then cut by v >> 8.
    """
    tile = image.tile[0]
    width, height = image.size
    shape = (height, width, 3) if image.mode == "RGB" else (height, width)
    values = (_plain if tile.codec_name == "ppm_plain" else _binary)(data, tile.offset, int(np.prod(shape)), maxval)
    full = 65535 if maxval > 255 else 255
    table = np.minimum(np.rint(np.arange(full + 1) / maxval * full), full).astype(np.uint16) >> (8 if maxval > 255 else 0)
    samples: Pixels = table.astype(np.uint8)[values].reshape(shape)
    return samples


def _binary(data: bytes, offset: int, count: int, maxval: int) -> NDArray[np.integer[Any]]:
    return np.frombuffer(data, ">u2" if maxval > 255 else "u1", count, offset)


def _plain(data: bytes, offset: int, count: int, maxval: int) -> NDArray[np.integer[Any]]:
    text = re.sub(rb"#[^\r\n]*", b" ", data[offset:])
    blank = np.frombuffer(b" " + text, np.uint8) <= ord(" ")
    starts = np.flatnonzero(blank[:-1] & ~blank[1:])
    end = int(starts[count]) if starts.size > count else None  # whatever follows the last sample is not read
    values = np.fromstring(text[:end], np.int64, sep=" ")
    if values.size != count or values.min() < 0 or values.max() > maxval:
        raise ValueError("samples are missing or out of range")
    return values
