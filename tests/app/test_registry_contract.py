"""What every operator must keep over HTTP; a new operator is tested by being registered."""

from __future__ import annotations

import base64
import io

import cv2
import numpy as np
import orjson
import pytest

from app import results
from app.examples import picture_for
from app.openapi import Document
from app.parameters import OPTION_NAMES, Options
from app.settings import Settings
from cuda_ops import Item, Step, check_chain, operators
from cuda_ops.cpu_backend import CpuBackend

KNOWN = operators()
DOCUMENT = Document(Settings(), KNOWN)
MOST_PIXELS = 1 << 18


@pytest.fixture(params=KNOWN.values(), ids=KNOWN)
def operator(request, warmed):
    warmed(request.param.path)
    return request.param


def png(image):
    return cv2.imencode(".png", image if image.ndim == 2 else image[:, :, ::-1])[1].tobytes()


def samples(operator):
    """Samples of a size that is quick to send."""
    chosen = []
    for sample in operator.samples():
        params = operator.params(**sample.params)
        height, width = sample.image.shape[:2]
        least = operator.min_size(params)
        if sample.image.size <= MOST_PIXELS and height >= least[0] and width >= least[1]:
            chosen.append((sample, params))
    assert chosen
    return chosen


def direct(operator, image, params):
    """The backend's own answer."""
    answers = []
    chain = check_chain([Step(operator, params)])
    CpuBackend(1).run([Item(np.ascontiguousarray(image), chain)], lambda _index, outcome: answers.append(outcome))
    return answers[0][0]


def test_answers_over_http_are_those_of_the_backend(live, operator):
    for sample, params in samples(operator)[:12]:
        answer = live.post(f"/v1/{operator.path}", params=as_query(sample.params), content=png(sample.image))
        assert answer.status_code == 200, (sample.name, answer.text)
        body = answer.json()
        expected = results.dumps(results.to_json(direct(operator, sample.image, params), Options()))
        assert results.dumps(body["result"]) == results.dumps(orjson.loads(expected)), sample.name
        assert body["params"] == params.model_dump()
        assert body["result"]["kind"] == operator.kind


def as_query(params):
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in params.items()}


def test_every_form_it_offers_can_be_had(live, operator):
    image = picture_for(operator)
    params = operator.params()
    grey = operator.pixel_class(params) == "grey"
    expected = direct(operator, image[:, :, 0] if grey else image, params)
    for form in results.forms(check_chain([Step(operator, params)])):
        answer = live.post(f"/v1/{operator.path}", params={"output": form}, content=png(image))
        assert answer.status_code == 200
        assert answer.headers["content-type"] == results.MEDIA_TYPES[form]
        if form == "png":
            pixels = cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_UNCHANGED)
            (name,) = {"image", "mask"} & set(expected.arrays)
            assert np.array_equal(pixels, expected.mask if name == "mask" else expected.arrays["image"])
        elif form == "npy":
            assert np.load(io.BytesIO(answer.content), allow_pickle=False).size > 0


def test_its_error_samples_are_refused_and_named(live, operator):
    for sample in operator.errors():
        image = np.zeros(sample.size, np.uint8)
        answer = live.post(f"/v1/{operator.path}", params=as_query(sample.params), content=png(image))
        body = answer.json()
        assert answer.status_code == 422, (sample.name, body)
        if sample.field is None:
            assert body["code"] == "image-too-small"
        else:
            assert body["code"] == "invalid-parameter"
            assert f"/params/{sample.field}" in {error["pointer"] for error in body["errors"]}, sample.name


def test_an_image_below_the_least_size_is_refused_in_words(live, operator):
    height, width = operator.min_size(operator.params())
    if height == width == 1:
        return
    for size in ((height - 1 or 1, width), (height, width - 1 or 1)):
        answer = live.post(f"/v1/{operator.path}", content=png(np.zeros(size, np.uint8)))
        body = answer.json()
        assert (answer.status_code, body["code"]) == (422, "image-too-small")
        assert f"{width} x {height}" in body["detail"]


def test_its_parameters_leave_the_options_names_free(operator):
    assert not OPTION_NAMES & set(operator.params.model_fields)


def test_it_is_listed(live, operator):
    listed = {entry["path"]: entry for entry in live.get("/v1/operators").json()["operators"]}
    entry = live.get(f"/v1/operators/{operator.path}").json()
    assert listed[f"/v1/{operator.path}"] == entry
    assert entry["kind"] == operator.kind
    assert entry["params"] == operator.params.model_json_schema()
    for name, schema in entry["params"].get("properties", {}).items():
        assert schema["description"], name
        assert "default" in schema, name
        if schema.get("type") in ("integer", "number") and "enum" not in schema and "const" not in schema:
            assert {"minimum", "exclusiveMinimum"} & set(schema), name
            assert {"maximum", "exclusiveMaximum"} & set(schema), name


def test_its_documented_example_is_its_answer(live, operator):
    operation = DOCUMENT.build()["paths"][f"/v1/{operator.path}"]["post"]
    sent = operation["requestBody"]["content"]["application/json"]["example"]
    shown = operation["responses"]["200"]["content"]["application/json"]["example"]
    got = live.post(f"/v1/{operator.path}", json=sent).json()
    assert set(got) == set(shown)
    assert got["operator"] == shown["operator"]
    assert got["params"] == shown["params"]
    assert got["image"] == shown["image"]
    assert set(got["execution"]) == set(shown["execution"])
    assert plain(got["result"]) == pytest.approx(plain(shown["result"]), rel=1e-2, abs=1e-2)


def plain(result):
    """Numbers only, in a flat dictionary; pictures as pixels."""
    flat = {}

    def walk(name, value):
        if isinstance(value, dict) and value.get("encoding") == "png":
            pixels = cv2.imdecode(np.frombuffer(base64.b64decode(value["data"]), np.uint8), cv2.IMREAD_UNCHANGED)
            flat[name] = float(np.sum(pixels.astype(np.float64) * (np.arange(pixels.size).reshape(pixels.shape) % 251)))
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(f"{name}/{key}", item)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                walk(f"{name}/{index}", item)
        elif isinstance(value, int | float):
            flat[name] = float(value)

    walk("", result)
    return flat
