"""Convolution on the CPU by OpenCV's filter2D, where it is installed."""

from __future__ import annotations

import functools
import importlib.util

import numpy as np

from hetero.imports import INSTALL, load
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.window import Window

_DIRECT = 11  # extent up to which OpenCV sums directly; above it transforms


@functools.cache
def is_here() -> bool:
    """Whether cv2 can be imported."""
    return importlib.util.find_spec("cv2") is not None


def obstacle(window: Window, here: bool = True) -> str | None:
    """Why OpenCV's filter2D cannot do it: here, or on any machine that has OpenCV."""
    if here and not is_here():
        return f"OpenCV is not here; {INSTALL['opencv']}"
    if window.boundary == "wrap":
        return "OpenCV does not extend periodically"
    if window.filled:
        return "OpenCV fills with zeros"
    if max(window.filter_height, window.filter_width) > _DIRECT:
        return f"above {_DIRECT} x {_DIRECT} OpenCV transforms"
    if window.boundary == "symm" and (
        window.filter_height > window.height or window.filter_width > window.width
    ):
        return "OpenCV reflects only once"
    inside = (
        window.top < window.filter_height
        and window.left < window.filter_width
        and window.out_height <= window.height
        and window.out_width <= window.width
    )
    return None if inside else "OpenCV gives no result larger than the image"


def filter2d(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """`cv2.filter2D`, whose correlation takes the flipped filter."""
    cv2 = load("cv2")
    border = cv2.BORDER_REFLECT if window.boundary == "symm" else cv2.BORDER_CONSTANT
    rows = slice(0, window.out_height)
    columns = slice(0, window.out_width)
    # Output (i, j) of filter2D reads from (i - anchor_y, j - anchor_x) on.
    anchor = (window.left, window.top)
    taps = options.filter.taps
    for plane, result in zip(image, out, strict=True):
        found = cv2.filter2D(plane, -1, taps, anchor=anchor, borderType=border)
        result[...] = found[rows, columns]
