"""Sobel gradient of a grey image.

Taps: the binomial smoother and its difference ([1 2 1] and [-1 0 1] for ksize 3), correlated, border REFLECT_101; ksize 1 differs without
smoothing. Components are |g| saturated to 8 bits, the magnitude is |gx| + |gy| (l1) or rint(sqrt(gx^2 + gy^2)) (l2), saturated.
Exactness: equal to OpenCV's 16-bit Sobel followed by that fold, 0 differing bytes. Cost: one read and one write a pixel.
Source: cv2.Sobel (deriv.cpp, getSobelKernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops import patterns
from cuda_ops.batch import CpuImage, CudaBatch
from cuda_ops.operator import ErrorSample, Layout, Operator, Params, Result, Sample, register
from cuda_ops.samples import every_image

TAPS: dict[int, tuple[patterns.Taps, patterns.Taps]] = {
    1: ((0, 1, 0), (-1, 0, 1)),
    3: ((1, 2, 1), (-1, 0, 1)),
    5: ((1, 4, 6, 4, 1), (-1, -2, 0, 2, 1)),
    7: ((1, 6, 15, 20, 15, 6, 1), (-1, -4, -5, 0, 5, 4, 1)),
}


class SobelParams(Params):
    """Parameters of `edges/sobel`."""

    ksize: Literal[1, 3, 5, 7] = Field(3, description="Side of the square aperture in pixels; 1 differs without smoothing.")
    component: Literal["magnitude", "x", "y"] = Field("magnitude", description="Gradient magnitude, or one component as |g|.")
    norm: Literal["l1", "l2"] = Field("l1", description="Norm of the magnitude: |gx| + |gy| or sqrt(gx^2 + gy^2); unused for a component.")


def mode(params: Any) -> int:
    """The fold that `component` and `norm` ask for."""
    if params.component == "magnitude":
        return patterns.L1 if params.norm == "l1" else patterns.L2
    return patterns.X if params.component == "x" else patterns.Y


def layout(height: int, width: int, params: SobelParams) -> Layout:
    """See `patterns.separable_layout`."""
    return patterns.separable_layout(height, width, *TAPS[params.ksize])


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    patterns.separable_cpu(image, *TAPS[image.params.ksize], mode(image.params))


def cuda(batch: CudaBatch) -> None:
    """CUDA twin."""
    patterns.separable_cuda(batch, *TAPS[batch.params.ksize], mode(batch.params))


def reference(image: NDArray[np.uint8], params: SobelParams) -> Result:
    """Plain correlation."""
    return patterns.reference_pair(image, *TAPS[params.ksize], mode(params))


def oracle(image: NDArray[np.uint8], params: SobelParams) -> Result:
    """cv2.Sobel to 16 bits, then the fold."""
    import cv2

    gx = cv2.Sobel(image, cv2.CV_16S, 1, 0, ksize=params.ksize)
    gy = cv2.Sobel(image, cv2.CV_16S, 0, 1, ksize=params.ksize)
    return fold_oracle(gx, gy, params)


def fold_oracle(gx: NDArray[Any], gy: NDArray[Any], params: Any) -> Result:
    """The contract's fold of two 16-bit gradients, in 64-bit NumPy."""
    x, y = gx.astype(np.int64), gy.astype(np.int64)
    if params.component != "magnitude":
        folded = abs(x if params.component == "x" else y)
    else:
        folded = abs(x) + abs(y) if params.norm == "l1" else np.rint(np.sqrt(x * x + y * y))
    return Result("image", gx.shape[0], gx.shape[1], {"image": np.minimum(folded, 255).astype(np.uint8)})


def samples() -> Sequence[Sample]:
    """Every image, every aperture, component and norm."""
    components: tuple[dict[str, str], ...] = ({}, {"norm": "l2"}, {"component": "x"}, {"component": "y"})
    return every_image(*({"ksize": ksize, **component} for ksize in TAPS for component in components))


def errors() -> Sequence[ErrorSample]:
    """Even aperture, unknown component, unknown norm."""
    return [
        ErrorSample("even aperture", {"ksize": 4}, "ksize"),
        ErrorSample("unknown component", {"component": "z"}, "component"),
        ErrorSample("unknown norm", {"norm": "l3"}, "norm"),
    ]


register(
    Operator(
        family="edges",
        name="sobel",
        summary="Sobel gradient: magnitude or one component",
        description="First derivatives by the Sobel taps, border REFLECT_101, folded to 8 bits: |g|, |gx| + |gy| or the root.",
        params=SobelParams,
        kind="image",
        exactness="equal to cv2.Sobel (CV_16S) folded to 8 bits: 0 differing bytes",
        cost="O(pixels x ksize), one pass",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=patterns.picture,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        structural=("ksize", "component", "norm"),
        blocks={"tile": patterns.separable_blocks},
        kernels=patterns.separable_specs(list(TAPS.values())),
    )
)
