from __future__ import annotations

import base64
import io

import cv2
import numpy as np
import orjson
import pytest

from app import results
from app.parameters import Options
from app.problems import InvalidParameter, NotAcceptable
from cuda_ops import Result, Step, check_chain, operators

KNOWN = operators()
ALL = ("json", "png", "webp", "npy")
IMAGE = np.arange(35, dtype=np.uint8).reshape(5, 7) * 7
MASK = (np.arange(5 * 11).reshape(5, 11) % 3 == 0).astype(np.uint8) * 255


def chain(*paths, keep=False):
    return check_chain([Step(KNOWN[path], KNOWN[path].params(), keep) for path in paths])


def result(kind, arrays, height=5, width=7, **values):
    return Result(kind, height, width, arrays, values)


def mask_result():
    return result("mask", {"mask": np.packbits(MASK, axis=1)}, 5, 11, edge_pixels=3)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "json"),
        ("*/*", "json"),
        ("image/*", "png"),
        ("image/png;q=0.3,image/webp;q=0.4", "webp"),
        ("application/json;q=0", None),
        ("application/json;q=0, */*;q=0.1", "png"),
        ("image/png;q=0, image/*", "webp"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "json"),
        ("IMAGE/PNG", "png"),
        ("image/png;q=oops", None),
        ("image/png; q=1.5 , application/json", "json"),
        (",,", None),
        ("text/plain", None),
    ],
)
def test_negotiation(accept, form):
    assert results.negotiate(accept, ALL) == form


def test_forms_follow_from_what_is_kept():
    assert results.forms(chain("edges/canny")) == ALL
    assert results.forms(chain("edges/sobel")) == ALL
    assert results.forms(chain("histograms/histogram")) == ("json", "npy")
    assert results.forms(chain("edges/sobel", "edges/canny")) == ALL
    assert results.forms(chain("edges/sobel", "edges/canny", keep=True)) == ("json",)


def test_output_overrides_accept_and_both_are_checked():
    assert results.choose(chain("edges/canny"), Options(output="npy"), "image/png") == "npy"
    with pytest.raises(NotAcceptable, match="application/json, application/x-npy"):
        results.choose(chain("histograms/histogram"), Options(output="webp"), "*/*")
    with pytest.raises(InvalidParameter, match="rle"):
        results.choose(chain("edges/sobel"), Options(mask_encoding="rle"), "*/*")
    assert results.choose(chain("edges/canny"), Options(mask_encoding="rle"), "*/*") == "json"


def test_pictures_as_json():
    body = results.to_json(result("image", {"image": IMAGE}), Options())
    assert (body["kind"], body["width"], body["height"], body["image"]["encoding"]) == ("image", 7, 5, "png")
    png = base64.b64decode(body["image"]["data"])
    assert np.array_equal(cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED), IMAGE)
    body = results.to_json(mask_result(), Options(mask_encoding="rle"))
    runs = body["mask"]["data"]
    assert body["edge_pixels"] == 3
    assert np.array_equal(np.repeat(np.arange(len(runs)) % 2 * 255, runs).reshape(5, 11), MASK)
    assert "mask" not in results.to_json(mask_result(), Options(mask_encoding="none"))


def test_columns_and_packed_arrays_as_json():
    descriptors = np.arange(64, dtype=np.uint8).reshape(2, 32)
    x = np.array([1.5, np.nan], dtype=np.float32)
    keypoints = result("keypoints", {"x": x, "y": x, "octave": np.array([0, 3], np.int32), "descriptors": descriptors}, count=2)
    body = orjson.loads(results.dumps(results.to_json(keypoints, Options())))
    assert body["x"] == [1.5, None]
    assert body["octave"] == [0, 3]
    assert "angle" not in body
    assert (body["descriptors"]["dtype"], body["descriptors"]["shape"]) == ("uint8", [2, 32])
    assert base64.b64decode(body["descriptors"]["data"]) == descriptors.tobytes()
    values = np.linspace(0, 1, 6, dtype=np.float32).reshape(1, 2, 3)
    body = results.to_json(result("descriptor", {"descriptor": values}), Options())
    assert (body["dtype"], body["shape"], body["encoding"]) == ("float32", [1, 2, 3], "base64")
    assert np.array_equal(np.frombuffer(base64.b64decode(body["data"]), "<f4"), values.ravel())


def test_histograms_and_scalars_as_json():
    counts = np.array([1, 2, 2**40], dtype=np.int64)
    histogram = result("histogram", {"grey": counts}, bins=3, statistics={"mean": np.float64("inf")})
    body = orjson.loads(results.dumps(results.to_json(histogram, Options())))
    assert body == {"kind": "histogram", "bins": 3, "counts": {"grey": [1, 2, 2**40]}, "statistics": {"mean": None}}
    scalar = result("scalar", {"mask": np.packbits(MASK, axis=1)}, 5, 11, threshold=np.int64(117))
    body = orjson.loads(results.dumps(results.to_json(scalar, Options())))
    assert (body["kind"], body["threshold"], body["mask"]["encoding"]) == ("scalar", 117, "png")


@pytest.mark.parametrize(
    ("made", "array"),
    [
        (result("image", {"image": IMAGE}), IMAGE),
        (mask_result(), MASK),
        (result("histogram", {"red": IMAGE[0], "green": IMAGE[1]}), IMAGE[:2]),
        (result("descriptor", {"descriptor": IMAGE.astype(np.float32)}), IMAGE.astype(np.float32)),
    ],
    ids=["image", "mask", "histogram", "descriptor"],
)
def test_npy_holds_the_array(made, array):
    loaded = np.load(io.BytesIO(results.to_bytes(made, "npy")), allow_pickle=False)
    assert loaded.dtype == array.dtype
    assert np.array_equal(loaded, array)


@pytest.mark.parametrize("form", ["png", "webp"])
@pytest.mark.parametrize(("made", "pixels"), [(result("image", {"image": IMAGE}), IMAGE), (mask_result(), MASK)], ids=["image", "mask"])
def test_pictures_as_files(made, pixels, form):
    loaded = cv2.imdecode(np.frombuffer(results.to_bytes(made, form), np.uint8), cv2.IMREAD_GRAYSCALE)
    assert np.array_equal(loaded, pixels)
