"""Bytes to pixels under limits, pixels to bytes. Pure and synchronous; whatever the bytes are, only a `Problem` comes out."""

from app.codec.decode import decode
from app.codec.encode import encode_mask_png, encode_npy, encode_png, encode_webp, rle
from app.codec.formats import ACCEPTED, sniff
from app.codec.image import DecodeOptions, ImageInfo

__all__ = [
    "ACCEPTED",
    "DecodeOptions",
    "ImageInfo",
    "decode",
    "encode_mask_png",
    "encode_npy",
    "encode_png",
    "encode_webp",
    "rle",
    "sniff",
]
