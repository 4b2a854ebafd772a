from __future__ import annotations

import io
import json

import pytest

from app.frame import REQUEST_ID, Frame, mint_request_id
from app.problems import ClientGone, Overloaded
from app.telemetry import Metrics, RequestLog


async def ok(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b"four"})


async def ask(app, *, method="GET", path="/x", headers=(), level="info", direct=None):
    metrics, log, sent = Metrics(), io.BytesIO(), []

    async def receive():
        return {"type": "http.request", "body": b"12345", "more_body": False}

    async def send(message):
        sent.append(message)

    frame = Frame(app, metrics, RequestLog(level, log), direct or {})
    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "client": ("1.2.3.4", 5)}
    await frame(scope, receive, send)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return sent, lines, metrics.render().decode()


def test_minted_ids_are_ulids_and_differ():
    minted = {mint_request_id() for _ in range(1000)}
    assert len(minted) == 1000
    assert all(len(each) == 26 and REQUEST_ID.fullmatch(each) and not set(each) & set("ILOU") for each in minted)
    assert len({each[:6] for each in minted}) == 1


async def test_an_answer_gets_headers_a_line_and_numbers():
    sent, lines, metrics = await ask(ok, headers=[(b"x-request-id", b"mine")])
    assert dict(sent[0]["headers"]) == {b"a": b"b", b"x-request-id": b"mine", b"x-content-type-options": b"nosniff"}
    (line,) = lines
    assert (line["event"], line["request_id"], line["status"], line["client"]) == ("request", "mine", 200, "1.2.3.4")
    assert (line["received_bytes"], line["sent_bytes"], line["route"]) == (5, 4, "other")
    assert 'vision_requests_total{route="other",status="200"} 1.0' in metrics
    assert "vision_received_bytes_total 5.0" in metrics


async def test_a_problem_from_anywhere_is_answered_and_counted():
    async def full(scope, receive, send):
        raise Overloaded("Try later.", retry_after_s=3, reason="queue")

    sent, lines, metrics = await ask(full)
    assert sent[0]["status"] == 503
    assert dict(sent[0]["headers"])[b"retry-after"] == b"3"
    assert json.loads(sent[1]["body"])["code"] == lines[0]["code"] == "overloaded"
    assert lines[0]["level"] == "warning"
    assert 'vision_refusals_total{code="overloaded",reason="queue"} 1.0' in metrics


async def test_a_defect_is_a_bare_500_and_is_logged(caplog):
    async def broken(scope, receive, send):
        raise RuntimeError("secret /path")

    sent, lines, _ = await ask(broken)
    assert sent[0]["status"] == 500
    assert b"secret" not in sent[1]["body"]
    assert json.loads(sent[1]["body"])["code"] == "internal-error"
    assert "secret /path" in caplog.text
    assert lines[0]["status"] == 500


async def test_a_defect_after_the_answer_began_is_not_answered_twice():
    async def broken(scope, receive, send):
        await ok(scope, receive, send)
        raise RuntimeError("late")

    sent, lines, _ = await ask(broken)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert lines[0]["status"] == 200


async def test_a_client_that_went_is_only_in_the_log():
    async def gone(scope, receive, send):
        raise ClientGone("gone")

    sent, lines, metrics = await ask(gone)
    assert sent == []
    assert lines[0]["status"] == 499
    assert 'vision_requests_total{route="other",status="499"} 1.0' in metrics


async def test_posts_to_known_paths_go_straight():
    async def wrong(scope, receive, send):
        raise AssertionError("not through the router")

    sent, lines, _ = await ask(wrong, method="POST", path="/v1/y", direct={"/v1/y": ok})
    assert sent[0]["status"] == 200
    assert lines[0]["route"] == "/v1/y"
    sent, *_ = await ask(ok, method="GET", path="/v1/y", direct={"/v1/y": wrong})
    assert sent[0]["status"] == 200


@pytest.mark.parametrize(("level", "lines"), [("debug", 1), ("info", 1), ("warning", 0)])
async def test_the_level_is_kept(level, lines):
    assert len((await ask(ok, level=level))[1]) == lines


async def test_log_fields_cannot_break_a_line():
    _, lines, _ = await ask(ok, path='/a\n{"event": "forged"}')
    assert len(lines) == 1
    assert lines[0]["event"] == "request"


def test_a_full_disk_costs_no_answer():
    class Full(io.BytesIO):
        def flush(self):
            raise OSError(28, "No space left on device")

    RequestLog("info", Full()).write({"route": "/x", "status": 200})
