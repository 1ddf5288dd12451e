"""Convolution on the CPU by SciPy's real Fourier transforms, of the whole image or of tiles."""

from __future__ import annotations

import numpy as np
from scipy import fft

from hetero.devices import cpu as host
from hetero.filtering import cpu
from hetero.filtering.request import Request
from hetero.filtering.window import Axis, Window, good_length_cpu, one_tile, tiles

_SERIAL = 900_000  # points below which SciPy's threads cost more than they save
_STRIP = 1 << 20  # points of tiles that are transformed at a time
_NUMPY_MODE = {"wrap": "wrap", "symm": "symmetric"}


def _workers(points: int) -> int:
    return 1 if points < _SERIAL else host.describe()["cores"]


def _extended(plane: np.ndarray, window: Window, y: Axis, x: Axis, fillvalue: float) -> np.ndarray:
    """What the tiles read of the image and of what lies beyond it."""
    before = (-y.start, -x.start)
    after = [
        max(axis.start + axis.step * axis.count + f - 1 - n, 0)
        for axis, f, n in zip(
            (y, x), (window.filter_height, window.filter_width), plane.shape, strict=True
        )
    ]
    pads = tuple(zip(before, after, strict=True))
    if window.boundary == "fill":
        return np.pad(plane, pads, constant_values=fillvalue)
    return np.pad(plane, pads, _NUMPY_MODE[window.boundary])


def whole(image: np.ndarray, request: Request, window: Window) -> np.ndarray:
    """One transform of each image; the direct sum where that is not finite.

    Parameters
    ----------
    image : (batch, h, w) ndarray of float32 or float64
    """
    y, x = one_tile(window, good_length_cpu)
    lengths = y.length, x.length
    workers = _workers(y.length * x.length)
    spectrum = fft.rfft2(request.filter.array, lengths, workers=workers)
    out = np.empty((len(image), window.out_height, window.out_width), image.dtype)
    for plane, result in zip(image, out, strict=True):
        if window.extended:
            plane = _extended(plane, window, y, x, request.fillvalue)
        product = fft.rfft2(plane, lengths, workers=workers)
        product *= spectrum
        values = fft.irfft2(product, lengths, workers=workers, overwrite_x=True)
        result[...] = values[y.first : y.first + y.step, x.first : x.first + x.step]
    return out if cpu.finite(out) else cpu.direct(image, request, window)


def overlap_save(image: np.ndarray, request: Request, window: Window) -> np.ndarray:
    """Transforms of overlapping tiles; the direct sum where that is not finite."""
    axes = tiles(window)
    assert axes is not None
    y, x = axes
    lengths = y.length, x.length
    spectrum = fft.rfft2(request.filter.array, lengths)
    out = np.empty((len(image), window.out_height, window.out_width), image.dtype)
    at_a_time = max(_STRIP // (x.count * y.length * x.length), 1)
    workers = _workers(x.count * y.length * x.length)
    for plane, result in zip(image, out, strict=True):
        source = _extended(plane, window, y, x, request.fillvalue)
        source = np.ascontiguousarray(source[: y.count * y.step + y.first, :])
        row, column = source.strides
        view = np.lib.stride_tricks.as_strided(
            source,
            (y.count, x.count, y.length, x.length),
            (y.step * row, x.step * column, row, column),
        )
        for t in range(0, y.count, at_a_time):
            product = fft.rfft2(view[t : t + at_a_time], workers=workers)
            product *= spectrum
            values = fft.irfft2(product, lengths, workers=workers, overwrite_x=True)
            values = values[:, :, y.first :, x.first :].transpose(0, 2, 1, 3)
            values = values.reshape(-1, x.count * x.step)
            rows = result[t * y.step : (t + at_a_time) * y.step]
            rows[...] = values[: len(rows), : window.out_width]
    return out if cpu.finite(out) else cpu.direct(image, request, window)
