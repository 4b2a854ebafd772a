"""Counting and its statistics beyond the contract tests: exact sums, memory at odd addresses, grids that do not fit."""

import math
from fractions import Fraction

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuda_ops
from cuda_ops import samples
from cuda_ops.level_statistics import statistics


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300).filter(any))
def test_statistics_are_those_of_the_levels(counts):
    got = statistics(np.array(counts, dtype=np.int32))
    size = sum(counts)
    mean = Fraction(sum(level * count for level, count in enumerate(counts)), size)
    variance = sum(count * (level - mean) ** 2 for level, count in enumerate(counts)) / size
    present = [level for level, count in enumerate(counts) if count]
    assert (got["min"], got["max"]) == (present[0], present[-1])
    assert got["mean"] == float(mean)
    assert got["std"] == pytest.approx(math.sqrt(variance), rel=1e-12)
    shares = [count / size for count in counts if count]
    assert got["entropy"] == pytest.approx(-sum(share * math.log2(share) for share in shares), abs=1e-9)
    assert all(math.isfinite(value) for value in got.values())


@given(st.lists(st.integers(0, 255), min_size=1, max_size=60))
def test_median_is_the_mean_of_the_middle_two(levels):
    assert statistics(np.bincount(levels))["median"] == np.median(levels)


def test_one_level_has_no_entropy():
    statistics_of_white = cuda_ops.apply("histograms/histogram", samples.constant(3, 5, 255)).values["statistics"]["grey"]
    assert statistics_of_white == {"min": 255.0, "max": 255.0, "mean": 255.0, "std": 0.0, "median": 255.0, "entropy": 0.0}
    assert math.copysign(1, statistics_of_white["entropy"]) == 1


@pytest.mark.parametrize("shift", range(1, 8))
@pytest.mark.parametrize("size", [(9, 13), (300, 301)])
def test_pixels_at_any_address(size, shift):
    """64-bit loads want addresses that are multiples of 8; a caller's image may lie anywhere."""
    height, width = size
    image = samples.noise(1, height * width + shift, shift)[0, shift:].reshape(size)
    assert image.ctypes.data % 8
    np.testing.assert_array_equal(cuda_ops.apply("histograms/equalize", image).arrays["image"], cv2.equalizeHist(image))
    counts = cuda_ops.apply("histograms/histogram", image).arrays["grey"]
    np.testing.assert_array_equal(counts, np.bincount(image.ravel(), minlength=256))
    expected = cv2.createCLAHE(2.0, (8, 8)).apply(image)
    np.testing.assert_array_equal(cuda_ops.apply("histograms/clahe", image).arrays["image"], expected)
    assert cuda_ops.apply("histograms/otsu", image).values["threshold"] == cv2.threshold(image, 0, 255, cv2.THRESH_OTSU)[0]


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 64),
    st.integers(1, 64),
    st.one_of(st.just(0.0), st.floats(0.001, 1000)),
    st.integers(0, 3),
)
def test_clahe_on_any_grid(height, width, tiles_x, tiles_y, clip_limit, seed):
    image = samples.smooth(height, width, seed)
    got = cuda_ops.apply("histograms/clahe", image, clip_limit=clip_limit, tiles_x=tiles_x, tiles_y=tiles_y)
    expected = cv2.createCLAHE(clip_limit, (tiles_x, tiles_y)).apply(image)
    np.testing.assert_array_equal(got.arrays["image"], expected)


def test_channels_are_counted_apart():
    image = samples.rgb_noise(33, 35)
    result = cuda_ops.apply("histograms/histogram", image, channels="rgb", bins=16)
    for channel, name in enumerate(("red", "green", "blue")):
        np.testing.assert_array_equal(result.arrays[name], np.bincount(image[..., channel].ravel() >> 4, minlength=16))
        assert result.values["statistics"][name]["mean"] == image[..., channel].mean()
