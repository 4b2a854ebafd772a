"""Strong validators: an answer is decided by the image's bytes, the plan, the form and the release, so those make its ETag.

It is known before a pixel is decoded: a client that still has the answer costs one hash. In JSON the timings and the request id
differ from answer to answer; they describe the exchange, not the answer, and are left out of the comparison on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import orjson

from app.parameters import Options
from cuda_ops import Chain


def release() -> str:
    """The version of the installed distribution; of a checkout that is not installed, the one under development."""
    try:
        return version("visionbatch")
    except PackageNotFoundError:
        return "0.1.0"


def fingerprint(chain: Chain, options: Options, form: str) -> bytes:
    """Everything but the image that decides an answer, as bytes."""
    steps = [(step.operator.path, step.params.model_dump(), step.keep) for step in chain]
    return orjson.dumps([release(), steps, options.model_dump(exclude={"output"}), form])


def etag(picture: bytes, plan: bytes) -> str:
    """The quoted strong ETag of the answer to `picture` under a plan's fingerprint."""
    digest = hashlib.sha256(hashlib.sha256(plan).digest())  # in hardware, so twice as fast as BLAKE2
    digest.update(picture)
    return f'"{digest.hexdigest()[:32]}"'


def not_modified(headers: Mapping[str, str], tag: str) -> bool:
    """Whether If-None-Match names this answer."""
    asked = headers.get("if-none-match", "")
    return bool(asked) and any(one.strip().removeprefix("W/") in (tag, "*") for one in asked.split(","))
