"""Local binary patterns: where scikit-image agrees, where its floats cannot, and the rule for ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import cuda_ops
from cuda_ops import samples
from cuda_ops.features import lbp


@pytest.mark.parametrize("method", ["uniform", "default"])
@pytest.mark.parametrize("image", [samples.smooth(500, 700, 3), samples.constant(300, 700, 200), samples.noise(200, 300)])
def test_large_images_differ_from_scikit_image_only_at_ties(method, image):
    params = lbp.LbpParams(method=method)
    codes, near = lbp.exact_codes(image, params)
    assert not np.any((codes != lbp.rival(image, params)) & ~near)
    counts = np.bincount(codes.ravel(), minlength=lbp.bins(params))
    np.testing.assert_array_equal(cuda_ops.apply("features/lbp", image, method=method).arrays["lbp"], counts)


@settings(max_examples=60)
@given(st.integers(1, 24), st.floats(0.1, 16), st.integers(0, 5), st.sampled_from([1, 20, 128]))
def test_scikit_image_differs_only_where_float64_cannot_tell(points, radius, seed, step):
    image = (samples.smooth(23, 31, seed) // step * step).astype(np.uint8)
    params = lbp.LbpParams(points=points, radius=radius)
    codes, near = lbp.exact_codes(image, params)
    assert not np.any((codes != lbp.rival(image, params)) & ~near)


def test_a_flat_area_has_one_code():
    """Every sample inside equals its pixel, so every bit is 1; in floats some would be 0, by their position."""
    image = samples.constant(64, 700, 77)
    codes, _ = lbp.exact_codes(image, lbp.LbpParams(radius=2.0))
    assert np.unique(codes[3:-3, 3:-3]).tolist() == [8]


def test_default_bounds_its_codes():
    assert cuda_ops.apply("features/lbp", samples.noise(20, 20), points=16, method="default").arrays["lbp"].shape == (1 << 16,)
    with pytest.raises(ValidationError, match="at most 16 points"):
        lbp.LbpParams(points=17, method="default")


def test_counts_add_up_and_bins_are_named():
    result = cuda_ops.apply("features/lbp", samples.smooth(40, 50), points=24, radius=3)
    assert result.arrays["lbp"].sum() == 2000
    assert result.values["bins"] == 26
