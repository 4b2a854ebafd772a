"""Who may come in, with what, and for how long."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.keys import Key, Keyring, load_keys, make_key
from app.problems import Forbidden, KeyInvalid, KeyMissing


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


RING = Keyring(
    (
        Key(name="old", sha256=digest("first")),
        Key(name="old", sha256=digest("second")),
        Key(name="edges", sha256=digest("third"), scopes=("edges",)),
        Key(name="past", sha256=digest("fourth"), expires="2020-01-01T00:00:00Z"),  # type: ignore[arg-type]  # parsed by the model
    )
)


def test_without_keys_everyone_may_come_in() -> None:
    assert Keyring().identify({}, "edges") is None


@pytest.mark.parametrize("headers", [{"authorization": "Bearer second"}, {"authorization": "bearer  second "}, {"x-api-key": "second"}])
def test_either_header_opens(headers: dict[str, str]) -> None:
    key = RING.identify(headers, "features")
    assert key is not None
    assert key.name == "old"


def test_several_keys_of_one_name_are_live() -> None:
    assert RING.identify({"x-api-key": "first"}, "edges") is not None
    assert RING.identify({"x-api-key": "second"}, "edges") is not None


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer "}, {"authorization": "Basic second"}, {"x-api-key": " "}])
def test_no_key_says_how_to_send_one(headers: dict[str, str]) -> None:
    with pytest.raises(KeyMissing, match="Authorization: Bearer") as missing:
        RING.identify(headers, "edges")
    assert "WWW-Authenticate" in missing.value.headers


@pytest.mark.parametrize("text", ["fifth", "First", "x" * 100_000, "f\u00fcnf"])
def test_unknown_key(text: str) -> None:
    with pytest.raises(KeyInvalid, match="not known"):
        RING.identify({"x-api-key": text}, "edges")


def test_expired_key() -> None:
    with pytest.raises(KeyInvalid, match="expired"):
        RING.identify({"x-api-key": "fourth"}, "edges")


def test_scope() -> None:
    assert RING.identify({"x-api-key": "third"}, "edges") is not None
    with pytest.raises(Forbidden, match="opens edges, not batch"):
        RING.identify({"x-api-key": "third"}, "batch")


def test_a_made_key_opens_and_its_file_holds_no_key(tmp_path: Path) -> None:
    key, entry = make_key("web")
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [json.loads(entry)]}))
    assert key not in path.read_text()
    found = load_keys(str(path)).identify({"x-api-key": key}, "batch")
    assert found is not None
    assert found.name == "web"
    assert make_key("web")[0] != key


@pytest.mark.parametrize(
    "document",
    [{"keys": []}, {"keys": [{"name": "a", "sha256": "short"}]}, {"keys": [{"name": "a b", "sha256": "0" * 64}]}, {"key": "plain"}],
)
def test_a_bad_file_is_refused(document: object, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ValidationError):
        load_keys(str(path))


def test_no_file_turns_keys_off() -> None:
    assert load_keys("").keys == ()
