"""Samples of every layout to 8-bit grey or RGB: deep samples cut, palettes expanded, alpha composited, grey by Q15 luma."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from app.codec.image import DecodeOptions, Pixels
from app.codec.pnm import read_pnm
from app.codec.probe import Header

CMYK = "CMYK to RGB without color management"

# Exact in Pillow's float32: every product and sum is a multiple of 2**-15 below 2**9, and Pillow adds 1/2 and truncates.
_LUMA = (9798 / 32768, 19235 / 32768, 3735 / 32768, 0.0)
_TO_RGBA = {"RGBA": (), "RGBa": ("RGBA",), "LA": ("RGBA",), "La": ("LA", "RGBA"), "PA": ("RGBA",)}


def to_pixels(data: bytes, header: Header, options: DecodeOptions) -> tuple[Pixels, list[str]]:
    """uint8 [h, w], or [h, w, 3] if the source has color and rgb is asked for, before orientation; and what was converted."""
    image = header.image
    if header.format == "ppm" and isinstance(given := image.tile[0].args, tuple):
        samples = read_pnm(data, image, maxval=int(given[-1]))
        return _wanted(Image.fromarray(samples), options), _cut(header.depth)
    if options.pixels == "grey":
        image.draft("L", None)  # a JPEG gives its luma plane; other formats take no notice
    image.load()
    key = image.info.pop("transparency", None)
    if image.mode == "P":
        return _palette(image, key, options)
    if image.mode in _TO_RGBA:
        return _alpha(image, header.depth, options)
    if image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;16"):
        return _plane(image, header.depth, key, options)
    return _color(data, image, header, key, options)


def _palette(image: Image.Image, key: object, options: DecodeOptions) -> tuple[Pixels, list[str]]:
    """Indices through a table of 256 colors that are already composited on the background."""
    table = np.zeros((256, 3), np.int64)
    colors = np.array(image.getpalette("RGB"), np.int64).reshape(-1, 3)
    table[: len(colors)] = colors
    alpha = np.full((256, 1), 255)
    if isinstance(key, bytes):
        alpha[: len(key), 0] = np.frombuffer(key[:256], np.uint8)
    elif isinstance(key, int):
        alpha[key] = 0
    table = (table * alpha + np.array(options.background) * (255 - alpha) + 127) // 255
    final = _wanted(Image.fromarray(table.astype(np.uint8)[None]), options)[0]
    return final[np.asarray(image)], ["palette expanded", *(_composited(options) if alpha.min() < 255 else [])]


def _alpha(image: Image.Image, depth: int, options: DecodeOptions) -> tuple[Pixels, list[str]]:
    """An alpha channel, composited on the background with every value rounded once."""
    for mode in _TO_RGBA[image.mode]:
        image = image.convert(mode)
    canvas = Image.new("RGB", image.size, options.background)
    canvas.paste(image, mask=image)
    return _wanted(canvas, options), _cut(depth) + _composited(options)


def _plane(image: Image.Image, depth: int, key: object, options: DecodeOptions) -> tuple[Pixels, list[str]]:
    """One channel of 1 to 32 bits. `key` is the sample that stands for transparency, in the depth of the file."""
    if image.mode in ("1", "L"):
        grey = np.asarray(image.convert("L") if image.mode == "1" else image)
        samples: NDArray[np.generic] = grey
        if isinstance(key, int) and image.mode == "L":  # Pillow has stretched the samples, but not the key
            key = key * 255 // ((1 << min(depth, 8)) - 1)
    else:
        samples = np.asarray(image)
        grey = _narrowed(samples, depth)
    notes = ["floats rounded and clipped to 0..255"] if image.mode == "F" else _cut(depth)
    if not isinstance(key, int):
        return grey, notes
    return _cleared(grey, samples == key, options), notes + _composited(options)


def _color(data: bytes, image: Image.Image, header: Header, key: object, options: DecodeOptions) -> tuple[Pixels, list[str]]:
    """Three or four color channels. `key` is the color that stands for transparency, in the depth of the file."""
    notes = _cut(header.depth) + ([CMYK] if image.mode == "CMYK" else [])
    if image.mode != "RGB":
        image = image.convert("RGB")
    pixels = _wanted(image, options)
    if not isinstance(key, tuple):
        return pixels, notes
    if header.depth == 16:
        clear = _is_color(np.asarray(image), [value >> 8 for value in key]) & _is_color(_low_bytes(data), [value & 255 for value in key])
    else:
        clear = _is_color(np.asarray(image), list(key))
    return _cleared(pixels, clear, options), notes + _composited(options)


def _wanted(image: Image.Image, options: DecodeOptions) -> Pixels:
    """A grey or RGB picture as an array: one channel if grey is asked for, else as many as it has."""
    return np.asarray(image.convert("L", _LUMA) if image.mode == "RGB" and options.pixels == "grey" else image)


def _narrowed(samples: NDArray[Any], depth: int) -> Pixels:
    """The top 8 of `depth` bits; floats are rounded and clipped, NaN is 0."""
    if samples.dtype.kind == "f":
        top = np.rint(np.clip(np.nan_to_num(samples), 0, 255))
    elif depth == 32:
        top = samples.astype(np.int32).view(np.uint32) >> 24
    else:
        top = np.clip(samples, 0, (1 << depth) - 1) >> (depth - 8)
    pixels: Pixels = top.astype(np.uint8, copy=False)
    return pixels


def _low_bytes(data: bytes) -> Pixels:
    """The low bytes of a 16-bit RGB PNG: Pillow keeps the high ones, and takes the others for those if told a wrong byte order."""
    image = PngImagePlugin.PngImageFile(io.BytesIO(data))
    image.tile = [image.tile[0]._replace(args="RGB;16L")]
    return np.asarray(image)


def _is_color(pixels: Pixels, color: list[int]) -> NDArray[np.bool_]:
    red, green, blue = (pixels[..., channel] == value for channel, value in enumerate(color))
    both: NDArray[np.bool_] = red & green & blue
    return both


def _cleared(pixels: Pixels, clear: NDArray[np.bool_], options: DecodeOptions) -> Pixels:
    """A copy of `pixels` with the background where `clear`."""
    background = _wanted(Image.new("RGB", (1, 1), options.background), options)[0, 0]
    if options.pixels == "grey":
        return np.where(clear, background, pixels)
    return np.where(clear[..., None], background, pixels if pixels.ndim == 3 else pixels[..., None])


def _cut(depth: int) -> list[str]:
    return [f"{depth}-bit samples cut to 8 (v >> {depth - 8})"] if depth > 8 else []


def _composited(options: DecodeOptions) -> list[str]:
    return ["alpha composited on #{:02x}{:02x}{:02x}".format(*options.background)]
