"""Everything that can go wrong, as one tree, and the one handler that turns it into application/problem+json.

    Problem
    ├── MalformedRequest 400          the request cannot be parsed
    ├── KeyMissing 401 · KeyInvalid 401 · Forbidden 403
    ├── NotFound 404 · MethodNotAllowed 405 · NotAcceptable 406
    ├── ReceiveTimeout 408            the request came too slowly
    ├── BodyTooLarge 413 · UnsupportedMediaType 415
    ├── InvalidParameter 422
    │   ├── TooManySteps 422 · TooManyImages 422
    ├── ImageUnreadable 422 · ImageTooLarge 422 · ImageTooSmall 422
    ├── UrlRefused 422 · UrlFailed 502 · UrlTimeout 504
    ├── RateLimited 429               this client is over its rate
    ├── ClientGone 499                only ever seen in the logs
    ├── InternalError 500             a defect of the service
    ├── Overloaded 503 · Draining 503 · BackendUnavailable 503
    └── DeadlineExceeded 504

A `Problem` can be pickled, so a decoder process may raise it. Its `detail` is written for the client: it says what to
do and holds nothing of the service's inside. A class's docstring is what /problems/{code} shows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """An answer other than success.

    `errors` are {"pointer", "detail"}; `limit`, `measured` and `setting` name a bound that was hit; `reason` tells
    refusals of one code apart (it is a metric label, so it must be one of a few fixed words).
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "The service failed"

    def __init__(
        self,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        limit: float | None = None,
        measured: float | None = None,
        setting: str | None = None,
        retry_after_s: float | None = None,
        reason: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = list(errors)
        self.limit = limit
        self.measured = measured
        self.setting = setting
        self.retry_after_s = retry_after_s
        self.reason = reason
        self.headers = dict(headers or {})

    def document(self, request_id: str | None = None) -> dict[str, Any]:
        """The problem as a JSON object (RFC 9457 with this service's extension members)."""
        optional = {
            "errors": self.errors or None,
            "limit": self.limit,
            "measured": self.measured,
            "setting": self.setting,
            "reason": self.reason,
            "retry_after_s": self.retry_after_s,
            "request_id": request_id,
        }
        return {
            "type": f"/problems/{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **{key: value for key, value in optional.items() if value is not None},
        }

    def http_headers(self) -> dict[str, str]:
        """The headers of the answer: never cached, and `Retry-After` in whole seconds, rounded up."""
        headers = {"Cache-Control": "no-store", **self.headers}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return headers


class MalformedRequest(Problem):
    """The JSON, the base64 or the multipart body is broken, or the body is empty. Compare it with the
    examples in /docs.
    """

    status, code, title = 400, "malformed-request", "The request cannot be parsed"


class KeyMissing(Problem):
    """This service wants an API key in the Authorization header (Bearer scheme) or in X-API-Key."""

    status, code, title = 401, "key-missing", "An API key is needed"


class KeyInvalid(Problem):
    """The key is unknown, revoked or expired. Ask whoever runs the service for a new one."""

    status, code, title = 401, "key-invalid", "The API key is not valid"


class Forbidden(Problem):
    """The key is good, but its scopes do not include this endpoint."""

    status, code, title = 403, "forbidden", "The API key does not allow this"


class NotFound(Problem):
    """No endpoint has this path. /v1/operators lists every operator, /docs every endpoint."""

    status, code, title = 404, "not-found", "There is nothing here"


class MethodNotAllowed(Problem):
    """The path exists, but not for this method. The Allow header lists the methods it has."""

    status, code, title = 405, "method-not-allowed", "The method is not allowed here"


class NotAcceptable(Problem):
    """No type in the Accept header (or `output`) can hold this result. The detail lists the types that can."""

    status, code, title = 406, "not-acceptable", "The answer cannot be sent in an accepted type"


class ReceiveTimeout(Problem):
    """Headers and body must arrive within the time and at the least rate that /v1/limits shows."""

    status, code, title = 408, "receive-timeout", "The request came too slowly"


class BodyTooLarge(Problem):
    """The body has more bytes than the service reads. Send a smaller or better compressed image."""

    status, code, title = 413, "body-too-large", "The body is too large"


class UnsupportedMediaType(Problem):
    """Either the Content-Type is none of the three request forms, or the bytes are none of the accepted image
    formats.
    """

    status, code, title = 415, "unsupported-media-type", "The media type is not supported"


class InvalidParameter(Problem):
    """A parameter is unknown, malformed or out of its range; `errors` names each with a JSON pointer."""

    status, code, title = 422, "invalid-parameter", "A parameter is not valid"


class TooManySteps(InvalidParameter):
    """A pipeline may have as many steps as /v1/limits shows. Split it into several requests."""

    status, code, title = 422, "too-many-steps", "The pipeline has too many steps"


class TooManyImages(InvalidParameter):
    """A batch may hold as many images and pixels as /v1/limits shows. Split it into several requests."""

    status, code, title = 422, "too-many-images", "The batch holds too many images or pixels"


class ImageUnreadable(Problem):
    """The bytes look like an accepted format but are damaged, truncated or need too much to decode. Save the
    image again.
    """

    status, code, title = 422, "image-unreadable", "The image cannot be decoded"


class ImageTooLarge(Problem):
    """The image's header announces more pixels, or a longer side, than the service decodes. Scale it down
    first.
    """

    status, code, title = 422, "image-too-large", "The image has too many pixels"


class ImageTooSmall(Problem):
    """The operator needs a larger image; the detail says how large. Small images can be padded by the client."""

    status, code, title = 422, "image-too-small", "The image is too small for this operator"


class UrlRefused(Problem):
    """Images by URL are off, or this URL is not one that the service may fetch. Send the bytes instead."""

    status, code, title = 422, "url-refused", "The image URL is refused"


class RateLimited(Problem):
    """Wait for Retry-After seconds. Other clients are still served."""

    status, code, title = 429, "rate-limited", "This client is over its rate"


class ClientGone(Problem):
    """Seen only in the logs: the client hung up before its answer was ready, and its work was dropped."""

    status, code, title = 499, "client-gone", "The client closed the connection"


class InternalError(Problem):
    """A defect of the service. Report it with the request id; the logs hold the rest."""

    status, code, title = 500, "internal-error", "The service failed"


class UrlFailed(Problem):
    """The remote server refused, failed, or sent something other than one image. Check that the URL opens in
    a browser.
    """

    status, code, title = 502, "url-failed", "The image could not be fetched"


class Overloaded(Problem):
    """The service refuses work it could not finish in time. Wait for Retry-After seconds and try again."""

    status, code, title = 503, "overloaded", "The service is full"


class Draining(Problem):
    """This process takes no new work. Try again after Retry-After seconds: another process will answer."""

    status, code, title = 503, "draining", "The service is shutting down"


class BackendUnavailable(Problem):
    """The service is still warming up, or its device failed and it is being restarted. Try again after Retry-
    After seconds.
    """

    status, code, title = 503, "backend-unavailable", "The compute backend is unavailable"


class UrlTimeout(Problem):
    """The remote server did not deliver the image in time. Send the bytes instead, or use a faster host."""

    status, code, title = 504, "url-timeout", "Fetching the image took too long"


class DeadlineExceeded(Problem):
    """The request waited longer than X-Deadline-Ms (or the default) allows. Try again later, or allow more
    time.
    """

    status, code, title = 504, "deadline-exceeded", "The deadline passed before the work was done"


_FOR_STATUS: dict[int, type[Problem]] = {
    406: NotAcceptable,
    413: BodyTooLarge,
    415: UnsupportedMediaType,
}


def catalog() -> dict[str, type[Problem]]:
    """Every problem by its code, in the order of the tree."""

    def walk(parent: type[Problem]) -> Iterator[type[Problem]]:
        for child in parent.__subclasses__():
            yield child
            yield from walk(child)

    return {problem.code: problem for problem in sorted(walk(Problem), key=lambda each: each.status)}


def from_http(error: HTTPException, method: str, path: str) -> Problem:
    """The framework's own exception as a problem, with a detail that says what to do."""
    headers = error.headers
    if error.status_code == 404:
        return NotFound(f"No endpoint has the path {path[:200]}. /v1/operators lists every operator, /docs all endpoints.")
    if error.status_code == 405:
        allowed = (headers or {}).get("Allow", "another method")
        return MethodNotAllowed(f"{method[:16]} is not allowed here. Use {allowed}.", headers=headers)
    kind = _FOR_STATUS.get(error.status_code, MalformedRequest if error.status_code < 500 else InternalError)
    return kind(str(error.detail), headers=headers)


def respond(problem: Problem, request_id: str | None) -> Response:
    """The problem as an HTTP response."""
    text = json.dumps(problem.document(request_id), ensure_ascii=False, allow_nan=False)
    body = text.encode("utf-8", "backslashreplace")
    return Response(body, status_code=problem.status, headers=problem.http_headers(), media_type=MEDIA_TYPE)


async def handle(request: Request, error: Exception) -> Response:
    """The one exception handler; what is neither a problem nor the framework's exception becomes a bare 500."""
    if isinstance(error, HTTPException):
        error = from_http(error, request.method, request.url.path)
    if not isinstance(error, Problem):
        error = InternalError("The service failed in a way it should not. Report this with the request id.")
    request.scope["vision.problem"] = error
    return respond(error, request.scope.get("vision.request_id"))
