"""Histogram of grey levels or of each color channel, with its statistics.

Level v of 0..255 falls in bin floor(v * bins / 256): equal bins over [0, 256). Statistics are those of the levels, whatever the bins: min,
max, mean, std (of the population), median (mean of the middle two) and entropy in bits, per channel. They come from the counts by integer
sums, so that they do not depend on an order of summation.
Exactness: counts equal to cv2.calcHist. Cost: one read a pixel.
Source: cv2.calcHist (histogram.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cuda_ops.batch import CpuImage, CudaBatch
from cuda_ops.counting import LEVELS, count_cuda, count_levels, count_spec, flat, lanes_spec, stretches
from cuda_ops.level_statistics import statistics
from cuda_ops.operator import ArraySpec, ErrorSample, KernelSpec, Layout, Operator, Params, PixelClass, Result, Sample, register
from cuda_ops.samples import every_image, noise, rgb_noise, smooth

COLORS = ("red", "green", "blue")


class HistogramParams(Params):
    """Parameters of `histograms/histogram`."""

    bins: int = Field(256, ge=2, le=LEVELS, description="Number of equal bins over the levels 0..255.")
    channels: Literal["grey", "rgb"] = Field("grey", description="One histogram of the grey image, or one each of red, green and blue.")


def pixel_class(params: HistogramParams) -> PixelClass:
    """The pixels that are counted."""
    return params.channels


def channels(params: HistogramParams) -> tuple[str, ...]:
    """Names of the channels."""
    return COLORS if params.channels == "rgb" else ("grey",)


def layout(_height: int, _width: int, params: HistogramParams) -> Layout:
    """Counts of all 256 levels per channel (bins are made of them on the host); what the CPU twin counts in."""
    planes = len(channels(params))
    return Layout({"counts": ArraySpec((planes, LEVELS), "int32", zero=True)}, cpu={"lanes": lanes_spec(planes)})


def cpu(image: CpuImage) -> None:
    """CPU twin."""
    count_levels(flat(image.source), image.arrays["lanes"], tuple(image.arrays["counts"]))


def cuda(batch: CudaBatch) -> None:
    """CUDA twin."""
    count_cuda(batch, "counts", len(channels(batch.params)))


def kernels() -> Sequence[KernelSpec]:
    """The count of grey and of color images."""
    return [count_spec(1), count_spec(3)]


def finish(arrays: Mapping[str, NDArray[Any]], params: HistogramParams, height: int, width: int) -> Result:
    """Levels to bins, and the statistics."""
    first_levels = -(-np.arange(params.bins) * LEVELS // params.bins)
    names = channels(params)
    bins = np.add.reduceat(arrays["counts"], first_levels, axis=1, dtype=np.int64)
    described = {name: statistics(counts) for name, counts in zip(names, arrays["counts"], strict=True)}
    return Result("histogram", height, width, dict(zip(names, bins, strict=True)), {"bins": params.bins, "statistics": described})


def _result(image: NDArray[np.uint8], params: HistogramParams, count: Any, mean: Any, std: Any) -> Result:
    """A result made channel by channel from plain functions."""
    arrays, described = {}, {}
    for index, name in enumerate(channels(params)):
        plane = np.ascontiguousarray(image[..., index] if image.ndim == 3 else image)
        arrays[name] = count(plane, params.bins).astype(np.int64)
        share = np.bincount(plane.ravel()) / plane.size
        described[name] = {
            "min": float(plane.min()),
            "max": float(plane.max()),
            "mean": float(mean(plane)),
            "std": float(std(plane)),
            "median": float(np.median(plane)),
            "entropy": float(-(share[share > 0] * np.log2(share[share > 0])).sum()),
        }
    return Result("histogram", image.shape[0], image.shape[1], arrays, {"bins": params.bins, "statistics": described})


def reference(image: NDArray[np.uint8], params: HistogramParams) -> Result:
    """NumPy's counts of floor(v * bins / 256), and its statistics."""

    def count(plane: NDArray[np.uint8], bins: int) -> NDArray[Any]:
        return np.bincount(plane.ravel().astype(np.int64) * bins // LEVELS, minlength=bins)

    return _result(image, params, count, np.mean, np.std)


def oracle(image: NDArray[np.uint8], params: HistogramParams) -> Result:
    """cv2.calcHist over [0, 256), cv2.meanStdDev."""
    import cv2

    def count(plane: NDArray[np.uint8], bins: int) -> NDArray[Any]:
        return np.asarray(cv2.calcHist([plane], [0], None, [bins], [0, LEVELS])[:, 0])

    return _result(image, params, count, lambda plane: cv2.meanStdDev(plane)[0][0, 0], lambda plane: cv2.meanStdDev(plane)[1][0, 0])


def rival(image: NDArray[np.uint8], params: HistogramParams) -> object:
    """cv2.calcHist alone."""
    import cv2

    return [cv2.calcHist([image], [channel], None, [params.bins], [0, LEVELS]) for channel in range(len(channels(params)))]


def agrees(got: Result, expected: Result) -> str | None:
    """Counts to the unit; statistics to 1e-5, for OpenCV takes a difference of rounded sums."""
    for name, counts in expected.arrays.items():
        if not np.array_equal(got.arrays[name], counts):
            return f"{name}: {int(np.count_nonzero(got.arrays[name] != counts))} of {counts.size} bins differ"
        for key, value in expected.values["statistics"][name].items():
            if not math.isclose(got.values["statistics"][name][key], value, rel_tol=1e-9, abs_tol=1e-5):
                return f"{name} {key}: {got.values['statistics'][name][key]!r} instead of {value!r}"
    return None


def samples() -> Sequence[Sample]:
    """Every image, bin numbers that divide 256 and that do not, color images of whole and broken words."""
    color = {"1x1": rgb_noise(1, 1), "1xn": rgb_noise(1, 25, 1), "nx1": rgb_noise(9, 1, 2), "noise": rgb_noise(18, 21, 3)}
    color |= {"white": np.full((8, 9, 3), 255, np.uint8), "large": rgb_noise(257, 263, 4)}
    color["smooth"] = np.stack([smooth(40, 31, seed) for seed in range(3)], axis=2)
    return [
        *every_image(),
        *(Sample("bins", noise(16, 17, bins), {"bins": bins}) for bins in (2, 3, 100, 255)),
        Sample("two stretches", noise(90, 92, 21)),
        *(Sample(name, image, {"channels": "rgb"}) for name, image in color.items()),
        Sample("color bins", rgb_noise(9, 13, 5), {"channels": "rgb", "bins": 7}),
    ]


def errors() -> Sequence[ErrorSample]:
    """One bin, more bins than levels, unknown channels."""
    return [
        ErrorSample("one bin", {"bins": 1}, "bins"),
        ErrorSample("more bins than levels", {"bins": 257}, "bins"),
        ErrorSample("unknown channels", {"channels": "hsv"}, "channels"),
    ]


register(
    Operator(
        family="histograms",
        name="histogram",
        summary="Histogram and statistics of the grey levels or of each color channel",
        description="Counts per bin over [0, 256), and per channel min, max, mean, std, median and entropy of the levels.",
        params=HistogramParams,
        kind="histogram",
        exactness="counts equal to cv2.calcHist; statistics from exact integer sums",
        cost="O(pixels), one pass",
        layout=layout,
        cpu=cpu,
        cuda=cuda,
        finish=finish,
        reference=reference,
        oracle=oracle,
        samples=samples,
        errors=errors,
        blocks={"stretch": stretches},
        structural=("channels",),
        pixel_class=pixel_class,
        agrees=agrees,
        rival=rival,
        kernels=kernels,
    )
)
