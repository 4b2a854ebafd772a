from __future__ import annotations

import base64

import orjson
import pytest
from starlette.requests import Request

from app.intake import Intake
from app.parameters import Fields
from app.problems import BodyTooLarge, ClientGone, InvalidParameter, MalformedRequest, TooManyImages, UrlRefused
from app.settings import Settings

SETTINGS = Settings(max_body_bytes=2000, max_json_bytes=3000, max_images=3)


class Source:
    """A client that sends these chunks, and counts how many were taken."""

    def __init__(self, *chunks, ends=True):
        self.messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        if ends and self.messages:
            self.messages[-1]["more_body"] = False
        self.taken = 0

    async def receive(self):
        if self.taken == len(self.messages):
            return {"type": "http.disconnect"}
        self.taken += 1
        return self.messages[self.taken - 1]


def request(source, content_type="image/png", query="", **headers):
    pairs = [(b"content-type", content_type.encode())] if content_type else []
    pairs += [(name.replace("_", "-").encode(), str(value).encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": query.encode(), "headers": pairs}
    return Request(scope, source.receive)


def keep(fields: Fields) -> Fields:
    return fields


async def take(source, *args, intake=None, plan=keep, many=False, **kwargs):
    return await (intake or Intake(SETTINGS)).take(request(source, *args, **kwargs), plan, many=many)


async def test_a_declared_length_is_refused_unread():
    source = Source(b"x" * 100)
    with pytest.raises(BodyTooLarge) as refused:
        await take(source, content_length=2001)
    assert source.taken == 0
    assert (refused.value.measured, refused.value.limit) == (2001, 2000)


async def test_an_undeclared_length_is_refused_where_it_passes_the_limit():
    source = Source(*[b"x" * 500] * 10)
    with pytest.raises(BodyTooLarge):
        await take(source)
    assert source.taken == 5


async def test_a_length_that_lies_is_refused_too():
    source = Source(*[b"x" * 500] * 10)
    with pytest.raises(BodyTooLarge):
        await take(source, content_length=10)
    assert source.taken == 5


async def test_a_wrong_parameter_in_the_query_is_refused_unread():
    def plan(_fields):
        raise InvalidParameter("no")

    source = Source(b"x")
    with pytest.raises(InvalidParameter):
        await take(source, plan=plan)
    assert source.taken == 0


async def test_a_client_that_goes_while_it_sends():
    with pytest.raises(ClientGone):
        await take(Source(b"x", ends=False))


@pytest.mark.parametrize("content_type", ["image/png", "image/whatever; a=b", "application/octet-stream", "IMAGE/JPEG", ""])
async def test_raw_bodies(content_type):
    fields, pictures = await take(Source(b"ab", b"", b"cd"), content_type, "low=1&high=%32&flag=")
    assert pictures == [b"abcd"]
    assert fields == Fields({"low": "1", "high": "2", "flag": ""})


def document(body):
    return Source(orjson.dumps(body))


DATA = base64.b64encode(b"picture").decode()


async def test_a_body_field_wins_over_the_query():
    fields, pictures = await take(document({"image": {"base64": DATA}, "params": {"low": 5}}), "application/json", "low=4&output=png")
    assert fields.values == {"low": 5, "output": "png"}
    assert pictures == [b"picture"]


@pytest.mark.parametrize("text", ["AAA", "A A=", "AA==\n", "\u00e4\u00e4\u00e4\u00e4", "QUI-"])
async def test_base64_is_taken_strictly(text):
    with pytest.raises(MalformedRequest, match="base64"):
        await take(document({"image": {"base64": text}}), "application/json")


async def test_base64_is_counted_when_decoded():
    with pytest.raises(BodyTooLarge):
        await take(document({"image": {"base64": base64.b64encode(bytes(2001)).decode()}}), "application/json")


@pytest.mark.parametrize("body", [b"{", b"\xff", b"NaN", b'{"image": ' * 2000, b""])
async def test_broken_json_is_malformed(body):
    with pytest.raises(MalformedRequest):
        await take(Source(body), "application/json", intake=Intake(Settings()))


@pytest.mark.parametrize("image", [None, 3, "AA==", [], {}, {"base64": 3}, {"file": "x"}, {"base64": "AA==", "url": "u"}])
async def test_an_image_is_exactly_one_thing(image):
    with pytest.raises(InvalidParameter) as refused:
        await take(document({"image": image}), "application/json")
    assert refused.value.errors[0]["pointer"].startswith("/image")


async def test_a_batch_reports_each_images_problem():
    images = [{"base64": DATA}, {"base64": "?"}, {"url": "https://x/"}]
    fields, pictures = await take(document({"images": images, "op": "edges/canny"}), "application/json", many=True)
    assert fields.op == "edges/canny"
    assert pictures[0] == b"picture"
    assert isinstance(pictures[1], MalformedRequest)
    assert isinstance(pictures[2], UrlRefused)


@pytest.mark.parametrize(("count", "kind"), [(0, InvalidParameter), (4, TooManyImages)])
async def test_a_batch_is_counted(count, kind):
    with pytest.raises(kind):
        await take(document({"images": [{"base64": DATA}] * count}), "application/json", many=True)


async def test_urls_go_through_the_fetcher():
    async def fetch(url):
        return url.encode()

    intake = Intake(SETTINGS, fetch)
    _, pictures = await take(document({"image": {"url": "https://x/a"}}), "application/json", intake=intake)
    assert pictures == [b"https://x/a"]


async def test_a_query_is_bounded():
    query = "&".join(f"a{number}=1" for number in range(101))
    with pytest.raises(MalformedRequest, match="100 fields"):
        await take(Source(b"x"), "image/png", query)
