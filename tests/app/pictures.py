"""Image files made in code: ordinary ones through Pillow, hostile ones byte by byte."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "ppm", "avif")


def scene(height: int = 48, width: int = 64, channels: int = 3) -> NDArray[np.uint8]:
    """A picture with smooth parts, edges, noise and no symmetry."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(height * 1000 + width).integers(0, 40, (height, width))
    planes = [(x * 3 + y) % 216 + noise, (y * 5) % 200 + noise, np.where(x > y, 230, 20) - noise // 4, (x * 7 + y * 2) % 256]
    image = np.stack(planes[:channels], axis=2).clip(0, 255).astype(np.uint8)
    return image[..., 0] if channels == 1 else image


def encoded(image: NDArray[Any] | Image.Image, form: str, **options: Any) -> bytes:
    """The picture as a file of one of FORMATS."""
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, form.upper(), **options)
    return stream.getvalue()


def exif(orientation: int) -> bytes:
    """An EXIF block that holds the orientation and nothing else."""
    tags = Image.Exif()
    tags[274] = orientation
    return tags.tobytes()


def xmp(orientation: int) -> bytes:
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def chunk(name: bytes, data: bytes) -> bytes:
    """One PNG chunk."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, color: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG of raw rows, each with its filter byte; `extra` chunks stand before the pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def gif(width: int, height: int, frames: int) -> bytes:
    """A GIF that announces width x height and holds frames of one pixel."""
    frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + frame * frames + b";"


def tiff(entries: list[tuple[int, int, int, int]], pixels: bytes, directories: int = 1) -> bytes:
    """A little-endian TIFF: `entries` are (tag, type, count, value), with the value of tag 273 set to where the pixels lie."""
    size = 2 + 12 * len(entries) + 4
    body = b""
    for number in range(directories):
        following = 8 + (number + 1) * size if number + 1 < directories else 0
        body += struct.pack("<H", len(entries))
        for tag, kind, count, value in entries:
            body += struct.pack("<HHII", tag, kind, count, 8 + directories * size if tag == 273 else value)
        body += struct.pack("<I", following)
    return b"II*\0" + struct.pack("<I", 8) + body + pixels


def grey_tiff(width: int, height: int, pixels: bytes, directories: int = 1) -> bytes:
    """An 8-bit grey TIFF in one strip."""
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 0)]
    return tiff([*entries, (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, len(pixels))], pixels, directories)
