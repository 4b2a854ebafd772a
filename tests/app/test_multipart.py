from __future__ import annotations

import pytest

from app.multipart import MAX_TEXT_BYTES, MultipartForm
from app.problems import MalformedRequest

TYPE = "multipart/form-data; boundary=edge"


def part(name, data, filename=None, more=b""):
    file = f'; filename="{filename}"' if filename is not None else ""
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{file}\r\n'.encode()
    return head + more + b"\r\n" + data + b"\r\n"


def parse(body, chunk=None, most=20):
    form = MultipartForm(TYPE, frozenset({"file"}), most)
    step = chunk or len(body) or 1
    for start in range(0, len(body), step):
        form.write(body[start : start + step])
    return [(each.name, each.image, bytes(each.data)) for each in form.close()]


BODY = part("low", b"10") + part("file", b"\x00\r\n--edg\xff", "a.png") + part("h\u00f6he", "\u00fc".encode()) + b"--edge--\r\n"


@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_parts_come_out_however_they_arrive(chunk):
    assert parse(BODY, chunk) == [
        ("low", False, b"10"),
        ("file", True, b"\x00\r\n--edg\xff"),
        ("h\u00f6he", False, "\u00fc".encode()),
    ]


def test_a_field_of_an_images_name_is_an_image_without_a_filename():
    assert parse(part("file", b"abc") + b"--edge--")[0][1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (BODY[:-10], "closing boundary"),
        (b"", "closing boundary"),
        (b"no boundary at all", "broken"),
        (part("", b"x"), "no name"),
        (b"--edge\r\nContent-Type: text/plain\r\n\r\nx\r\n--edge--", "no name"),
        (part("a", b"1") * 21, "more than 20 parts"),
        (part("steps", bytes(MAX_TEXT_BYTES + 1)), "longer than"),
        (b"--edge\r\n" + b"A: b\r\n" * 50 + b"\r\nx", "broken"),
        (b"--edge\r\nA: " + b"b" * 10_000 + b"\r\n\r\nx", "broken"),
    ],
)
def test_what_is_wrong_is_said(body, words):
    with pytest.raises(MalformedRequest, match=words):
        parse(body)


@pytest.mark.parametrize(("content_type", "words"), [("multipart/form-data", "no boundary"), (f"{TYPE}{'x' * 300}", "too long")])
def test_the_boundary_must_be_there_and_short(content_type, words):
    with pytest.raises(MalformedRequest, match=words):
        MultipartForm(content_type, frozenset(), 20)


def test_too_many_parts_are_refused_before_the_rest_arrives():
    form = MultipartForm(TYPE, frozenset(), 2)
    form.write(part("a", b"1") + part("b", b"2"))
    with pytest.raises(MalformedRequest) as refused:
        form.write(part("c", b"3"))
    assert (refused.value.limit, refused.value.setting) == (2, "VISION_MAX_PARTS")
