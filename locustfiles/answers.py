"""Whether an answer is the right one: a 200 with a wrong picture is a failure.

The service promises the same answer every time, so an answer is decoded and compared pixel by pixel only once; later ones
are compared by digest, and decoded again only where that differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from locustfiles.images import Picture
from locustfiles.oracles import Check
from locustfiles.samples import BARE, ERROR, OK, REFUSED, WRONG
from locustfiles.target import Operator

Form = Literal["raw", "multipart", "base64"]
DROPPED_LATE = "deadline-exceeded"


@dataclass(frozen=True)
class Ask:
    """One thing to ask: an operator with its default parameters, a picture, and how the picture is uploaded."""

    operator: Operator
    picture: Picture
    form: Form = "raw"

    @property
    def key(self) -> tuple[str, str]:
        """What the right answer depends on."""
        return self.operator.path, self.picture.name


class Judged(NamedTuple):
    """An outcome of samples.py, the problem code or status behind it, the batch size, and what is wrong."""

    outcome: str
    code: str
    batch: int = 0
    complaint: str | None = None


class _Malformed(ValueError):
    """A 200 whose body is not what the contract promises."""


def _digest(result: Any) -> bytes:
    return hashlib.blake2b(json.dumps(result).encode(), digest_size=16).digest()


def problem_code(body: bytes) -> str | None:
    """The code of a problem document; None where the body is none."""
    try:
        problem = json.loads(body)
    except ValueError:
        return None
    code = problem.get("code") if isinstance(problem, dict) else None
    return code if isinstance(code, str) else None


def _opened(ask: Ask, body: bytes) -> tuple[Any, int]:
    """The `result` object of an answer and the size of the batch it was made in."""
    try:
        answer = json.loads(body)
        result = answer["result"]
        batch = int(answer["execution"]["batch_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise _Malformed(f"not an answer: {error!r}") from error
    if (answer["operator"], result["kind"]) != (ask.operator.path, ask.operator.kind):
        raise _Malformed(f"the answer of {answer['operator']}, kind {result['kind']}")
    return result, batch


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> Judged | None:
    """Judges an answer that refuses or drops the request for load; None for any other answer.

    429 and 503 must say when to come back. A deadline missed in the queue (504) is a drop as well.
    """
    code = problem_code(body)
    if status == 504 and code == DROPPED_LATE:
        return Judged(REFUSED, DROPPED_LATE)
    if status not in (429, 503):
        return None
    if code is None:
        return Judged(ERROR, str(status), complaint=f"a {status} that is not a problem document")
    after = headers.get("retry-after") or ""
    if not after.isdigit():
        return Judged(BARE, code, complaint=f"{status} {code} without a usable Retry-After ({after!r})")
    return Judged(REFUSED, code)


@dataclass
class AnswerBook:
    """The right answers, learned before the load."""

    _digests: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)
    _checks: dict[tuple[str, str], Check] = field(default_factory=dict)
    _first: dict[tuple[str, str], Any] = field(default_factory=dict)

    def learn(self, ask: Ask, body: bytes, check: Check | None) -> str | None:
        """Takes the answer given alone, checks it where there is an oracle, and says what is wrong with it."""
        try:
            result, _ = _opened(ask, body)
            if check is not None:
                self._checks[ask.key] = check
            else:
                self._first[ask.key] = result
            if complaint := self._compare(ask, result):
                return complaint
        except _Malformed as error:
            return str(error)
        self._digests.setdefault(ask.key, set()).add(_digest(result))
        return None

    def checked_by_oracle(self) -> set[str]:
        """Paths of the operators whose answers are compared with OpenCV's."""
        return {path for path, _ in self._checks}

    def judge(self, ask: Ask, status: int, headers: Mapping[str, str], body: bytes) -> Judged:
        """The outcome of one answer. Header names are looked up in lower case: use a case-insensitive mapping."""
        if status != 200:
            if (refused := refusal(status, headers, body)) is not None:
                return refused
            code = problem_code(body) or str(status)
            return Judged(ERROR, code, complaint=f"{status} {code}: {body[:160].decode(errors='replace')}")
        batch = 0
        try:
            result, batch = _opened(ask, body)
            known = self._digests.setdefault(ask.key, set())
            digest = _digest(result)
            if digest not in known:
                if complaint := self._compare(ask, result):
                    return Judged(WRONG, "200", batch, complaint)
                known.add(digest)
        except _Malformed as error:
            return Judged(WRONG, "200", batch, str(error))
        return Judged(OK, "200", batch)

    def _compare(self, ask: Ask, result: Any) -> str | None:
        if (check := self._checks.get(ask.key)) is not None:
            try:
                return check(result)
            except (ValueError, KeyError, TypeError) as error:
                raise _Malformed(f"the result cannot be read: {error!r}") from error
        return None if result == self._first[ask.key] else "the answer is not the one given before the load"
