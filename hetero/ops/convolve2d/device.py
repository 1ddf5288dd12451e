"""Convolution on a device: own kernels for the sum and filters of low rank, and cuFFT's transforms.

What a method of devices runs is ``compute(device, problem, image, options, out)``: buffers of the
image and of the result, and `FilterOptions`. It enqueues work and waits for none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.arrays import alignment
from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.imports import load
from hetero.kernels import LaunchPlan
from hetero.kernels.convolution import plan as plan_convolve
from hetero.ops.convolve2d.fft import Axes, Axis, on_device
from hetero.ops.convolve2d.filters import PURPOSE, Filter, FilterOptions, flipped_factors, kept
from hetero.ops.convolve2d.problem import Window
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.cuda.libraries import RealTransform

_THREADS = 256
_KEPT = 8  # transforms in each context
_AT_A_TIME = 1 << 28  # bytes of tiles that are transformed at a time, but for one that is larger


@functools.lru_cache(maxsize=1024)
def _remembered(plan: Callable[..., LaunchPlan], window: Window, **others: Any) -> LaunchPlan:
    return plan(**dict(zip(Window._fields[:9], window, strict=False)), **others)


def _launches(
    plan: Callable[..., LaunchPlan], device: Device, problem: Problem, *buffers: Any, **more: Any
) -> LaunchPlan:
    """The launches that a kernel family's ``plan`` gives for a problem, by the device's limits and
    its buffers' addresses."""
    image_strides, out_strides = problem.strides
    return _remembered(
        plan,
        problem.options,
        batch=problem.batch,
        dtype=problem.dtype,
        image_strides=image_strides,
        out_strides=out_strides,
        alignment=alignment(*buffers),
        target=device.target,
        **more,
    )


def _uploaded(device: Device, array: np.ndarray) -> tuple[Any, Any]:
    """(buffer, owner) of a host array's copy."""
    owner = Workspace(device, PURPOSE)
    return owner.upload(array), owner


def _launch(
    device: Device, kernel: str, dtype: str, blocks: int, arguments: tuple[Any, ...]
) -> None:
    """Start a kernel of convolve_fft.cu."""
    real = "double" if dtype == "float64" else "float"
    defines = (("REAL", real), ("THREADS", _THREADS))
    built = device.build("convolve_fft.cu", kernel, defines)
    device.launch(built, blocks, _THREADS, list(arguments))


def flag(device: Device) -> tuple[Any, Any]:
    """(buffer, owner) of eight ints, all 0; kernels set the first where a result is not finite."""
    buffer, owner = device.allocate(32)
    device.fill(buffer, 32)
    return buffer, owner


def find_not_finite(device: Device, dtype: str, out: Any, count: int, bad: Any) -> None:
    """Enqueue a look at ``count`` packed values, which sets the first of `flag`'s ints."""
    blocks = min(-(-count // _THREADS), 16 * device.multiprocessors)
    _launch(device, "find_not_finite", dtype, blocks, (out, bad, count, blocks))


# -- The direct sum, and filters of low rank -------------------------------------------------------


def taps_on(device: Device, filter: Filter, problem: Problem) -> tuple[Any, Any, Any]:
    """(buffer, owner, strides) of the flipped filter."""
    if filter.array is not None:
        return *kept(device, filter, "taps", lambda: _uploaded(device, filter.taps)), None
    w, (row, column) = problem.options, filter.operand.staged_strides()[-2:]
    last = (w.filter_height - 1) * row + (w.filter_width - 1) * column
    address = filter.operand.pointer + last * np.dtype(problem.dtype).itemsize
    return address, None, (-row, -column)


def direct(
    device: Device,
    problem: Problem,
    image: Any,
    options: FilterOptions,
    out: Any,
    only_if: Any = None,
) -> None:
    """Enqueue the sum over the filter's taps; with a flag, only where it is set."""
    taps, owner, strides = taps_on(device, options.filter, problem)
    buffers = {"image": image, "taps": taps, "out": out, "fillvalue": options.fillvalue}
    buffers["only_if"] = device.null if only_if is None else only_if
    planned = _launches(plan_convolve.direct, device, problem, image, out, tap_strides=strides)
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)
    del owner


def prepared_direct(device: Any, problem: Problem, aligned: int, options: FilterOptions) -> Any:
    """`direct` in the current context: a launch with the addresses of the image, the filter, if it
    lies on the device, and the result.

    For operands at addresses that ``aligned`` divides.
    """
    filter = options.filter
    taps, owner, strides = taps_on(device, filter, problem)
    planned = _launches(plan_convolve.direct, device, problem, aligned, tap_strides=strides)
    itemsize = np.dtype(problem.dtype).itemsize
    numbers = {"fillvalue": options.fillvalue, "only_if": device.null}
    launch = device.prepared(planned, ("image", "taps", "out"), itemsize, **numbers)
    last = taps - filter.operand.pointer if filter.array is None else 0

    def run(image: int, _: int, out: int, owner: Any = owner) -> None:  # which keeps the taps
        launch(image, taps, out)

    def run_with(image: int, filter: int, out: int) -> None:
        launch(image, filter + last, out)

    return run_with if filter.array is None else run


def separable(
    device: Device, problem: Problem, image: Any, options: FilterOptions, out: Any
) -> None:
    """Enqueue two passes for each factor, and the direct sum for where that is not finite."""
    filter = options.filter

    def upload() -> Any:
        return tuple(_uploaded(device, part) for part in filter.found(flipped_factors))

    (columns, first), (rows, second) = kept(device, filter, "factors", upload)
    buffers = {"image": image, "columns": columns, "rows": rows, "out": out}
    planned = _launches(
        plan_convolve.separable, device, problem, *buffers.values(), rank=problem.options.rank
    )
    buffers["fillvalue"] = options.fillvalue
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)
    bad, owner = flag(device)
    find_not_finite(device, problem.dtype, out, problem.output.size, bad)
    direct(device, problem, image, options, out, only_if=bad)
    del first, second, owner


# -- Transforms ------------------------------------------------------------------------------------


def _transform(device: Device, lengths: tuple[int, int], batch: int, dtype: str) -> RealTransform:
    kind = load("hetero.devices.cuda.libraries").RealTransform
    make = functools.partial(kind, device, lengths, batch, dtype)
    return device.storage().get("transforms", (lengths, batch, dtype), _KEPT, make)


def convolve(
    device: Device, problem: Problem, image: Any, options: FilterOptions, out: Any
) -> None:
    """Enqueue a convolution by transforms of tiles or whole images, and the direct sum for where
    its result is not finite."""
    axes = on_device(problem.options)
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
        _launch(device, "multiply_spectra", dtype, blocks * count, product)
        transform.inverse(work)
        arguments = (
            *(work, marks, taps, out, seen, filter_seen, *filter),
            *(w.out_height, w.out_width, *out_strides, first, y.count, x.count),
            *(y.first, x.first, y.step, x.step, y.length, 2 * half),
        )
        _launch(device, "scatter_tiles", dtype, count * y.step, arguments)
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
    _launch(device, "gather_tiles", dtype, count * y.length, arguments)


def _spectrum(device: Device, filter: Filter, problem: Problem, axes: Axes) -> tuple[Any, Any, Any]:
    """(buffer, what is seen of the filter, owner) of its transform at the tiles' lengths."""
    w, (y, x), dtype = problem.options, axes, problem.dtype

    def make() -> tuple[Any, Any, Any]:
        if filter.array is None:
            source, held = filter.operand.pointer, None
            strides = filter.operand.staged_strides()[-2:]
        else:
            source, held = _uploaded(device, filter.array)
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
