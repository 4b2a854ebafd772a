"""What a decode is asked for and what it tells about the picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]
Allocate: TypeAlias = Callable[[tuple[int, ...]], Pixels]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Which pixels are wanted and how much may be spent on them. `background` is RGB, 0..255; the limits are in pixels and frames."""

    pixels: Literal["grey", "rgb"] = "grey"
    orient: bool = True
    background: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = 40_000_000
    max_side: int = 16_384
    max_frames: int = 1_000


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What the file was. `width` and `height` are those of the pixels, after orientation; `converted` says what was done to the samples.

    `mode` is the decoder's name for the sample layout (Pillow's), `depth` the bits per sample in the file, `orientation` the EXIF or XMP
    value found (1 if none), `oriented` whether it was applied.
    """

    format: str
    width: int
    height: int
    mode: str
    depth: int
    frames: int
    orientation: int
    oriented: bool
    converted: tuple[str, ...] = ()
