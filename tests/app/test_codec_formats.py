"""What is an image, by its first bytes."""

from __future__ import annotations

import pytest
from pictures import FORMATS, encoded, scene

from app.codec import ACCEPTED, DecodeOptions, decode, sniff
from app.problems import ImageUnreadable, UnsupportedMediaType


@pytest.mark.parametrize("form", FORMATS)
def test_every_accepted_format_is_known_by_its_bytes(form: str) -> None:
    assert sniff(encoded(scene(), form)) == form


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"\xff\xd8\xff\xee", "jpeg"),
        (b"GIF87a", "gif"),
        (b"MM\0*", "tiff"),
        (b"II+\0", "tiff"),
        (b"P1\n", "ppm"),
        (b"P6#", "ppm"),
        (b"\0\0\0\x1cftypavis\0\0\0\0avismsf1miaf", "avif"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "avif"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "heic"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "heic"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0isommp42", None),
        (b"P7\n", None),
        (b"Pf\n", None),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"\x89PNG\n\x1a\n", None),  # its line ends were "repaired" on the way
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", None),
        (b"%!PS-Adobe-3.0 EPSF-3.0", None),
        (b"PK\x03\x04", None),
        (b"", None),
    ],
)
def test_magic_numbers(data: bytes, form: str | None) -> None:
    assert sniff(data) == form


def test_a_refusal_names_every_accepted_format() -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        decode(b"hello", DecodeOptions())
    assert all(name in caught.value.detail for name in ACCEPTED)


def test_heic_is_refused_by_the_name_of_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.codec.formats.HEIC_INSTALLED", False)
    with pytest.raises(UnsupportedMediaType, match=r"visionbatch\[heic\]"):
        decode(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", DecodeOptions())


@pytest.mark.parametrize("form", FORMATS)
def test_the_magic_number_alone_is_no_image(form: str) -> None:
    with pytest.raises(ImageUnreadable):
        decode(encoded(scene(), form)[:16], DecodeOptions())
