"""Images that break implementations, made from sizes and seeds: every operator takes its samples from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuda_ops.operator import Sample

Image = NDArray[np.uint8]


def noise(height: int, width: int, seed: int = 0) -> Image:
    """Uniform noise."""
    return np.asarray(np.random.default_rng(seed).integers(0, 256, (height, width)), dtype=np.uint8)


def rgb_noise(height: int, width: int, seed: int = 0) -> Image:
    """Uniform noise in three channels."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int, seed: int = 0) -> Image:
    """Noise blurred by a repeated box: slopes, blobs and weak edges, like a photograph."""
    image = np.random.default_rng(seed).normal(128, 120, (height, width))
    for axis in (0, 1):
        for _ in range(3):
            image = (np.roll(image, 1, axis) + image + np.roll(image, -1, axis)) / 3
    return np.asarray(np.clip(np.rint((image - image.mean()) * 4 + 128), 0, 255), dtype=np.uint8)


def checkerboard(height: int, width: int, cell: int = 4, low: int = 0, high: int = 255) -> Image:
    """Squares of two levels: ties everywhere."""
    y, x = np.mgrid[:height, :width] // cell
    return np.asarray(np.where((x + y) % 2, high, low), dtype=np.uint8)


def stripes(height: int, width: int, period: int = 5) -> Image:
    """Diagonal stripes of a few levels."""
    y, x = np.mgrid[:height, :width]
    return np.asarray((x + y) % period * (255 // period), dtype=np.uint8)


def constant(height: int, width: int, value: int) -> Image:
    """One grey level."""
    return np.full((height, width), value, dtype=np.uint8)


def hot_pixel(height: int, width: int, y: int, x: int) -> Image:
    """Black with one white pixel."""
    image = constant(height, width, 0)
    image[y, x] = 255
    return image


def squares(height: int, width: int, seed: int = 0) -> Image:
    """Flat rectangles on flat ground: plateaus, straight edges, corners."""
    rng = np.random.default_rng(seed)
    image = constant(height, width, 90)
    for _ in range(6):
        y, x = int(rng.integers(0, height)), int(rng.integers(0, width))
        image[y : y + int(rng.integers(2, 20)), x : x + int(rng.integers(2, 20))] = rng.integers(0, 256)
    return image


def images() -> dict[str, Image]:
    """The images that every operator must survive, small enough for the simulator."""
    return {
        "1x1": constant(1, 1, 7),
        "1xn": noise(1, 23, 1),
        "nx1": noise(19, 1, 2),
        "2x2": noise(2, 2, 3),
        "6x6": noise(6, 6, 4),
        "7x7": noise(7, 7, 5),
        "black": constant(9, 12, 0),
        "white": constant(12, 9, 255),
        "noise": noise(17, 29, 6),
        "smooth": smooth(33, 27, 7),
        "checkerboard": checkerboard(24, 31),
        "stripes": stripes(21, 26),
        "squares": squares(30, 41, 8),
        "hot top": hot_pixel(9, 11, 0, 5),
        "hot left": hot_pixel(9, 11, 4, 0),
        "hot bottom": hot_pixel(9, 11, 8, 5),
        "hot right": hot_pixel(9, 11, 4, 10),
    }


def large_images() -> dict[str, Image]:
    """Images beyond the simulator's patience: level cuts of a pyramid, tiles that nothing divides, sides over 32,767 pixels."""
    return {
        "61": smooth(61, 61, 11),
        "62x63": smooth(62, 63, 12),
        "prime": smooth(131, 257, 13),
        "noise large": noise(270, 481, 14),
        "photograph": smooth(480, 640, 15),
        "wide": noise(3, 40_001, 16),
        "tall": noise(33_003, 2, 17),
    }


def every_image(*variants: Mapping[str, Any]) -> Sequence[Sample]:
    """A sample per image, its parameters taken from `variants` in turn, and each variant on three images that differ in kind."""
    chosen = variants or ({},)
    pool = {**images(), **large_images()}
    samples = [Sample(name, image, chosen[index % len(chosen)]) for index, (name, image) in enumerate(pool.items())]
    for index, params in enumerate(variants):
        samples += [Sample(f"{name} {index}", pool[name], params) for name in ("smooth", "squares", "noise")]
    return samples
