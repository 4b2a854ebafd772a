"""What makes an answer, makes its validator."""

from __future__ import annotations

import pytest

from app.etags import etag, fingerprint, not_modified
from app.parameters import Options
from cuda_ops import Step, check_chain, operators


def plan(path: str = "edges/canny", form: str = "json", options: Options | None = None, **params: object) -> bytes:
    operator = operators()[path]
    return fingerprint(check_chain([Step(operator, operator.params(**params))]), options or Options(), form)


def test_same_question_same_tag() -> None:
    assert etag(b"image", plan()) == etag(b"image", plan(low=100, high=200))


@pytest.mark.parametrize(
    "other",
    [
        etag(b"imagf", plan()),
        etag(b"image", plan(low=99)),
        etag(b"image", plan("edges/sobel")),
        etag(b"image", plan(form="png")),
        etag(b"image", plan(options=Options(orient=False))),
        etag(b"image", plan(options=Options(background="000000"))),
    ],
)
def test_any_difference_changes_the_tag(other: str) -> None:
    assert other != etag(b"image", plan())


def test_how_the_form_was_asked_for_does_not_matter() -> None:
    assert plan(form="png", options=Options(output="png")) == plan(form="png")


def test_if_none_match() -> None:
    tag = etag(b"image", plan())
    assert tag.startswith('"')
    assert not not_modified({}, tag)
    assert not not_modified({"if-none-match": '"other"'}, tag)
    for text in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        assert not_modified({"if-none-match": text}, tag)
