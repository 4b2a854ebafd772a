"""Otsu's threshold: the integer doubles of the CUDA twin and the floats of the CPU twin pick OpenCV's level, ties included."""

from fractions import Fraction

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuda_ops
from cuda_ops import binary64
from cuda_ops.histograms import otsu
from cuda_ops.jit import host


@pytest.fixture(autouse=True)
def _own_code():
    """OpenCV's own code: the IPP library in its x86 wheels takes another one of two splits that are equal by mathematics."""
    cv2.ipp.setUseIPP(False)
    yield
    cv2.ipp.setUseIPP(True)


@host
def _integer_threshold(counts):
    """What the CUDA twin's block does, by its own device functions."""
    shares, moments = np.empty(256, np.int64), np.empty(256, np.int64)
    total = np.int64(0)
    for level in range(256):
        total += counts[level] * level
    scale = binary64.over(np.int64(otsu.ONE), binary64.from_integer(counts.sum()))
    for level in range(256):
        shares[level] = binary64.times(binary64.from_integer(counts[level]), scale)
        moments[level] = binary64.times(binary64.from_integer(level), shares[level])
    otsu.run_means(shares, moments)
    mean = binary64.times(binary64.from_integer(total), scale)
    largest, threshold = np.int64(0), 0
    for level in range(256):
        variance = otsu.variance_between(mean, shares[level], moments[level])
        if variance > largest:
            largest, threshold = variance, level
    return threshold


def _check(counts):
    counts = np.asarray(counts, dtype=np.int64)
    image = np.repeat(np.arange(256, dtype=np.uint8), counts)[None]
    expected = int(cv2.threshold(image, 0, 255, cv2.THRESH_OTSU)[0])
    split = np.empty(2, dtype=np.int32)
    otsu.split_levels(counts.astype(np.int32), split)
    assert split.tolist() == [expected, int(counts[expected + 1 :].sum())]
    assert _integer_threshold(counts) == expected


@pytest.mark.parametrize("seed", range(4))
def test_histograms_with_ties(seed):
    """Few levels, symmetric and equal counts: many thresholds are equal by mathematics."""
    rng = np.random.default_rng(seed)
    for _ in range(1500):
        counts = np.zeros(256, dtype=np.int64)
        occupied = rng.choice(256, int(rng.integers(1, 9)), replace=False)
        counts[occupied] = rng.integers(1, int(rng.choice([2, 4, 50, 2000])), occupied.size)
        if rng.random() < 0.5:
            counts += counts[::-1]
        _check(counts)


@pytest.mark.parametrize("seed", range(4))
def test_dense_histograms(seed):
    rng = np.random.default_rng(seed)
    for _ in range(500):
        low, high = np.sort(rng.integers(0, 257, 2))
        counts = np.zeros(256, dtype=np.int64)
        counts[low : high + 1] = rng.integers(0, int(rng.choice([2, 5, 300])), counts[low : high + 1].size)
        counts[rng.integers(0, 256)] += 1
        _check(counts)


@given(st.dictionaries(st.integers(0, 255), st.integers(1, 40), min_size=1, max_size=12))
def test_any_histogram(levels):
    counts = np.zeros(256, dtype=np.int64)
    for level, count in levels.items():
        counts[level] = count
    _check(counts)


def test_classes_below_the_least_share_are_passed_over():
    counts = np.zeros(256, dtype=np.int64)
    counts[[3, 100, 140, 250]] = 1, 5_000_000, 4_000_000, 1
    _check(counts)


def test_the_ipp_library_differs_only_between_equal_variances():
    """Where the default build disagrees, both splits have the same variance in exact integers."""
    cv2.ipp.setUseIPP(True)
    rng = np.random.default_rng(9)
    for _ in range(400):
        half = np.zeros(256, dtype=np.int64)
        half[rng.choice(256, 3, replace=False)] = rng.integers(1, 5, 3)
        counts = half + half[::-1]
        image = np.repeat(np.arange(256, dtype=np.uint8), counts)[None]
        theirs, ours = int(cv2.threshold(image, 0, 255, cv2.THRESH_OTSU)[0]), cuda_ops.apply("histograms/otsu", image).values["threshold"]
        assert _variance(counts, theirs) == _variance(counts, ours)


def _variance(counts, threshold):
    levels, size = np.arange(256), int(counts.sum())
    weight, moment = int(counts[: threshold + 1].sum()), int((counts * levels)[: threshold + 1].sum())
    return Fraction((int((counts * levels).sum()) * weight - moment * size) ** 2, weight * (size - weight))


def test_mask_is_what_lies_above():
    image = np.random.default_rng(0).integers(0, 256, (37, 41)).astype(np.uint8)
    result = cuda_ops.apply("histograms/otsu", image, mask=True)
    np.testing.assert_array_equal(result.mask, cv2.threshold(image, 0, 255, cv2.THRESH_OTSU)[1])
    assert result.values["foreground_pixels"] == np.count_nonzero(result.mask)
    assert "mask" not in cuda_ops.apply("histograms/otsu", image).arrays
