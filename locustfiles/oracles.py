"""What OpenCV answers: expected results computed here, independent of the service.

An operator that is not in the table, and every operator where OpenCV is not installed, is compared with its own first
answer, given alone and before the load; the report says which was compared with what.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Check = Callable[[dict[str, Any]], str | None]  # a `result` object -> what is wrong with it


def _picture(result: dict[str, Any], member: str) -> Pixels:
    import cv2

    data = np.frombuffer(base64.b64decode(result[member]["data"]), np.uint8)
    return np.asarray(cv2.imdecode(data, cv2.IMREAD_UNCHANGED), dtype=np.uint8)


def _same_picture(expected: Pixels, member: str) -> Check:
    def check(result: dict[str, Any]) -> str | None:
        got = _picture(result, member)
        if got.shape != expected.shape:
            return f"the {member} is {got.shape}, not {expected.shape}"
        wrong = int(np.count_nonzero(got != expected))
        return f"{wrong} of {expected.size} pixels of the {member} are wrong" if wrong else None

    return check


def _same_values(expected: dict[str, Any]) -> Check:
    def check(result: dict[str, Any]) -> str | None:
        differing = [key for key, value in expected.items() if result.get(key) != value]
        return f"wrong {', '.join(differing)}" if differing else None

    return check


def _absolute_sum(dx: NDArray[Any], dy: NDArray[Any]) -> Pixels:
    return np.asarray(np.minimum(np.abs(dx.astype(np.int32)) + np.abs(dy.astype(np.int32)), 255), np.uint8)


def _sobel(grey: Pixels) -> Check:
    import cv2

    return _same_picture(_absolute_sum(cv2.Sobel(grey, cv2.CV_16S, 1, 0), cv2.Sobel(grey, cv2.CV_16S, 0, 1)), "image")


def _scharr(grey: Pixels) -> Check:
    import cv2

    return _same_picture(_absolute_sum(cv2.Scharr(grey, cv2.CV_16S, 1, 0), cv2.Scharr(grey, cv2.CV_16S, 0, 1)), "image")


def _prewitt(grey: Pixels) -> Check:
    import cv2

    taps = np.array([[-1, 0, 1]] * 3, np.float32)
    dx, dy = cv2.filter2D(grey, cv2.CV_16S, taps), cv2.filter2D(grey, cv2.CV_16S, taps.T)
    return _same_picture(_absolute_sum(dx, dy), "image")


def _laplacian(grey: Pixels) -> Check:
    import cv2

    return _same_picture(np.minimum(np.abs(cv2.Laplacian(grey, cv2.CV_16S)), 255).astype(np.uint8), "image")


def _canny(grey: Pixels) -> Check:
    import cv2

    return _same_picture(np.asarray(cv2.Canny(grey, 100, 200), np.uint8), "mask")


def _histogram(grey: Pixels) -> Check:
    return _same_values({"counts": {"grey": np.bincount(grey.ravel(), minlength=256).tolist()}})


def _equalize(grey: Pixels) -> Check:
    import cv2

    return _same_picture(np.asarray(cv2.equalizeHist(grey), np.uint8), "image")


def _clahe(grey: Pixels) -> Check:
    import cv2

    return _same_picture(np.asarray(cv2.createCLAHE(2.0, (8, 8)).apply(grey), np.uint8), "image")


def _otsu(grey: Pixels) -> Check:
    import cv2

    threshold, _ = cv2.threshold(grey, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    return _same_values({"threshold": int(threshold)})


def _fast(grey: Pixels) -> Check:
    import cv2

    found = cv2.FastFeatureDetector.create(10).detect(grey)
    columns = {"x": [p.pt[0] for p in found], "y": [p.pt[1] for p in found], "response": [p.response for p in found]}

    def check(result: dict[str, Any]) -> str | None:
        if result["truncated"]:
            return None if set(zip(result["x"], result["y"], strict=True)) <= {p.pt for p in found} else "wrong keypoints"
        return _same_values(columns)(result)

    return check


_ORACLES: dict[str, Callable[[Pixels], Check]] = {
    "edges/sobel": _sobel,
    "edges/scharr": _scharr,
    "edges/prewitt": _prewitt,
    "edges/laplacian": _laplacian,
    "edges/canny": _canny,
    "histograms/histogram": _histogram,
    "histograms/equalize": _equalize,
    "histograms/clahe": _clahe,
    "histograms/otsu": _otsu,
    "features/fast": _fast,
}


def oracle(path: str, jpeg: bytes) -> Check | None:
    """Decodes the JPEG, asks OpenCV, and returns how to check an answer; None where there is no oracle.

    This is also the direct library call that offered load is measured in.
    """
    import cv2

    make = _ORACLES.get(path)
    grey = np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_GRAYSCALE), np.uint8)
    if make is None:
        cv2.Canny(grey, 100, 200)
        return None
    return make(grey)
