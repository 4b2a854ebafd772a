"""What a PNG's chunks would cost before a single pixel: very many of them, or compressed text that inflates a thousandfold."""

from __future__ import annotations

import zlib

from app.problems import ImageUnreadable

MOST_CHUNKS = 65_536  # each costs an interpreted step
MOST_INFLATED = 2 << 20  # of all compressed texts and profiles together; Pillow would inflate 64 MiB of them, and any number of profiles
_INFLATED_ONCE = 1 << 20  # Pillow refuses a longer one
_MOST_RATIO = 1032  # of deflate


def check_chunks(data: bytes) -> None:
    """Raise ImageUnreadable for a PNG of too many chunks or too much compressed text."""
    at = 8
    inflated = 0
    for _ in range(MOST_CHUNKS):
        if at + 8 > len(data):
            return
        name, body = data[at + 4 : at + 8], at + 8
        at += 12 + int.from_bytes(data[at : at + 4], "big")
        if name in (b"zTXt", b"iTXt", b"iCCP"):
            inflated += _inflated_size(name, data[body : at - 4])
            if inflated > MOST_INFLATED:
                raise ImageUnreadable(
                    f"The PNG's compressed texts and profiles inflate to more than {MOST_INFLATED >> 20} MiB. Save it without metadata.",
                    limit=MOST_INFLATED,
                )
    raise ImageUnreadable(f"The PNG has more than {MOST_CHUNKS:,} chunks. Save it again.", limit=MOST_CHUNKS)


def _inflated_size(name: bytes, body: bytes) -> int:
    """Bytes that the chunk's text inflates to, as far as it is going to be inflated; 0 if it is not compressed."""
    _, _, text = body.partition(b"\0")
    if name == b"iTXt":
        if text[:1] in (b"", b"\0"):
            return 0
        text = text[2:].split(b"\0", 2)[-1]
    else:
        text = text[1:]
    try:
        return len(zlib.decompressobj().decompress(text, _INFLATED_ONCE))
    except zlib.error:  # it was inflated up to where it is broken
        return min(_INFLATED_ONCE, _MOST_RATIO * len(text))
