"""Fetching an image by URL: what is refused, where the connection goes, how much is read."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import trustme

from app.fetch import Fetcher
from app.problems import UrlFailed, UrlRefused, UrlTimeout

PUBLIC = "93.184.216.34"
Handler = Callable[[httpx.Request], httpx.Response]


def fetcher(handler: Handler, answers: dict[str, list[str]] | None = None, **options: Any) -> Fetcher:
    """A fetcher whose names are `answers` (else one public address) and whose network is `handler`."""

    async def resolve(host: str, _port: int) -> list[str]:
        if answers is None:
            return [PUBLIC]
        if host not in answers:
            raise OSError("no such host")
        return answers[host]

    settings: dict[str, Any] = {"ports": frozenset({443}), "timeout_s": 2.0, "max_hops": 3, "max_bytes": 1000, **options}
    return Fetcher(inner=httpx.MockTransport(handler), resolve=resolve, **settings)


def image(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, stream=httpx.ByteStream(b"picture"))


async def test_connection_is_pinned_to_the_checked_address() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return image(request)

    assert await fetcher(handler)("https://pictures.example/a.png?x=1") == b"picture"
    (request,) = seen
    assert request.url.host == PUBLIC
    assert request.headers["host"] == "pictures.example"
    assert request.extensions["sni_hostname"] == "pictures.example"
    assert request.headers["accept-encoding"] == "identity"
    assert request.url.raw_path == b"/a.png?x=1"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://pictures.example/a.png", "scheme"),
        ("file:///etc/passwd", "form"),
        ("ftp://pictures.example/a", "scheme"),
        ("https://user:word@pictures.example/", "userinfo"),
        ("https://pictures.example@127.0.0.1/", "userinfo"),
        ("https://pictures.example:8443/", "port"),
        ("https://pictures.example:22/", "port"),
        ("https://", "form"),
        ("nonsense", "form"),
        ("https://" + "a" * 3000, "form"),
    ],
)
async def test_form_is_checked_before_anything_is_asked(url: str, reason: str) -> None:
    def handler(_request: httpx.Request) -> httpx.Response:
        raise AssertionError("asked the network")

    with pytest.raises(UrlRefused) as refused:
        await fetcher(handler)(url)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["::1"], ["::ffff:169.254.169.254"], ["64:ff9b::7f00:1"], ["100.64.0.1"], []],
)
async def test_every_answer_must_be_public(addresses: list[str]) -> None:
    with pytest.raises(UrlRefused, match="public internet"):
        await fetcher(image, {"inside.example": addresses})("https://inside.example/")


async def test_literal_addresses_are_judged_alike() -> None:
    answers = {"127.0.0.1": ["127.0.0.1"], "::1": ["::1"]}
    for url in ("https://127.0.0.1/", "https://[::1]/"):
        with pytest.raises(UrlRefused, match="public internet"):
            await fetcher(image, answers)(url)


async def test_rebinding_finds_no_second_lookup() -> None:
    lookups = 0
    hosts: list[str] = []

    async def resolve(_host: str, _port: int) -> list[str]:
        nonlocal lookups
        lookups += 1
        return [PUBLIC] if lookups == 1 else ["127.0.0.1"]

    def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return image(request)

    fetch = Fetcher(ports=frozenset({443}), timeout_s=2, max_hops=3, max_bytes=1000, inner=httpx.MockTransport(handler), resolve=resolve)
    assert await fetch("https://rebind.example/") == b"picture"
    assert (lookups, hosts) == (1, [PUBLIC])
    with pytest.raises(UrlRefused):
        await fetch("https://rebind.example/")


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("http://pictures.example/", UrlRefused),
        ("https://inside.example/", UrlRefused),
        ("https://pictures.example:8080/", UrlRefused),
        ("//inside.example/latest/meta-data", UrlRefused),
        ("https://nowhere.example/", UrlFailed),
    ],
)
async def test_redirects_are_checked_like_the_first_url(location: str, problem: type[Exception]) -> None:
    def handler(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"location": location})

    answers = {"pictures.example": [PUBLIC], "inside.example": ["192.168.0.1"]}
    with pytest.raises(problem):
        await fetcher(handler, answers)("https://pictures.example/")


async def test_redirects_end() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(307, headers={"location": "/again", "set-cookie": "a=b"})

    with pytest.raises(UrlFailed, match="more than 3 times"):
        await fetcher(handler)("https://pictures.example/")
    assert len(asked) == 4


async def test_a_relative_redirect_is_followed_without_cookies() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert "cookie" not in request.headers
        if request.url.path == "/":
            return httpx.Response(301, headers={"location": "/there", "set-cookie": "a=b"})
        return image(request)

    assert await fetcher(handler)("https://pictures.example/") == b"picture"


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(404), "status 404"),
        (httpx.Response(200, headers={"content-encoding": "x-unknown"}, content=b"x"), "compressed"),
        (httpx.Response(200, content=b"x" * 1001), "1000 bytes"),
    ],
)
async def test_answers_that_are_no_image(response: httpx.Response, words: str) -> None:
    with pytest.raises(UrlFailed, match=words):
        await fetcher(lambda _request: response)("https://pictures.example/")


async def test_bytes_are_counted_while_they_arrive() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 100
            yield b"x" * 100

    with pytest.raises(UrlFailed, match="1000 bytes"):
        await fetcher(lambda _request: httpx.Response(200, content=endless()))("https://pictures.example/")
    assert sent <= 1200


async def test_slow_host_times_out() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    with pytest.raises(UrlTimeout, match=r"0\.05 s"):
        await fetcher(lambda _request: httpx.Response(200, content=slow()), timeout_s=0.05)("https://pictures.example/")


async def test_real_connection_checks_the_name_and_ignores_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("pictures.example")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(server_context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        assert b"host: pictures.example" in request.lower()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\npicture")
        await writer.drain()
        writer.close()

    async def resolve(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context)
    port = server.sockets[0].getsockname()[1]
    fetch = Fetcher(
        ports=frozenset({port}),
        timeout_s=5,
        max_hops=0,
        max_bytes=1000,
        resolve=resolve,
        allowed=lambda _address: True,
        context=client_context,
    )
    try:
        assert await fetch(f"https://pictures.example:{port}/") == b"picture"
        with pytest.raises(UrlFailed, match="connection"):
            await fetch(f"https://other.example:{port}/")
    finally:
        await fetch.close()
        server.close()
