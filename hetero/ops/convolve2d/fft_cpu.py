"""Convolution on the CPU by SciPy's real Fourier transforms, of the whole image or of tiles.

Rows and columns are transformed apart, in parts that stay in a core's cache and on as many threads
as they are worth: so rows of zeros, and rows without a result, need no transform.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any

import numpy as np
from scipy import fft

from hetero.devices import cpu
from hetero.imports import load
from hetero.ops.convolve2d import direct_cpu, tiles
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.window import Window

_POINTS = 1 << 18  # that a thread transforms at a time
_COLUMNS = 64


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
    at = slice(j.start - columns.start, j.start - columns.start + inner.shape[1])
    if boundary == "fill":
        part = np.full(shape, fillvalue, plane.dtype)
        if inner.size:
            part[i.start - rows.start : i.stop - rows.start, at] = inner
        return part
    part = np.empty(shape, plane.dtype)
    down = _places(rows.start, shape[0], h, boundary)
    across = _places(columns.start, shape[1], w, boundary)
    if not inner.shape[1]:
        at = slice(0, 0)
    for beyond in (slice(0, at.start), slice(at.stop, shape[1])):
        part[:, beyond] = plane[down[:, None], across[None, beyond]]
    part[:, at] = plane[down, j] if inner.shape[1] else 0.0
    return part


@np.errstate(all="ignore")  # as SciPy's loops, which look at no flags
def whole(image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray) -> None:
    """One transform of each image; the direct sum where that is not finite.

    Parameters
    ----------
    image : (batch, h, w) ndarray of float32 or float64
    options : FilterOptions
    window : Window
    out : (batch, out_height, out_width) ndarray, C-contiguous
        Takes the result.
    """
    spectrum = _spectrum(options.filter.array, window, len(image))
    for plane, result in zip(image, out, strict=True):
        _filter_plane(plane, spectrum, options.fillvalue, window, result)
    if not direct_cpu.finite(out):
        direct_cpu.direct(image, options, window, out)


def _spectrum(filter: np.ndarray, window: Window, images: int) -> Callable[[slice], np.ndarray]:
    """The filter's transform as a function of a range of its columns.

    For several images it is made once, here; for one image by parts, on all threads.
    """
    y, x = tiles.whole_on_cpu(window)
    rows = fft.rfft(filter, x.length, axis=1)
    if images == 1:
        return lambda part: fft.fft(rows[:, part], y.length, axis=0)
    whole = fft.fft(rows, y.length, axis=0)
    return lambda part: whole[:, part]


def _filter_plane(
    plane: np.ndarray,
    spectrum: Callable[[slice], np.ndarray],
    fillvalue: float,
    window: Window,
    result: np.ndarray,
) -> None:
    """One image."""
    y, x = tiles.whole_on_cpu(window)
    threads = tiles.threads_for(y.length * x.length)
    width = x.length // 2 + 1
    kind = np.result_type(plane.dtype, np.complex64)
    high, wide = plane.shape
    if window.extended:
        high, wide = y.step + window.filter_height - 1, x.step + window.filter_width - 1
    forth = np.empty((high, width), kind)
    back = np.empty((y.step, width), kind)

    def rows_forth(part: slice) -> None:
        source = plane[part]
        if window.extended:
            rows = slice(part.start + y.start, part.stop + y.start)
            source = extended(plane, window, fillvalue, rows, slice(x.start, x.start + wide))
        forth[part] = fft.rfft(source, x.length, axis=1)

    def columns(part: slice) -> None:
        product = fft.fft(forth[:, part], y.length, axis=0)
        product *= spectrum(part)
        values = fft.ifft(product, axis=0, overwrite_x=True)
        back[:, part] = values[y.first : y.first + y.step]

    def rows_back(part: slice) -> None:
        values = fft.irfft(back[part], x.length, axis=1)
        result[part] = values[:, x.first : x.first + x.step]

    most = _POINTS // x.length
    _each(rows_forth, _parts(high, most, threads), threads)
    _each(columns, _parts(width, _COLUMNS, threads), threads)
    _each(rows_back, _parts(y.step, most, threads), threads)


@np.errstate(all="ignore")
def overlap_save(
    image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray
) -> None:
    """Transforms of overlapping tiles; the direct sum where that is not finite."""
    axes = tiles.on_cpu(window)
    assert axes is not None
    y, x = axes
    points = y.length * x.length
    threads = tiles.threads_for(len(image) * y.count * x.count * points)
    filter = fft.rfft(options.filter.array, x.length, axis=1)
    spectrum = np.empty((y.length, filter.shape[1]), filter.dtype)

    def columns(part: slice) -> None:
        spectrum[:, part] = fft.fft(filter[:, part], y.length, axis=0)

    def strip(place: tuple[int, int, slice]) -> None:
        number, i, j = place
        top, left = y.start + i * y.step, x.start + j.start * x.step
        right = x.start + j.stop * x.step + x.first
        rows, columns = slice(top, top + y.length), slice(left, right)
        source = extended(image[number], window, options.fillvalue, rows, columns)
        row, column = source.strides
        cut = np.lib.stride_tricks.as_strided(
            source, (j.stop - j.start, y.length, x.length), (x.step * column, row, column)
        )
        product = fft.fft(fft.rfft(cut, axis=2), axis=1, overwrite_x=True)
        product *= spectrum
        product = fft.ifft(product, axis=1, overwrite_x=True)[:, y.first :]
        values = fft.irfft(product, x.length, axis=2)[:, :, x.first :]
        values = values.transpose(1, 0, 2).reshape(y.step, -1)
        result = out[number, i * y.step : (i + 1) * y.step, j.start * x.step : j.stop * x.step]
        result[...] = values[: result.shape[0], : result.shape[1]]

    _each(columns, _parts(filter.shape[1], _COLUMNS, threads), threads)
    # Threads share rows of tiles, and what a row holds where there are few.
    most = max(min(_POINTS // points, len(image) * y.count * x.count // threads), 1)
    strips = [
        (number, i, j)
        for number in range(len(image))
        for i in range(y.count)
        for j in _parts(x.count, most, 1)
    ]
    _each(strip, strips, threads)
    if not direct_cpu.finite(out):
        direct_cpu.direct(image, options, window, out)


# -- Threads ---------------------------------------------------------------------------------------
# NumPy and SciPy let go of the GIL while they work on parts of arrays.


def _parts(extent: int, most: int, threads: int) -> list[slice]:
    """An extent cut into about equal parts of at most ``most``, as many for each thread."""
    number = -(-extent // max(most, 1))
    number = min(-(-number // threads) * threads, max(extent, 1))
    return [slice(extent * i // number, extent * (i + 1) // number) for i in range(number)]


def _each(work: Callable[[Any], None], items: Iterable[Any], threads: int) -> None:
    """``work(item)`` for all items, on that many threads in the caller's context."""
    items = list(items)
    if threads < 2 or len(items) < 2:
        for item in items:
            work(item)
        return
    pending = iter(items)

    def some() -> None:
        for item in pending:  # advancing a list's iterator is atomic
            work(item)

    others = []
    try:
        for _ in range(min(threads, len(items)) - 1):
            others.append(_pool().submit(copy_context().run, some))
    except RuntimeError:  # the interpreter is shutting down: this thread does all
        pass
    try:
        some()  # the calling thread works too: one less to wake, and to find a core for
    finally:
        errors = [other.exception() for other in others]  # waits for each
    for error in errors:
        if error is not None:
            raise error


@functools.cache
def _pool() -> Any:
    # RuntimeError once the main thread has ended.
    ThreadPoolExecutor = load("concurrent.futures").ThreadPoolExecutor
    return ThreadPoolExecutor(cpu.describe()["cores"], "hetero-filter")


os.register_at_fork(after_in_child=_pool.cache_clear)
