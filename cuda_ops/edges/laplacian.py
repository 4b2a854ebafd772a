"""Laplacian of a grey image.

Taps: the sum of both second derivatives; ksize 1 is the four-neighbour kernel [0 1 0; 1 -4 1; 0 1 0], 3 and 5 are second-derivative Sobels.
Border REFLECT_101; the answer is |L| saturated to 8 bits.
Exactness: equal to OpenCV's 16-bit Laplacian followed by that fold, 0 differing bytes. Cost: one read and one write a pixel.
Source: cv2.Laplacian (deriv.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops import patterns
from cuda_ops.batch import CpuImage, CudaBatch
from cuda_ops.operator import ErrorSample, Layout, Operator, Params, Result, Sample, register
from cuda_ops.samples import every_image

TAPS: dict[int, tuple[patterns.Taps, patterns.Taps]] = {
    1: ((0, 1, 0), (1, -2, 1)),
    3: ((1, 2, 1), (1, -2, 1)),
    5: ((1, 4, 6, 4, 1), (1, 0, -2, 0, 1)),
}


class LaplacianParams(Params):
    """Parameters of `edges/laplacian`."""

    ksize: Literal[1, 3, 5] = Field(1, description="Side of the square aperture in pixels; 1 is the four-neighbor kernel.")


def layout(height: int, width: int, params: LaplacianParams) -> Layout:
    """See `patterns.separable_layout`."""
    return patterns.separable_layout(height, width, *TAPS[params.ksize])


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    patterns.separable_cpu(image, *TAPS[image.params.ksize], patterns.SUM)


def cuda(batch: CudaBatch) -> None:
    """CUDA twin."""
    patterns.separable_cuda(batch, *TAPS[batch.params.ksize], patterns.SUM)


def reference(image: NDArray[np.uint8], params: LaplacianParams) -> Result:
    """Plain correlation."""
    return patterns.reference_pair(image, *TAPS[params.ksize], patterns.SUM)


def oracle(image: NDArray[np.uint8], params: LaplacianParams) -> Result:
    """cv2.Laplacian to 16 bits, then |L|."""
    import cv2

    response = cv2.Laplacian(image, cv2.CV_16S, ksize=params.ksize).astype(np.int64)
    return Result("image", image.shape[0], image.shape[1], {"image": np.minimum(abs(response), 255).astype(np.uint8)})


def rival(image: NDArray[np.uint8], params: LaplacianParams) -> object:
    """cv2.Laplacian and its own |L|."""
    import cv2

    return cv2.convertScaleAbs(cv2.Laplacian(image, cv2.CV_16S, ksize=params.ksize))


def samples() -> Sequence[Sample]:
    """Every image, every aperture."""
    return every_image(*({"ksize": ksize} for ksize in TAPS))


def errors() -> Sequence[ErrorSample]:
    """Even aperture, aperture out of range."""
    return [ErrorSample("even aperture", {"ksize": 2}, "ksize"), ErrorSample("too large", {"ksize": 7}, "ksize")]


register(
    Operator(
        family="edges",
        name="laplacian",
        summary="Laplacian: second derivatives, absolute",
        description="Sum of both second derivatives, border REFLECT_101, as |L| saturated to 8 bits.",
        params=LaplacianParams,
        kind="image",
        exactness="equal to cv2.Laplacian (CV_16S) folded to 8 bits: 0 differing bytes",
        cost="O(pixels x ksize), one pass",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=patterns.picture,
        reference=reference,
        oracle=oracle,
        rival=rival,
        samples=samples,
        errors=errors,
        structural=("ksize",),
        blocks={"tile": patterns.separable_blocks},
        kernels=patterns.separable_specs(list(TAPS.values())),
    )
)
