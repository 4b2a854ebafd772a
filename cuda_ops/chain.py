"""A chain of operators on one image: what a job asks for, what may share its batch, and which step feeds which.

A step whose result is a picture (image or mask) hands it to the next step; any other step leaves the picture as it was, so
clahe -> histogram (kept) -> canny measures and goes on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cuda_ops.operator import Operator, Params, PixelClass

PICTURES = ("image", "mask")


@dataclass(frozen=True)
class Step:
    """One operator with its parameters; `keep` asks for its result (the last step's is always returned)."""

    operator: Operator
    params: Params
    keep: bool = False


Chain = tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Item:
    """One job of a batch: uint8 pixels, C-contiguous, [h, w] for a grey chain and [h, w, 3] for an rgb one."""

    pixels: NDArray[np.uint8]
    chain: Chain


class ChainError(ValueError):
    """A chain that cannot run; `step` is the index of the step at fault."""

    def __init__(self, step: int, message: str) -> None:
        self.step = step
        super().__init__(message)


def pixel_class(chain: Chain) -> PixelClass:
    """The pixels that the first step reads."""
    return chain[0].operator.pixel_class(chain[0].params)


def sources(chain: Chain) -> tuple[int, ...]:
    """For each step the index of the step whose picture it reads; -1 is the image that was sent."""
    found, current = [], -1
    for index, step in enumerate(chain):
        found.append(current)
        if step.operator.kind in PICTURES:
            current = index
    return tuple(found)


def check_chain(chain: Sequence[Step]) -> Chain:
    """The chain as a tuple with its last step kept. ChainError when a step's answer would be lost or a step needs colour it cannot get."""
    if not chain:
        raise ChainError(0, "a pipeline needs at least one step")
    steps = (*chain[:-1], Step(chain[-1].operator, chain[-1].params, keep=True))
    first = pixel_class(steps)
    for index, (step, source) in enumerate(zip(steps, sources(steps), strict=True)):
        wanted = step.operator.pixel_class(step.params)
        if source >= 0 and wanted == "rgb":
            raise ChainError(index, f"{step.operator.path} reads colour here, but step {source} returns a grey picture")
        if source < 0 and wanted != first:
            raise ChainError(index, f"{step.operator.path} reads {wanted} pixels and step 0 reads {first}: one image is decoded once")
        if step.operator.kind not in PICTURES and not step.keep:
            raise ChainError(
                index,
                f"{step.operator.path} returns no picture for the next step; mark it with keep: true or leave it out",
            )
    return steps


def chain_key(chain: Chain) -> Hashable:
    """Jobs with equal keys may share a batch: same operators, same structural parameters, same pixel class, same kept steps."""
    return (
        pixel_class(chain),
        *((step.operator.path, step.operator.structure(step.params), step.keep) for step in chain),
    )


WARM_PIXELS = 1 << 15  # enough to enter every branch, little enough to start quickly


def warming_items(operators: Iterable[Operator]) -> list[Item]:
    """One item per code path: of each operator's samples the largest small one for every chain key."""
    found: dict[Hashable, Item] = {}
    for operator in operators:
        for sample in operator.samples():
            params = operator.params(**sample.params)
            least = operator.min_size(params)
            height, width = sample.image.shape[:2]
            if height >= least[0] and width >= least[1] and sample.image.size <= WARM_PIXELS:
                chain = check_chain([Step(operator, params)])
                known = found.get(chain_key(chain))
                if known is None or known.pixels.size < sample.image.size:
                    found[chain_key(chain)] = Item(sample.image, chain)
    return list(found.values())
