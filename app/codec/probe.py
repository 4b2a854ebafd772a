"""The header of an image, read before anything is decoded: format, size, frames, depth, all under limits."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from app.codec.chunks import check_chunks
from app.codec.formats import HEIC_INSTALLED
from app.codec.frames import gif_frames, tiff_frames
from app.codec.image import DecodeOptions
from app.problems import ImageTooLarge, ImageUnreadable

# Imported by name, so that Pillow never goes looking through its other plugins (43 of them, PostScript included).
_PLUGINS = {
    "jpeg": JpegImagePlugin.JpegImageFile.format,  # a multi-picture file comes in as JPEG and calls itself MPO afterwards
    "png": PngImagePlugin.PngImageFile.format,
    "webp": WebPImagePlugin.WebPImageFile.format,
    "gif": GifImagePlugin.GifImageFile.format,
    "bmp": BmpImagePlugin.BmpImageFile.format,
    "tiff": TiffImagePlugin.TiffImageFile.format,
    "ppm": PpmImagePlugin.PpmImageFile.format,
    "avif": AvifImagePlugin.AvifImageFile.format,
}
if HEIC_INSTALLED:
    import pillow_heif

    pillow_heif.register_heif_opener()
    pillow_heif.options.DECODE_THREADS = 1
    _PLUGINS["heic"] = "HEIF"

AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # there is a decoder process a core already

MOST_SCANS = 100  # of a progressive JPEG: encoders write about ten, and each costs a pass over the whole picture
_ORIENTATION = 274
_BITS_PER_SAMPLE = 258


@dataclass(frozen=True, slots=True)
class Header:
    """An opened image that nothing was decoded of yet."""

    image: ImageFile.ImageFile
    format: str
    frames: int
    depth: int


def read_header(data: bytes, name: str, options: DecodeOptions) -> Header:
    """Open `data` as the sniffed format `name`. Raises ImageTooLarge, ImageUnreadable, or what Pillow raises on a broken header."""
    if name == "png":
        check_chunks(data)
    # Pillow warns at this many pixels, here and before it allocates for a frame; `decode` makes the warning an error.
    Image.MAX_IMAGE_PIXELS = options.max_pixels
    image = Image.open(io.BytesIO(data), formats=[_PLUGINS[name]])
    check_size(image.size, options)
    if name == "jpeg" and image.info.get("progressive") and data.count(b"\xff\xda") > MOST_SCANS:
        raise ImageUnreadable(f"The progressive JPEG has more than {MOST_SCANS} scans. Save it as a baseline JPEG.", limit=MOST_SCANS)
    frames = _frames(image, data, name, options.max_frames + 1)
    if frames > options.max_frames:
        raise ImageTooLarge(
            f"The file holds more than {options.max_frames:,} frames, though only the first is used. Send that one alone.",
            limit=options.max_frames,
            measured=frames,
            setting="VISION_MAX_FRAMES",
        )
    return Header(image, name, frames, _depth(image, data, name))


def check_size(size: tuple[int, int], options: DecodeOptions) -> None:
    """Raise ImageTooLarge if width x height passes a limit, ImageUnreadable if there is no pixel."""
    width, height = size
    if width <= 0 or height <= 0:
        raise ImageUnreadable("The image's header announces no pixels. Save the image again.")
    if width * height > options.max_pixels:
        raise too_many_pixels(width * height, options)
    if max(width, height) > options.max_side:
        raise ImageTooLarge(
            f"The image is {width} x {height}; a side may have at most {options.max_side:,} pixels. Scale it down or cut it.",
            limit=options.max_side,
            measured=max(width, height),
            setting="VISION_MAX_SIDE",
        )


def too_many_pixels(measured: int | None, options: DecodeOptions) -> ImageTooLarge:
    """The problem of an image above the pixel limit."""
    has = "more pixels than that" if measured is None else f"{measured:,}"
    return ImageTooLarge(
        f"The image may have at most {options.max_pixels:,} pixels; its header announces {has}. Scale it down before sending it.",
        limit=options.max_pixels,
        measured=measured,
        setting="VISION_MAX_PIXELS",
    )


def _frames(image: ImageFile.ImageFile, data: bytes, name: str, cap: int) -> int:
    """Frames, counted no further than `cap`. Pillow knows most from the header, but walks and decodes a GIF and a TIFF."""
    if name == "gif":
        return gif_frames(data, cap)
    if name == "tiff":
        return tiff_frames(data, cap)
    return int(getattr(image, "n_frames", 1))


def read_orientation(image: ImageFile.ImageFile) -> int:
    """The EXIF or XMP orientation, 1..8; 1 where there is none or it cannot be read."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # broken metadata must not cost the picture, whatever its reader raises
        return 1
    return int(value) if isinstance(value, int | float) and value in range(1, 9) else 1


def _depth(image: ImageFile.ImageFile, data: bytes, name: str) -> int:
    """Bits per sample in the file."""
    if name == "png" and data[12:16] == b"IHDR":
        return data[24]
    if name == "tiff" and isinstance(image, TiffImagePlugin.TiffImageFile):
        return int(image.tag_v2.get(_BITS_PER_SAMPLE, (1,))[0])
    if name == "ppm" and isinstance(image.tile[0].args, tuple) and image.tile[0].codec_name != "raw":
        return max(8, math.ceil(math.log2(image.tile[0].args[-1] + 1)))
    if name == "avif" and (at := data.find(b"av1C")) > 0:
        flags = data[at + 6]
        return 12 if flags & 0x20 else 10 if flags & 0x40 else 8
    return {"1": 1, "I": 16, "I;16": 16, "I;16B": 16}.get(image.mode, 8)
