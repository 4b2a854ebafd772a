"""First-derivative operators: the parameters, fold and declaration that Sobel, Scharr and Prewitt share; they differ in their taps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops import patterns
from cuda_ops.batch import CpuImage, CudaBatch
from cuda_ops.operator import ErrorSample, Layout, Operator, Params, Result, Sample
from cuda_ops.patterns import Taps
from cuda_ops.samples import every_image

Gradients = tuple[NDArray[Any], NDArray[Any]]

FOLDS: tuple[dict[str, Any], ...] = ({}, {"norm": "l2"}, {"component": "x"}, {"component": "y"})


class GradientParams(Params):
    """Parameters of every first-derivative operator."""

    component: Literal["magnitude", "x", "y"] = Field("magnitude", description="Gradient magnitude, or one component as |g|.")
    norm: Literal["l1", "l2"] = Field("l1", description="Norm of the magnitude: |gx| + |gy| or sqrt(gx^2 + gy^2); unused for a component.")


def mode(params: GradientParams) -> int:
    """The fold that `component` and `norm` ask for."""
    if params.component == "magnitude":
        return patterns.L1 if params.norm == "l1" else patterns.L2
    return patterns.X if params.component == "x" else patterns.Y


def fold_oracle(gradients: Gradients, params: GradientParams) -> Result:
    """The contract's fold of two 16-bit gradients, in 64-bit NumPy."""
    x, y = (gradient.astype(np.int64) for gradient in gradients)
    if params.component != "magnitude":
        folded = abs(x if params.component == "x" else y)
    else:
        folded = abs(x) + abs(y) if params.norm == "l1" else np.rint(np.sqrt(x * x + y * y))
    return Result("image", x.shape[0], x.shape[1], {"image": np.minimum(folded, 255).astype(np.uint8)})


def fold_rival(gradients: Gradients, params: GradientParams) -> object:
    """The quickest fold that OpenCV's own calls allow."""
    import cv2

    x, y = gradients
    if params.component != "magnitude":
        return cv2.convertScaleAbs(x if params.component == "x" else y)
    if params.norm == "l1":
        return cv2.add(cv2.convertScaleAbs(x), cv2.convertScaleAbs(y))
    return cv2.convertScaleAbs(cv2.magnitude(x.astype(np.float32), y.astype(np.float32)))


def gradient_operator(
    name: str,
    description: str,
    library: str,
    oracle: Callable[[NDArray[np.uint8], Any], Gradients],
    taps: Callable[[Any], tuple[Taps, Taps]],
    params: type[GradientParams] = GradientParams,
    variants: Sequence[Mapping[str, Any]] = FOLDS,
    invalid: Sequence[ErrorSample] = (),
) -> Operator:
    """An operator from its taps. `library` names the OpenCV call whose 16-bit `oracle` gradients are folded for comparison."""

    def layout(height: int, width: int, params: GradientParams) -> Layout:
        return patterns.separable_layout(height, width, *taps(params))

    def cpu(image: CpuImage) -> None:
        patterns.separable_cpu(image, *taps(image.params), mode(image.params))

    def cuda(batch: CudaBatch) -> None:
        patterns.separable_cuda(batch, *taps(batch.params), mode(batch.params))

    def samples() -> Sequence[Sample]:
        return every_image(*variants)

    errors = [
        *invalid,
        ErrorSample("unknown component", {"component": "z"}, "component"),
        ErrorSample("unknown norm", {"norm": "l3"}, "norm"),
    ]
    pairs = list(dict.fromkeys(taps(params(**variant)) for variant in variants))
    return Operator(
        family="edges",
        name=name,
        summary=f"{name.capitalize()} gradient: magnitude or one component",
        description=description,
        params=params,
        kind="image",
        exactness=f"equal to {library} to 16 bits, folded to 8: 0 differing bytes",
        cost="O(pixels x taps), one pass",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=patterns.picture,
        reference=lambda image, params: patterns.reference_pair(image, *taps(params), mode(params)),
        oracle=lambda image, params: fold_oracle(oracle(image, params), params),
        rival=lambda image, params: fold_rival(oracle(image, params), params),
        samples=samples,
        errors=lambda: errors,
        structural=tuple(params.model_fields),
        blocks={"tile": patterns.separable_blocks},
        kernels=patterns.separable_specs(pairs),
    )
