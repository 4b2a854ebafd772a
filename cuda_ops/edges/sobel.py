"""Sobel gradient of a grey image.

Taps: the binomial smoother and its difference ([1 2 1] and [-1 0 1] for ksize 3), correlated, border REFLECT_101; ksize 1 differs without
smoothing. Components are |g| saturated to 8 bits, the magnitude is |gx| + |gy| (l1) or rint(sqrt(gx^2 + gy^2)) (l2), saturated.
Exactness: equal to OpenCV's 16-bit Sobel followed by that fold, 0 differing bytes. Cost: one read and one write a pixel.
Source: cv2.Sobel (deriv.cpp, getSobelKernels).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops.gradients import FOLDS, GradientParams, Gradients, gradient_operator
from cuda_ops.operator import ErrorSample, register
from cuda_ops.patterns import Taps

TAPS: dict[int, tuple[Taps, Taps]] = {
    1: ((0, 1, 0), (-1, 0, 1)),
    3: ((1, 2, 1), (-1, 0, 1)),
    5: ((1, 4, 6, 4, 1), (-1, -2, 0, 2, 1)),
    7: ((1, 6, 15, 20, 15, 6, 1), (-1, -4, -5, 0, 5, 4, 1)),
}


class SobelParams(GradientParams):
    """Parameters of `edges/sobel`."""

    ksize: Literal[1, 3, 5, 7] = Field(3, description="Side of the square aperture in pixels; 1 differs without smoothing.")


def oracle(image: NDArray[np.uint8], params: SobelParams) -> Gradients:
    """cv2.Sobel."""
    import cv2

    gx = cv2.Sobel(image, cv2.CV_16S, 1, 0, ksize=params.ksize)
    return gx, cv2.Sobel(image, cv2.CV_16S, 0, 1, ksize=params.ksize)


register(
    gradient_operator(
        name="sobel",
        description="First derivatives by the Sobel taps, border REFLECT_101, folded to 8 bits: |g|, |gx| + |gy| or the root.",
        library="cv2.Sobel",
        oracle=oracle,
        taps=lambda params: TAPS[params.ksize],
        params=SobelParams,
        variants=[{"ksize": ksize, **fold} for ksize in TAPS for fold in FOLDS],
        invalid=[ErrorSample("even aperture", {"ksize": 4}, "ksize")],
    )
)
