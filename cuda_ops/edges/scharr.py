"""Scharr gradient of a grey image.

Taps: smoother [3 10 3], difference [-1 0 1], correlated, border REFLECT_101. Folds as for Sobel.
Exactness: equal to OpenCV's 16-bit Scharr followed by that fold, 0 differing bytes. Cost: one read and one write a pixel.
Source: H. Scharr, dissertation, Heidelberg 2000; cv2.Scharr (deriv.cpp, getScharrKernels).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cuda_ops.gradients import GradientParams, Gradients, gradient_operator
from cuda_ops.operator import register


def oracle(image: NDArray[np.uint8], _params: GradientParams) -> Gradients:
    """cv2.Scharr."""
    import cv2

    return cv2.Scharr(image, cv2.CV_16S, 1, 0), cv2.Scharr(image, cv2.CV_16S, 0, 1)


register(
    gradient_operator(
        name="scharr",
        description="First derivatives by the Scharr taps, nearer to rotation invariance than Sobel's, border REFLECT_101, folded to 8.",
        library="cv2.Scharr",
        oracle=oracle,
        taps=lambda _params: ((3, 10, 3), (-1, 0, 1)),
    )
)
