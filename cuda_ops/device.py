"""Scalar functions that the CPU and the CUDA twins share: borders, float arithmetic rounded once, the block-to-image search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from cuda_ops.jit import SIMULATED, device


def mul(a: Any, b: Any) -> Any:
    """float32 product, rounded once: never contracted into a fused multiply-add, on either twin."""
    return np.float32(a) * np.float32(b)


def add(a: Any, b: Any) -> Any:
    """float32 sum, rounded once: never contracted into a fused multiply-add, on either twin."""
    return np.float32(a) + np.float32(b)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c in float32, rounded once: what OpenCV's vector code computes, on either twin."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


def rint(a: Any) -> Any:
    """float32 to int32, halves to even (OpenCV's cvRound; CUDA's __float2int_rn)."""
    return np.int32(np.rint(np.float32(a)))


@overload(mul)
def _mul_cpu(a, b):
    return lambda a, b: np.float32(a) * np.float32(b)


@overload(add)
def _add_cpu(a, b):
    return lambda a, b: np.float32(a) + np.float32(b)


@intrinsic
def _fused(_context, a, b, c):
    """LLVM's fused multiply-add: one instruction where the processor has it, the C library's fmaf where it has not."""
    return types.float32(types.float32, types.float32, types.float32), lambda _context, builder, _signature, args: builder.fma(*args)


@overload(fma)
def _fma_cpu(a, b, c):
    return lambda a, b, c: _fused(np.float32(a), np.float32(b), np.float32(c))


@overload(rint)
def _rint_cpu(a):
    return lambda a: np.int32(np.rint(np.float32(a)))


if not SIMULATED:
    from numba.cuda import libdevice
    from numba.cuda.extending import overload as cuda_overload

    @cuda_overload(mul)
    def _mul_cuda(a, b):
        return lambda a, b: libdevice.fmul_rn(np.float32(a), np.float32(b))

    @cuda_overload(add)
    def _add_cuda(a, b):
        return lambda a, b: libdevice.fadd_rn(np.float32(a), np.float32(b))

    @cuda_overload(fma)
    def _fma_cuda(a, b, c):
        return lambda a, b, c: libdevice.fmaf_rn(np.float32(a), np.float32(b), np.float32(c))

    @cuda_overload(rint)
    def _rint_cuda(a):
        return lambda a: libdevice.float2int_rn(np.float32(a))


@device
def replicate(index, size):
    """BORDER_REPLICATE: aaaaaa|abcdefgh|hhhhhhh."""
    return min(max(index, 0), size - 1)


@device
def reflect(index, size):
    """BORDER_REFLECT_101: gfedcb|abcdefgh|gfedcba; folds as often as needed, and is 0 on an axis of one pixel."""
    if size == 1:
        return 0 * index
    while index < 0 or index >= size:
        if index < 0:
            index = -index
        else:
            index = 2 * size - 2 - index
    return index


REFLECT, REPLICATE = 0, 1


@device
def border_index(index, size, border):
    """The index of the pixel that stands at `index`, under REFLECT (REFLECT_101) or REPLICATE."""
    if border == REPLICATE:
        return replicate(index, size)
    return reflect(index, size)


@device
def find_image(starts, block):
    """The image that owns a block: the last i with starts[i] <= block, by binary search over the prefix sums int64 [n + 1]."""
    low = 0
    high = starts.shape[0] - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if starts[middle] <= block:
            low = middle
        else:
            high = middle
    return low
