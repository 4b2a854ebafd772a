"""The levels of ORB's image pyramid: their sizes, and how many features each should give.

Level l is the picture divided by float32(scale_factor ^ l), each side rounded; a level with a side of 62 pixels or less has no room for a
keypoint, and neither have those above it. Float steps are those of OpenCV, in its order and precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MAX_LEVELS = 16
EDGE = 31  # pixels along a level's border without a keypoint
MOST_TIES, LEAST_TIES = 8192, 1024  # equals kept at a cut: the first, halved a level, but not below the second


@dataclass(frozen=True)
class Level:
    """One level: size in pixels, scale (a float32), features it should give, and how many equals of the weakest it may give.

    `possible` is the number of corners that could exist; `drift` (y, x) is target * float64 scale - source, in units of 2^-52.
    """

    height: int
    width: int
    scale: float
    quota: int
    ties: int
    drift: tuple[int, int]

    @property
    def possible(self) -> int:
        """Most corners that suppression can leave."""
        return -(-(self.height - 2 * EDGE) // 2) * -(-(self.width - 2 * EDGE) // 2)

    @property
    def candidates(self) -> tuple[int, int]:
        """Corners to take by their FAST score, twice the quota, and equals of the weakest."""
        limit = min(2 * self.quota, self.possible)
        return limit, min(self.ties, self.possible - limit) if limit else 0

    @property
    def room(self) -> int:
        """Keypoints of this level: the quota and equals of the weakest."""
        return min(self.quota + self.ties, sum(self.candidates)) if self.quota else 0


@lru_cache(maxsize=4096)
def levels(height: int, width: int, n_features: int, scale_factor: float, n_levels: int) -> tuple[Level, ...]:
    """The levels that have room for keypoints, from the picture up. float32 and float64 steps in OpenCV's order."""
    factor = float(np.float32(scale_factor))
    found: list[Level] = []
    for index, quota in enumerate(quotas(n_features, factor, n_levels)):
        scale = np.float32(factor**index)
        inverse = np.float32(1) / scale
        rows, columns = int(np.rint(np.float32(height) * inverse)), int(np.rint(np.float32(width) * inverse))
        if min(rows, columns) <= 2 * EDGE:
            break
        below = found[-1] if found else None
        drift = (_drift(below.height, rows), _drift(below.width, columns)) if below else (0, 0)
        found.append(Level(rows, columns, float(scale), quota, max(MOST_TIES >> index, LEAST_TIES), drift))
    return tuple(found)


def quotas(n_features: int, factor: float, n_levels: int) -> list[int]:
    """Features per level: a geometric series, rounded; the last level takes what is left."""
    shrink = np.float32(1 / factor)
    share = np.float32(n_features) * (np.float32(1) - shrink) / (np.float32(1) - np.float32(float(shrink) ** n_levels))
    found: list[int] = []
    for _ in range(n_levels - 1):
        found.append(int(np.rint(share)))
        share = share * shrink
    return [*found, max(n_features - sum(found), 0)]


def _drift(source: int, target: int) -> int:
    scale = 1.0 / (target / source)
    return int(scale * 2.0**52) * target - (source << 52)
