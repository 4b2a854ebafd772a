"""FAST beyond the contract tests: photographs, ranking before truncation, OpenCV's extra conditions, bounded memory."""

from pathlib import Path

import cv2
import numpy as np
import pytest

import cuda_ops
from cuda_ops import samples
from cuda_ops.operator import operators

RINGS = {
    "9_16": cv2.FAST_FEATURE_DETECTOR_TYPE_9_16,
    "7_12": cv2.FAST_FEATURE_DETECTOR_TYPE_7_12,
    "5_8": cv2.FAST_FEATURE_DETECTOR_TYPE_5_8,
}


@pytest.mark.parametrize("threshold", [0, 10, 40])
@pytest.mark.parametrize("ring", RINGS)
def test_photographs_give_opencvs_list(shared_images: Path, ring: str, threshold: int) -> None:
    for name in ("DSCN0042.jpg", "no_exif.jpg"):
        image = cv2.imread(str(shared_images / "photos" / name), cv2.IMREAD_GRAYSCALE)
        for suppressed in (True, False):
            expected = cv2.FastFeatureDetector_create(threshold, suppressed, RINGS[ring]).detect(image)
            got = cuda_ops.apply(
                "features/fast", image, threshold=threshold, nonmax_suppression=suppressed, type=ring, max_keypoints=1_000_000
            )
            assert len(expected) > 100
            rows = zip(*(got.arrays[name].tolist() for name in ("x", "y", "response", "size")), strict=True)
            assert list(rows) == [(*map(int, point.pt), int(point.response), int(point.size)) for point in expected]
            assert got.values == {"count": len(expected), "truncated": False}


@pytest.mark.parametrize("limit", [1, 2, 17, 400, 3000])
@pytest.mark.parametrize("ring", RINGS)
def test_strongest_stay_in_order_however_often_the_list_is_cut(ring: str, limit: int) -> None:
    image = samples.noise(240, 401, limit)
    params = {"threshold": 3, "type": ring}
    every = cuda_ops.apply("features/fast", image, max_keypoints=1_000_000, **params).arrays
    few = cuda_ops.apply("features/fast", image, max_keypoints=limit, **params)
    best = np.sort(np.argsort(-every["response"], kind="stable")[:limit])
    assert few.values["truncated"] == (len(every["x"]) > limit)
    for name, column in few.arrays.items():
        assert np.array_equal(column, every[name][best])


def test_equal_corners_are_kept_from_the_top() -> None:
    image = np.zeros((40, 120), dtype=np.uint8)
    image[8:32:12, 8:110:10] = 200
    every = cuda_ops.apply("features/fast", image)
    assert len(set(every.arrays["response"].tolist())) == 1
    few = cuda_ops.apply("features/fast", image, max_keypoints=15)
    assert few.values == {"count": 15, "truncated": True}
    assert few.arrays["x"].tolist() == every.arrays["x"][:15].tolist()
    assert few.arrays["y"].tolist() == every.arrays["y"][:15].tolist()


@pytest.mark.parametrize(
    ("ring", "gap", "corner"),
    [("5_8", 0, True), ("5_8", 1, False), ("7_12", 1, True), ("7_12", 5, False), ("9_16", 7, True), ("9_16", 8, False)],
)
def test_small_rings_ask_for_more_than_an_arc(ring: str, gap: int, corner: bool) -> None:
    """A ring all bright but for `gap` neighbors: on the ring of 8 OpenCV wants all of them, though an arc of 5 is enough by definition."""
    from cuda_ops.features.fast import RINGS as PLACES

    image = np.full((9, 9), 50, dtype=np.uint8)
    for dx, dy in PLACES[ring][gap:]:
        image[4 + dy, 4 + dx] = 150
    got = cuda_ops.apply("features/fast", image, type=ring, nonmax_suppression=False).arrays
    expected = cv2.FastFeatureDetector_create(10, False, RINGS[ring]).detect(image)
    assert ((4, 4) in set(zip(got["x"].tolist(), got["y"].tolist(), strict=True))) == corner
    assert len(expected) == len(got["x"])


def test_memory_follows_the_limit_not_the_picture() -> None:
    operator = operators()["features/fast"]
    layout = operator.layout(6000, 6000, operator.params(max_keypoints=5000))
    assert sum(spec.bytes for spec in layout.outputs.values()) < 50_000
    assert sum(spec.bytes for spec in layout.cpu.values()) < 250_000
    assert sum(spec.bytes for spec in layout.scratch.values()) < 1.1 * 6000 * 6000


def test_picture_of_strided_memory_is_read_by_its_rows() -> None:
    wide = samples.noise(60, 200, 5)
    part = wide[:, 50:150]
    got, expected = cuda_ops.apply("features/fast", part), cuda_ops.apply("features/fast", part.copy())
    assert all(np.array_equal(got.arrays[name], expected.arrays[name]) for name in expected.arrays)
