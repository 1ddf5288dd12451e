"""Convolution on the CPU: compiled loops, filters of low rank, and SciPy for any dtype."""

from __future__ import annotations

import functools
from math import isfinite, prod
from types import ModuleType

import numpy as np

from hetero.host.compiled import loop_compiler
from hetero.host.compiled.loops import is_ready
from hetero.imports import load
from hetero.ops import cpu_vectors
from hetero.ops.convolve2d import loops
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.window import Window, mode_of

_PRODUCTS_WHILE_COMPILING = 1 << 31  # what SciPy's loop does in about five seconds
_SMALL = 1 << 14  # elements that NumPy looks at sooner than a compiled loop is called


@functools.cache
def _kernels() -> ModuleType:
    """The compiled loops, which load Numba."""
    convolve = load("hetero.kernels.cpu.convolve")
    return convolve


def finite(result: np.ndarray) -> bool:
    """Whether a result, C-contiguous, holds neither NaN nor infinity."""
    if result.size < _SMALL:
        return bool(np.isfinite(result).all())
    return isfinite(cpu_vectors.serving(result.dtype).times_zero(result.reshape(-1)))


def block_width(dtype: np.dtype) -> int:
    """Columns that `direct` and `separable` make at a time at least: a rest takes as long."""
    return _kernels().block_width(dtype)


def direct(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """The sum over the filter's taps, by `hetero.kernels.cpu.convolve`.

    Parameters
    ----------
    image : (batch, h, w) ndarray of float32 or float64, rows contiguous
    options : FilterOptions
    window : Window
    out : (batch, out_height, out_width) ndarray, C-contiguous
        Takes the result.
    """
    if loops.are_few(window, len(image), image.dtype):
        out[0] = by_scipy(image[0], options, window)
        return
    if loops.is_one(window, len(image)):
        with np.errstate(all="ignore"):  # as the loops, which look at no flags
            np.multiply(image, options.filter.array, out=out)
        return
    if _served_by_scipy(window, image):
        out[...] = by_scipy(image, options, window)
        return
    _kernels().direct(
        image,
        options.filter.taps,
        out,
        window.top,
        window.left,
        window.code,
        options.fillvalue,
    )


def _served_by_scipy(window: Window, image: np.ndarray) -> bool:
    """Whether SciPy's loop takes less time than compiling ours, as another method's last resort."""
    name = loops.SUMS.of(image.dtype)
    if is_ready(name) or mode_of(window) is None:
        return False
    loop_compiler.begin(name)
    return len(image) * window.products < _PRODUCTS_WHILE_COMPILING


def separable(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """Two one-dimensional passes for each factor; the direct sum where that is not finite."""
    _kernels().separable(
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
