"""Convolution on the CPU by SciPy's real Fourier transforms, of the whole image or of tiles.

Rows and columns are transformed apart, in parts that stay in a core's cache and on as many threads
as they are worth: so rows of zeros, and rows without a result, need no transform.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import fft

from hetero.ops.convolve2d import direct_cpu, tiles_cpu, workers
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
    y, x = tiles_cpu.whole(window)
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
    y, x = tiles_cpu.whole(window)
    threads = workers.threads_for(y.length * x.length)
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
    workers.each(rows_forth, workers.parts(high, most, threads), threads)
    workers.each(columns, workers.parts(width, _COLUMNS, threads), threads)
    workers.each(rows_back, workers.parts(y.step, most, threads), threads)


@np.errstate(all="ignore")
def overlap_save(
    image: np.ndarray, options: FilterOptions, window: Window, out: np.ndarray
) -> None:
    """Transforms of overlapping tiles; the direct sum where that is not finite."""
    axes = tiles_cpu.tiles(window)
    assert axes is not None
    y, x = axes
    points = y.length * x.length
    threads = workers.threads_for(len(image) * y.count * x.count * points)
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
        tiles = np.lib.stride_tricks.as_strided(
            source, (j.stop - j.start, y.length, x.length), (x.step * column, row, column)
        )
        product = fft.fft(fft.rfft(tiles, axis=2), axis=1, overwrite_x=True)
        product *= spectrum
        product = fft.ifft(product, axis=1, overwrite_x=True)[:, y.first :]
        values = fft.irfft(product, x.length, axis=2)[:, :, x.first :]
        values = values.transpose(1, 0, 2).reshape(y.step, -1)
        result = out[number, i * y.step : (i + 1) * y.step, j.start * x.step : j.stop * x.step]
        result[...] = values[: result.shape[0], : result.shape[1]]

    workers.each(columns, workers.parts(filter.shape[1], _COLUMNS, threads), threads)
    # Threads share rows of tiles, and what a row holds where there are few.
    most = max(min(_POINTS // points, len(image) * y.count * x.count // threads), 1)
    strips = [
        (number, i, j)
        for number in range(len(image))
        for i in range(y.count)
        for j in workers.parts(x.count, most, 1)
    ]
    workers.each(strip, strips, threads)
    if not direct_cpu.finite(out):
        direct_cpu.direct(image, options, window, out)
