from __future__ import annotations

import base64
import csv
import io
from concurrent.futures import ThreadPoolExecutor

import cv2
import httpx
import numpy as np
import pytest

CANNY = "/v1/edges/canny"


def picture(height=90, width=120, seed=1):
    """A blurred random field: uint8 [h, w], with edges at many thresholds."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2), None, 0, 255, cv2.NORM_MINMAX)


def png(image):
    return cv2.imencode(".png", image)[1].tobytes()


def decoded(data):
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)


def from_base64(picture_object):
    return decoded(base64.b64decode(picture_object["data"]))


@pytest.fixture(autouse=True, scope="module")
def compiled(warmed):
    warmed("edges/canny", "edges/sobel", "histograms/histogram")


BODY = {"Content-Type": "image/png"}
IMAGE = picture()
PNG = png(IMAGE)
EDGES = cv2.Canny(IMAGE, 40, 90)


def test_three_forms_give_the_same_answer(live):
    encoded = base64.b64encode(PNG).decode()
    answers = [
        live.post(f"{CANNY}?low=40&high=90", content=PNG, headers=BODY),
        live.post(f"{CANNY}?low=40&high=90", content=PNG, headers={"Content-Type": "application/octet-stream"}),
        live.post(f"{CANNY}?low=40", files={"file": ("a.png", PNG)}, data={"high": "90"}),
        live.post(CANNY, json={"image": {"base64": encoded}, "params": {"low": 40, "high": 90}}),
        live.post(CANNY, json={"image": {"base64": f"data:image/png;base64,{encoded}"}, "params": {"low": 40, "high": 90.0}}),
    ]
    assert [answer.status_code for answer in answers] == [200] * 5
    bodies = [answer.json() for answer in answers]
    for body in bodies:
        assert body["operator"] == "edges/canny"
        assert body["params"]["low"] == 40
        assert body["params"]["high"] == 90
        assert body["result"] == bodies[0]["result"]
        assert body["image"] == bodies[0]["image"]
        assert set(body) == {"operator", "params", "image", "result", "execution", "request_id"}
    assert np.array_equal(from_base64(bodies[0]["result"]["mask"]), EDGES)
    assert bodies[0]["result"]["edge_pixels"] == np.count_nonzero(EDGES)
    assert bodies[0]["image"] == {
        "format": "png",
        "width": 120,
        "height": 90,
        "mode": "L",
        "depth": 8,
        "frames": 1,
        "orientation": 1,
        "oriented": True,
        "converted": [],
    }


def test_the_answer_says_how_it_was_made(live):
    answer = live.post(CANNY, content=PNG, headers=BODY)
    execution = answer.json()["execution"]
    assert execution["backend"] == answer.headers["x-backend"] == "cpu"
    assert execution["batch_size"] >= 1
    for name in ("decode_ms", "queue_ms", "compute_ms", "encode_ms"):
        assert execution[name] >= 0
    phases = [part.split(";dur=") for part in answer.headers["server-timing"].split(", ")]
    assert {"receive", "decode", "queue", "form", "kernel", "encode"} <= {name for name, _ in phases}
    assert all(float(value) >= 0 for _, value in phases)
    assert answer.headers["vary"] == "Accept"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("accept", "output", "media_type"),
    [
        ("*/*", None, "application/json"),
        ("image/png", None, "image/png"),
        ("image/webp, image/png;q=0.5", None, "image/webp"),
        ("application/json;q=0.2, image/*;q=0.7", None, "image/png"),
        ("application/x-npy", None, "application/x-npy"),
        ("application/json", "png", "image/png"),
        ("image/png", "json", "application/json"),
        ("text/html", "npy", "application/x-npy"),
    ],
)
def test_the_answer_has_the_accepted_type(live, accept, output, media_type):
    params = {"low": 40, "high": 90} | ({"output": output} if output else {})
    answer = live.post(CANNY, params=params, content=PNG, headers={**BODY, "Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == media_type
    if media_type == "image/png":
        assert np.array_equal(decoded(answer.content), EDGES)
    elif media_type == "image/webp":
        assert np.array_equal(decoded(answer.content)[:, :, 0], EDGES)
    elif media_type == "application/x-npy":
        assert np.array_equal(_load_npy(answer.content), EDGES)


def _load_npy(data):
    return np.load(io.BytesIO(data), allow_pickle=False)


def test_masks_as_run_lengths_or_not_at_all(live):
    runs = live.post(CANNY, params={"low": 40, "high": 90, "mask_encoding": "rle"}, content=PNG, headers=BODY).json()["result"]["mask"]
    values = np.arange(len(runs["data"])) % 2 * 255
    assert runs["encoding"] == "rle"
    assert np.array_equal(np.repeat(values, runs["data"]).reshape(EDGES.shape), EDGES)
    none = live.post(CANNY, params={"low": 40, "high": 90, "mask_encoding": "none"}, content=PNG, headers=BODY).json()["result"]
    assert none["edge_pixels"] == np.count_nonzero(EDGES)
    assert "mask" not in none


def test_options_reach_the_decoder(live, shared_images):
    data = (shared_images / "orientation" / "Portrait_6.jpg").read_bytes()
    grey = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION)
    answer = live.post(CANNY, params={"orient": "false", "output": "png"}, content=data, headers={"Content-Type": "image/jpeg"})
    assert np.array_equal(decoded(answer.content), cv2.Canny(grey, 100, 200))
    clear = png(np.zeros((8, 8, 4), np.uint8))
    equalized = {}
    for color in ("ffffff", "000000", "#808080"):
        answer = live.post("/v1/edges/sobel", params={"background": color, "output": "npy"}, content=clear, headers=BODY)
        histogram = live.post(
            "/v1/pipelines",
            params={"background": color, "steps": '[{"op": "histograms/histogram"}]'},
            content=clear,
            headers=BODY,
        ).json()
        equalized[color] = histogram["result"]["counts"]["grey"].index(64)
        assert not _load_npy(answer.content).any()
    assert equalized == {"ffffff": 255, "000000": 0, "#808080": 128}


def test_request_id_is_echoed_or_minted(live):
    assert live.get("/livez", headers={"X-Request-ID": "mine-1.2_3"}).headers["x-request-id"] == "mine-1.2_3"
    for bad in ("white space", "x" * 65, "semi;colon"):
        minted = live.get("/livez", headers={"X-Request-ID": bad}).headers["x-request-id"]
        assert minted != bad
        assert len(minted) == 26
    answer = live.post(CANNY, content=PNG, headers={**BODY, "X-Request-ID": "abc"})
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "abc"


def check_problem(answer, status, code):
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"/problems/{code}"
    assert body["status"] == status
    assert body["request_id"] == answer.headers["x-request-id"]
    assert body["title"]
    assert len(body["detail"]) > 20
    assert answer.headers["cache-control"] == "no-store"
    return body


@pytest.mark.parametrize(
    ("request_", "status", "code", "words"),
    [
        ({"content": b"", "headers": BODY}, 400, "malformed-request", "empty"),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 400, "malformed-request", "JSON"),
        ({"content": b"[1]", "headers": {"Content-Type": "application/json"}}, 400, "malformed-request", "object"),
        ({"json": {"image": {"base64": "!!"}}}, 400, "malformed-request", "base64"),
        ({"json": {"image": {"base64": "data:image/png,xx"}}}, 400, "malformed-request", "data URI"),
        ({"content": b"--x\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}, 400, "malformed-request", "closing"),
        ({"content": b"abc", "headers": {"Content-Type": "multipart/form-data"}}, 400, "malformed-request", "boundary"),
        ({"content": PNG, "headers": {"Content-Type": "application/x-www-form-urlencoded"}}, 415, "unsupported-media-type", "octet-stream"),
        ({"content": PNG, "headers": {**BODY, "Content-Encoding": "gzip"}}, 415, "unsupported-media-type", "Content-Encoding"),
        ({"content": b"not a picture", "headers": BODY}, 415, "unsupported-media-type", "JPEG"),
        ({"content": PNG[: len(PNG) // 2], "headers": BODY}, 422, "image-unreadable", ""),
        ({"content": PNG, "headers": {**BODY, "X-Deadline-Ms": "soon"}}, 422, "invalid-parameter", "X-Deadline-Ms"),
        ({"content": PNG, "headers": {**BODY, "X-Deadline-Ms": "9999999"}}, 422, "invalid-parameter", "10000"),
        ({"json": {"params": {}}}, 422, "invalid-parameter", "no image"),
        ({"json": {"image": {"base64": "AA==", "url": "https://x"}}}, 422, "invalid-parameter", "exactly one"),
        ({"json": {"image": {"url": "https://example.com/a.png"}}}, 422, "url-refused", "bytes"),
        ({"json": {"image": {"base64": "AA=="}, "low": 3}}, 422, "invalid-parameter", "params"),
        ({"json": {"images": []}}, 422, "invalid-parameter", "image"),
        ({"json": {"image": {"base64": "AA=="}, "params": []}}, 422, "invalid-parameter", "object"),
        ({"files": [("file", PNG), ("file", PNG)]}, 422, "invalid-parameter", "/v1/batch"),
        ({"files": [("picture", PNG)]}, 422, "invalid-parameter", "`file`"),
        ({"files": [("file", PNG)], "data": {"steps": "[]"}}, 422, "invalid-parameter", "/v1/pipelines"),
    ],
)
def test_mistakes_are_explained(live, request_, status, code, words):
    body = check_problem(live.post(CANNY, **request_), status, code)
    assert words in body["detail"]


@pytest.mark.parametrize(
    ("query", "pointer", "words"),
    [
        ("lo=3", "/params/lo", "did you mean `low`"),
        ("low=-1", "/params/low", "greater than or equal to 0"),
        ("low=abc", "/params/low", '"abc"'),
        ("aperture=4", "/params/aperture", "3, 5 or 7"),
        ("l2_gradient=1", "/params/l2_gradient", "boolean"),
        ("low=1&low=2", "/params/low", "twice"),
        ("output=gif", "/params/output", "'png'"),
        ("background=red", "/params/background", "pattern"),
        ("low=NaN", "/params/low", "NaN"),
        ("low=1e999", "/params/low", "1e999"),
    ],
)
def test_parameters_are_checked_and_named(live, query, pointer, words):
    body = check_problem(live.post(f"{CANNY}?{query}", content=PNG, headers=BODY), 422, "invalid-parameter")
    assert body["errors"][0]["pointer"] == pointer
    assert words in body["errors"][0]["detail"]
    assert words in body["detail"]


def test_every_mistake_is_listed_at_once(live):
    body = check_problem(live.post(f"{CANNY}?low=x&high=y&orient=z&q=1", content=PNG, headers=BODY), 422, "invalid-parameter")
    assert {error["pointer"] for error in body["errors"]} == {"/params/low", "/params/high", "/params/orient", "/params/q"}


def test_what_cannot_be_accepted_is_406_and_listed(live):
    for request_ in ({"headers": {**BODY, "Accept": "text/html"}}, {"headers": {**BODY, "Accept": "image/png;q=0"}}):
        body = check_problem(live.post(CANNY, content=PNG, **request_), 406, "not-acceptable")
        assert "application/json, image/png, image/webp, application/x-npy" in body["detail"]
    body = check_problem(live.post("/v1/histograms/histogram?output=png", content=PNG, headers=BODY), 406, "not-acceptable")
    assert "application/json, application/x-npy" in body["detail"]


def test_unknown_paths_and_methods_are_problems(live):
    check_problem(live.get("/nowhere"), 404, "not-found")
    check_problem(live.post("/v1/edges/cany", content=PNG, headers=BODY), 404, "not-found")
    body = check_problem(live.get(CANNY), 405, "method-not-allowed")
    assert "POST" in body["detail"]
    assert live.get(CANNY).headers["allow"] == "POST"
    check_problem(live.client.delete("/v1/limits"), 405, "method-not-allowed")
    check_problem(live.client.request("TRACE", "/livez"), 405, "method-not-allowed")
    check_problem(live.get("/static/nothing.js"), 404, "not-found")


def test_bodies_are_bounded_before_and_while_they_arrive(serving):
    small = serving(max_body_bytes=4096, max_json_bytes=8192, max_pixels=10_000, max_side=200, max_batch_pixels=10_000)
    for body, kind, setting in (
        (bytes(5000), "image/png", "VISION_MAX_BODY_BYTES"),
        (bytes(9000), "application/json", "VISION_MAX_JSON_BYTES"),
    ):
        declared = check_problem(small.post(CANNY, content=body, headers={"Content-Type": kind}), 413, "body-too-large")
        assert declared["setting"] == setting
        assert declared["measured"] == len(body)
        chunked = small.post(CANNY, content=iter([body[:3000], body[3000:]]), headers={"Content-Type": kind})
        assert check_problem(chunked, 413, "body-too-large")["limit"] == len(body) // 4096 * 4096
    check_problem(small.post(CANNY, files={"file": bytes(5000)}), 413, "body-too-large")
    encoded = base64.b64encode(bytes(5000)).decode()
    check_problem(small.post(CANNY, json={"image": {"base64": encoded}}), 413, "body-too-large")
    large = check_problem(small.post(CANNY, content=png(np.zeros((101, 100), np.uint8)), headers=BODY), 422, "image-too-large")
    assert (large["limit"], large["measured"], large["setting"]) == (10_000, 10_100, "VISION_MAX_PIXELS")


def test_a_deadline_that_has_passed_is_504(live):
    image = png(picture(1500, 2000))
    live.post(CANNY, content=image, headers=BODY)
    check_problem(live.post(CANNY, content=image, headers={**BODY, "X-Deadline-Ms": "1"}), 504, "deadline-exceeded")


def test_sixteen_clients_get_the_answers_of_one(live):
    images = [picture(40 + 17 * seed, 50 + 13 * seed, seed) for seed in range(16)]

    def ask(number):
        low = 10 + 5 * number
        params = {"low": low, "high": 2 * low, "output": "png"}
        with httpx.Client(base_url=live.client.base_url, timeout=50) as client:
            return [client.post(CANNY, params=params, content=png(images[number]), headers=BODY).content for _ in range(4)]

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(16)))
    for number, answers in enumerate(together):
        low = 10 + 5 * number
        expected = cv2.Canny(images[number], low, 2 * low)
        assert all(np.array_equal(decoded(answer), expected) for answer in answers)


@pytest.mark.timeout(180)
def test_every_shared_image_gets_its_status(live, shared_images):
    wrong = []
    for row in csv.DictReader((shared_images / "expected.csv").read_text().splitlines()):
        data = (shared_images / row["file"]).read_bytes()
        answer = live.post(CANNY, params={"mask_encoding": "none"}, content=data, headers={"Content-Type": "application/octet-stream"})
        body = answer.json()
        got = [str(answer.status_code), body.get("code", "")]
        wanted = [row["status"], row["code"]]
        if answer.status_code == 200:
            got += [str(body["image"][name]) for name in ("width", "height", "mode", "frames", "orientation")]
            wanted += [row[name] for name in ("width", "height", "mode", "frames", "orientation")]
        if got != wanted:
            wrong.append((row["file"], got, wanted))
    assert wrong == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("low", "high"), [(100, 200), (20, 60)])
def test_photos_have_the_masks_of_opencv(live, shared_images, low, high):
    wrong = []
    for path in sorted((shared_images / "photos").iterdir()):
        data = path.read_bytes()
        expected = cv2.Canny(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE), low, high)
        params = {"low": low, "high": high, "output": "png"}
        answer = live.post(CANNY, params=params, content=data, headers={"Content-Type": "image/jpeg"})
        if not np.array_equal(decoded(answer.content), expected):
            wrong.append(path.name)
    assert wrong == []
