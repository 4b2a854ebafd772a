"""The backend protocol, and the choice of a backend.

A backend owns memory and threads' arenas; a twin only fills the arrays it is given. `cpu_backend.py` and `cuda_backend.py` implement it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from cuda_ops.chain import Item
from cuda_ops.operator import Operator, Result

Deliver = Callable[[int, "list[Result] | Exception"], None]
BackendName = Literal["auto", "cpu", "cuda"]


class DeviceLost(RuntimeError):
    """The device is in an error state that only a new process can leave."""


class BackendMissing(RuntimeError):
    """The backend that was asked for cannot run on this machine."""


class Backend(Protocol):
    """Runs batches. `slots` batches may run at once, each from a thread of its own."""

    @property
    def name(self) -> str:
        """`cpu` or `cuda`."""

    @property
    def slots(self) -> int:
        """Batches that may run at once."""

    @property
    def share(self) -> bool:
        """True when items of a batch run one after another, so that a queue is best shared out between the slots."""

    def run(self, items: Sequence[Item], deliver: Deliver) -> dict[str, float]:
        """Run items with equal chain keys; call `deliver(i, results | error)` once per item, and return seconds per phase.

        `results` holds one `Result` per kept step. Raises `DeviceLost` when the process must end; any other exception means that the
        launch failed as a whole and nothing was delivered.
        """

    def scratch_bytes(self, item: Item) -> int:
        """Bytes of backend memory that the item takes while it runs."""

    def warm_up(self, operators: Iterable[Operator]) -> None:
        """Compile (or load from the cache) every kernel of these operators."""

    def close(self) -> None:
        """Give memory back."""


def cuda_available() -> bool:
    """True when a CUDA device and the toolkit's libraries are there."""
    from numba import cuda

    return bool(cuda.is_available())


def create_backend(name: BackendName = "auto", threads: int | None = None) -> Backend:
    """The backend of that name; `auto` takes CUDA where a device is there. BackendMissing when the choice cannot run here."""
    if name == "cuda" or (name == "auto" and cuda_available()):
        if not cuda_available():
            raise BackendMissing("the CUDA backend needs an NVIDIA driver and the `cuda` extra (pip install 'visionbatch[cuda]')")
        from cuda_ops.cuda_backend import CudaBackend

        return CudaBackend()
    from cuda_ops.cpu_backend import CpuBackend

    return CpuBackend(threads or len(os.sched_getaffinity(0)))
