import base64
import io
import json
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from locustfiles.answers import AnswerBook, Ask
from locustfiles.images import pictures
from locustfiles.oracles import oracle
from locustfiles.samples import BARE, ERROR, OK, REFUSED, WRONG
from locustfiles.target import Operator
from locustfiles.uploads import upload

CANNY, NEW = Operator("edges/canny", "mask"), Operator("edges/brand_new", "scalar")
SMALL = pictures("small")[0]
GREY = cv2.imdecode(np.frombuffer(SMALL.data, np.uint8), cv2.IMREAD_GRAYSCALE)


def png(pixels: np.ndarray, mode: str = "L") -> str:
    body = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(body, "PNG")
    return base64.b64encode(body.getvalue()).decode()


def answer(operator: Operator, result: dict[str, Any]) -> bytes:
    whole = {"operator": operator.path, "result": {"kind": operator.kind, **result}, "execution": {"batch_size": 4}}
    return json.dumps(whole).encode()


def mask(pixels: np.ndarray) -> bytes:
    return answer(CANNY, {"mask": {"encoding": "png", "data": png(pixels, "1")}})


@pytest.fixture
def book() -> AnswerBook:
    book = AnswerBook()
    edges = cv2.Canny(GREY, 100, 200)
    assert book.learn(Ask(CANNY, SMALL), mask(edges), oracle(CANNY.path, SMALL.data)) is None
    assert book.learn(Ask(NEW, SMALL), answer(NEW, {"value": 7}), None) is None
    return book


def test_the_right_mask_is_right_however_it_is_packed(book: AnswerBook) -> None:
    edges = cv2.Canny(GREY, 100, 200)
    assert book.judge(Ask(CANNY, SMALL), 200, {}, mask(edges))[:3] == (OK, "200", 4)
    other = answer(CANNY, {"mask": {"encoding": "png", "data": png(edges, "L")}})
    assert book.judge(Ask(CANNY, SMALL), 200, {}, other).outcome == OK


def test_one_wrong_pixel_is_wrong(book: AnswerBook) -> None:
    edges = cv2.Canny(GREY, 100, 200)
    edges[5, 7] ^= 255
    judged = book.judge(Ask(CANNY, SMALL), 200, {}, mask(edges))
    assert judged.outcome == WRONG
    assert judged.complaint == "1 of 307200 pixels of the mask are wrong"


def test_a_wrong_first_answer_is_noticed() -> None:
    book = AnswerBook()
    assert "pixels" in (book.learn(Ask(CANNY, SMALL), mask(np.zeros_like(GREY)), oracle(CANNY.path, SMALL.data)) or "")


def test_an_operator_without_an_oracle_must_repeat_its_first_answer(book: AnswerBook) -> None:
    assert book.judge(Ask(NEW, SMALL), 200, {}, answer(NEW, {"value": 7})).outcome == OK
    assert book.judge(Ask(NEW, SMALL), 200, {}, answer(NEW, {"value": 8})).outcome == WRONG
    assert book.checked_by_oracle() == {CANNY.path}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"operator": "edges/canny"}',
        answer(NEW, {"value": 7}),
        answer(CANNY, {}),
        answer(CANNY, {"mask": {"data": "AAAA"}}),
    ],
)
def test_a_200_that_is_no_answer_is_wrong(body: bytes, book: AnswerBook) -> None:
    assert book.judge(Ask(CANNY, SMALL), 200, {}, body).outcome == WRONG


@pytest.mark.parametrize(
    ("status", "headers", "code", "outcome"),
    [
        (503, {"retry-after": "2"}, "overloaded", REFUSED),
        (429, {"retry-after": "1"}, "rate-limited", REFUSED),
        (503, {}, "overloaded", BARE),
        (503, {"retry-after": "soon"}, "overloaded", BARE),
        (504, {}, "deadline-exceeded", REFUSED),
        (504, {}, "url-timeout", ERROR),
        (503, {"retry-after": "2"}, None, ERROR),
        (500, {}, "internal-error", ERROR),
        (422, {}, "image-unreadable", ERROR),
    ],
)
def test_refusals_are_told_from_failures(status: int, headers: dict[str, str], code: str | None, outcome: str, book: AnswerBook) -> None:
    body = json.dumps({"code": code}).encode() if code else b"Service Unavailable"
    assert book.judge(Ask(CANNY, SMALL), status, headers, body).outcome == outcome


def test_the_three_forms_carry_the_same_picture() -> None:
    assert upload(SMALL, "raw").body == SMALL.data
    assert SMALL.data in upload(SMALL, "multipart").body
    assert base64.b64decode(json.loads(upload(SMALL, "base64").body)["image"]["base64"]) == SMALL.data


def test_the_pictures_have_the_sizes_of_the_mix_and_something_to_find() -> None:
    for size, low, high in (("small", 0, 0.5e6), ("medium", 1.5e6, 2.5e6), ("large", 12e6, 12e6)):
        for picture in pictures(size):
            assert low <= picture.width * picture.height <= high
    assert 0.01 < np.count_nonzero(cv2.Canny(GREY, 100, 200)) / GREY.size < 0.2
    assert 100 < len(cv2.FastFeatureDetector.create(10).detect(GREY)) < 5000
