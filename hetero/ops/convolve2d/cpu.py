"""The direct sum on the CPU: by compiled loops, by a filter's factors and by SciPy.

What a method of the CPU runs is ``compute(image, options, window, out)``: the image a stack
(batch, h, w) of float32 or float64 with contiguous rows, ``options`` the `FilterOptions` with the
filter on the host, of which ``options.filter.taps`` are flipped already, and ``out``, which takes
the result, C-contiguous (batch, out_height, out_width). The window may be of a band of the image,
and then of no mode of SciPy's; `Window.extended` tells whether anything but zeros lies beyond it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from hetero.host import loops
from hetero.imports import load
from hetero.ops.convolve2d.filters import FilterOptions, flipped_factors, is_finite
from hetero.ops.convolve2d.problem import ALIASES, Window, swapped

_SERIAL = 1 << 17  # elements below which NumPy multiplies faster than our threads start
SUMS = loops.register(loops.Family("convolutions", f"{__name__}:examples"))


@functools.cache
def _kernels() -> ModuleType:
    """The compiled loops, which load Numba."""
    return load("hetero.kernels.cpu.convolve")


def direct(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """The sum over the filter's taps, by `hetero.kernels.cpu.convolve`."""
    if window.has_few(image.dtype.char, len(image)):
        out[0] = by_scipy(image[0], options, window)
        return
    few = image.size < _SERIAL or options.filter.array.size > 1
    if few and (window.height == 1 or window.filter_height == 1) and window.is_outer:
        y, x = window.filter_height - 1 - window.top, window.filter_width - 1 - window.left
        with np.errstate(all="ignore"):  # as the loops, which look at no flags
            products = image * options.filter.array
            out[...] = products[:, y : y + window.out_height, x : x + window.out_width]
        if options.filter.array.size == 1 or is_finite(out):
            return  # else infinity in the filter meets the zeros beyond the image
    if not loops.is_ready(SUMS.of(image.dtype)) and window.mode is not None:
        out[...] = by_scipy(image, options, window)
        return
    _kernels().correlate(image, out, *_place(options, window), options.filter.taps)


def separable(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """Two one-dimensional passes for each factor; the direct sum where that is not finite."""
    factors = options.filter.found(flipped_factors)
    _kernels().correlate(image, out, *_place(options, window), *factors)
    if not is_finite(out):
        direct(image, options, window, out)


def _place(options: FilterOptions, window: Window) -> tuple[Any, ...]:
    """Where the first result's window begins, and what lies beyond the image."""
    return (window.top, window.left), window.code, options.fillvalue


def examples(dtype: np.dtype) -> None:
    """Call every loop: the direct sum and the two passes share them."""
    image, taps, convolve = np.ones((1, 64, 64), dtype), np.ones((3, 3), dtype), _kernels()
    convolve.correlate(image, np.zeros_like(image), (1, 1), convolve.WRAP, 0.0, taps)


# -- SciPy -----------------------------------------------------------------------------------------

# Taps, at 1.5 us each and more, that NumPy's sums have in a process before they have taken as long
# as to import `scipy.signal`, which does small images in less.
_MOST_TAPS = 300_000
_SUMMED = "fdbBhHiIlLqQ"  # dtypes of these sums
_WRAP = "wrap", "circular"
_summed = {"taps": 0}


def scipys_convolve2d() -> Callable[[Any, Any, str, str, Any], Any]:
    """`scipy.signal.convolve2d`; where nobody imported it, which takes half a second, a function
    that adds up the products by NumPy until then."""
    return load("scipy.signal").convolve2d if "scipy.signal" in sys.modules else _by_numpy


def _by_numpy(in1: Any, in2: Any, mode: str, boundary: str, fillvalue: Any) -> Any:
    """`scipy.signal.convolve2d` as a product of the whole image for each tap, where that gives what
    SciPy does and takes less than to import it.

    In each result the products are added in the order of the filter's taps.
    """
    if (
        "scipy.signal" in sys.modules
        or _summed["taps"] > _MOST_TAPS
        or type(fillvalue) not in (int, float)
        or fillvalue != 0
        or not in1.size * in2.size
        or (dtype := np.result_type(in1, in2)).char not in _SUMMED
    ):
        return load("scipy.signal").convolve2d(in1, in2, mode, boundary, fillvalue)
    if mode == "valid" and swapped(in1.shape, in2.shape):
        in1, in2 = in2, in1
    _summed["taps"] += in2.size
    image, filter = in1.astype(dtype, copy=False), in2.astype(dtype, copy=False)
    if mode != "valid":  # rows and columns that are read before and after the image's own
        full = mode == "full"
        sides = [(n - 1, n - 1) if full else (n // 2, (n - 1) // 2) for n in filter.shape]
        if ALIASES.get(boundary, boundary) != "fill":
            image = np.pad(image, sides, "wrap" if boundary in _WRAP else "symmetric")
        else:  # in a tenth of the time of `numpy.pad`
            (above, below), (left, right), (h, w), inner = *sides, image.shape, image
            image = np.zeros((above + h + below, left + w + right), dtype)
            image[above : above + h, left : left + w] = inner
    height, width = (n - f + 1 for n, f in zip(image.shape, filter.shape, strict=True))
    out, product = np.zeros((height, width), dtype), np.empty((height, width), dtype)
    with np.errstate(all="ignore"):  # as SciPy's loop, which looks at no flags
        for (i, j), tap in np.ndenumerate(filter):
            row, column = filter.shape[0] - 1 - i, filter.shape[1] - 1 - j
            out += np.multiply(image[row : row + height, column : column + width], tap, out=product)
    return out


def by_scipy(image: np.ndarray, options: FilterOptions, window: Window) -> np.ndarray:
    """`scipy.signal.convolve2d` of each image of a stack (..., h, w)."""
    convolve2d = scipys_convolve2d()
    mode, boundary, fillvalue = window.mode, window.boundary, options.fillvalue
    filter = options.filter.array
    if not image.size:  # SciPy divides by the extents of what it repeats
        boundary, fillvalue = "fill", fillvalue if boundary == "fill" else 0
    if image.ndim == 2:
        return convolve2d(image, filter, mode, boundary, fillvalue)
    front, shape = image.shape[:-2], image.shape[-2:]
    number = prod(front)
    planes = image.reshape(number, *shape) if number else np.zeros((1, *shape), image.dtype)
    found = np.stack([convolve2d(p, filter, mode, boundary, fillvalue) for p in planes])
    return found[:number].reshape(*front, *found.shape[1:])
