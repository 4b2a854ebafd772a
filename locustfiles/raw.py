"""Clients that no HTTP library will play: one that hangs up in the middle, one that trickles."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import gevent
from gevent import socket

from locustfiles.answers import Ask, Judged
from locustfiles.generator import Generator
from locustfiles.samples import ERROR, OK
from locustfiles.target import credentials
from locustfiles.uploads import upload

TRICKLE_S = 0.5  # between two bytes
MARGIN_S = 5.0  # over the receive timeout, before a slow client counts as not cut off


def _connected(host: str) -> socket.socket:
    parts = urlsplit(host)
    secure = parts.scheme == "https"
    plain = socket.create_connection((parts.hostname or "", parts.port or (443 if secure else 80)), timeout=10)
    return ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname) if secure else plain


def _head(host: str, path: str, length: int, content_type: str = "image/jpeg") -> bytes:
    headers = {"Host": urlsplit(host).netloc, "Content-Type": content_type, "Content-Length": str(length)}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (headers | credentials()).items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def hang_up(host: str, ask: Ask, after_s: float) -> Judged:
    """Sends a whole request and closes the connection without waiting for the answer."""
    body, content_type = upload(ask.picture, ask.form)
    try:
        connection = _connected(host)
        connection.sendall(_head(host, f"/v1/{ask.operator.path}", len(body), content_type) + body)
        gevent.sleep(after_s)
        connection.close()
    except OSError as error:
        return Judged(ERROR, type(error).__name__, complaint=f"no connection for one that hangs up: {error}")
    return Judged(OK, "hung-up")


def trickle(host: str, generator: Generator, *, in_body: bool) -> Judged:
    """Sends a byte now and then until the service ends the connection; a service that does not is at fault."""
    cut_s = generator.now() + generator.receive_timeout_s + MARGIN_S
    try:
        connection = _connected(host)
    except OSError as error:
        return Judged(ERROR, type(error).__name__, complaint=f"no connection for a slow client: {error}")
    try:
        head = _head(host, "/v1/edges/canny", 1_000_000)
        connection.sendall(head if in_body else head[:40])
        connection.settimeout(TRICKLE_S)
        while generator.now() < cut_s and not generator.is_over():
            try:
                answer = connection.recv(4096)
                return Judged(OK, answer[9:12].decode("ascii", "replace") if answer else "closed")
            except TimeoutError:
                connection.send(b"x")
    except OSError:
        return Judged(OK, "closed")
    finally:
        connection.close()
    if generator.is_over():
        return Judged(OK, "plan-over")
    return Judged(ERROR, "not-cut-off", complaint=f"a slow client was not cut off after {generator.receive_timeout_s:.0f} s")
