"""Convolution on the CPU by SciPy, of whatever dtype."""

from __future__ import annotations

from math import prod

import numpy as np

from hetero.imports import load
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.window import Window, mode_of


def by_scipy(image: np.ndarray, options: FilterOptions, window: Window) -> np.ndarray:
    """`scipy.signal.convolve2d` of each image.

    Parameters
    ----------
    image : (..., h, w) ndarray

    Returns
    -------
    (..., out_height, out_width) ndarray
    """
    # Takes half a second, and compiled loops do without.
    convolve2d = load("scipy.signal").convolve2d
    mode, boundary, fillvalue = mode_of(window), window.boundary, options.fillvalue
    filter = options.filter.array
    if not image.size:  # SciPy divides by the extents of what it repeats
        boundary, fillvalue = "fill", fillvalue if boundary == "fill" else 0
    if image.ndim == 2:
        return convolve2d(image, filter, mode, boundary, fillvalue)
    front, shape = image.shape[:-2], image.shape[-2:]
    planes = image.reshape(prod(front), *shape)
    found = [convolve2d(plane, filter, mode, boundary, fillvalue) for plane in planes]
    if not found:
        one = convolve2d(np.zeros(shape, image.dtype), filter, mode, boundary, fillvalue)
        return np.zeros((*front, *one.shape), one.dtype)
    return np.reshape(found, (*front, *found[0].shape))
