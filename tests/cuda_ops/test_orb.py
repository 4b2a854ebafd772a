"""ORB beyond the contract tests: photographs, the facts it stands on, equals at the cut, memory."""

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuda_ops
from cuda_ops import samples
from cuda_ops.features.orb import dots
from cuda_ops.jit import host
from cuda_ops.operator import operators
from cuda_ops.orb_descriptors import PATTERN, T0, T1, T2, T3
from cuda_ops.orb_levels import EDGE, levels, quotas
from cuda_ops.orb_orientation import RADIANS, TURN, cosine_sine, direction
from cuda_ops.orb_pyramid import place

OPERATOR = operators()["features/orb"]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_features": 3000, "scale_factor": 1.1, "n_levels": 12, "fast_threshold": 7},
        {"n_features": 1000, "scale_factor": 1.5, "n_levels": 4, "fast_threshold": 40},
        {"n_features": 200, "scale_factor": 2.0, "n_levels": 3},
    ],
)
def test_photographs_give_opencvs_keypoints_and_bits(shared_images: Path, params: dict[str, float]) -> None:
    for name in ("DSCN0042.jpg", "nikon-e950.jpg", "no_exif.jpg"):
        image = cv2.imread(str(shared_images / "photos" / name), cv2.IMREAD_GRAYSCALE)
        got, expected = cuda_ops.apply("features/orb", image, **params), OPERATOR.oracle(image, OPERATOR.params(**params))
        assert expected.values["count"] > 150
        assert OPERATOR.agrees(got, expected) is None


@given(height=st.integers(60, 160), width=st.integers(60, 220), seed=st.integers(0, 99), index=st.integers(0, 3))
def test_any_size_with_room_for_keypoints(height: int, width: int, seed: int, index: int) -> None:
    image = (samples.smooth, samples.noise, samples.squares, samples.checkerboard)[index](height, width, seed + 2)
    params = OPERATOR.params(n_features=60, n_levels=3, fast_threshold=seed)
    assert OPERATOR.agrees(cuda_ops.apply("features/orb", image, **params.model_dump()), OPERATOR.oracle(image, params)) is None


@host
def _places(source, target, drift, out):
    for d in range(target):
        out[0, d], out[1, d] = place(d, source, target, drift)


@given(target=st.one_of(st.integers(63, 4000), st.integers(1, 15).map(lambda n: 256 * n)), ratio=st.floats(1.02, 2.02))
def test_places_are_those_of_float64(target: int, ratio: float) -> None:
    """Multiples of 256 have weights half way between two steps, where the error of OpenCV's float64 scale decides."""
    source = max(int(target * ratio), target)
    scale = 1.0 / (target / source)
    out = np.empty((2, target), dtype=np.int64)
    _places(source, target, int(scale * 2.0**52) * target - (source << 52), out)
    exact = (np.arange(target) + 0.5) * scale - 0.5
    first = np.floor(exact)
    assert np.array_equal(256 * out[0] + out[1], (256 * first + np.rint((exact - first) * 256)).astype(np.int64))


def test_half_way_weights_occur_and_go_both_ways() -> None:
    """Were there none, the rule for them would be untested."""
    directions = set()
    for source in range(769, 1000, 2):
        ties = [d for d in range(768) if ((2 * d + 1) * source - 768) * 128 % 768 == 384]
        if ties:
            out = np.empty((2, 768), dtype=np.int64)
            scale = 1.0 / (768 / source)
            _places(source, 768, int(scale * 2.0**52) * 768 - (source << 52), out)
            directions |= {int(out[1, d]) % 2 for d in ties}
    assert directions == {0, 1}


@host
def _turns(degrees, turn, out):
    for i in range(degrees.size):
        out[i, 0], out[i, 1] = cosine_sine(degrees[i], turn)


def test_cosine_and_sine_are_rounded_correctly() -> None:
    degrees = np.concatenate([np.linspace(0, 360, 200_001), np.arange(361), [1e-7, 1e-3, 359.99997]]).astype(np.float32)
    out = np.empty((degrees.size, 2), dtype=np.float32)
    _turns(degrees, TURN, out)
    radians = (degrees * RADIANS).astype(np.float64)
    exact = np.stack([np.cos(radians), np.sin(radians)], axis=1)
    assert np.abs(out - exact).max() <= 2.0**-25 + 2.0**-43
    matters = np.abs(exact) > 2.0**-7  # smaller ones have more bits than the 46 that are worked out, and turn no point by as much
    assert np.count_nonzero((out != exact.astype(np.float32)) & matters) <= 4


@host
def _directions(along, down, out):
    for i in range(along.size):
        out[i] = direction(along[i], down[i])


def test_direction_is_opencvs() -> None:
    vectors = np.random.default_rng(3).integers(-3_000_000, 3_000_000, (2, 20_000)).astype(np.int32)
    vectors[0, :40] = 0
    vectors[1, 20:60] = 0
    vectors[1, 60:100] = vectors[0, 60:100]
    out = np.empty(vectors.shape[1], dtype=np.float32)
    _directions(vectors[0], vectors[1], out)
    assert out.tolist() == [cv2.fastAtan2(float(y), float(x)) for x, y in vectors.T.tolist()]


def test_shares_of_the_levels() -> None:
    assert quotas(500, float(np.float32(1.2)), 8) == [109, 90, 75, 63, 52, 44, 36, 31]
    assert quotas(7, 2.0, 1) == [7]
    for count in (1, 3, 500, 100_000):
        assert sum(quotas(count, 1.3, 16)) == count


def test_levels_end_where_there_is_no_room() -> None:
    sides = [(level.height, level.width) for level in levels(100, 130, 500, 1.2, 8)]
    assert sides == [(100, 130), (83, 108), (69, 90)]
    assert levels(62, 5000, 500, 1.2, 8) == ()
    assert len(levels(63, 63, 500, 1.2, 8)) == 1


def test_taps_and_pattern() -> None:
    assert cv2.getGaussianKernel(7, 2, cv2.CV_32F).ravel()[:4].tolist() == [T0, T1, T2, T3]
    assert len(set(PATTERN)) == 256
    assert max(math.hypot(*point) for a, b, c, d in PATTERN for point in ((a, b), (c, d))) < 18.5


def test_equals_beyond_the_limit_are_lost_from_the_bottom_and_reported() -> None:
    image = dots(640, 700, 6)
    params = OPERATOR.params(n_features=50, n_levels=1, descriptors=False)
    got = cuda_ops.apply("features/orb", image, **params.model_dump())
    assert got.values["truncated"]
    assert got.values["count"] == 8192
    assert OPERATOR.agrees(got, OPERATOR.reference(image, params)) is None
    every = cv2.ORB_create(50, 1.2, 1, 31, 0, 2, cv2.ORB_HARRIS_SCORE, 31, 20).detect(image)
    assert len(every) > got.values["count"]


def test_no_keypoint_is_near_a_border_and_no_value_is_not_a_number() -> None:
    result = cuda_ops.apply("features/orb", samples.noise(200, 260, 8), n_features=2000, fast_threshold=0)
    scale = result.arrays["size"] / 31
    for name, side in (("x", 260), ("y", 200)):
        place_in_level = result.arrays[name] / scale
        assert (place_in_level > EDGE - 0.01).all()
        assert (place_in_level < np.rint(side / scale) - EDGE - 0.99).all()
    assert all(np.isfinite(result.arrays[name]).all() for name in ("x", "y", "response", "angle", "size"))
    assert ((result.arrays["angle"] >= 0) & (result.arrays["angle"] <= 360)).all()


def test_picture_too_small_for_opencvs_pyramid_is_an_empty_answer() -> None:
    result = cuda_ops.apply("features/orb", samples.noise(1, 1))
    assert result.values == {"count": 0, "truncated": False}
    assert result.arrays["descriptors"].shape == (0, 32)
    assert "descriptors" not in cuda_ops.apply("features/orb", samples.noise(70, 70), descriptors=False).arrays


def test_memory_is_bounded() -> None:
    layout = OPERATOR.layout(4000, 6000, OPERATOR.params())
    assert sum(spec.bytes for spec in layout.outputs.values()) < 1 << 20
    assert sum(spec.bytes for spec in layout.scratch.values()) < 6 * 4000 * 6000
