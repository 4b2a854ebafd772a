"""The image format from the first bytes. The declared media type is never trusted."""

from __future__ import annotations

from importlib.util import find_spec

from app.problems import UnsupportedMediaType

HEIC_INSTALLED = find_spec("pillow_heif") is not None  # the extra `heic`
ACCEPTED = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "PNM", "AVIF", *(("HEIC",) if HEIC_INSTALLED else ()))

_MAGIC = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II\0*", "tiff"),  # byte order and version that contradict each other, as some cameras write them
    (b"MM*\0", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
)
_AVIF = {b"avif", b"avis"}
_HEIC = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_MOST_BRANDS = 64


def sniff(data: bytes) -> str | None:
    """One of "jpeg", "png", "webp", "gif", "bmp", "tiff", "ppm", "avif" or "heic"; None for anything else."""
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:1] == b"P" and data[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6"):
        return "ppm"
    if data[4:8] == b"ftyp":
        return _brand(data)
    return None


def identify(data: bytes) -> str:
    """The format of an accepted image. Raises UnsupportedMediaType, which names the accepted formats."""
    name = sniff(data)
    formats = ", ".join(ACCEPTED)
    if name == "heic" and not HEIC_INSTALLED:
        raise UnsupportedMediaType(
            "The bytes are a HEIC image, which this service reads only when it is installed with its extra `heic` (visionbatch[heic]). "
            f"Convert the image to one of {formats}."
        )
    if name is None:
        raise UnsupportedMediaType(f"The bytes are no accepted image, whatever their Content-Type. Send one of {formats}.")
    return name


def _brand(data: bytes) -> str | None:
    """The format of an ISO base media file: AVIF wins where a file is compatible with both."""
    end = min(int.from_bytes(data[:4], "big"), 16 + 4 * _MOST_BRANDS)
    major = data[8:12]
    brands = {major, *(data[at : at + 4] for at in range(16, end, 4))}
    if major in _AVIF or (major in {b"mif1", b"msf1"} and brands & _AVIF):
        return "avif"
    return "heic" if brands & _HEIC else None
