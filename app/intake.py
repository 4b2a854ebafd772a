"""Request -> image bytes and fields: raw body, multipart or JSON with base64, counted while it streams, never spooled.

`take` is all that the endpoints call. Where the parameters are in the query string they are checked before the body is
read, so that a mistake in them costs nobody an upload.
"""

from __future__ import annotations

import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import orjson
import pybase64
from starlette.requests import Request

from app.multipart import MultipartForm
from app.parameters import Fields, Text, refusal
from app.problems import (
    BodyTooLarge,
    ClientGone,
    InvalidParameter,
    MalformedRequest,
    Problem,
    TooManyImages,
    UnsupportedMediaType,
    UrlRefused,
)
from app.settings import Settings

P = TypeVar("P")
Fetch = Callable[[str], Awaitable[bytes]]
Picture = bytes | Problem

MAX_QUERY_FIELDS = 100
LONGEST_REMEMBERED = 1024
MANY_FORMS = "multipart/form-data (repeated `files`) or application/json"
FORMS = "image/* or application/octet-stream (the image as the body), multipart/form-data or application/json"
ALONE = frozenset({"file"})
MANY = frozenset({"file", "files"})


@dataclass(frozen=True, slots=True)
class Intake:
    """How requests are read. `fetch` gets an image by its URL; None turns that off."""

    settings: Settings
    fetch: Fetch | None = None

    async def take(self, request: Request, plan: Callable[[Fields], P], *, many: bool = False) -> tuple[P, list[Picture]]:
        """The request's plan, made from its fields, and its images.

        Exactly one image, or with `many` 1 to `max_images`; then an image that could not be had is the problem that says
        why. Raises the problem of the first thing that is wrong with the request itself.
        """
        query_string = request.scope["query_string"]
        kind = _media_type(request.headers.get("content-type", ""))
        if request.headers.get("content-encoding", "identity") != "identity":
            raise UnsupportedMediaType("The body is compressed. Send it as it is, without Content-Encoding.")
        if kind == "application/json":
            fields, pictures = await self._from_json(request, _query(query_string), many)
        elif kind == "multipart/form-data":
            fields, pictures = await self._from_multipart(request, _query(query_string), many)
        elif many:
            raise UnsupportedMediaType(f"The Content-Type {kind[:60]} cannot hold several images. Use {MANY_FORMS}.")
        elif kind.startswith("image/") or kind in ("application/octet-stream", ""):
            planned = plan(query_fields(query_string) if len(query_string) <= LONGEST_REMEMBERED else _fields(_query(query_string)))
            return planned, [await self._from_body(request)]
        else:
            raise _wrong_media_type(kind)
        planned = plan(fields)
        if not many and isinstance(pictures[0], Problem):
            raise pictures[0]
        return planned, pictures

    async def _from_body(self, request: Request) -> bytes:
        chunks: list[bytes] = []
        await _receive(request, chunks.append, self.settings.max_body_bytes, "VISION_MAX_BODY_BYTES")
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if not body:
            raise MalformedRequest("The body is empty. Send the image as the body: curl --data-binary @image.jpg.")
        return body

    async def _from_multipart(self, request: Request, query: Mapping[str, Any], many: bool) -> tuple[Fields, list[Picture]]:
        names = MANY if many else ALONE
        form = MultipartForm(request.headers["content-type"], names, self.settings.max_parts)
        await _receive(request, form.write, self.settings.max_body_bytes, "VISION_MAX_BODY_BYTES")
        pictures: list[Picture] = []
        values: dict[str, Any] = {}
        for part in form.close():
            if part.image:
                if part.name not in names:
                    raise refusal(part.name, f"the image goes into the field `{'files' if many else 'file'}`.")
                pictures.append(bytes(part.data))
            elif part.name in values:
                raise refusal(part.name, f"`{part.name[:60]}` is given twice; send it once.")
            else:
                values[part.name] = Text(part.data.decode("utf-8", "replace"))
        self._count(len(pictures), many, "a field named `files`" if many else "a field named `file`")
        return _fields({**query, **values}), pictures

    async def _from_json(self, request: Request, query: Mapping[str, Any], many: bool) -> tuple[Fields, list[Picture]]:
        chunks: list[bytes] = []
        await _receive(request, chunks.append, self.settings.max_json_bytes, "VISION_MAX_JSON_BYTES")
        try:
            document = orjson.loads(b"".join(chunks))
        except orjson.JSONDecodeError as error:
            raise MalformedRequest(f"The body is not JSON: {error.msg} at line {error.lineno}.") from None
        if not isinstance(document, dict):
            raise MalformedRequest('The body should be a JSON object: {"image": {"base64": "..."}, "params": {}}.')
        fields, sources = _json_fields(document, query, many)
        self._count(len(sources), many, '"images"' if many else '"image"')
        pointers = [f"/images/{index}" for index in range(len(sources))] if many else ["/image"]
        pictures = [await self._picture(source, where) for source, where in zip(sources, pointers, strict=True)]
        return fields, pictures

    async def _picture(self, source: Any, pointer: str) -> Picture:
        """The bytes of {"base64": ...} or {"url": ...}, or the problem with them."""
        if not isinstance(source, dict) or len(source) != 1 or not isinstance(next(iter(source.values())), str):
            detail = 'an image is exactly one of {"base64": "..."} and {"url": "https://..."}.'
            return InvalidParameter(f"`{pointer}`: {detail}", errors=[{"pointer": pointer, "detail": detail}])
        ((form, text),) = source.items()
        if form == "url":
            if self.fetch is None:
                return UrlRefused("Images by URL are turned off here. Send the bytes: as the body, multipart or base64.")
            return await self.fetch(text)
        if form != "base64":
            return refusal(form, "an image is given as `base64` or `url`.", pointer)
        try:
            data = _base64(text)
        except MalformedRequest as problem:
            return problem
        if len(data) > self.settings.max_body_bytes:
            return _too_large(len(data), self.settings.max_body_bytes, "VISION_MAX_BODY_BYTES")
        return data

    def _count(self, count: int, many: bool, where: str) -> None:
        most = self.settings.max_images if many else 1
        if count == 0:
            raise InvalidParameter(
                f"The request holds no image. Send it in {where}.",
                errors=[{"pointer": "/images" if many else "/image", "detail": "is missing"}],
            )
        if count > most:
            kind = TooManyImages if many else InvalidParameter
            raise kind(
                f"The request holds {count} images; this endpoint takes {most}."
                + (" Split it into several requests." if many else " /v1/batch takes several."),
                limit=most,
                measured=count,
                setting="VISION_MAX_IMAGES" if many else None,
                errors=[{"pointer": "/images" if many else "/image", "detail": f"at most {most}"}],
            )


async def _receive(request: Request, sink: Callable[[bytes], None], limit: int, setting: str) -> None:
    """Hand the body to `sink` chunk by chunk; BodyTooLarge before or while it exceeds `limit` bytes."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(int(declared), limit, setting)
    received = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client closed the connection while it sent the body.")
        if "vision.late" in request.scope:
            late: Problem = request.scope["vision.late"]  # the connection's own verdict, see transport.py
            raise late
        chunk = message.get("body", b"")
        received += len(chunk)
        if received > limit:
            raise _too_large(received, limit, setting)
        if chunk:
            sink(chunk)
        if not message.get("more_body", False):
            return


def _too_large(measured: int, limit: int, setting: str) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body may have {limit} bytes; this one has at least {measured}. Scale the image down or compress it more.",
        limit=limit,
        measured=measured,
        setting=setting,
    )


@lru_cache(maxsize=256)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _wrong_media_type(kind: str) -> UnsupportedMediaType:
    hint = ""
    if kind == "application/x-www-form-urlencoded":
        hint = " curl --data-binary sends this type unless told otherwise: add -H 'Content-Type: application/octet-stream'."
    return UnsupportedMediaType(f"The Content-Type {kind[:60]} is not read here. Use {FORMS}.{hint}")


@lru_cache(maxsize=256)
def query_fields(query_string: bytes) -> Fields:
    """The fields of a query string."""
    return replace(_fields(_query(query_string)), query=query_string)


def _query(query_string: bytes) -> Mapping[str, Any]:
    """The query's fields as text."""
    try:
        pairs = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise MalformedRequest(f"The query string has more than {MAX_QUERY_FIELDS} fields.") from None
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise refusal(name, f"`{name[:60]}` is given twice; send it once.")
        values[name] = Text(value)
    return values


def _fields(values: Mapping[str, Any]) -> Fields:
    rest = {name: value for name, value in values.items() if name not in ("op", "steps")}
    return Fields(rest, values.get("op"), values.get("steps"))


def _json_fields(document: dict[str, Any], query: Mapping[str, Any], many: bool) -> tuple[Fields, list[Any]]:
    """Fields and image sources of a JSON body; what it names wins over the query."""
    images = "images" if many else "image"
    for name in document:
        if name not in (images, "params", "op", "steps"):
            hint = f"did you mean `{images}`?" if name in ("image", "images", "file") else "parameters go into `params`."
            raise refusal(name, f"`{name[:60]}` is not known here; {hint}", "")
    params = document.get("params", {})
    if not isinstance(params, dict):
        raise refusal("params", "`params` should be an object.", "")
    found = document.get(images)
    if many and not isinstance(found, list | None):
        raise refusal("images", "`images` should be a list.", "")
    sources = found if isinstance(found, list) and many else [] if found is None else [found]
    chosen = {name: document[name] for name in ("op", "steps") if document.get(name) is not None}
    return _fields({**query, **params, **chosen}), sources


def _base64(text: str) -> bytes:
    """The bytes of base64 text or of a base64 data URI."""
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise MalformedRequest("The data URI is not base64. It should begin like data:image/png;base64,.")
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedRequest("The image is not base64. Use the standard alphabet with padding and no line breaks.") from None
