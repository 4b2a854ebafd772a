"""The pictures that are sent: seeded, photograph-like, in three sizes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from locustfiles.slo import Size

# Width and height. Small is at most half a megapixel, medium about two, large twelve.
SIZES: dict[Size, tuple[tuple[int, int], ...]] = {
    "small": ((640, 480), (480, 640), (512, 384)),
    "medium": ((1600, 1200), (1920, 1080)),
    "large": ((4000, 3000),),
}


@dataclass(frozen=True, eq=False)
class Picture:
    """One JPEG and where it belongs in the size mix."""

    name: str
    size: Size
    width: int
    height: int
    data: bytes


def _noise(rng: np.random.Generator, width: int, height: int, cell: int) -> NDArray[np.float32]:
    """Smooth noise in [-1, 1] whose grain is ``cell`` pixels."""
    coarse = rng.random((height // cell + 2, width // cell + 2), dtype=np.float32) * 2 - 1
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)


def _draw(seed: int, width: int, height: int) -> Image.Image:
    """Grain at several scales under shapes with hard edges: corners, contours and texture, as photographs have."""
    rng = np.random.default_rng(seed)
    field = sum(_noise(rng, width, height, cell) * weight for cell, weight in ((256, 60), (64, 35), (16, 14), (4, 6)))
    tint = rng.uniform(0.8, 1.2, 3).astype(np.float32)
    picture = Image.fromarray(np.clip(128 + np.multiply.outer(field, tint), 0, 255).astype(np.uint8))
    brush = ImageDraw.Draw(picture)
    for _ in range(40):
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        w, h = (int(side * rng.uniform(0.03, 0.2)) for side in (width, height))
        color = tuple(int(v) for v in rng.integers(0, 256, 3))
        shape = brush.rectangle if rng.random() < 0.6 else brush.ellipse
        shape((x, y, x + w, y + h), fill=color)
    return picture


@cache
def pictures(size: Size) -> tuple[Picture, ...]:
    """The pictures of one size; the same bytes in every process and on every machine with the same Pillow."""
    made = []
    for seed, (width, height) in enumerate(SIZES[size]):
        body = io.BytesIO()
        shrunk = 2 if size == "large" else 1  # drawing twelve megapixels takes seconds, enlarging three does not
        drawn = _draw(seed, width // shrunk, height // shrunk).resize((width, height), Image.Resampling.BICUBIC)
        drawn.save(body, "JPEG", quality=85)
        made.append(Picture(f"{size}-{seed}", size, width, height, body.getvalue()))
    return tuple(made)
