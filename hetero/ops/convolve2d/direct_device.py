"""Convolution on a device by own kernels: the direct sum, and filters of low rank."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays import alignment
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.kernels import LaunchPlan
from hetero.kernels.convolution import plan as plan_convolve
from hetero.ops.convolve2d.filters import PURPOSE, Filter, FilterOptions, kept
from hetero.ops.convolve2d.window import Window
from hetero.registry.problem import Problem

_THREADS = 256


@functools.lru_cache(maxsize=1024)
def _remembered(plan: Callable[..., LaunchPlan], window: Window, **others: Any) -> LaunchPlan:
    return plan(**window.extents, **others)


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


def uploaded(device: Device, array: np.ndarray) -> tuple[Any, Any]:
    """(buffer, owner) of a host array's copy."""
    owner = Workspace(device, PURPOSE)
    return owner.upload(array), owner


def launch(
    device: Device, kernel: str, dtype: str, blocks: int, arguments: tuple[Any, ...]
) -> None:
    """Start a kernel of convolve_fft.cu."""
    real = "double" if dtype == "float64" else "float"
    defines = (("REAL", real), ("THREADS", _THREADS))
    built = device.build("convolve_fft.cu", kernel, defines)
    device.launch(built, blocks, _THREADS, list(arguments))


def taps_on(device: Device, filter: Filter, problem: Problem) -> tuple[Any, Any, Any]:
    """(buffer, owner, strides) of the flipped filter."""
    if filter.array is not None:
        return *kept(device, filter, "taps", lambda: uploaded(device, filter.taps)), None
    w, (row, column) = problem.options, filter.strides
    last = (w.filter_height - 1) * row + (w.filter_width - 1) * column
    address = filter.pointer + last * np.dtype(problem.dtype).itemsize
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
    names = ("image", "taps", "out")
    numbers = {"fillvalue": options.fillvalue, "only_if": device.null}
    launch = device.prepared(planned, names, itemsize, **numbers)

    def run(image: int, _: int, out: int, owner: Any = owner) -> None:  # which keeps the taps
        launch(image, taps, out)

    def run_with(image: int, filter: int, out: int, last: int = 0) -> None:
        launch(image, filter + last, out)

    if filter.array is None:
        return functools.partial(run_with, last=taps - filter.pointer)
    return run


def flag(device: Device) -> tuple[Any, Any]:
    """(buffer, owner) of eight ints, all 0; kernels set the first where a result is not finite."""
    buffer, owner = device.allocate(32)
    device.fill(buffer, 32)
    return buffer, owner


def find_not_finite(device: Device, dtype: str, out: Any, count: int, bad: Any) -> None:
    """Enqueue a look at ``count`` packed values, which sets the first of `flag`'s ints."""
    blocks = min(-(-count // _THREADS), 16 * device.multiprocessors)
    launch(device, "find_not_finite", dtype, blocks, (out, bad, count, blocks))


def separable(
    device: Device, problem: Problem, image: Any, options: FilterOptions, out: Any
) -> None:
    """Enqueue two passes for each factor, and the direct sum for where that is not finite."""
    filter = options.filter

    def upload() -> Any:
        return tuple(uploaded(device, part) for part in filter.facts.flipped)

    (columns, first), (rows, second) = kept(device, filter, "factors", upload)
    buffers = {"image": image, "columns": columns, "rows": rows, "out": out}
    given = image, columns, rows, out
    rank = problem.options.rank
    planned = _launches(plan_convolve.separable, device, problem, *given, rank=rank)
    size = np.dtype(problem.dtype).itemsize
    device.run_launches(planned, buffers | {"fillvalue": options.fillvalue}, size)
    bad, owner = flag(device)
    find_not_finite(device, problem.dtype, out, problem.output.size, bad)
    direct(device, problem, image, options, out, only_if=bad)
    del first, second, owner
