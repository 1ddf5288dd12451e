"""Convolution on a CUDA device by cuFFT's real transforms, of whole images or of tiles."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.cuda.cufft import RealTransform2D
from hetero.devices.workspace import Workspace
from hetero.ops.convolve2d import tiles
from hetero.ops.convolve2d.direct_device import direct, flag, launch, taps_on, uploaded
from hetero.ops.convolve2d.filters import PURPOSE, Filter, FilterOptions, kept
from hetero.ops.convolve2d.tiles import Axes, Axis
from hetero.registry.problem import Problem

_KEPT = 8  # transforms in each context
_AT_A_TIME = 1 << 28  # bytes of tiles that are transformed at a time, but for one that is larger


def _transform(device: Device, lengths: tuple[int, int], batch: int, dtype: str) -> RealTransform2D:
    make = functools.partial(RealTransform2D, device, lengths, batch, dtype)
    return device.storage().get("transforms", (lengths, batch, dtype), _KEPT, make)


def convolve(
    device: Device, problem: Problem, image: Any, options: FilterOptions, out: Any
) -> None:
    """Enqueue a convolution by transforms of tiles or whole images, and the direct sum for where
    its result is not finite."""
    axes = tiles.on_device(problem.options)
    (y, x), w, dtype = axes, problem.options, problem.dtype
    size, half = np.dtype(dtype).itemsize, _half(x)
    points = y.length * half
    total = problem.batch * y.count * x.count
    chunk = min(total, max(_AT_A_TIME // (2 * points * size), 1))
    spectrum, filter_seen, owner = _spectrum(device, options.filter, problem, axes)
    transform = _transform(device, (y.length, x.length), chunk, dtype)
    work, work_owner = device.allocate(2 * chunk * points * size)
    marks, marks_owner = device.allocate(4 * chunk * y.length * _words(x))
    seen, seen_owner = flag(device)
    taps, taps_owner, strides = taps_on(device, options.filter, problem)
    image_strides, out_strides = problem.strides
    source = image, w.height, w.width, *image_strides, w.code, float(options.fillvalue), seen
    filter = *(strides or (w.filter_width, 1)), w.filter_height, w.filter_width, int(not w.extended)
    blocks, scale = -(-points // 256), 1.0 / (y.length * x.length)
    for first in range(0, total, chunk):
        count = min(chunk, total - first)
        _gather(device, dtype, source, (work, marks), axes, first, count)
        transform.forward(work)
        product = work, spectrum, points, blocks, scale
        launch(device, "multiply_spectra", dtype, blocks * count, product)
        transform.inverse(work)
        arguments = (
            *(work, marks, taps, out, seen, filter_seen, *filter),
            *(w.out_height, w.out_width, *out_strides, first, y.count, x.count),
            *(y.first, x.first, y.step, x.step, y.length, 2 * half),
        )
        launch(device, "scatter_tiles", dtype, count * y.step, arguments)
    direct(device, problem, image, options, out, only_if=seen)
    del owner, work_owner, marks_owner, seen_owner, taps_owner


def _half(x: Axis) -> int:
    """Complex numbers of a transformed row: the others are their conjugates."""
    return x.length // 2 + 1


def _words(x: Axis) -> int:
    """Of 32 bits each, with one for each real of a transformed row."""
    return -(-2 * _half(x) // 32)


def _gather(
    device: Device,
    dtype: str,
    source: tuple[Any, ...],
    target: tuple[Any, Any],
    axes: Axes,
    first: int,
    count: int,
) -> None:
    """Parts of an extended image as tiles, from the first one on, and marks of what is not 0.

    The source: its buffer, extents and strides, the boundary's number, the fill value, and a buffer
    that takes what is seen of it.
    """
    (y, x), (image, *extended) = axes, source
    arguments = (
        *(image, *target, *extended, first, y.count, x.count),
        *(y.start, x.start, y.step, x.step, y.length, x.length, 2 * _half(x)),
    )
    launch(device, "gather_tiles", dtype, count * y.length, arguments)


def _spectrum(device: Device, filter: Filter, problem: Problem, axes: Axes) -> tuple[Any, Any, Any]:
    """(buffer, what is seen of the filter, owner) of its transform at the tiles' lengths."""
    w, (y, x), dtype = problem.options, axes, problem.dtype

    def make() -> tuple[Any, Any, Any]:
        if filter.array is None:
            source, strides, held = filter.pointer, filter.strides, None
        else:
            source, held = uploaded(device, filter.array)
            strides = w.filter_width, 1
        nbytes = 2 * y.length * _half(x) * np.dtype(dtype).itemsize
        owner = Workspace(device, PURPOSE)
        buffer, seen = owner.allocate(nbytes), owner.allocate(32)
        device.fill(seen, 32)
        image = source, w.filter_height, w.filter_width, 0, *strides, 0, 0.0, seen
        one = Axis(y.length, y.length, 1, 0, 0), Axis(x.length, x.length, 1, 0, 0)
        marks, marks_owner = device.allocate(4 * y.length * _words(x))
        _gather(device, dtype, image, (buffer, marks), one, 0, 1)
        _transform(device, (y.length, x.length), 1, dtype).forward(buffer)
        del held, marks_owner
        return buffer, seen, owner

    return kept(device, filter, ("spectrum", y.length, x.length), make)
