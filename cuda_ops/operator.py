"""What an operator declares, and the registry that finds every declaration.

An operator is one file in `edges/`, `histograms/` or `features/` that ends in `register(Operator(...))`. Everything else - route, schema,
contract tests, compile check, benchmark, load test - is made from that declaration.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from cuda_ops.batch import CpuImage, CudaBatch

PixelClass = Literal["grey", "rgb"]
Kind = Literal["image", "mask", "histogram", "keypoints", "descriptor", "scalar"]
Size = tuple[int, int]

ITEM_BYTES = {name: np.dtype(name).itemsize for name in ("uint8", "int16", "uint16", "int32", "uint32", "int64", "float32", "float64")}

FAMILIES = ("edges", "histograms", "features")


class Params(BaseModel):
    """Base of every operator's parameters; each field is bounded and described, for the text of the API is made from it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


@dataclass(frozen=True)
class ArraySpec:
    """One array of one image.

    `zero` asks the backend to clear it before the twin runs. `bits` marks a uint8 [h, w] array of 0 and 255 that leaves the backend packed
    to one bit a pixel (most significant bit first, rows padded to whole bytes).
    """

    shape: tuple[int, ...]
    dtype: str
    zero: bool = False
    bits: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Layout:
    """The arrays of one image: `outputs` leave the backend, `scratch` does not; `cpu` is scratch that only the CPU twin gets.

    The order of outputs and scratch gives the table columns of the CUDA twin.
    """

    outputs: Mapping[str, ArraySpec]
    scratch: Mapping[str, ArraySpec] = field(default_factory=dict)
    cpu: Mapping[str, ArraySpec] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """An operator's answer for one image of `height` x `width` pixels.

    `arrays` by kind: image {"image": uint8 [h, w]}; mask {"mask": uint8 [h, ceil(w / 8)], packed}; histogram {channel: int64 [bins]};
    keypoints {"x", "y", "response", "size", "angle", "octave", "descriptors"}, those it has; descriptor {"descriptor": float32}; scalar may
    hold a packed "mask". `values` are the JSON scalars beside them.
    """

    kind: Kind
    height: int
    width: int
    arrays: Mapping[str, NDArray[Any]]
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mask(self) -> NDArray[np.uint8]:
        """The mask unpacked: uint8 [h, w] of 0 and 255. KeyError where the result has none."""
        bits = np.unpackbits(self.arrays["mask"], axis=1, count=self.width)
        return np.asarray(bits * np.uint8(255), dtype=np.uint8)


@dataclass(frozen=True)
class Sample:
    """An input that the test tiers run: uint8 [h, w] or [h, w, 3], with parameters.

    `simulate` puts it into the simulator tier, where a kernel takes seconds; an operator that marks none gets a choice of its small ones.
    """

    name: str
    image: NDArray[np.uint8]
    params: Mapping[str, Any] = field(default_factory=dict)
    simulate: bool = False


@dataclass(frozen=True)
class ErrorSample:
    """An input that must be refused: a parameter (`field` names it) or, with `field` None, an image below the least size."""

    name: str
    params: Mapping[str, Any]
    field: str | None = None
    size: Size = (32, 32)


class ImageTooSmall(ValueError):
    """The image is smaller than the operator's least size."""

    def __init__(self, path: str, required: Size, got: Size) -> None:
        self.path, self.required, self.got = path, required, got
        super().__init__(
            f"{path} needs an image of at least {required[1]} x {required[0]} pixels (width x height); this one is {got[1]} x {got[0]}"
        )


def _grey(_params: Any) -> PixelClass:
    return "grey"


def _any_size(_params: Any) -> Size:
    return (1, 1)


def _no_scalars(_params: Any, _height: int, _width: int) -> tuple[Sequence[int], Sequence[float]]:
    return (), ()


def identical(got: Result, expected: Result) -> str | None:
    """None when both results are the same to the byte, else what differs."""
    for name, array in expected.arrays.items():
        other = got.arrays[name]
        if other.shape != array.shape or other.dtype != array.dtype:
            return f"{name}: {other.dtype}{other.shape} instead of {array.dtype}{array.shape}"
        if other.tobytes() != array.tobytes():
            return f"{name}: {int(np.count_nonzero(other != array))} of {array.size} elements differ"
    for key, value in expected.values.items():
        if got.values[key] != value:
            return f"{key}: {got.values[key]!r} instead of {value!r}"
    return None


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator: its contract (texts, parameters, result) and its implementations.

    `structural` names the parameters that choose a code path; they are part of the batch key, all others travel per image. `scalars`
    turns parameters and size into the per-image (int32, float32) rows that both twins read. `blocks` gives, per named grid, how many
    CUDA blocks an image takes. `reference` is slow and obvious NumPy; `oracle` is the library whose answer is promised; `agrees` compares
    a twin's result with the oracle's and says what differs (byte equality unless the operator states a bound). `rival` is the quickest
    way to the same answer with the oracle's library, for the benchmark; None where the oracle itself is that.
    """

    family: str
    name: str
    summary: str
    description: str
    params: type[Params]
    kind: Kind
    exactness: str
    cost: str
    layout: Callable[[int, int, Any], Layout]
    cpu: Callable[[CpuImage], None]
    cuda: Callable[[CudaBatch], None]
    finish: Callable[[Mapping[str, NDArray[Any]], Any, int, int], Result]
    reference: Callable[[NDArray[np.uint8], Any], Result]
    oracle: Callable[[NDArray[np.uint8], Any], Result]
    samples: Callable[[], Sequence[Sample]]
    errors: Callable[[], Sequence[ErrorSample]]
    blocks: Mapping[str, Callable[[int, int, Any], int]] = field(default_factory=dict)
    scalars: Callable[[Any, int, int], tuple[Sequence[int], Sequence[float]]] = _no_scalars
    structural: tuple[str, ...] = ()
    pixel_class: Callable[[Any], PixelClass] = _grey
    min_size: Callable[[Any], Size] = _any_size
    agrees: Callable[[Result, Result], str | None] = identical
    kernels: Callable[[], Sequence[KernelSpec]] = tuple
    rival: Callable[[NDArray[np.uint8], Any], object] | None = None

    @property
    def path(self) -> str:
        """`family/name`, as in the URL."""
        return f"{self.family}/{self.name}"

    def structure(self, params: Params) -> tuple[Any, ...]:
        """The values of the structural parameters."""
        return tuple(getattr(params, name) for name in self.structural)

    def check_size(self, params: Params, height: int, width: int) -> None:
        """Raise `ImageTooSmall` when the image is below this operator's least size."""
        required = self.min_size(params)
        if height < required[0] or width < required[1]:
            raise ImageTooSmall(self.path, required, (height, width))


@dataclass(frozen=True)
class KernelSpec:
    """One CUDA kernel as the compile check sees it.

    `types` are Numba type names per argument ("u1[::1]", "i8[:, ::1]", "i4", ...), `threads` per block. `moved` is the bytes the kernel
    reads and writes a pixel and `least` the least any kernel with this job could move, where that is defined.
    """

    kernel: Any
    types: Sequence[str]
    threads: int
    moved: float | None = None
    least: float | None = None


_registry: dict[str, Operator] = {}


def register(operator: Operator) -> Operator:
    """Add an operator; a duplicate path or an unknown family is an error."""
    if operator.family not in FAMILIES:
        raise ValueError(f"{operator.path}: the family must be one of {', '.join(FAMILIES)}")
    if operator.path in _registry:
        raise ValueError(f"{operator.path} is registered twice")
    unknown = [name for name in operator.structural if name not in operator.params.model_fields]
    if unknown:
        raise ValueError(f"{operator.path}: structural parameters {unknown} are not declared in {operator.params.__name__}")
    _registry[operator.path] = operator
    return operator


def operators() -> dict[str, Operator]:
    """Every registered operator by path, sorted; the three families are imported on the first call."""
    for family in FAMILIES:
        package = importlib.import_module(f"cuda_ops.{family}")
        for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
            importlib.import_module(f"cuda_ops.{family}.{module}")
    return dict(sorted(_registry.items()))


def load_file(path: Path) -> list[Operator]:
    """Import one operator file from anywhere and return what it registered. ImportError when it cannot be loaded."""
    before = set(_registry)
    name = f"cuda_ops_extra_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return [operator for key, operator in _registry.items() if key not in before]


def unregister(path: str) -> None:
    """Forget an operator that `load_file` added. KeyError when it is not registered."""
    del _registry[path]
