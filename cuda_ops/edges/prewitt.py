"""Prewitt gradient of a grey image.

Taps: smoother [1 1 1], difference [-1 0 1], correlated, border REFLECT_101. Folds as for Sobel.
Exactness: equal to OpenCV's filter2D to 16 bits with the Prewitt kernels followed by that fold, 0 differing bytes. Cost: one read and one
write a pixel. Source: J. Prewitt, "Object enhancement and extraction", 1970; cv2.filter2D.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cuda_ops.gradients import GradientParams, Gradients, gradient_operator
from cuda_ops.operator import register

SMOOTH, OUTER = (1, 1, 1), (-1, 0, 1)


def oracle(image: NDArray[np.uint8], _params: GradientParams) -> Gradients:
    """cv2.filter2D with both kernels."""
    import cv2

    kernel = np.outer(SMOOTH, OUTER).astype(np.float32)
    return cv2.filter2D(image, cv2.CV_16S, kernel), cv2.filter2D(image, cv2.CV_16S, kernel.T)


register(
    gradient_operator(
        name="prewitt",
        description="First derivatives by the Prewitt taps (a box smoother), border REFLECT_101, folded to 8 bits.",
        library="cv2.filter2D with the Prewitt kernels",
        oracle=oracle,
        taps=lambda _params: (SMOOTH, OUTER),
    )
)
