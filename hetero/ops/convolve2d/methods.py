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
from hetero.pricing import places
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


def _plain_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """SciPy's loop takes long: it is for what no other method computes, or can here."""
    if (reason := work.no_mode(problem, info)) is not None or work.not_real(problem, info):
        return reason
    if registry.missing(_loops_of_direct(problem), info):
        return None
    other = f"for dtypes that no other method computes, not {problem.dtype}"
    return registry.Unasked(other)


def _on_device(module: str, name: str) -> Callable[..., Any]:
    """``run`` of a function of the device, the problem, the image, the options and the result."""
    compute = _lazy(module, name)

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        (image,), output, options = arguments
        compute()(devices[0], problem, image, options, output)

    return run


def _prepared_on_device(module: str, name: str) -> Callable[..., Any]:
    """``prepare`` of a function as in `_on_device`, of which no launch is made ahead."""
    compute = _lazy(module, name)

    def prepare(device: Any, problem: Problem, aligned: int, options: FilterOptions) -> Any:
        convolve, storage, kept = compute(), load("hetero.devices.storage"), options.filter.at(0)

        def run(image: int, filter: int, out: int) -> None:
            given = FilterOptions(kept.at(filter), options.fillvalue)
            with device.active(), storage.limited_to(places.memory_limit()):
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


def _loops(problem: Problem) -> tuple[str, ...]:
    return (direct_cpu.SUMS.of(problem.dtype),)


def _loops_of_direct(problem: Problem) -> tuple[str, ...]:
    dtype = np.dtype(problem.dtype)
    few = direct_cpu.are_few(problem.options, problem.batch, dtype)
    return () if few or direct_cpu.is_one(problem.options, problem.batch) else _loops(problem)


registry.register_method(
    operation=NAME,
    method=DIRECT,
    kinds=("cpu",),
    excludes=work.not_real,
    work=work.of_direct_on_cpu,
    run=_on_cpu("direct_cpu", "direct"),
    loops=_loops_of_direct,
)
registry.register_method(
    operation=NAME,
    method=SEPARABLE,
    kinds=("cpu",),
    excludes=work.high_rank,
    work=work.of_separable_on_cpu,
    run=_on_cpu("direct_cpu", "separable"),
    loops=_loops,
)
registry.register_method(
    operation=NAME,
    method=FFT,
    kinds=("cpu",),
    excludes=work.loses,
    work=work.of_fft_on_cpu,
    run=_on_cpu("fft_cpu", "convolve"),
)
registry.register_method(
    operation=NAME,
    method=SCIPY,
    kinds=("cpu",),
    excludes=_plain_obstacle,
    work=work.of_direct,
    run=_by_scipy,
)
registry.register_method(
    operation=NAME,
    method=DIRECT,
    kinds=("cuda",),
    excludes=work.not_real,
    work=work.of_direct,
    run=_on_device("direct_device", "direct"),
    prepare=_prepare_direct,
)
registry.register_method(
    operation=NAME,
    method=DIRECT,
    kinds=("opencl",),
    excludes=work.not_real,
    work=work.of_direct,
    run=_on_device("direct_device", "direct"),
)
registry.register_method(
    operation=NAME,
    method=SEPARABLE,
    kinds=registry.PORTABLE,
    excludes=work.high_rank_or_large,
    work=work.of_separable,
    run=_on_device("direct_device", "separable"),
    prepare=_prepared_on_device("direct_device", "separable"),
)
registry.register_method(
    operation=NAME,
    method=FFT,
    kinds=("cuda",),
    excludes=work.loses_or_no_cufft,
    work=work.of_fft_on_device,
    run=_on_device("fft_device", "convolve"),
    prepare=_prepared_on_device("fft_device", "convolve"),
)
registry.register_method(
    operation=NAME,
    method="streamed",
    kinds=registry.PORTABLE,
    excludes=work.not_streamed,
    work=registry.Composed(work.of_direct, ranges.price),
    run=registry.HostRun(_streamed, registry.ALWAYS),
)
