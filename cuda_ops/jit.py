"""The decorators of this package, and the only place with Numba flags.

`device`: a scalar function that both twins call. `cuda_device`: one that only kernels can call. `host`: a CPU kernel (compiled lazily,
cached on disk, runs without the GIL). `kernel`: a CUDA kernel. Fast-math stays off everywhere: results are rounded and compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import cuda, njit

F = TypeVar("F", bound=Callable[..., Any])

# In the simulator a "device function" is plain Python, and so is everything it calls.
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"


def device(function: F) -> F:
    """A function for both CPU and CUDA kernels, always inlined: a call left in a loop would keep the compiler from vectorizing it.

    It must not be given an explicit signature: CUDA could not call it then.
    """
    return cast(F, njit(nogil=True, error_model="numpy", forceinline=True)(function))


def host(function: F) -> F:
    """A CPU kernel: no GIL, division as on CUDA (no exception), cached on disk so that the second start is quick."""
    return cast(F, njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)(function))


def cuda_device(function: Callable[..., Any]) -> Any:
    """A function that only kernels can call: it synchronises, or uses atomics or shared memory. The simulator must know which those are."""
    return cuda.jit(device=True)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """A CUDA kernel; compiled for the device at the first launch."""
    return cuda.jit(function) if SIMULATED else cuda.jit(cache=True)(function)
