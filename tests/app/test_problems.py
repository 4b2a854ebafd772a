from __future__ import annotations

import json
import pickle

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from app.problems import MEDIA_TYPE, BodyTooLarge, Overloaded, Problem, catalog, handle

CONTRACT = {
    "malformed-request": 400, "key-missing": 401, "key-invalid": 401, "forbidden": 403, "not-found": 404, "method-not-allowed": 405,
    "not-acceptable": 406, "receive-timeout": 408, "body-too-large": 413, "unsupported-media-type": 415, "invalid-parameter": 422,
    "image-unreadable": 422, "image-too-large": 422, "image-too-small": 422, "url-refused": 422, "too-many-steps": 422,
    "too-many-images": 422, "rate-limited": 429, "client-gone": 499, "internal-error": 500, "url-failed": 502, "url-timeout": 504,
    "overloaded": 503, "draining": 503, "backend-unavailable": 503, "deadline-exceeded": 504,
}  # fmt: skip


def request():
    scope = {"type": "http", "method": "PUT", "path": "/x", "query_string": b"", "headers": [], "server": ("a", 1), "scheme": "http"}
    return Request({**scope, "vision.request_id": "r1"})


def test_the_tree_holds_the_contract():
    assert {code: problem.status for code, problem in catalog().items()} == CONTRACT


@pytest.mark.parametrize("problem", catalog().values(), ids=lambda problem: problem.code)
def test_every_problem_explains_itself_and_crosses_processes(problem):
    assert problem.__doc__
    assert len(problem.__doc__) > 40
    made = problem("do this", limit=3, measured=4, setting="S", reason="r", errors=[{"pointer": "/a", "detail": "b"}])
    copy = pickle.loads(pickle.dumps(made))
    assert type(copy) is problem
    assert copy.document("r1") == made.document("r1")


def test_a_document_leaves_out_what_does_not_apply():
    assert BodyTooLarge("smaller").document("r") == {
        "type": "/problems/body-too-large",
        "title": "The body is too large",
        "status": 413,
        "code": "body-too-large",
        "detail": "smaller",
        "request_id": "r",
    }


def test_retry_after_is_whole_seconds_rounded_up():
    assert Overloaded("wait", retry_after_s=0.2).http_headers()["Retry-After"] == "1"
    assert Overloaded("wait", retry_after_s=2.1).http_headers()["Retry-After"] == "3"
    assert "Retry-After" not in Overloaded("wait").http_headers()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (HTTPException(404), 404, "not-found"),
        (HTTPException(405, headers={"Allow": "GET"}), 405, "method-not-allowed"),
        (HTTPException(418), 400, "malformed-request"),
        (HTTPException(507), 500, "internal-error"),
        (ValueError("secret /etc/path"), 500, "internal-error"),
        (Overloaded("later", retry_after_s=1), 503, "overloaded"),
    ],
)
async def test_everything_becomes_problem_json(error, status, code):
    response = await handle(request(), error)
    body = json.loads(response.body)
    assert (response.status_code, body["code"], body["request_id"]) == (status, code, "r1")
    assert response.media_type == MEDIA_TYPE
    assert "secret" not in response.body.decode()


async def test_allow_is_kept_and_named():
    response = await handle(request(), HTTPException(405, headers={"Allow": "POST"}))
    assert response.headers["allow"] == "POST"
    assert "Use POST" in json.loads(response.body)["detail"]


def test_odd_text_cannot_break_the_answer():
    from app.problems import respond

    body = respond(Problem("lone \ud800 surrogate\n\x00"), None).body
    assert "lone" in json.loads(body)["detail"]
