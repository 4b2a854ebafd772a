"""API keys: who may call what, at which rate, with which share of the service.

The keys file is JSON: {"keys": [{"name", "sha256", "scopes", "rate_per_s", "burst", "weight", "priority", "expires"}]}. It holds SHA-256
digests only; `python -m app key NAME` makes a key and prints the entry for it. Keys are 256 random bits, so a slow password hash would
protect nothing and cost every request. Several keys may be live at once, and be of one name: that is how they are rotated.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.problems import Forbidden, KeyInvalid, KeyMissing

Scope = Literal["*", "edges", "histograms", "features", "pipelines", "batch"]

PREFIX = "vb_"
LONGEST_KEY = 200
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="visionbatch"'}


class Key(BaseModel):
    """One entry of the keys file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Shown in logs and metrics; clients of one name share a rate.")
    ]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="Digest of the key, in hexadecimal.")]
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1, description="Families and endpoints that it opens.")] = ("*",)
    rate_per_s: Annotated[float, Field(ge=0, le=1_000_000, description="Requests a second; 0 for no limit.")] = 0
    burst: Annotated[int, Field(ge=1, le=1_000_000, description="Requests at once.")] = 20
    weight: Annotated[float, Field(gt=0, le=1000, description="Share of a busy service, relative to other clients.")] = 1
    priority: Annotated[int, Field(ge=0, le=3, description="Class in the queue; 0 is ordinary, smaller waits age upwards.")] = 0
    expires: AwareDatetime | None = None


class KeyFile(BaseModel):
    """The keys file as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: Annotated[tuple[Key, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Keyring:
    """The live keys; empty when keys are off."""

    keys: Sequence[Key] = ()
    now: Callable[[], float] = time.time

    def identify(self, headers: Mapping[str, str], scope: str) -> Key | None:
        """The caller's key, or None where keys are off. KeyMissing, KeyInvalid or Forbidden when it may not come in."""
        if not self.keys:
            return None
        presented = _presented(headers)
        if not presented:
            raise KeyMissing("Send an API key: `Authorization: Bearer KEY` or `X-API-Key: KEY`.", headers=CHALLENGE)
        key = self._match(presented)
        if key is None:
            raise KeyInvalid("This API key is not known here. Check it for missing characters, or ask for a new one.", headers=CHALLENGE)
        if key.expires is not None and key.expires.timestamp() <= self.now():
            raise KeyInvalid("This API key has expired. Ask for a new one.", headers=CHALLENGE)
        if "*" not in key.scopes and scope not in key.scopes:
            raise Forbidden(f"This API key opens {', '.join(key.scopes)}, not {scope}. Ask for a key with that scope.")
        return key

    def _match(self, presented: str) -> Key | None:
        """Every digest is compared, each in constant time, so that timing tells nothing about the others."""
        digest = hashlib.sha256(presented.encode()).hexdigest()
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found


def _presented(headers: Mapping[str, str]) -> str:
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()[:LONGEST_KEY]
    return headers.get("x-api-key", "").strip()[:LONGEST_KEY]


def load_keys(path: str) -> Keyring:
    """The keyring of a file; an empty path turns keys off. OSError or pydantic.ValidationError when the file is not good."""
    if not path:
        return Keyring()
    return Keyring(KeyFile.model_validate_json(Path(path).read_bytes()).keys)


def make_key(name: str) -> tuple[str, str]:
    """A new key, and its entry for the keys file as JSON."""
    key = PREFIX + secrets.token_urlsafe(32)
    entry = Key(name=name, sha256=hashlib.sha256(key.encode()).hexdigest())
    return key, entry.model_dump_json(exclude={"expires"})
