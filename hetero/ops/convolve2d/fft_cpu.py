"""Convolution on the CPU by SciPy's real Fourier transforms, of the whole image or of tiles.

Rows and columns are transformed apart, so that rows of zeros, and rows without a result, need no
transform.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from contextvars import copy_context
from math import isfinite
from typing import Any

import numpy as np
from scipy import fft

from hetero.host import cpu, pages
from hetero.imports import load
from hetero.ops.convolve2d import direct_cpu, tiles
from hetero.ops.convolve2d.filters import FilterOptions, computed_once, exact_zeros, is_whole
from hetero.ops.convolve2d.window import Window

_POINTS = 1 << 18  # that a thread transforms at a time
# Eps of the largest result possible that one which should be 0 may have; seconds of a look at its
# window, of each tap's, and of a transform for each result.
_NOISE = 64.0
_LOOK, _LOOK_TAP, _TRANSFORM = 1e-5, 1e-9, 3e-8


def _places(first: int, count: int, extent: int, boundary: str) -> np.ndarray:
    """Which of ``extent`` rows or columns stand at ``first`` and after it."""
    k = np.arange(first, first + count)
    if boundary == "wrap":
        return k % extent
    k %= 2 * extent
    return np.minimum(k, 2 * extent - 1 - k)


def extended(
    plane: np.ndarray, window: Window, fillvalue: float, rows: slice, columns: slice
) -> np.ndarray:
    """Part of an image and of what lies beyond it; a view where all of it is the image's."""
    (h, w), boundary = plane.shape, window.boundary
    shape = rows.stop - rows.start, columns.stop - columns.start
    i = slice(max(rows.start, 0), max(min(rows.stop, h), 0))
    j = slice(max(columns.start, 0), max(min(columns.stop, w), 0))
    inner = plane[i, j]
    if inner.shape == shape:
        return inner
    if boundary == "fill":
        part = np.full(shape, fillvalue, plane.dtype)
        if inner.size:
            at = slice(j.start - columns.start, j.stop - columns.start)
            part[i.start - rows.start : i.stop - rows.start, at] = inner
        return part
    down = _places(rows.start, shape[0], h, boundary)
    across = _places(columns.start, shape[1], w, boundary)
    return np.take(plane[down], across, axis=1)


class Exact:
    """What the direct sum has exactly and a transform has not: zeros where all products are zero,
    whole numbers of whole numbers, nothing negative of what is not.

    Threads put results part by part, and look at the image where these leave a doubt. What is set
    once stays.

    Parameters
    ----------
    plane : (h, w) ndarray
    options : FilterOptions
    window : Window

    Attributes
    ----------
    finite : bool
        Whether all values were that were put.
    """

    def __init__(self, plane: np.ndarray, options: FilterOptions, window: Window) -> None:
        facts, fill = options.filter.facts, float(options.fillvalue)
        self._plane, self._options, self._window = plane, options, window
        self._whole = facts.whole and fill.is_integer()
        self._positive = facts.positive and fill >= 0.0
        self._zeros = self._has_zeros(facts.zeros)
        self._of_peak = _NOISE * np.finfo(plane.dtype).eps * facts.size
        self._clears, self.finite = False, True

    def _has_zeros(self, in_filter: bool) -> bool:
        """Whether all products of a result may be 0.

        A window reads the image's first row, its last row or as many as the filter has in between,
        and columns likewise: one of the values looked at, which no tap that is 0 meets.
        """
        w = self._window
        if in_filter and not w.extended:  # what lies beyond is 0
            return True
        high, wide = (1, 1) if in_filter else (w.filter_height, w.filter_width)
        parts = [
            self._plane[i, j]
            for i in (slice(None, None, high), slice(-1, None))
            for j in (slice(None, None, wide), slice(-1, None))
        ]
        return not all(part.all() for part in parts)

    @computed_once
    def _noise(self) -> float:
        """What a result that should be 0 is at most."""
        peak = max(float(self._plane.max()), -float(self._plane.min()))
        return self._of_peak * max(peak, abs(float(self._options.fillvalue)))

    def put(self, source: np.ndarray, values: np.ndarray, first: int, result: np.ndarray) -> None:
        """Take a tile's results.

        Parameters
        ----------
        source : ndarray
            The part of the image that they are made of.
        values : (step, length) ndarray, C-contiguous
        first : int
            Which columns of these are the results.
        result : (h, w) ndarray
            Takes them.
        """
        if self._whole and not is_whole(source):
            self._whole = False
        whole, low, high = self._whole, float(values.min()), float(values.max())
        if whole:
            np.rint(values, out=values)
        result[...] = values[: len(result), first : first + result.shape[1]]
        if not (isfinite(low) and isfinite(high)):
            self.finite = False
            return
        if self._positive and low < 0.0 and result.min() < 0.0:
            if source.min() < 0.0:
                self._positive = False
            else:
                np.maximum(result, 0.0, out=result)
        if self._zeros and not self._clears:
            least = 0.5 if whole else 0.0  # below it rounding was enough
            near = low <= self._noise and high >= -self._noise
            if near and self._noise > least and (np.abs(result) <= self._noise).any():
                self._clears = True

    def clear(self, result: np.ndarray) -> None:
        """Put 0 where nothing that is not 0 meets a tap that is not: by looks at few windows, or by
        a convolution that counts how many do."""
        if not (self._clears and exact_zeros.get()):
            return
        plane, (filter, fillvalue), w = self._plane, self._options, self._window
        near = np.abs(result) <= self._noise
        taps = filter.taps != 0.0
        if np.count_nonzero(near) * (_LOOK + taps.size * _LOOK_TAP) < result.size * _TRANSFORM:
            for i, j in np.argwhere(near) - (w.top, w.left):
                rows, columns = slice(i, i + w.filter_height), slice(j, j + w.filter_width)
                if not extended(plane, w, fillvalue, rows, columns)[taps].any():
                    result[i + w.top, j + w.left] = 0.0
            return
        kind = filter.support.array.dtype
        count = np.empty((1, *result.shape), kind)
        options = FilterOptions(filter.support, float(fillvalue != 0.0))
        convolve((plane != 0.0).astype(kind)[None], options, w, count)
        result[count[0] == 0.0] = 0.0


@np.errstate(all="ignore")  # as SciPy's loops, which look at no flags
def convolve(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """Transforms of overlapping tiles, or of whole images; the direct sum where that is not finite.

    Parameters
    ----------
    image : (batch, h, w) ndarray of float32 or float64
    options : FilterOptions
    window : Window
    out : (batch, out_height, out_width) ndarray, C-contiguous
        Takes the result.
    """
    pages.kept_by_malloc()
    y, x = tiles.on_cpu(window)
    points, number = y.length * x.length, len(image) * y.count * x.count
    most = tiles.threads_for(number * points)
    # Threads share tiles or, where there are fewer of them, each transform.
    threads, workers = (most, 1) if number >= most else (1, most)
    spectrum = fft.rfft(options.filter.array, x.length, axis=1)
    spectrum = fft.fft(spectrum, y.length, axis=0, workers=most)
    high, wide = y.step + window.filter_height - 1, x.step + window.filter_width - 1
    if y.count == x.count == 1 and not window.extended:
        high, wide = window.height, window.width  # rows and columns of zeros are not transformed
    seen = [Exact(plane, options, window) for plane in image]

    def strip(place: tuple[int, int, slice]) -> None:
        number, i, j = place
        top, left = y.start + i * y.step, x.start + j.start * x.step
        right = x.start + (j.stop - 1) * x.step + wide
        rows, columns = slice(top, top + high), slice(left, right)
        source = extended(image[number], window, options.fillvalue, rows, columns)
        row, column = source.strides
        cut = np.lib.stride_tricks.as_strided(
            source, (j.stop - j.start, high, wide), (x.step * column, row, column)
        )
        product = fft.rfft(cut, x.length, axis=2, workers=workers)
        product = fft.fft(product, y.length, axis=1, overwrite_x=True, workers=workers)
        product *= spectrum
        product = fft.ifft(product, axis=1, overwrite_x=True, workers=workers)
        product = product[:, y.first : y.first + y.step]
        values = fft.irfft(product, x.length, axis=2, workers=workers)
        for k, (part, tile) in enumerate(zip(cut, values, strict=True), j.start):
            result = out[number, i * y.step : (i + 1) * y.step, k * x.step : (k + 1) * x.step]
            seen[number].put(part, tile, x.first, result)

    # Rows of tiles, and what a row holds where there are few.
    at_once = max(min(_POINTS // points, number // threads), 1)
    strips = [
        (number, i, j)
        for number in range(len(image))
        for i in range(y.count)
        for j in _parts(x.count, at_once)
    ]
    _each(strip, strips, threads)
    if not all(exact.finite for exact in seen):
        direct_cpu.direct(image, options, window, out)
        return
    for exact, result in zip(seen, out, strict=True):
        exact.clear(result)


# -- Threads ---------------------------------------------------------------------------------------
# NumPy and SciPy let go of the GIL while they work on parts of arrays.


def _parts(extent: int, most: int) -> list[slice]:
    """An extent cut into about equal parts of at most ``most``."""
    number = -(-extent // most)
    return [slice(extent * i // number, extent * (i + 1) // number) for i in range(number)]


def _each(work: Callable[[Any], None], items: Sequence[Any], threads: int) -> None:
    """``work(item)`` for all items, on that many threads in the caller's context."""
    pending, others = iter(items), []

    def some() -> None:
        for item in pending:  # advancing a list's iterator is atomic
            work(item)

    with contextlib.suppress(RuntimeError):  # the interpreter is ending: this thread does all
        for _ in range(min(threads, len(items)) - 1):
            others.append(_pool().submit(copy_context().run, some))
    try:
        some()  # the calling thread works too: one less to wake, and to find a core for
    finally:
        errors = [other.exception() for other in others]  # waits for each
    for error in filter(None, errors):
        raise error


@functools.cache
def _pool() -> Any:
    # RuntimeError once the main thread has ended.
    ThreadPoolExecutor = load("concurrent.futures").ThreadPoolExecutor
    return ThreadPoolExecutor(cpu.describe()["cores"], "hetero-filter")


os.register_at_fork(after_in_child=_pool.cache_clear)
