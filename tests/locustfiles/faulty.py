"""The service with faults that can be planted while it runs: ``PUT /faults`` with a JSON object, ``{}`` heals it.

slow_ms    every answer of edges/canny comes that much later
wrong      one pixel of every mask is flipped
bare       every fifth question is refused without Retry-After
leak       so many bytes are kept for each request
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
from typing import Any

import uvicorn
from PIL import Image
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.main import create_app as create_service

CANNY = "/v1/edges/canny"
REFUSAL = json.dumps({"code": "overloaded", "status": 503, "title": "The service is full"}).encode()


class Faulty:
    """ASGI wrapper; healthy until told otherwise."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.faults: dict[str, Any] = {}
        self.asked = 0
        self.kept: list[bytearray] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] == "/faults":
            self.faults = json.loads(await body_of(receive))
            await answer(send, 200, b"{}")
        else:
            await self.harmed(scope, receive, send)

    async def harmed(self, scope: Scope, receive: Receive, send: Send) -> None:
        if leak := self.faults.get("leak"):
            self.kept.append(bytearray(b"x") * leak)
        if scope["path"].startswith("/v1/") and scope["method"] == "POST":
            self.asked += 1
            if self.faults.get("bare") and self.asked % 5 == 0:
                await body_of(receive)
                await answer(send, 503, REFUSAL)
                return
        if scope["path"] == CANNY:
            await asyncio.sleep(self.faults.get("slow_ms", 0) / 1000)
            if self.faults.get("wrong"):
                send = Flipped(send)
        await self.app(scope, receive, send)


class Flipped:
    """Holds an answer back until it is whole and flips the first pixel of its mask."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.start: Message = {}
        self.body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        self.body += message.get("body", b"")
        if not message.get("more_body"):
            body = flipped(self.body) if self.start["status"] == 200 else self.body
            headers = [(name, value) for name, value in self.start["headers"] if name.lower() != b"content-length"]
            await self.send({**self.start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
            await self.send({"type": "http.response.body", "body": body})


def flipped(body: bytes) -> bytes:
    answered = json.loads(body)
    mask = answered["result"]["mask"]
    picture = Image.open(io.BytesIO(base64.b64decode(mask["data"]))).convert("1")
    picture.putpixel((0, 0), 255 - picture.getpixel((0, 0)))
    out = io.BytesIO()
    picture.save(out, "PNG")
    mask["data"] = base64.b64encode(out.getvalue()).decode()
    return json.dumps(answered).encode()


async def body_of(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def create_app() -> Faulty:
    return Faulty(create_service())


if __name__ == "__main__":
    uvicorn.run(create_app(), port=int(os.environ["VISION_PORT"]), log_level="warning", timeout_graceful_shutdown=1)
