"""The service under test, asked plainly: its operators, limits and metrics. For everything that is not measured."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KEY_VARIABLE = "VISION_API_KEY"


class Unreachable(RuntimeError):
    """The service does not answer as its contract says, so nothing can be judged."""


class Reply(NamedTuple):
    """Status, lower-case header names, body."""

    status: int
    headers: dict[str, str]
    body: bytes


def credentials() -> dict[str, str]:
    """The header that carries the API key of the environment, if there is one."""
    key = os.environ.get(KEY_VARIABLE)
    return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True)
class Operator:
    """One operator as the service declares it."""

    path: str
    kind: str


@dataclass(frozen=True)
class Target:
    """One deployment."""

    host: str
    timeout_s: float = 30.0
    _context: ssl.SSLContext = field(default_factory=ssl.create_default_context, repr=False)

    def fetch(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        """One GET, or POST where there is a body. Unreachable where there is no answer at all."""
        url = self.host.rstrip("/") + path
        if not url.startswith(("http://", "https://")):
            raise Unreachable(f"{self.host!r} is not an http(s) address")
        request = urllib.request.Request(url, body, credentials() | (headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s, context=self._context) as answer:
                return Reply(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())
        except (OSError, urllib.error.URLError) as error:
            raise Unreachable(f"{url} does not answer: {error}") from error

    def json(self, path: str) -> Any:
        """The JSON answer of a GET; Unreachable unless it is a 200."""
        reply = self.fetch(path)
        if reply.status != 200:
            raise Unreachable(f"{path} answers {reply.status}: {reply.body[:200].decode(errors='replace')}")
        return json.loads(reply.body)

    def operators(self) -> list[Operator]:
        """Every operator of ``GET /v1/operators``; ``VISION_OPERATORS`` (comma-separated paths) chooses among them."""
        listed = self.json("/v1/operators")
        entries = listed["operators"] if isinstance(listed, dict) else listed
        found = [Operator(f"{entry['family']}/{entry['name']}", entry["kind"]) for entry in entries]
        if chosen := [path for path in os.environ.get("VISION_OPERATORS", "").split(",") if path]:
            if unknown := set(chosen) - {operator.path for operator in found}:
                raise Unreachable(f"the service has no {', '.join(sorted(unknown))}")
            found = [operator for operator in found if operator.path in chosen]
        if not found:
            raise Unreachable("the service lists no operators")
        return found

    def limit(self, name: str, default: float) -> float:
        """A limit of ``GET /v1/limits``, or the default where the service states none of that name."""
        reply = self.fetch("/v1/limits")
        stated = json.loads(reply.body) if reply.status == 200 else {}
        entry = stated.get("limits", stated).get(name, default)
        return float(entry["value"] if isinstance(entry, dict) else entry)
