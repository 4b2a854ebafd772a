"""Shi-Tomasi corners of a grey image.

Definition: the smaller eigenvalue of the structure tensor, halved as OpenCV halves it: (a + c) / 2 - sqrt(((a - c) / 2)^2 + b^2) of the sums
a, b, c of squared and mixed Sobel gradients (pixels in [0, 1]) over block_size x block_size, border REFLECT_101; the outermost ring of pixels
holds no corner. Then the selection of cv2.goodFeaturesToTrack: 3 x 3 peaks above quality_level x the largest eigenvalue, best first (ties:
bottom right first), at least min_distance apart. A corner is (x, y, response); a size would be block_size for all and is left out.
Exactness: sums and determinant are exact integers, so the answer never varies, and a straight edge responds with 0. Responses lie within 2e-6
of the peak of OpenCV's, and the corners are OpenCV's except where responses tie inside that bound.
Cost: one pass over the pixels, then work in proportion to the peaks.
Source: J. Shi and C. Tomasi, CVPR 1994; cv2.cornerMinEigenVal (corner.cpp), cv2.goodFeaturesToTrack (featureselect.cpp).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ops.corners import CornerParams, corner_operator
from cuda_ops.operator import register
from cuda_ops.structure_tensor import EIGENVALUE


class ShiTomasiParams(CornerParams):
    """Parameters of `features/shi_tomasi`."""


def oracle(image: NDArray[np.uint8], params: ShiTomasiParams) -> NDArray[np.float32]:
    """cv2.cornerMinEigenVal."""
    import cv2

    return np.asarray(cv2.cornerMinEigenVal(image, params.block_size, ksize=params.ksize), dtype=np.float32)


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"min_distance": 0, "max_corners": 0},
    {"ksize": 5, "block_size": 2, "min_distance": 3.4},
    {"ksize": 7, "block_size": 5, "quality_level": 0.1, "min_distance": 1},
    {"ksize": 1, "block_size": 4, "min_distance": 2, "max_corners": 7},
    {"block_size": 31, "min_distance": 5, "max_corners": 0},
    {"block_size": 9, "quality_level": 0.001, "max_corners": 1},
    {"ksize": 7, "block_size": 30, "min_distance": 2.5, "max_corners": 50},
)

register(
    corner_operator(
        name="shi_tomasi",
        rule=EIGENVALUE,
        params=ShiTomasiParams,
        texts={
            "summary": "Shi-Tomasi corners (good features to track), best first",
            "description": "Corners by the smaller eigenvalue of the structure tensor: 3 x 3 peaks above a share of the best, greedily spaced.",
            "exactness": "responses within 2e-6 of the peak of cv2.cornerMinEigenVal; cv2.goodFeaturesToTrack's corners but for ties in that bound",
        },
        oracle=oracle,
        variants=VARIANTS,
        invalid=[],
    )
)
