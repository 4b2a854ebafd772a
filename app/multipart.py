"""multipart/form-data, parsed as it arrives and bounded in parts, headers and field lengths; nothing touches a disk."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.problems import MalformedRequest

MAX_TEXT_BYTES = 64 * 1024


@dataclass(slots=True)
class Part:
    """One part. `image` tells a file (or a field that holds image bytes) from text."""

    name: str = ""
    image: bool = False
    data: bytearray = field(default_factory=bytearray)


class MultipartForm:
    """Feed it chunks, then `close()` gives the parts in order. MalformedRequest as soon as anything is wrong."""

    def __init__(self, content_type: str, image_fields: frozenset[str], most_parts: int) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
        if not boundary:
            raise MalformedRequest("The Content-Type has no boundary. Leave that header to your HTTP client: it sets it with the body.")
        self._image_fields = image_fields
        self._most_parts = most_parts
        self._parts: list[Part] = []
        self._part = Part()
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._name,
                    "on_header_value": self._value,
                    "on_header_end": self._header,
                    "on_headers_finished": self._headers,
                    "on_part_data": self._data,
                    "on_end": self._finish,
                },
            )
        except FormParserError:
            raise MalformedRequest("The multipart boundary is too long; let your HTTP client choose it.") from None

    def write(self, chunk: bytes) -> None:
        """Parse the next bytes of the body."""
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise MalformedRequest(
                "The multipart body is broken. Send it as curl -F file=@image.jpg or a browser's FormData does."
            ) from None

    def close(self) -> list[Part]:
        """The parts, once the body has ended."""
        if not self._ended:
            raise MalformedRequest("The multipart body ends before its closing boundary. Send the whole body.")
        return self._parts

    def _begin(self) -> None:
        if len(self._parts) == self._most_parts:
            raise MalformedRequest(
                f"The multipart body has more than {self._most_parts} parts. Send fewer fields or files.",
                limit=self._most_parts,
                setting="VISION_MAX_PARTS",
            )
        self._part = Part()
        self._parts.append(self._part)
        self._disposition = b""

    def _name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _headers(self) -> None:
        options = parse_options_header(self._disposition)[1]
        self._part.name = options.get(b"name", b"").decode("utf-8", "replace")
        self._part.image = b"filename" in options or self._part.name in self._image_fields
        if not self._part.name:
            raise MalformedRequest('A multipart part has no name. Each needs Content-Disposition: form-data; name="...".')

    def _data(self, data: bytes, start: int, end: int) -> None:
        if not self._part.image and len(self._part.data) + end - start > MAX_TEXT_BYTES:
            raise MalformedRequest(
                f"The multipart field `{self._part.name[:60]}` is longer than {MAX_TEXT_BYTES} bytes. An image goes "
                "into a field named `file`.",
                limit=MAX_TEXT_BYTES,
            )
        self._part.data += data[start:end]

    def _finish(self) -> None:
        self._ended = True
