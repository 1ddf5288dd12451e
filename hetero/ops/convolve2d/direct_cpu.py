"""The direct sum on the CPU: by compiled loops, by a filter's factors and by SciPy."""

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
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import swapped
from hetero.ops.convolve2d.value_ranges import is_finite
from hetero.ops.convolve2d.window import ALIASES, Window, mode_of
from hetero.registry import Arguments
from hetero.registry.problem import Problem

_SERIAL = 1 << 17  # elements below which NumPy multiplies faster than our threads start

SUMS = loops.register(loops.Family("convolutions", f"{__name__}:examples"))


@functools.cache
def _kernels() -> ModuleType:
    """The compiled loops, which load Numba."""
    convolve = load("hetero.kernels.cpu.convolve")
    return convolve


def are_few(window: Window, batch: int, dtype: np.dtype) -> bool:
    """Whether the direct sum is SciPy's: there are few products."""
    return window.has_few(dtype.char) and batch == 1 and mode_of(window) is not None


def is_one(window: Window, batch: int) -> bool:
    """Whether the direct sum is NumPy's: one product each, and not worth threads if of one tap."""
    few_pixels = batch * window.height * window.width < _SERIAL
    return window.is_outer and (few_pixels or window.filter_height * window.filter_width > 1)


def block_width(dtype: np.dtype) -> int:
    """Columns that `direct` and `separable` make at a time at least: a rest takes as long."""
    return _kernels().block_width(dtype)


def stacked(
    problem: Problem, arguments: Arguments
) -> tuple[np.ndarray, FilterOptions, Window, np.ndarray]:
    """What functions on the CPU compute with: the image as (batch, h, w) of the dtype that is
    computed in, rows contiguous; the options with the filter on the host; the window; the result
    as (batch, out_height, out_width)."""
    (image,), out, options = arguments
    if options.filter.array is None:
        options = options._replace(filter=options.filter.downloaded())
    window, image = problem.options, np.asarray(image, out.dtype)
    image = image.reshape(-1, *image.shape[-2:])
    if image.strides[-1] != out.itemsize and image.shape[-1] > 1:
        image = np.ascontiguousarray(image)
    return image, options, window, out.reshape(-1, window.out_height, window.out_width)


def direct(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """The sum over the filter's taps, by `hetero.kernels.cpu.convolve`.

    The image is (batch, h, w) of float32 or float64, with rows contiguous; ``out``, C-contiguous
    and (batch, out_height, out_width), takes the result.
    """
    if are_few(window, len(image), image.dtype):
        out[0] = by_scipy(image[0], options, window)
        return
    is_thin = window.height == 1 or window.filter_height == 1  # which costs less to ask
    if is_thin and is_one(window, len(image)):
        y, x = window.filter_height - 1 - window.top, window.filter_width - 1 - window.left
        with np.errstate(all="ignore"):  # as the loops, which look at no flags
            products = image * options.filter.array
            out[...] = products[:, y : y + window.out_height, x : x + window.out_width]
        if window.filter_height * window.filter_width == 1 or is_finite(out):
            return  # else infinity in the filter meets the zeros beyond the image
    if not loops.is_ready(SUMS.of(image.dtype)) and mode_of(window) is not None:
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


def separable(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """Two one-dimensional passes for each factor; the direct sum where that is not finite."""
    _kernels().separable(
        image,
        *options.filter.facts.flipped,
        out,
        window.top,
        window.left,
        window.code,
        options.fillvalue,
    )
    if not is_finite(out):
        direct(image, options, window, out)


def examples(dtype: np.dtype) -> None:
    """Call every loop: the direct sum and the two passes share them."""
    out, taps = np.zeros((1, 64, 64), dtype), np.ones((3, 3), dtype)
    convolve = _kernels()
    convolve.direct(np.ones((1, 64, 64), dtype), taps, out, 1, 1, convolve.WRAP, 0.0)


# -- SciPy -----------------------------------------------------------------------------------------

# Taps, at 1.5 us each and more, that NumPy's sums have in a process before they have taken as long
# as to import `scipy.signal`, which does small images in less.
_MOST_TAPS = 300_000
_SUMMED = "fdbBhHiIlLqQ"  # dtypes of these sums
_summed = {"taps": 0}


def scipys_convolve2d() -> Callable[[Any, Any, str, str, Any], Any]:
    """`scipy.signal.convolve2d`; where nobody imported it, which takes half a second, a function
    that adds up the products by NumPy until then."""
    if "scipy.signal" in sys.modules:
        return load("scipy.signal").convolve2d  # type: ignore[no-any-return]

    def convolve2d(in1: Any, in2: Any, mode: str, boundary: str, fillvalue: Any) -> Any:
        is_scipys = "scipy.signal" in sys.modules or _summed["taps"] > _MOST_TAPS
        if is_scipys or not _is_summed(in1, in2, fillvalue):
            return load("scipy.signal").convolve2d(in1, in2, mode, boundary, fillvalue)
        if mode == "valid" and swapped(in1.shape, in2.shape):
            in1, in2 = in2, in1
        _summed["taps"] += in2.size
        return _sum(in1, in2, mode, ALIASES.get(boundary, boundary))

    return convolve2d


def _is_summed(image: np.ndarray, filter: np.ndarray, fillvalue: Any) -> bool:
    if type(fillvalue) not in (int, float) or fillvalue != 0 or not image.size * filter.size:
        return False
    return np.result_type(image, filter).char in _SUMMED


def _sum(image: np.ndarray, filter: np.ndarray, mode: str, boundary: str) -> np.ndarray:
    """The direct sum, a product of the whole image for each tap; beyond it lie zeros with "fill".

    In each result the products are added in the order of the filter's taps.
    """
    dtype = np.result_type(image, filter)
    image, filter = image.astype(dtype, copy=False), filter.astype(dtype, copy=False)
    sides = {  # rows and columns that are read before and after the image's own
        "full": [(n - 1, n - 1) for n in filter.shape],
        "same": [(n // 2, (n - 1) // 2) for n in filter.shape],
        "valid": [(0, 0), (0, 0)],
    }[mode]
    if boundary == "fill":  # in a tenth of the time of `numpy.pad`
        (above, below), (left, right), (h, w) = *sides, image.shape
        extended = np.zeros((above + h + below, left + w + right), dtype)
        extended[above : above + h, left : left + w] = image
    else:
        extended = np.pad(image, sides, "wrap" if boundary == "wrap" else "symmetric")
    height, width = (n - f + 1 for n, f in zip(extended.shape, filter.shape, strict=True))
    out, product = np.zeros((height, width), dtype), np.empty((height, width), dtype)
    with np.errstate(all="ignore"):  # as SciPy's loop, which looks at no flags
        for (i, j), tap in np.ndenumerate(filter):
            row, column = filter.shape[0] - 1 - i, filter.shape[1] - 1 - j
            meets = extended[row : row + height, column : column + width]
            out += np.multiply(meets, tap, out=product)
    return out


def by_scipy(image: np.ndarray, options: FilterOptions, window: Window) -> np.ndarray:
    """`scipy.signal.convolve2d` of each image of a stack (..., h, w)."""
    convolve2d = scipys_convolve2d()
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
