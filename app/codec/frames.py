"""How many pictures a GIF or a TIFF holds, counted in the file's structure, in bounded time, without decoding any."""

from __future__ import annotations

import struct

_MOST_BLOCKS = 1 << 18  # a 64 MiB GIF of full blocks; smaller blocks are made only to cost time


def gif_frames(data: bytes, cap: int) -> int:
    """Image descriptors up to the trailer, the end or `cap`, whichever comes first; at least 1."""
    frames = 0
    at = 13 + _table(data[10:11])
    blocks = 0
    while frames < cap and at < len(data) and blocks < _MOST_BLOCKS:
        kind = data[at]
        if kind == 0x3B:
            break
        if kind == 0x2C:
            if at + 11 > len(data):
                break
            frames += 1
            at += 11 + _table(data[at + 9 : at + 10])
        elif kind == 0x21:
            at += 2
        else:  # stray bytes between blocks are skipped, as browsers do
            at += 1
            blocks += 1
            continue
        while at < len(data) and data[at] and blocks < _MOST_BLOCKS:
            at += 1 + data[at]
            blocks += 1
        at += 1
    return max(1, frames)


def tiff_frames(data: bytes, cap: int) -> int:
    """Directories in the chain, until it ends, loops, leaves the file or reaches `cap`; at least 1."""
    order = "<" if data[:2] == b"II" else ">"
    if data[2] == 43 or data[3] == 43:
        at, count_format, entry, next_format = 8, "Q", 20, "Q"
    else:
        at, count_format, entry, next_format = 4, "H", 12, "I"
    seen: set[int] = set()
    try:
        (offset,) = struct.unpack_from(order + next_format, data, at)
        while offset and offset not in seen and len(seen) < cap:
            (entries,) = struct.unpack_from(order + count_format, data, offset)
            seen.add(offset)
            (offset,) = struct.unpack_from(order + next_format, data, offset + struct.calcsize("=" + count_format) + entries * entry)
    except struct.error:
        pass
    return max(1, len(seen))


def _table(flags: bytes) -> int:
    """Bytes of the color table that these GIF flags announce."""
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0
