"""`python -m benchmarks [operator ...]`: every operator of the registry against its oracle's library, one thread each.

Both run in turn in one process, so that a machine that changes its speed changes both; the figures are medians and the ratio is that of the
medians. Below 1 is faster than the rival.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from cuda_ops import samples
from cuda_ops.chain import Item, Step, check_chain
from cuda_ops.cpu_backend import CpuBackend
from cuda_ops.operator import Operator, operators

PHOTOGRAPH = Path(__file__).parents[2] / "shared" / "images" / "photos" / "Reconyx_HC500_Hyperfire.jpg"


def picture(side: int) -> NDArray[np.uint8]:
    """A grey square of a photograph, or of smooth noise where the photograph is not there."""
    if PHOTOGRAPH.exists():
        grey = np.asarray(cv2.imread(str(PHOTOGRAPH), cv2.IMREAD_GRAYSCALE), dtype=np.uint8)
        return np.ascontiguousarray(np.asarray(cv2.resize(grey, (side, side), interpolation=cv2.INTER_AREA), dtype=np.uint8))
    return samples.smooth(side, side)


def interleaved(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Medians in milliseconds of two calls made in turn."""
    ours(), theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, spent in zip((ours, theirs), times, strict=True):
            begin = time.perf_counter()
            call()
            spent.append((time.perf_counter() - begin) * 1e3)
    return float(np.median(times[0])), float(np.median(times[1]))


def measure(operator: Operator, image: NDArray[np.uint8], rounds: int) -> tuple[float, float]:
    """The operator with its defaults on one image, against its rival."""
    params = operator.params()
    chain = check_chain([Step(operator, params)])
    backend = CpuBackend(1)
    rival = operator.rival or operator.oracle
    return interleaved(lambda: backend.run([Item(image, chain)], lambda *_: None), lambda: rival(image, params), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", metavar="operator", help="family/name; every operator when none is given")
    parser.add_argument("--side", type=int, default=1024, help="side of the square image in pixels")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    known = operators()
    image = picture(arguments.side)
    print(f"{'operator':24} {'ours ms':>8} {'rival ms':>9} {'ratio':>6}   {arguments.side} x {arguments.side}, one thread, medians")
    for path in arguments.operators or known:
        ours, theirs = measure(known[path], image, arguments.rounds)
        print(f"{path:24} {ours:8.2f} {theirs:9.2f} {ours / theirs:6.2f}", flush=True)


if __name__ == "__main__":
    main()
