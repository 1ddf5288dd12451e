"""The ways to convolve: why each cannot do a problem, what it takes, what it runs; and the table.

A row is one method on some kinds of devices; a new one copies the row that is most like it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST
from hetero.imports import load
from hetero.moving import ranges, streaming
from hetero.ops.convolve2d import direct_cpu, tiles
from hetero.ops.convolve2d.filters import LARGEST_REMEMBERED, FilterOptions
from hetero.ops.convolve2d.window import DIRECT, FFT, NAME, SCIPY, SEPARABLE, mode_of
from hetero.pricing import places
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import DEVICE_DTYPES, Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


# What a filter's spectrum costs the host, in addition to what a convolution costs it.
_SPECTRUM_CALLS = 0.7

Info = dict[str, Any]
Excludes = Callable[[Problem, Info], str | None]


# -- Why a method cannot do a problem --------------------------------------------------------------


def not_real(problem: Problem, info: Info) -> str | None:
    """Own methods compute in real floats, and something."""
    if problem.dtype not in DEVICE_DTYPES:
        return f"dtype {problem.dtype}: it computes in {' and '.join(DEVICE_DTYPES)}"
    if not (problem.batch and all(problem.dims)):
        return "nothing to compute: an operand has no elements"
    return None


def no_mode(problem: Problem, info: Info) -> str | None:
    """SciPy knows three parts of the full convolution."""
    if mode_of(problem.options) is None:
        return "the part of the convolution that is wanted is none of SciPy's modes"
    return None


def spreads(problem: Problem, info: Info) -> str | None:
    """Methods that add up more than the filter covers spread what is not finite."""
    if not problem.options.finite:
        return "values that are not finite would spread further than in the direct sum"
    return None


def high_rank(problem: Problem, info: Info) -> str | None:
    """Two passes per rank need a filter of low rank."""
    return None if problem.options.rank > 0 else "the filter is not known to be of low rank"


def too_large(problem: Problem, info: Info) -> str | None:
    """Shared memory holds columns of that number of taps."""
    plan_convolve = load("hetero.kernels.convolution.plan")
    most = plan_convolve.separable_limit(dtype=problem.dtype)
    if max(problem.options.filter_height, problem.options.filter_width) > most:
        return f"it takes filters up to {most} x {most}"
    return None


def loses(problem: Problem, info: Info) -> str | None:
    """A transform's error is as large for small values as for the largest."""
    if problem.options.wide_range:
        return "values differ so much in size that a transform would lose the small ones"
    return None


def no_cufft(problem: Problem, info: Info) -> str | None:
    """Transforms on this machine's GPUs."""
    return None if info.get("elsewhere") else load("hetero.devices.cuda.cufft").obstacle()


def _first_of(*checks: Excludes) -> Excludes:
    """The first reason that any of several gives."""

    def excludes(problem: Problem, info: Info) -> str | None:
        reasons = (check(problem, info) for check in checks)
        return next((reason for reason in reasons if reason is not None), None)

    return excludes


# -- What it takes ---------------------------------------------------------------------------------


def of_direct(problem: Problem, info: Info) -> Work:
    """A filter of 2 or 3 taps counts as 2 x 2: only one of a single tap is a mere product."""
    filter = problem.options.filter_height, problem.options.filter_width
    return _of_sum(problem, (2, 2) if 1 < prod(filter) < 4 else filter)


def of_direct_on_cpu(problem: Problem, info: Info) -> Work:
    """As `of_direct`, but of a column and a row one product each."""
    return _of_sum(problem, (1, 1)) if problem.options.is_outer else of_direct(problem, info)


def of_separable(problem: Problem, info: Info) -> Work:
    """As the direct sum with a filter of as many taps as the passes have together."""
    w = problem.options
    return _of_sum(problem, (w.rank * (w.filter_height + w.filter_width), 1))


def of_separable_on_cpu(problem: Problem, info: Info) -> Work:
    """The direct sum of a few products is SciPy's, which two passes do not catch up with."""
    w = problem.options
    taps = w.rank * (w.filter_height + w.filter_width)
    if w.has_few(np.dtype(problem.dtype).char):
        taps = max(taps, w.filter_height * w.filter_width + 1)
    return _of_sum(problem, (taps, 1))


def of_fft_on_cpu(problem: Problem, info: Info) -> Work:
    """One tile or several, as SciPy transforms them."""
    cores = _cores_elsewhere(info)
    axes = tiles.on_cpu(problem.options, cores)
    return _of_points(problem, tiles.weight_on_cpu(problem.options, axes, problem.batch, cores))


def of_fft_on_device(problem: Problem, info: Info) -> Work:
    """One tile or several, as cuFFT transforms them.

    A filter that is not remembered by its values is transformed too.
    """
    filter = problem.inputs[1]
    new = filter.location != HOST or filter.size > LARGEST_REMEMBERED
    weight = tiles.weight_on_device(tiles.on_device(problem.options), problem.batch, new)
    return _of_points(problem, weight, 1.0 + _SPECTRUM_CALLS * new)


def _cores_elsewhere(info: Info) -> int | None:
    """The cores of the machine that a profile from elsewhere describes; None for this one."""
    return info.get("cores") if info.get("elsewhere") else None


def _of_sum(problem: Problem, filter: tuple[int, int]) -> Work:
    w = problem.options
    dims = (problem.batch * w.out_height, w.out_width, *filter)
    return Work(dims, 2.0 * prod(dims), _moved(problem))


def _of_points(problem: Problem, weight: int, calls: float = 1.0) -> Work:
    """All tiles' points, each counted as often as a transform passes over it."""
    return Work((weight,), 10.0 * weight, 8.0 * _moved(problem), calls=calls)


def _moved(problem: Problem) -> float:
    image, filter = problem.inputs
    return float(image.nbytes + filter.nbytes + problem.output.nbytes)


# -- What it runs ----------------------------------------------------------------------------------


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


def _plain_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """SciPy's loop takes long: it is for what no other method computes, or can here."""
    if (reason := no_mode(problem, info)) is not None or not_real(problem, info):
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


_LOW_RANK = _first_of(spreads, not_real, high_rank)
_TRANSFORMED = _first_of(spreads, not_real, loses)
_CPU, _CUDA, _OPENCL = ("cpu",), ("cuda",), ("opencl",)
_DIRECT = "direct_device", "direct"
_SEPARABLE = "direct_device", "separable"
_STREAMED = registry.Composed(of_direct, ranges.price)
for kinds, method, excludes, counted, run, more in (
    (_CPU, DIRECT, not_real, of_direct_on_cpu, _on_cpu("direct_cpu", "direct"),
        {"loops": _loops_of_direct}),
    (_CPU, SEPARABLE, _LOW_RANK, of_separable_on_cpu, _on_cpu("direct_cpu", "separable"),
        {"loops": _loops}),
    (_CPU, FFT, _TRANSFORMED, of_fft_on_cpu, _on_cpu("fft_cpu", "convolve"), {}),
    (_CPU, SCIPY, _plain_obstacle, of_direct, _by_scipy, {}),
    (_CUDA, DIRECT, not_real, of_direct, _on_device(*_DIRECT),
        {"prepare": _prepare_direct}),
    (_OPENCL, DIRECT, not_real, of_direct, _on_device(*_DIRECT), {}),
    (registry.PORTABLE, SEPARABLE, _first_of(_LOW_RANK, too_large), of_separable,
        _on_device(*_SEPARABLE), {"prepare": _prepared(*_SEPARABLE)}),
    (_CUDA, FFT, _first_of(_TRANSFORMED, no_cufft), of_fft_on_device,
        _on_device("fft_device", "convolve"), {"prepare": _prepared("fft_device", "convolve")}),
    (registry.PORTABLE, "streamed", _first_of(not_real, places.not_in_ranges), _STREAMED,
        registry.HostRun(_streamed, registry.ALWAYS), {}),
):  # fmt: skip
    registry.register_method(
        operation=NAME, method=method, kinds=kinds, excludes=excludes, work=counted, run=run, **more
    )
