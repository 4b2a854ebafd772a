from __future__ import annotations

import base64
import json

import cv2
import numpy as np
import pytest

from cuda_ops import operators

BODY = {"Content-Type": "image/png"}
STEPS = [{"op": "histograms/equalize"}, {"op": "edges/canny", "params": {"low": 40, "high": 90}}]


@pytest.fixture(autouse=True, scope="module")
def compiled(warmed):
    warmed("edges/canny", "edges/sobel", "histograms/equalize", "histograms/histogram")


def picture(seed=1, height=60, width=80):
    noise = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2), None, 20, 180, cv2.NORM_MINMAX)


def png(image):
    return cv2.imencode(".png", image)[1].tobytes()


def pixels(picture_object):
    return cv2.imdecode(np.frombuffer(base64.b64decode(picture_object["data"]), np.uint8), cv2.IMREAD_UNCHANGED)


IMAGE = picture()
PNG = png(IMAGE)
EQUALIZED = cv2.equalizeHist(IMAGE)
EDGES = cv2.Canny(EQUALIZED, 40, 90)
ENCODED = base64.b64encode(PNG).decode()


def test_a_pipeline_in_every_form(live):
    answers = [
        live.post("/v1/pipelines", params={"steps": json.dumps(STEPS)}, content=PNG, headers=BODY),
        live.post("/v1/pipelines", files={"file": PNG}, data={"steps": json.dumps(STEPS)}),
        live.post("/v1/pipelines", json={"image": {"base64": ENCODED}, "steps": STEPS}),
    ]
    for answer in answers:
        body = answer.json()
        assert answer.status_code == 200, body
        assert np.array_equal(pixels(body["result"]["mask"]), EDGES)
        assert [step["op"] for step in body["steps"]] == ["histograms/equalize", "edges/canny"]
        assert body["steps"][1]["params"] == operators()["edges/canny"].params(low=40, high=90).model_dump()
        assert "kept" not in body
        assert set(body["execution"]) == {"backend", "batch_size", "decode_ms", "queue_ms", "compute_ms", "encode_ms"}


def test_kept_steps_are_returned_in_their_order(live):
    steps = [{**STEPS[0], "keep": True}, {"op": "histograms/histogram", "keep": True}, STEPS[1]]
    body = live.post("/v1/pipelines", json={"image": {"base64": ENCODED}, "steps": steps}).json()
    assert [(kept["step"], kept["op"]) for kept in body["kept"]] == [(0, "histograms/equalize"), (1, "histograms/histogram")]
    assert np.array_equal(pixels(body["kept"][0]["result"]["image"]), EQUALIZED)
    assert body["kept"][1]["result"]["counts"]["grey"] == cv2.calcHist([EQUALIZED], [0], None, [256], [0, 256]).ravel().tolist()
    assert np.array_equal(pixels(body["result"]["mask"]), EDGES)


def test_the_last_picture_alone_can_be_had(live):
    params = {"steps": json.dumps(STEPS), "output": "png"}
    answer = live.post("/v1/pipelines", params=params, content=PNG, headers=BODY)
    assert np.array_equal(cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_UNCHANGED), EDGES)
    params["steps"] = json.dumps([{**STEPS[0], "keep": True}, STEPS[1]])
    refused = live.post("/v1/pipelines", params=params, content=PNG, headers=BODY)
    assert (refused.status_code, refused.json()["code"]) == (406, "not-acceptable")


@pytest.mark.parametrize(
    ("steps", "code", "pointer"),
    [
        ([{"op": "edges/canny"}] * 9, "too-many-steps", "/steps"),
        ([{"op": "edges/canny", "params": {"low": -1}}], "invalid-parameter", "/steps/0/params/low"),
        ([STEPS[0], {"op": "edges/none"}], "invalid-parameter", "/steps/1/op"),
        ("x", "invalid-parameter", "/steps"),
        (None, "invalid-parameter", "/steps"),
    ],
)
def test_steps_are_checked_before_the_image_is_looked_at(live, steps, code, pointer):
    answer = live.post("/v1/pipelines", json={"image": {"base64": "AAAA"}, "steps": steps})
    body = answer.json()
    assert (answer.status_code, body["code"]) == (422, code)
    assert body["errors"][0]["pointer"] == pointer


def test_a_batch_keeps_its_order_and_one_bad_image_harms_no_other(live):
    images = [picture(seed, 30 + seed, 50) for seed in range(5)]
    sources = [{"base64": base64.b64encode(png(image)).decode()} for image in images]
    sources[1] = {"base64": base64.b64encode(b"no picture").decode()}
    sources[3] = {"base64": base64.b64encode(png(images[3])[:60]).decode()}
    sources.append({"base64": "%"})
    sources.append({"url": "https://example.com/"})
    answer = live.post("/v1/batch", json={"images": sources, "op": "edges/canny", "params": {"low": 30, "high": 60}})
    body = answer.json()
    assert answer.status_code == 200, body
    assert (body["operator"], body["count"], body["succeeded"], body["failed"]) == ("edges/canny", 7, 3, 4)
    assert [item["index"] for item in body["items"]] == list(range(7))
    assert [item["status"] for item in body["items"]] == [200, 415, 200, 422, 200, 400, 422]
    for index in (0, 2, 4):
        assert np.array_equal(pixels(body["items"][index]["result"]["mask"]), cv2.Canny(images[index], 30, 60))
        assert body["items"][index]["image"]["height"] == 30 + index
    codes = [body["items"][index]["problem"]["code"] for index in (1, 3, 5, 6)]
    assert codes == ["unsupported-media-type", "image-unreadable", "malformed-request", "url-refused"]
    assert all(body["items"][index]["problem"]["request_id"] == body["request_id"] for index in (1, 3, 5, 6))


def test_a_batch_of_files_through_a_pipeline(live):
    images = [picture(seed) for seed in (7, 8)]
    steps = [{**STEPS[0], "keep": True}, STEPS[1]]
    files = [("files", (f"{number}.png", png(image))) for number, image in enumerate(images)]
    body = live.post("/v1/batch", files=files, data={"steps": json.dumps(steps)}).json()
    assert body["succeeded"] == 2
    for item, image in zip(body["items"], images, strict=True):
        equalized = cv2.equalizeHist(image)
        assert np.array_equal(pixels(item["kept"][0]["result"]["image"]), equalized)
        assert np.array_equal(pixels(item["result"]["mask"]), cv2.Canny(equalized, 40, 90))


def test_parameters_of_the_one_operator_may_be_fields(live):
    files = [("files", PNG)]
    body = live.post("/v1/batch", files=files, data={"op": "edges/canny", "low": "40", "mask_encoding": "none"}).json()
    assert body["params"]["low"] == 40
    assert body["items"][0]["result"]["edge_pixels"] == np.count_nonzero(cv2.Canny(IMAGE, 40, 200))


@pytest.mark.parametrize(
    ("request_", "code", "pointer"),
    [
        ({"images": [{"base64": "AA=="}]}, "invalid-parameter", "/op"),
        ({"images": [{"base64": "AA=="}], "op": "edges/canny", "steps": STEPS}, "invalid-parameter", "/op"),
        ({"images": [{"base64": "AA=="}], "op": "edges/cannyy"}, "invalid-parameter", "/op"),
        ({"images": [], "op": "edges/canny"}, "invalid-parameter", "/images"),
        ({"images": {"base64": "AA=="}, "op": "edges/canny"}, "invalid-parameter", "/images"),
        ({"images": [{"base64": "AA=="}] * 17, "op": "edges/canny"}, "too-many-images", "/images"),
        ({"images": [{"base64": "AA=="}], "op": "edges/canny", "params": {"lo": 1}}, "invalid-parameter", "/params/lo"),
    ],
)
def test_a_batch_that_is_wrong_as_a_whole(live, request_, code, pointer):
    answer = live.post("/v1/batch", json=request_)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_batch_needs_a_list_and_json(live):
    raw = live.post("/v1/batch", params={"op": "edges/canny"}, content=PNG, headers=BODY)
    assert (raw.status_code, raw.json()["code"]) == (415, "unsupported-media-type")
    picture_ = live.post("/v1/batch", json={"images": [{"base64": ENCODED}], "op": "edges/canny"}, headers={"Accept": "image/png"})
    assert (picture_.status_code, picture_.json()["code"]) == (406, "not-acceptable")


def test_the_pixels_of_a_batch_are_bounded_together(serving):
    small = serving(max_pixels=6000, max_side=200, max_batch_pixels=10_000)
    sources = [{"base64": ENCODED}] * 3
    answer = small.post("/v1/batch", json={"images": sources, "op": "edges/canny"})
    body = answer.json()
    assert (answer.status_code, body["code"], body["setting"]) == (422, "too-many-images", "VISION_MAX_BATCH_PIXELS")
    assert (body["limit"], body["measured"]) == (10_000, 14_400)
    assert small.post("/v1/batch", json={"images": sources[:2], "op": "edges/canny"}).json()["succeeded"] == 2
