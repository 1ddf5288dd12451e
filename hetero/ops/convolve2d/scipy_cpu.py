"""Convolution on the CPU by SciPy, of whatever dtype."""

from __future__ import annotations

import numpy as np
from scipy.signal import convolve2d

from hetero.ops.convolve2d.filters import Options
from hetero.ops.convolve2d.window import Window, mode_of


def by_scipy(image: np.ndarray, options: Options, window: Window) -> np.ndarray:
    """`scipy.signal.convolve2d` of each image.

    Parameters
    ----------
    image : (..., h, w) ndarray

    Returns
    -------
    (..., out_height, out_width) ndarray
    """
    mode, boundary, fillvalue = mode_of(window), window.boundary, options.fillvalue
    filter = options.filter.array
    if not image.size:  # SciPy divides by the extents of what it repeats
        boundary, fillvalue = "fill", fillvalue if boundary == "fill" else 0
    if image.ndim == 2:
        return convolve2d(image, filter, mode, boundary, fillvalue)
    planes = image.reshape(-1, *image.shape[-2:]) if image.size else image[:0]
    found = [convolve2d(plane, filter, mode, boundary, fillvalue) for plane in planes]
    if not found:
        blank = np.zeros((max(image.shape[-2], 1), max(image.shape[-1], 1)), image.dtype)
        one = convolve2d(blank, filter, mode, boundary, fillvalue)
        return np.zeros((*image.shape[:-2], *one.shape), one.dtype)
    return np.reshape(found, (*image.shape[:-2], *found[0].shape))
