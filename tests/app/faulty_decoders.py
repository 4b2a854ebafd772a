"""A nursery whose decoders do what the bytes say: most of it is what a hostile image could make a real one do."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import time

import numpy as np

from app import decoder_worker
from app.codec import DecodeOptions, ImageInfo
from app.codec.image import Allocate, Pixels
from app.problems import ImageUnreadable


def service() -> socket.socket:
    """The worker's own socket: the only one it has."""
    for descriptor in range(3, 20):
        try:
            return socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
    raise AssertionError("no socket")


def say(message: bytes, *descriptors: int) -> None:
    socket.send_fds(service(), [message], descriptors)


def answer(height: int, width: int, mode: object = "L") -> bytes:
    info = ["jpeg", width, height, mode, 8, 1, 1, True, []]
    names = ["format", "width", "height", "mode", "depth", "frames", "orientation", "oriented", "converted"]
    return json.dumps({"shape": [height, width], "info": dict(zip(names, info, strict=True)), "seconds": 0.0}).encode()


def unsealed(size: int) -> int:
    descriptor = os.memfd_create("pixels")
    os.ftruncate(descriptor, size)
    return descriptor


def misbehave(word: str) -> None:
    match word:
        case "hang":
            while True:
                time.sleep(1)
        case "spin":
            while True:
                pass
        case "crash":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
        case "allocate":
            mmap.mmap(-1, 1 << 40)
        case "grow":
            hoard = []
            while True:
                hoard.append(np.ones(1 << 24, np.uint8))
        case "garbage":
            say(b"\xff not json")
        case "shout":
            say(b"x" * (decoder_worker.MOST_MESSAGE_BYTES + 1))
        case "pickle":
            say(b"cos\nsystem\n(S'exit 1'\ntR.")
        case "wrong shape":
            say(answer(40_000, 40_000))
        case "too short":
            say(answer(5000, 5000), unsealed(10))
        case "unsealed":
            say(answer(5000, 5000), unsealed(25_000_000))
        case "unknown problem":
            say(b'{"problem": {"code": "internal-error", "detail": "boo"}}')
        case "unknown fields":
            say(answer(1, 1).replace(b"mode", b"evil"))


def decode(data: bytes, options: DecodeOptions, allocate: Allocate) -> tuple[Pixels, ImageInfo]:
    """The number of bytes as one pixel; "large N" as N x N pixels; "environment" as a problem that tells it."""
    word = data.decode()
    if word == "environment":
        raise ImageUnreadable(" ".join(sorted(os.environ)), limit=float(os.getpid()))
    if word.startswith("sleep"):
        time.sleep(float(word.split()[1]))
    misbehave(word)
    side = int(word.split()[1]) if word.startswith("large") else 1
    pixels = allocate((side, side))
    pixels[:] = len(data)
    return pixels, ImageInfo("jpeg", side, side, "L", 8, 1, 1, oriented=options.orient)


if __name__ == "__main__":
    decoder_worker.nursery(decode)
