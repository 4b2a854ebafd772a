"""Classical computer-vision operators with OpenCV's answers, on CPU and CUDA, alone or in ragged batches.

>>> import numpy as np, cuda_ops
>>> image = np.zeros((4, 6), dtype=np.uint8); image[:, 3:] = 255
>>> cuda_ops.apply("edges/canny", image, low=50, high=100).values["edge_pixels"]
4
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ops.backend import Backend, BackendMissing, DeviceLost, create_backend
from cuda_ops.chain import Chain, ChainError, Item, Step, chain_key, check_chain, pixel_class
from cuda_ops.operator import ImageTooSmall, Operator, Params, Result, operators

__all__ = [
    "Backend",
    "BackendMissing",
    "Chain",
    "ChainError",
    "DeviceLost",
    "ImageTooSmall",
    "Item",
    "Operator",
    "Params",
    "Result",
    "Step",
    "apply",
    "apply_batch",
    "chain_key",
    "check_chain",
    "create_backend",
    "operators",
    "pixel_class",
]

_backend: Backend | None = None


def apply(path: str, image: NDArray[np.uint8], **params: Any) -> Result:
    """Run one operator (`family/name`) on one uint8 image, [h, w] grey or [h, w, 3] RGB where the operator reads colour.

    KeyError for an unknown operator, pydantic.ValidationError for bad parameters, ImageTooSmall below the operator's least size.
    """
    return apply_batch(path, [image], **params)[0]


def apply_batch(path: str, images: list[NDArray[np.uint8]], **params: Any) -> list[Result]:
    """Run one operator on images of any sizes as one batch, on the GPU where there is one. Errors as for `apply`."""
    global _backend
    if _backend is None:
        _backend = create_backend("auto")
    operator = operators()[path]
    chain = check_chain([Step(operator, operator.params(**params))])
    outcomes: list[Any] = [None] * len(images)
    _backend.run([Item(_checked(image, chain), chain) for image in images], outcomes.__setitem__)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [results[-1] for results in outcomes]


def _checked(image: NDArray[np.uint8], chain: Chain) -> NDArray[np.uint8]:
    """The image C-contiguous; ValueError when its dtype or shape is not what the chain reads."""
    dimensions = 2 if pixel_class(chain) == "grey" else 3
    if image.dtype != np.uint8 or image.ndim != dimensions or image.size == 0 or (dimensions == 3 and image.shape[2] != 3):
        wanted = "[height, width]" if dimensions == 2 else "[height, width, 3]"
        raise ValueError(f"{chain[0].operator.path} reads a non-empty uint8 array {wanted}, not {image.dtype} {list(image.shape)}")
    chain[0].operator.check_size(chain[0].params, image.shape[0], image.shape[1])
    return np.ascontiguousarray(image)
