"""Gradient orientation as OpenCV's vector code computes it, in float32: the votes of the orientation histograms."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from cuda_ops.device import add, fma, mul
from cuda_ops.jit import cuda_device, device

# fastAtan2's odd polynomial, in degrees; rounded before and after it is scaled, as there.
P1, P3, P5, P7 = (
    np.float32(np.float32(value) * np.float32(180 / math.pi))
    for value in (0.9997878412794807, -0.3258083974640975, 0.1555786518463281, -0.04432655554792128)
)
TINY = np.float32(2.220446049250313e-16)
RADIANS = np.float32(math.pi / 180)
HALF, ONE, ZERO, CLIP = np.float32(0.5), np.float32(1), np.float32(0), np.float32(0.2)
QUARTER, HALF_TURN, TURN = np.float32(90), np.float32(180), np.float32(360)
TENTH, THOUSANDTH = np.float32(0.1), np.float32(1e-3)


@device
def vote(dx, dy, scale, bins):
    """A gradient's two votes: (lower bin, its vote, the next bin's vote); fused where OpenCV's vector code is, and nowhere else."""
    ax, ay = abs(dx), abs(dy)
    ratio = min(ax, ay) / add(max(ax, ay), TINY)
    square = mul(ratio, ratio)
    angle = mul(fma(fma(fma(square, P7, P5), square, P3), square, P1), ratio)
    if ax < ay:
        angle = add(QUARTER, -angle)
    if dx < ZERO:
        angle = add(HALF_TURN, -angle)
    if dy < ZERO:
        angle = add(TURN, -angle)
    magnitude = np.float32(math.sqrt(fma(dx, dx, mul(dy, dy))))
    position = add(mul(mul(angle, RADIANS), scale), -HALF)
    lower = np.int32(position) - np.int32(position < ZERO)  # the floor, without a detour over 64 bits
    share = add(position, -np.float32(lower))
    if lower < 0:
        lower += np.int32(bins)
    if lower >= bins:
        lower -= np.int32(bins)
    return lower, mul(magnitude, add(ONE, -share)), mul(magnitude, share)


@device
def level(value, gamma):
    """A pixel as float32, its square root with gamma."""
    return np.float32(math.sqrt(np.float32(value))) if gamma else np.float32(value)


@cuda_device
def normalize(cell_sums, values, descriptor, out, thread):
    """L2-Hys of a block's values, stored from descriptor[out] on."""
    # Every thread adds up all values: a few dozen additions cost less than handing the sum round, and the order is the CPU twin's.
    total = ZERO
    for k in range(values):
        total = add(total, mul(cell_sums[k], cell_sums[k]))
    shrink = ONE / add(np.float32(math.sqrt(total)), mul(np.float32(values), TENTH))
    total = ZERO
    for k in range(values):
        clipped = min(mul(cell_sums[k], shrink), CLIP)
        total = add(total, mul(clipped, clipped))
    grow = ONE / add(np.float32(math.sqrt(total)), THOUSANDTH)
    for k in range(thread, values, cuda.blockDim.x):
        descriptor[out + k] = mul(min(mul(cell_sums[k], shrink), CLIP), grow)
