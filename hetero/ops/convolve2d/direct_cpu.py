"""The direct sum on the CPU: by compiled loops, by a filter's factors and by SciPy."""

from __future__ import annotations

import functools
from math import prod
from types import ModuleType

import numpy as np

from hetero.host import loops
from hetero.imports import load
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import scipys_convolve2d
from hetero.ops.convolve2d.value_ranges import is_finite
from hetero.ops.convolve2d.window import Window, mode_of
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
