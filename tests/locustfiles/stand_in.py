"""A service small enough to be certain of: OpenCV behind the part of the contract that the load scenarios use."""

from __future__ import annotations

import base64
import json
from typing import Any

import cv2
import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

cv2.setNumThreads(1)


def picture(member: str, pixels: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()).decode()
    return {"kind": member, "width": pixels.shape[1], "height": pixels.shape[0], member: {"encoding": "png", "data": data}}


def canny(grey: np.ndarray) -> dict[str, Any]:
    return picture("mask", cv2.Canny(grey, 100, 200))


def otsu(grey: np.ndarray) -> dict[str, Any]:
    return {"kind": "scalar", "threshold": int(cv2.threshold(grey, 0, 255, cv2.THRESH_OTSU)[0])}


def fast(grey: np.ndarray) -> dict[str, Any]:
    points = cv2.FastFeatureDetector_create(10).detect(grey)
    columns = {"x": [p.pt[0] for p in points], "y": [p.pt[1] for p in points], "response": [p.response for p in points]}
    return {"kind": "keypoints", "count": len(points), "truncated": False, **columns}


OPERATORS = {"edges/canny": (canny, "mask"), "histograms/otsu": (otsu, "scalar"), "features/fast": (fast, "keypoints")}


def answer(path: str, data: bytes) -> Response:
    grey = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
    if grey is None:
        problem = {"code": "unsupported-media-type", "status": 415}
        return JSONResponse(problem, 415, media_type="application/problem+json")
    return JSONResponse({"operator": path, "result": OPERATORS[path][0](grey), "execution": {"batch_size": 1}})


async def operate(request: Request) -> Response:
    path = f"{request.path_params['family']}/{request.path_params['name']}"
    kind = request.headers.get("content-type", "")
    if kind.startswith("multipart/"):
        async with request.form() as form:
            data = await form["file"].read()
    else:
        data = await request.body()
        if kind == "application/json":
            data = base64.b64decode(json.loads(data)["image"]["base64"])
    return await run_in_threadpool(answer, path, data)


async def operators(_: Request) -> Response:
    listed = [{"family": p.split("/")[0], "name": p.split("/")[1], "kind": kind} for p, (_, kind) in OPERATORS.items()]
    return JSONResponse({"operators": listed})


async def alive(_: Request) -> Response:
    return PlainTextResponse("alive")


async def metrics(_: Request) -> Response:
    return PlainTextResponse("# TYPE up gauge\nup 1\n")


def create_app() -> Starlette:
    return Starlette(
        routes=[
            Route("/v1/operators", operators),
            Route("/v1/{family}/{name}", operate, methods=["POST"]),
            Route("/livez", alive),
            Route("/readyz", alive),
            Route("/metrics", metrics),
        ]
    )
