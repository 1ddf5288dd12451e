"""Convolution on the CPU: compiled loops, and filters of low rank."""

from __future__ import annotations

import math

import numpy as np
from scipy.signal import convolve2d

from hetero.kernels.cpu import convolve as cpu_convolve
from hetero.kernels.cpu import vectors as cpu_vectors
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.window import FEW_PRODUCTS, Window, mode_of

_SERIAL = 1 << 17  # elements below which NumPy multiplies faster than our threads start
_SMALL = 1 << 14  # elements that NumPy looks at sooner than a compiled loop is called


def finite(result: np.ndarray) -> bool:
    """Whether a result, C-contiguous, holds neither NaN nor infinity."""
    if result.size < _SMALL:
        return bool(np.isfinite(result).all())
    return math.isfinite(cpu_vectors.times_zero(result.reshape(-1)))


def block_width(dtype: np.dtype) -> int:
    """Columns that `direct` and `separable` make at a time at least: a rest takes as long."""
    return cpu_convolve.block_width(dtype)


def direct(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """The sum over the filter's taps, by `hetero.kernels.cpu.convolve`.

    Parameters
    ----------
    image : (batch, h, w) ndarray of float32 or float64, as `methods.as_stack` gives
    options : FilterOptions
    window : Window
    out : (batch, out_height, out_width) ndarray, C-contiguous
        Takes the result.
    """
    few = window.products <= FEW_PRODUCTS[image.dtype.char]
    if few and len(image) == 1 and (mode := mode_of(window)):
        operands = image[0], options.filter.array
        out[0] = convolve2d(*operands, mode, window.boundary, options.fillvalue)
        return
    if options.filter.array.size == 1 and image.size < _SERIAL:
        with np.errstate(all="ignore"):  # as the loops, which look at no flags
            np.multiply(image, options.filter.array, out=out)
        return
    cpu_convolve.direct(
        image,
        options.filter.taps,
        out,
        window.top,
        window.left,
        window.code,
        options.fillvalue,
    )


def separable(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """Two one-dimensional passes for each factor; the direct sum where that is not finite."""
    cpu_convolve.separable(
        image,
        *options.filter.flipped_factors,
        out,
        window.top,
        window.left,
        window.code,
        options.fillvalue,
    )
    if not finite(out):
        direct(image, options, window, out)
