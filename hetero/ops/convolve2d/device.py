"""Convolution on a device: own kernels for the sum and filters of low rank, and cuFFT's transforms.

What a method of devices runs is ``compute(device, problem, image, filter, out)``: buffers of the
image and of the result, and a `Filter`. It enqueues work and waits for none.
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
from hetero.ops.convolve2d.filters import PURPOSE, Filter, low_rank
from hetero.ops.convolve2d.problem import BOUNDARIES, Window
from hetero.registry import Problem

if TYPE_CHECKING:
    from hetero.devices.cuda.libraries import RealTransform

_THREADS = 256
_KEPT = 8  # transforms in each context
_AT_A_TIME = 1 << 28  # bytes of tiles that are transformed at a time, but for one that is larger
_direct_plan = functools.lru_cache(maxsize=1024)(plan_convolve.direct)
_separable_plan = functools.lru_cache(maxsize=1024)(plan_convolve.separable)


def _launches(
    plan: Callable[..., LaunchPlan], device: Device, problem: Problem, *buffers: Any, **more: Any
) -> LaunchPlan:
    """The launches that a kernel family's ``plan`` gives for a problem, by the device's limits and
    its buffers' addresses."""
    sizes = dict(zip(Window._fields[:9], problem.options, strict=False))
    sizes |= zip(("image_strides", "out_strides"), problem.strides, strict=True)
    sizes |= {"batch": problem.batch, "dtype": problem.dtype, **more}
    return plan(**sizes, alignment=alignment(*buffers), target=device.target)


def _uploaded(device: Device, **arrays: np.ndarray) -> Workspace:
    """Copies of host arrays, by name."""
    owner = Workspace(device, PURPOSE)
    for name, array in arrays.items():
        owner.upload(array, name)
    return owner


def _launch(device: Device, kernel: str, dtype: str, blocks: int, *arguments: Any) -> None:
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
    _launch(device, "find_not_finite", dtype, blocks, out, bad, count, blocks)


# -- The direct sum, and filters of low rank -------------------------------------------------------


def _taps_on(device: Device, filter: Filter, problem: Problem) -> tuple[Any, Any, Any]:
    """(buffer, strides, owner) of the flipped filter."""
    if filter.array is None and not isinstance(filter.operand.pointer, int):
        filter = filter.downloaded(np.dtype(problem.dtype))  # PyOpenCL buffers take no offset
    if filter.array is not None:
        held = filter.kept(device, "taps", lambda: _uploaded(device, taps=filter.taps))
        return held.buffers["taps"], (problem.options.filter_width, 1), held
    w, (row, column) = problem.options, filter.operand.staged_strides()[-2:]
    last = (w.filter_height - 1) * row + (w.filter_width - 1) * column
    address = filter.operand.pointer + last * np.dtype(problem.dtype).itemsize
    return address, (-row, -column), None


def direct(
    device: Device, problem: Problem, image: Any, filter: Filter, out: Any, only_if: Any = None
) -> None:
    """Enqueue the sum over the filter's taps; with a flag, only where it is set."""
    taps, strides, _owner = _taps_on(device, filter, problem)
    buffers = {"image": image, "taps": taps, "out": out, "fillvalue": filter.fillvalue}
    buffers["only_if"] = device.null if only_if is None else only_if
    planned = _launches(_direct_plan, device, problem, image, out, tap_strides=strides)
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)


def prepared_direct(device: Any, problem: Problem, aligned: int, filter: Filter) -> Any:
    """`direct` in the current context: a launch with the addresses of the image, the filter, if it
    lies on the device, and the result.

    For operands at addresses that ``aligned`` divides.
    """
    taps, strides, owner = _taps_on(device, filter, problem)
    planned = _launches(_direct_plan, device, problem, aligned, tap_strides=strides)
    itemsize = np.dtype(problem.dtype).itemsize
    numbers = {"fillvalue": filter.fillvalue, "only_if": device.null}
    launch = device.prepared(planned, ("image", "taps", "out"), itemsize, **numbers)
    if filter.array is not None:
        return lambda image, _, out, owner=owner: launch(image, taps, out)  # it keeps the taps
    last = taps - filter.operand.pointer
    return lambda image, filter, out: launch(image, filter + last, out)


def separable(device: Device, problem: Problem, image: Any, filter: Filter, out: Any) -> None:
    """Enqueue two passes for each factor, and the direct sum for where that is not finite."""

    def upload() -> Workspace:
        columns, rows = filter.found(low_rank)
        return _uploaded(device, columns=columns, rows=rows)

    factors = filter.kept(device, "factors", upload)
    buffers = {"image": image, **factors.buffers, "out": out}
    planned = _launches(
        _separable_plan, device, problem, *buffers.values(), rank=problem.options.rank
    )
    buffers |= {"fillvalue": filter.fillvalue, "only_if": device.null}
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)
    bad, _owner = flag(device)
    find_not_finite(device, problem.dtype, out, problem.output.size, bad)
    direct(device, problem, image, filter, out, only_if=bad)


# -- Transforms ------------------------------------------------------------------------------------


def _transform(device: Device, lengths: tuple[int, int], batch: int, dtype: str) -> RealTransform:
    kind = load("hetero.devices.cuda.libraries").RealTransform
    make = functools.partial(kind, device, lengths, batch, dtype)
    return device.storage().get("transforms", (lengths, batch, dtype), _KEPT, make)


def convolve(device: Device, problem: Problem, image: Any, filter: Filter, out: Any) -> None:
    """Enqueue a convolution by transforms of tiles or whole images, and the direct sum for where
    its result is not finite."""
    axes = on_device(problem.options)
    (y, x), w, dtype = axes, problem.options, problem.dtype
    points = y.length * (x.length // 2 + 1)  # complex numbers: others of a row are conjugates
    size, total = 2 * points * np.dtype(dtype).itemsize, problem.batch * y.count * x.count
    chunk = min(total, max(_AT_A_TIME // size, 1))
    transformed = _spectrum(device, filter, problem, axes)
    transform = _transform(device, (y.length, x.length), chunk, dtype)
    work, _work_owner = device.allocate(chunk * size)
    marks, _marks_owner = device.allocate(chunk * _bytes_of_marks(y, x))
    seen, _seen_owner = flag(device)
    taps, tap_strides, _taps_owner = _taps_on(device, filter, problem)
    image_strides, out_strides = problem.strides
    code = BOUNDARIES.index(w.boundary)
    extended = w.height, w.width, *image_strides, code, float(filter.fillvalue)
    blocks, scale = -(-points // _THREADS), 1.0 / (y.length * x.length)
    for first in range(0, total, chunk):
        count = min(chunk, total - first)
        _gather(device, dtype, (image, work, marks, *extended, seen, first), axes, count)
        transform.forward(work)
        product = work, transformed.buffers["spectrum"], points, blocks, scale
        _launch(device, "multiply_spectra", dtype, blocks * count, *product)
        transform.inverse(work)
        results = (
            *(work, marks, taps, out, seen, transformed.buffers["seen"], *tap_strides),
            *(w.filter_height, w.filter_width, int(not w.extended), w.out_height, w.out_width),
            *(*out_strides, first, y.count, x.count, y.first, x.first, y.step, x.step),
            *(y.length, 2 * (x.length // 2 + 1)),
        )
        _launch(device, "scatter_tiles", dtype, count * y.step, *results)
    direct(device, problem, image, filter, out, only_if=seen)


def _bytes_of_marks(y: Axis, x: Axis) -> int:
    """Of a tile: words of 32 bits, with a bit for each real of a transformed row."""
    return 4 * y.length * -(-2 * (x.length // 2 + 1) // 32)


def _gather(device: Device, dtype: str, source: tuple[Any, ...], axes: Axes, count: int) -> None:
    """Parts of an extended image as tiles, and marks of what is not 0.

    The source: buffers of the image, of tiles and of marks; the image's extents and strides, the
    boundary's number, the fill value, a buffer that takes what is seen, the first tile's number.
    """
    y, x = axes
    ends = y.start, x.start, y.step, x.step, y.length, x.length, 2 * (x.length // 2 + 1)
    _launch(device, "gather_tiles", dtype, count * y.length, *source, y.count, x.count, *ends)


def _spectrum(device: Device, filter: Filter, problem: Problem, axes: Axes) -> Workspace:
    """The filter's "spectrum" at the tiles' lengths, and what is "seen" of its values."""
    w, (y, x), dtype = problem.options, axes, problem.dtype

    def make() -> Workspace:
        owner = Workspace(device, PURPOSE)
        if filter.array is None:
            source, strides = filter.operand.pointer, filter.operand.staged_strides()[-2:]
        else:
            held = _uploaded(device, filter=filter.array)
            source, strides = held.buffers["filter"], (w.filter_width, 1)
        points = y.length * (x.length // 2 + 1)
        buffer = owner.allocate(2 * points * np.dtype(dtype).itemsize, "spectrum")
        seen = owner.allocate(32, "seen")
        device.fill(seen, 32)
        marks, _marks_owner = device.allocate(_bytes_of_marks(y, x))
        image = source, buffer, marks, w.filter_height, w.filter_width, 0, *strides, 0, 0.0, seen, 0
        one = Axis(y.length, y.length, 1, 0, 0), Axis(x.length, x.length, 1, 0, 0)
        _gather(device, dtype, image, one, 1)
        _transform(device, (y.length, x.length), 1, dtype).forward(buffer)
        return owner

    return filter.kept(device, ("spectrum", y.length, x.length), make)
