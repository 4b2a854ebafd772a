"""Otsu's threshold of a grey image: the level that splits the pixels into two classes of the largest variance between them.

With shares p of the levels 0..255 and their mean mu, level t gives the lower class the weight q1 and mean mu1, the upper class q2 = 1 - q1
and mu2 = (mu - q1 mu1) / q2; the threshold is the first t with the largest q1 q2 (mu1 - mu2)^2 above 0, and 0 for an image of one level.
Levels where a weight is below 2^-23 are passed over. The mask, on request, is 255 where a pixel is above the threshold.
The means run on from level to level in float64 (mu1 becomes (mu1 q1' + t p) / q1), and so does their rounding, which decides between
thresholds that are equal by mathematics, such as those in an empty stretch between two peaks. The CUDA twin therefore takes every one
of these steps with its exact rounding, in integers (`binary64`).
Exactness: threshold and mask equal to cv2.threshold(..., THRESH_OTSU), ties by OpenCV's own code: where two splits are equal by mathematics
(a mirrored histogram), the closed IPP library inside OpenCV's x86 wheels may pick the other one.
Cost: one read a pixel; with the mask another read and a write.
Source: N. Otsu, IEEE SMC 9(1), 1979; cv2.threshold (thresh.cpp, getThreshVal_Otsu_8u).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba import cuda as gpu
from numba import int32, int64, uint32
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops import binary64
from cuda_ops.batch import FIRST, HEIGHT, OFFSET, WIDTH, CpuImage, CudaBatch
from cuda_ops.counting import LEVELS, STRETCH, THREADS, count_cuda, count_levels, count_spec, flat, lanes_spec, stretches
from cuda_ops.device import find_image
from cuda_ops.jit import device, host, kernel
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, Result, Sample, register
from cuda_ops.samples import every_image, noise

LEAST = 2.0**-23  # FLT_EPSILON: a class with a smaller share of the pixels is empty
ONE, LEAST_BITS, MOST_BITS = binary64.pattern(1.0), binary64.pattern(LEAST), binary64.pattern(1 - LEAST)
SPLIT_THREADS = 64


class OtsuParams(Params):
    """Parameters of `histograms/otsu`."""

    mask: bool = Field(False, description="Add the mask of the pixels above the threshold.")


def layout(height: int, width: int, params: OtsuParams) -> Layout:
    """Threshold and number of pixels above it, the mask on request; counts, and the CPU twin's lanes."""
    outputs = {"split": ArraySpec((2,), "int32")}
    if params.mask:
        outputs["mask"] = ArraySpec((height, width), "uint8", bits=True)
    return Layout(outputs, {"counts": ArraySpec((LEVELS,), "int32", zero=True)}, {"lanes": lanes_spec()})


@host
def split_levels(counts, split):
    """Fill `split` with the threshold and the number of pixels above it."""
    size, total = np.int64(0), np.int64(0)
    for level in range(LEVELS):
        size += counts[level]
        total += np.int64(counts[level]) * level
    scale = 1.0 / size
    mean, lower_mean, lower, largest, threshold = total * scale, 0.0, 0.0, 0.0, 0
    for level in range(LEVELS):
        share = counts[level] * scale
        lower_mean *= lower
        lower += share
        upper = 1.0 - lower
        if min(lower, upper) < LEAST or max(lower, upper) > 1.0 - LEAST:
            continue
        lower_mean = (lower_mean + level * share) / lower
        upper_mean = (mean - lower * lower_mean) / upper
        variance = lower * upper * (lower_mean - upper_mean) * (lower_mean - upper_mean)
        if variance > largest:
            largest, threshold = variance, level
    split[0] = threshold
    split[1] = counts[threshold + 1 :].sum()


@host
def mask_above(source, threshold, mask):
    """255 where source is above the threshold."""
    for i in range(source.size):
        mask[i] = np.uint8(255) if source[i] > threshold else np.uint8(0)


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    arrays, source = image.arrays, flat(image.source)
    count_levels(source, arrays["lanes"], (arrays["counts"],))
    split_levels(arrays["counts"], arrays["split"])
    if image.params.mask:
        mask_above(source, np.uint8(arrays["split"][0]), arrays["mask"].reshape(-1))


@device
def run_means(shares, moments):
    """Turn the levels' shares and moments, int64 patterns of doubles, into weight and mean of the lower class at each level."""
    lower_mean, lower = np.int64(0), np.int64(0)
    for level in range(LEVELS):
        lower_mean = binary64.times(lower_mean, lower)
        lower = binary64.plus(lower, shares[level])
        if LEAST_BITS <= lower <= MOST_BITS:
            lower_mean = binary64.over(binary64.plus(lower_mean, moments[level]), lower)
        shares[level] = lower
        moments[level] = lower_mean


@device
def variance_between(mean, lower, lower_mean):
    """The variance between the classes; zero where one of them is empty."""
    if lower < LEAST_BITS or lower > MOST_BITS:
        return np.int64(0)
    upper = binary64.distance(np.int64(ONE), lower)
    upper_mean = binary64.over(binary64.distance(mean, binary64.times(lower, lower_mean)), upper)
    apart = binary64.distance(lower_mean, upper_mean)
    return binary64.times(binary64.times(binary64.times(lower, upper), apart), apart)


@kernel
def split_images(starts, table, counts, split, column):
    """One image a block. The means run through the levels in one thread; shares before and variances after it are made by all."""
    shares = gpu.shared.array(LEVELS, int64)
    moments = gpu.shared.array(LEVELS, int64)
    best = gpu.shared.array(SPLIT_THREADS, int64)
    where = gpu.shared.array(SPLIT_THREADS, int32)
    sums = gpu.shared.array(2, int64)
    owner = gpu.blockIdx.x
    thread = int32(gpu.threadIdx.x)
    base = table[owner, column]
    if thread < 2:
        sums[thread] = 0
    gpu.syncthreads()
    scale = binary64.over(int64(ONE), binary64.from_integer(table[owner, HEIGHT] * table[owner, WIDTH]))
    moment = int64(0)
    for level in range(thread, LEVELS, SPLIT_THREADS):
        count = int64(counts[base + level])
        moment += count * level
        shares[level] = binary64.times(binary64.from_integer(count), scale)
        moments[level] = binary64.times(binary64.from_integer(level), shares[level])
    gpu.atomic.add(sums, 0, moment)
    gpu.syncthreads()
    if thread == 0:
        run_means(shares, moments)
    gpu.syncthreads()
    mean = binary64.times(binary64.from_integer(sums[0]), scale)
    largest, threshold = int64(0), int32(0)
    for level in range(thread, LEVELS, SPLIT_THREADS):
        variance = variance_between(mean, shares[level], moments[level])
        if variance > largest:
            largest, threshold = variance, int32(level)
    best[thread] = largest
    where[thread] = threshold
    gpu.syncthreads()
    half = SPLIT_THREADS // 2
    while half > 0:
        if thread < half:
            other = best[thread + half]
            if other > best[thread] or (other == best[thread] and where[thread + half] < where[thread]):
                best[thread] = other
                where[thread] = where[thread + half]
        gpu.syncthreads()
        half >>= 1
    above = int64(0)
    for level in range(thread, LEVELS, SPLIT_THREADS):
        if level > where[0]:
            above += counts[base + level]
    gpu.atomic.add(sums, 1, above)
    gpu.syncthreads()
    if thread == 0:
        split[table[owner, FIRST]] = where[0]
        split[table[owner, FIRST] + 1] = sums[1]


@kernel
def mask_stretches(starts, table, words, split, mask):
    """The mask of one stretch of pixels, four a 32-bit word; the last word may run into the padding behind the image."""
    block = gpu.blockIdx.x
    owner = find_image(starts, block)
    first = (block - starts[owner]) * STRETCH
    size = int32(min(table[owner, HEIGHT] * table[owner, WIDTH] - first, STRETCH))
    threshold = uint32(split[table[owner, FIRST]])
    read, write = (table[owner, OFFSET] + first) >> 2, (table[owner, FIRST + 1] + first) >> 2
    for i in range(int32(gpu.threadIdx.x), (size + 3) >> 2, THREADS):
        word, above = words[read + i], uint32(0)
        for k in range(4):
            if (word >> uint32(8 * k)) & uint32(255) > threshold:
                above |= uint32(255) << uint32(8 * k)
        mask[write + i] = above


def cuda(batch: CudaBatch) -> None:
    """CUDA twin: counts, threshold, and the mask on request; two or three launches."""
    arrays = batch.arrays
    count_cuda(batch, "counts")
    batch.launch(split_images, "image", SPLIT_THREADS, arrays["counts"], arrays["split"], FIRST + list(arrays).index("counts"))
    if batch.params.mask:
        batch.launch(mask_stretches, "stretch", THREADS, batch.source.view(np.uint32), arrays["split"], arrays["mask"].view(np.uint32))


def kernels() -> Sequence[KernelSpec]:
    """The three kernels."""
    return [
        count_spec(),
        KernelSpec(split_images, ("i8[::1]", "i8[:, ::1]", "i4[::1]", "i4[::1]", "i4"), SPLIT_THREADS),
        KernelSpec(mask_stretches, ("i8[::1]", "i8[:, ::1]", "u4[::1]", "i4[::1]", "u4[::1]"), THREADS, moved=2.0, least=2.0),
    ]


def finish(arrays: Mapping[str, NDArray[Any]], params: OtsuParams, height: int, width: int) -> Result:
    """Threshold, and how many pixels lie above it."""
    threshold, above = (int(value) for value in arrays["split"])
    values = {"threshold": threshold, "foreground_pixels": above, "density": above / (height * width)}
    return Result("scalar", height, width, {"mask": arrays["mask"]} if params.mask else {}, values)


def _result(image: NDArray[np.uint8], params: OtsuParams, threshold: int) -> Result:
    mask = image > threshold
    split = np.array([threshold, np.count_nonzero(mask)], dtype=np.int32)
    return finish({"split": split, "mask": np.packbits(mask, axis=1)}, params, *image.shape)


def reference(image: NDArray[np.uint8], params: OtsuParams) -> Result:
    """The definition in Python's floats, level by level."""
    scale = 1.0 / image.size
    shares = [float(count) * scale for count in np.bincount(image.ravel(), minlength=LEVELS)]
    mean = float(image.sum(dtype=np.int64)) * scale
    q1 = mu1 = largest = 0.0
    threshold = 0
    for level, share in enumerate(shares):
        mu1 *= q1
        q1 += share
        q2 = 1.0 - q1
        if min(q1, q2) >= LEAST and max(q1, q2) <= 1.0 - LEAST:
            mu1 = (mu1 + level * share) / q1
            mu2 = (mean - q1 * mu1) / q2
            variance = q1 * q2 * (mu1 - mu2) * (mu1 - mu2)
            if variance > largest:
                largest, threshold = variance, level
    return _result(image, params, threshold)


def oracle(image: NDArray[np.uint8], params: OtsuParams) -> Result:
    """cv2.threshold with THRESH_OTSU, by OpenCV's own code."""
    import cv2

    closed_library = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)
    threshold, _ = cv2.threshold(image, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    cv2.ipp.setUseIPP(closed_library)
    return _result(image, params, int(threshold))


def rival(image: NDArray[np.uint8], params: OtsuParams) -> object:
    """cv2.threshold alone."""
    import cv2

    return cv2.threshold(image, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)


def samples() -> Sequence[Sample]:
    """Every image with and without its mask; levels with empty stretches between them, where rounding decides."""
    special = {
        "two levels": noise(16, 17, 1) // 128 * 200 + 20,
        "three levels": noise(21, 19, 2) // 86 * 100,
        "gaps": noise(23, 18, 3) // 16 * 16,
        "neighbors": noise(15, 15, 4) % 2 + 100,
        "two stretches": noise(90, 92, 5),
    }
    pairs = [Sample(name, image, {"mask": mask}) for name, image in special.items() for mask in (False, True)]
    return [*every_image({"mask": False}, {"mask": True}), *pairs]


def errors() -> Sequence[ErrorSample]:
    """A mask that is no boolean."""
    return [ErrorSample("mask is not a boolean", {"mask": "perhaps"}, "mask")]


register(
    Operator(
        family="histograms",
        name="otsu",
        summary="Otsu's threshold, and on request the mask above it",
        description="The grey level that maximizes the variance between the pixels up to it and those above it.",
        params=OtsuParams,
        kind="scalar",
        exactness="equal to cv2.threshold with THRESH_OTSU: 0 differing bytes; between splits of equal variance as OpenCV without IPP",
        cost="O(pixels), one pass, or two with the mask",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=finish,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        blocks={"stretch": stretches},
        structural=("mask",),
        rival=rival,
        kernels=kernels,
    )
)
