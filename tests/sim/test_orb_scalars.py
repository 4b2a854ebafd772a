"""Scalar steps of ORB's CUDA twin that a picture for the simulator seldom takes, called as the plain Python they are there."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from cuda_ops.orb_orientation import RADIANS, TURN, cosine_sine, direction
from cuda_ops.orb_pyramid import place


@pytest.mark.parametrize(("source", "target"), [(923, 768), (815, 768), (1999, 1536), (511, 256), (640, 512), (100, 83)])
def test_place_is_that_of_float64(source: int, target: int) -> None:
    scale = 1.0 / (target / source)
    drift = int(scale * 2.0**52) * target - (source << 52)
    for d in range(target):
        exact = scale * (d + 0.5) - 0.5
        index, weight = place(d, source, target, drift)
        assert 256 * index + weight == 256 * int(np.floor(exact)) + int(np.rint((exact - np.floor(exact)) * 256))


@pytest.mark.parametrize(("x", "y"), [(5, 2), (2, 5), (-2, 5), (-5, 2), (-5, -2), (-2, -5), (2, -5), (5, -2), (0, 0), (0, -1), (-1, 0)])
def test_direction_and_its_turn(x: int, y: int) -> None:
    angle = direction(x, y)
    assert angle == cv2.fastAtan2(float(y), float(x))
    cosine, sine = cosine_sine(angle, TURN)
    radians = float(np.float32(angle) * RADIANS)
    assert (cosine, sine) == pytest.approx((np.cos(radians), np.sin(radians)), abs=2.0**-25)
