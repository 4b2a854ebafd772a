"""An image by its URL, without being led anywhere else: https only, every address checked, the connection pinned to the checked one.

The name is resolved once; every answer must be global; the connection goes to that very address, with the name in SNI, certificate
check and Host. Redirects are followed by hand and checked like the first URL. Nothing is taken from the environment (no proxies, no
.netrc), and the bytes are counted as they arrive. Off unless VISION_FETCH is on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from app.addresses import is_global
from app.problems import UrlFailed, UrlRefused, UrlTimeout

Resolve = Callable[[str, int], Awaitable[list[str]]]

LONGEST_URL = 2048
REDIRECTS = frozenset({301, 302, 303, 307, 308})


async def resolve(host: str, port: int) -> list[str]:
    """Every A and AAAA answer for a name. OSError when there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, proto=6)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


class PinnedTransport(httpx.AsyncBaseTransport):
    """Resolves and checks a request's host, then connects to the checked address."""

    def __init__(self, inner: httpx.AsyncBaseTransport, resolve: Resolve, allowed: Callable[[str], bool]) -> None:
        self._inner = inner
        self._resolve = resolve
        self._allowed = allowed

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to an address that passed. UrlRefused when any answer does not."""
        host = request.url.host
        try:
            addresses = await self._resolve(host, request.url.port or 443)
        except OSError:
            raise UrlFailed("The host name of the URL cannot be resolved.") from None
        if not addresses or not all(self._allowed(address) for address in addresses):
            raise UrlRefused("The URL's host is not on the public internet. Send the bytes instead.", reason="address")
        request.url = request.url.copy_with(host=addresses[0])
        request.extensions = {**request.extensions, "sni_hostname": host}
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class Fetcher:
    """`await fetcher(url)` gives the bytes of a remote image, or raises UrlRefused, UrlFailed or UrlTimeout.

    `ports` are the ports that may be asked; `timeout_s` covers all hops; `max_bytes` counts decoded bytes. `inner`, `resolve`, `allowed`
    and `context` are for tests.
    """

    def __init__(
        self,
        *,
        ports: frozenset[int],
        timeout_s: float,
        max_hops: int,
        max_bytes: int,
        inner: httpx.AsyncBaseTransport | None = None,
        resolve: Resolve = resolve,
        allowed: Callable[[str], bool] = is_global,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._ports = ports
        self._timeout_s = timeout_s
        self._max_hops = max_hops
        self._max_bytes = max_bytes
        connections = inner or httpx.AsyncHTTPTransport(verify=context or ssl.create_default_context(), trust_env=False)
        self._client = httpx.AsyncClient(
            transport=PinnedTransport(connections, resolve, allowed),
            headers={"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "visionbatch"},
            trust_env=False,
            follow_redirects=False,
            timeout=timeout_s,
        )

    async def __call__(self, url: str) -> bytes:
        """The bytes behind the URL."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url)
        except (TimeoutError, httpx.TimeoutException):
            raise UrlTimeout(
                f"The URL gave no image within {self._timeout_s:g} s.", limit=self._timeout_s, setting="VISION_FETCH_TIMEOUT_S"
            ) from None
        except httpx.HTTPError:
            raise UrlFailed("The connection to the URL's host failed.") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _follow(self, url: str) -> bytes:
        target = self._checked(url)
        for _ in range(self._max_hops + 1):
            async with self._client.stream("GET", target) as response:
                # Each hop is a stranger: it gets no cookies that another one set.
                self._client.cookies.clear()
                if response.status_code not in REDIRECTS:
                    return await self._read(response)
                location = response.headers.get("location", "")
            target = self._checked(self._joined(target, location))
        raise UrlFailed(f"The URL redirects more than {self._max_hops} times.", limit=self._max_hops, setting="VISION_FETCH_HOPS")

    def _joined(self, base: httpx.URL, location: str) -> str:
        try:
            return str(base.join(location))
        except (httpx.InvalidURL, ValueError):
            raise UrlFailed("The URL redirects to something that is no URL.") from None

    def _checked(self, url: str) -> httpx.URL:
        """The URL parsed. UrlRefused when its form is not allowed."""
        try:
            parsed = httpx.URL(url) if len(url) <= LONGEST_URL else None
        except (httpx.InvalidURL, ValueError):
            parsed = None
        if parsed is None or not parsed.host:
            raise UrlRefused(f"This is no URL of at most {LONGEST_URL} characters.", reason="form")
        if parsed.scheme != "https":
            raise UrlRefused("Only https URLs are fetched.", reason="scheme")
        if parsed.userinfo:
            raise UrlRefused("A URL with a user name or password is not fetched.", reason="userinfo")
        if (parsed.port or 443) not in self._ports:
            raise UrlRefused(f"Only these ports are asked: {', '.join(map(str, sorted(self._ports)))}.", reason="port")
        return parsed

    async def _read(self, response: httpx.Response) -> bytes:
        if response.status_code != 200:
            raise UrlFailed(f"The URL's host answered with status {response.status_code} instead of an image.")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise UrlFailed("The URL's host sent a compressed body although it was asked not to.")
        self._fits(int(declared) if (declared := response.headers.get("content-length", "")).isdecimal() else 0)
        chunks: list[bytes] = []
        received = 0
        async for chunk in response.aiter_raw():
            received += len(chunk)
            self._fits(received)
            chunks.append(chunk)
        return b"".join(chunks)

    def _fits(self, size: int) -> None:
        if size > self._max_bytes:
            limits: dict[str, Any] = {"limit": self._max_bytes, "measured": size, "setting": "VISION_MAX_BODY_BYTES"}
            raise UrlFailed(f"The image behind the URL has more than {self._max_bytes} bytes.", **limits)
