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
from hetero.ops.convolve2d.filters import FilterOptions, exact_zeros, is_whole
from hetero.ops.convolve2d.window import Window
from hetero.ops.linear_systems.partition import split

_POINTS = 1 << 18  # that a thread transforms at a time
_COUNTED = 1 << 16  # taps of which a transform in float32 counts how many meet something
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


def _may_be_zero(plane: np.ndarray, zeros: bool, window: Window) -> bool:
    """Whether all products of a result may be 0, for a filter with or without ``zeros``.

    A window reads the image's first row, its last row or as many as the filter has in between, and
    columns likewise: one of the values looked at, which no tap that is 0 meets.
    """
    if zeros and not window.extended:  # what lies beyond is 0
        return True
    high, wide = (1, 1) if zeros else (window.filter_height, window.filter_width)
    parts = plane[::high, ::wide], plane[-1], plane[:, -1]
    return not all(part.all() for part in parts)


@np.errstate(all="ignore")  # as SciPy's loops, which look at no flags
def convolve(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """Transforms of overlapping tiles, or of whole images; the direct sum where that is not finite.

    The arguments are as for `hetero.ops.convolve2d.direct_cpu.direct`.
    """
    pages.kept_by_malloc()
    y, x = tiles.on_cpu(window)
    points, number = y.length * x.length, len(image) * y.count * x.count
    most = tiles.threads_for(number * points)
    # Threads share tiles or, where there are fewer of them, each transform.
    threads, workers = (most, 1) if number >= most else (1, most)
    facts, taps = options.filter.facts, options.filter.array
    spectrum = _spectrum(taps, y.length, x.length, most)
    noise = _NOISE * np.finfo(image.dtype).eps * facts.size
    size = window.filter_height, window.filter_width
    high, wide = y.step + size[0] - 1, x.step + size[1] - 1
    if y.count == x.count == 1 and not window.extended:
        high, wide = window.height, window.width  # rows and columns of zeros are not transformed
    zeros = [exact_zeros.get() and _may_be_zero(p, facts.zeros, window) for p in image]
    not_finite: list[bool] = []

    def transformed(cut: np.ndarray, spectrum: np.ndarray) -> np.ndarray:
        """Tiles, convolved with the filter of a spectrum: their results, and more beside them."""
        product = fft.rfft(cut, x.length, axis=2, workers=workers)
        product = fft.fft(product, y.length, axis=1, overwrite_x=True, workers=workers)
        product *= spectrum
        product = fft.ifft(product, axis=1, overwrite_x=True, workers=workers)
        product = product[:, y.first : y.first + y.step]
        return fft.irfft(product, x.length, axis=2, workers=workers)

    @functools.cache
    def support() -> np.ndarray:
        """The spectrum of 1 where a tap is not 0: with those of a tile it gives how many meet."""
        known = taps != 0.0
        kind = "f4" if np.count_nonzero(known) < _COUNTED else "f8"
        return _spectrum(known.astype(kind), y.length, x.length, most)

    def strip(place: tuple[int, int, tuple[int, int]]) -> None:
        number, i, (begin, end) = place
        top, left = y.start + i * y.step, x.start + begin * x.step
        right = x.start + (end - 1) * x.step + wide
        rows, columns = slice(top, top + high), slice(left, right)
        source = extended(image[number], window, options.fillvalue, rows, columns)
        row, column = source.strides
        cut = np.lib.stride_tricks.as_strided(
            source, (end - begin, high, wide), (x.step * column, row, column)
        )
        for k, (part, tile) in enumerate(zip(cut, transformed(cut, spectrum), strict=True), begin):
            result = out[number, i * y.step : (i + 1) * y.step, k * x.step : (k + 1) * x.step]
            put(part, tile, result, zeros[number])

    def put(source: np.ndarray, values: np.ndarray, result: np.ndarray, zeros: bool) -> None:
        """Take a tile's results, with what the direct sum has exactly and a transform has not:
        whole numbers of whole numbers, nothing negative of what is not, and where there may be
        some, zeros where all products are zero."""
        low, high = float(values.min()), float(values.max())
        whole = facts.whole and is_whole(source)
        if whole:
            np.rint(values, out=values)
        result[...] = values[: len(result), x.first : x.first + result.shape[1]]
        if not (isfinite(low) and isfinite(high)):
            not_finite.append(True)
            return
        if facts.positive and low < 0.0 and result.min() < 0.0 and source.min() >= 0.0:
            np.maximum(result, 0.0, out=result)
        if not zeros:
            return
        most = noise * max(float(source.max()), -float(source.min()))  # of one that should be 0
        if most <= (0.5 if whole else 0.0) or low > most or high < -most:
            return  # rounding was enough, or there is none
        near = np.abs(result) <= most
        if np.count_nonzero(near) * (_LOOK + taps.size * _LOOK_TAP) < result.size * _TRANSFORM:
            known = options.filter.taps != 0.0
            for i, j in np.argwhere(near):
                begin = i - window.top - y.start, j - window.left - x.start
                at = (slice(b, b + n) for b, n in zip(begin, size, strict=True))
                if not extended(source, window, 0.0, *at)[known].any():
                    result[i, j] = 0.0
            return
        kind = support().real.dtype
        (count,) = transformed((source != 0.0).astype(kind)[None], support())
        count = count[: len(result), x.first : x.first + result.shape[1]]
        result[count < 0.5] = 0.0

    # Rows of tiles, and what a row holds where there are few.
    at_once = max(min(_POINTS // points, number // threads), 1)
    strips = [
        (number, i, j)
        for number in range(len(image))
        for i in range(y.count)
        for j in split(x.count, -(-x.count // at_once))
    ]
    _each(strip, strips, threads)
    if not_finite:
        direct_cpu.direct(image, options, window, out)


def _spectrum(taps: np.ndarray, height: int, width: int, workers: int) -> np.ndarray:
    spectrum = fft.rfft(taps, width, axis=1)
    return fft.fft(spectrum, height, axis=0, workers=workers)


# -- Threads ---------------------------------------------------------------------------------------
# NumPy and SciPy let go of the GIL while they work on parts of arrays.


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
