"""The ways to convolve: the rows of the registry, and what each runs.

A row is one method on some kinds of devices; a new one copies the row that is most like it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.imports import load
from hetero.moving import ranges, streaming
from hetero.ops.convolve2d import direct_cpu, work
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.window import DIRECT, FFT, NAME, SCIPY, SEPARABLE
from hetero.pricing import memory_limit
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _lazy(module: str, name: str) -> Callable[[], Any]:
    """Gives a function of this folder, whose module is loaded when it is first asked for."""

    @functools.cache
    def loaded() -> Any:
        return getattr(load(f"hetero.ops.convolve2d.{module}"), name)

    return loaded


def _on_cpu(module: str, name: str) -> Callable[..., Any]:
    """``run`` of a function ``compute(image, options, window, out)`` of a module.

    The image is a stack (batch, h, w) of the result's dtype; ``options.filter.taps`` is the flipped
    filter; the window may be of a band of the image, and then of no mode of SciPy's.
    """
    compute = _lazy(module, name)

    def run(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
        compute()(*direct_cpu.stacked(problem, arguments))

    return run


def _by_scipy(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    (image,), out, options = arguments
    out[...] = direct_cpu.by_scipy(image, options, problem.options)


def _on_device(module: str, name: str) -> Callable[..., Any]:
    """``run`` of a function of the device, the problem, the image, the options and the result."""
    compute = _lazy(module, name)

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        (image,), output, options = arguments
        compute()(devices[0], problem, image, options, output)

    return run


def _prepared(module: str, name: str) -> Callable[..., Any]:
    """``prepare`` of a function as in `_on_device`, of which no launch is made ahead."""
    compute = _lazy(module, name)

    def prepare(device: Any, problem: Problem, aligned: int, options: FilterOptions) -> Any:
        convolve, storage, kept = compute(), load("hetero.devices.storage"), options.filter.at(0)

        def run(image: int, filter: int, out: int) -> None:
            given = FilterOptions(kept.at(filter), options.fillvalue)
            with device.active(), storage.limited_to(memory_limit.current()):
                convolve(device, problem, image, given, out)

        return run

    return prepare


def _prepare_direct(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    direct_device = load("hetero.ops.convolve2d.direct_device")
    return direct_device.prepared_direct(device, problem, aligned, options)


def _streamed(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    options = arguments.options
    held = options._replace(filter=options.filter.held())  # goes up once
    streaming.run(devices, problem, arguments._replace(options=held))


def _plain_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """SciPy's loop takes long: it is for what no other method computes, or can here."""
    if (reason := work.no_mode(problem, info)) is not None or work.not_real(problem, info):
        return reason
    if registry.missing(_loops_of_direct(problem), info):
        return None
    other = f"for dtypes that no other method computes, not {problem.dtype}"
    return registry.Unasked(other)


def _loops(problem: Problem) -> tuple[str, ...]:
    return (direct_cpu.SUMS.of(problem.dtype),)


def _loops_of_direct(problem: Problem) -> tuple[str, ...]:
    dtype = np.dtype(problem.dtype)
    few = direct_cpu.are_few(problem.options, problem.batch, dtype)
    return () if few or direct_cpu.is_one(problem.options, problem.batch) else _loops(problem)


_CPU, _CUDA, _OPENCL = ("cpu",), ("cuda",), ("opencl",)
_DIRECT = "direct_device", "direct"
_SEPARABLE = "direct_device", "separable"
_STREAMED = registry.Composed(work.of_direct, ranges.price)
for kinds, method, excludes, counted, run, more in (
    (_CPU, DIRECT, work.not_real, work.of_direct_on_cpu, _on_cpu("direct_cpu", "direct"),
        {"loops": _loops_of_direct}),
    (_CPU, SEPARABLE, work.high_rank, work.of_separable_on_cpu, _on_cpu("direct_cpu", "separable"),
        {"loops": _loops}),
    (_CPU, FFT, work.loses, work.of_fft_on_cpu, _on_cpu("fft_cpu", "convolve"), {}),
    (_CPU, SCIPY, _plain_obstacle, work.of_direct, _by_scipy, {}),
    (_CUDA, DIRECT, work.not_real, work.of_direct, _on_device(*_DIRECT),
        {"prepare": _prepare_direct}),
    (_OPENCL, DIRECT, work.not_real, work.of_direct, _on_device(*_DIRECT), {}),
    (registry.PORTABLE, SEPARABLE, work.high_rank_or_large, work.of_separable,
        _on_device(*_SEPARABLE), {"prepare": _prepared(*_SEPARABLE)}),
    (_CUDA, FFT, work.loses_or_no_cufft, work.of_fft_on_device,
        _on_device("fft_device", "convolve"), {"prepare": _prepared("fft_device", "convolve")}),
    (registry.PORTABLE, "streamed", work.not_streamed, _STREAMED,
        registry.HostRun(_streamed, registry.ALWAYS), {}),
):  # fmt: skip
    registry.register_method(
        operation=NAME, method=method, kinds=kinds, excludes=excludes, work=counted, run=run, **more
    )
