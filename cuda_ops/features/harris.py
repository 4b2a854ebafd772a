"""Harris corners of a grey image.

Definition: R = det M - k trace(M)^2 of the structure tensor M (Sobel gradients over [0, 1] pixels, unweighted sums over block_size x
block_size), border REFLECT_101; the outermost ring of pixels holds no corner. Then the selection of cv2.goodFeaturesToTrack: 3 x 3 peaks
above quality_level x the largest R, best first (ties: bottom right first), at least min_distance apart. A corner is (x, y, response); a size
would be block_size for all of them and is left out.
Exactness: sums and determinant are exact integers, so the answer never varies. Responses lie within 2e-6 of the peak of OpenCV's, and the
corners are OpenCV's except where responses tie inside that bound (OpenCV's own responses vary by half of it with the instruction set).
Cost: one pass over the pixels, then work in proportion to the peaks.
Source: C. Harris and M. Stephens, Alvey Vision Conference, 1988; cv2.cornerHarris (corner.cpp), cv2.goodFeaturesToTrack (featureselect.cpp).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops.corners import CornerParams, corner_operator
from cuda_ops.operator import ErrorSample, register
from cuda_ops.structure_tensor import HARRIS


class HarrisParams(CornerParams):
    """Parameters of `features/harris`."""

    block_size: int = Field(2, ge=1, le=31, description="Side in pixels of the square over which products of gradients are summed.")
    k: float = Field(0.04, ge=0, le=0.25, description="Weight of the squared trace: the larger, the more an edge must bend to be a corner.")


def oracle(image: NDArray[np.uint8], params: HarrisParams) -> NDArray[np.float32]:
    """cv2.cornerHarris."""
    import cv2

    return np.asarray(cv2.cornerHarris(image, params.block_size, params.ksize, params.k), dtype=np.float32)


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"min_distance": 0, "max_corners": 0},
    {"ksize": 5, "block_size": 3, "min_distance": 3.4},
    {"ksize": 7, "block_size": 5, "quality_level": 0.1, "min_distance": 1},
    {"ksize": 1, "block_size": 1, "min_distance": 2, "max_corners": 7},
    {"block_size": 31, "k": 0.15, "min_distance": 5, "max_corners": 0},
    {"block_size": 9, "ksize": 3, "k": 0, "quality_level": 0.001, "max_corners": 1},
    {"ksize": 7, "block_size": 30, "min_distance": 2.5, "max_corners": 50},
)

register(
    corner_operator(
        name="harris",
        rule=HARRIS,
        params=HarrisParams,
        texts={
            "summary": "Harris corners, best first",
            "description": "Corners by the Harris response of the structure tensor: 3 x 3 peaks above a share of the best, greedily spaced.",
            "exactness": "responses within 2e-6 of the peak of cv2.cornerHarris; cv2.goodFeaturesToTrack's corners but for ties in that bound",
        },
        oracle=oracle,
        variants=VARIANTS,
        invalid=[ErrorSample("k above a quarter", {"k": 0.3}, "k")],
    )
)
