"""Bad requests and the problems they must get. None may get a 5xx, an answer, or silence."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from locustfiles.answers import Judged, problem_code, refusal
from locustfiles.images import pictures
from locustfiles.samples import ERROR, OK

PROBLEM_TYPE = "application/problem+json"
_CANNY = "/v1/edges/canny"


@dataclass(frozen=True)
class Attack:
    """One bad request and the problem codes that answer it."""

    name: str
    codes: frozenset[str]
    body: bytes = b""
    content_type: str = "image/jpeg"
    path: str = _CANNY
    method: str = "POST"
    accept: str = "application/json"

    def judge(self, status: int, headers: Mapping[str, str], body: bytes) -> Judged:
        """Whether the answer is one of the expected problems, or a refusal for load."""
        if (refused := refusal(status, headers, body)) is not None:
            return refused
        code = problem_code(body)
        kind = (headers.get("content-type") or "").partition(";")[0]
        if not 400 <= status < 500 or kind != PROBLEM_TYPE or code not in self.codes:
            said = f"{status} {kind} {code}, expected {' or '.join(sorted(self.codes))}"
            return Judged(ERROR, code or str(status), complaint=f"attack {self.name!r}: {said}")
        return Judged(OK, code)


def _png(width: int, height: int) -> bytes:
    """A PNG that declares a size and breaks off within its first row."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    row = zlib.compress(bytes(1 + min(width, 1 << 20)))[:-8]
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", row) + chunk(b"IEND", b"")


def _parts(count: int) -> bytes:
    part = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\nabc\r\n'
    return (part * count + "--x--\r\n").encode()


def _attacks() -> tuple[Attack, ...]:
    jpeg = pictures("small")[0].data
    unreadable = frozenset({"image-unreadable", "unsupported-media-type"})
    malformed = frozenset({"malformed-request", "invalid-parameter", "unsupported-media-type"})
    url = json.dumps({"image": {"url": "http://127.0.0.1:1/a.jpg"}}).encode()
    both = json.dumps({"image": {"base64": base64.b64encode(jpeg).decode(), "url": "https://example.org"}}).encode()
    as_json, as_form = "application/json", "multipart/form-data; boundary=x"
    return (
        Attack("nothing", malformed | unreadable),
        Attack("text", unreadable, b"GET me the edges of this"),
        Attack("half a JPEG header", unreadable, jpeg[:100]),
        Attack("JPEG with its middle gone", unreadable, jpeg[:2] + jpeg[len(jpeg) // 2 :]),
        Attack("PNG that promises 3,600 megapixels", frozenset({"image-too-large"}), _png(60_000, 60_000), "image/png"),
        Attack("PNG of one endless row", frozenset({"image-too-large"}), _png(1_000_000, 1), "image/png"),
        Attack("PNG whose rows are missing", unreadable, _png(1000, 1000), "image/png"),
        Attack("JSON that ends early", malformed, b'{"image": {"base64": "AAAA', as_json),
        Attack("JSON of another shape", malformed, b'[1, 2, {"image": null}]', as_json),
        Attack("JSON ten thousand deep", malformed, b"[" * 10_000, as_json),
        Attack("base64 that is none", malformed, b'{"image": {"base64": "%%%%"}}', as_json),
        Attack("a picture from inside the house", frozenset({"url-refused"}), url, as_json),
        Attack("two pictures at once", malformed, both, as_json),
        Attack("multipart without an end", malformed | unreadable, b"--x\r\nContent-Disposition: form-data", as_form),
        Attack("multipart of too many parts", malformed | {"body-too-large"}, _parts(60), as_form),
        Attack("an unknown parameter", frozenset({"invalid-parameter"}), jpeg, path=f"{_CANNY}?lowest=1"),
        Attack("a parameter out of range", frozenset({"invalid-parameter"}), jpeg, path=f"{_CANNY}?aperture=1001"),
        Attack("a parameter that is no number", frozenset({"invalid-parameter"}), jpeg, path=f"{_CANNY}?low=NaN"),
        Attack("an operator that is none", frozenset({"not-found"}), jpeg, path="/v1/edges/none"),
        Attack("a path upwards", frozenset({"not-found"}), jpeg, path="/v1/edges/..%2f..%2fetc%2fpasswd"),
        Attack("the wrong method", frozenset({"method-not-allowed"}), method="DELETE"),
        Attack("an answer of no known type", frozenset({"not-acceptable"}), jpeg, accept="text/csv"),
    )


ATTACKS = _attacks()
