"""The ways to convolve: what each takes, and when it cannot."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.ops.convolve2d.operands import NAME
from hetero.runtime import registry
from hetero.runtime.models import Work
from hetero.runtime.problem import DEVICE_DTYPES, FEW_PRODUCTS, Problem
from hetero.runtime.registry import Arguments

if TYPE_CHECKING:
    from hetero.devices.base import Device

# What it costs the host to have a filter's spectrum made, beside what a convolution costs it.
_SPECTRUM_CALLS = 0.7


def _moved(problem: Problem) -> float:
    return float(sum(o.nbytes for o in (*problem.inputs, problem.output)))


def _direct_work(problem: Problem, info: dict[str, Any]) -> Work:
    """A filter of 2 or 3 taps counts as 2 x 2: only one of a single tap is a mere product."""
    w = problem.window
    filter = w.filter_height, w.filter_width
    if 1 < prod(filter) < 4:
        filter = (2, 2)
    dims = (problem.batch * w.out_height, w.out_width, *filter)
    return Work(dims, 2.0 * prod(dims), _moved(problem))


def _separable_work(problem: Problem, info: dict[str, Any]) -> Work:
    """As the direct sum with a filter of as many taps as the passes have together.

    On the CPU the direct sum of a few products is SciPy's, which two passes do not catch up with.
    """
    w = problem.window
    taps = w.rank * (w.filter_height + w.filter_width)
    if info["kind"] == "cpu" and w.products <= FEW_PRODUCTS[np.dtype(problem.dtype).char]:
        taps = max(taps, w.filter_height * w.filter_width + 1)
    dims = (problem.batch * w.out_height, w.out_width, taps, 1)
    return Work(dims, 2.0 * prod(dims), _moved(problem))


def _transform_work(method: str) -> Callable[..., Work]:
    def work(problem: Problem, info: dict[str, Any]) -> Work:
        """All tiles' points, each counted as often as a transform passes over it."""
        kind, calls = info["kind"], 1.0
        cores = _cores_elsewhere(info)
        axes = _axes(problem, kind, method, cores)
        if kind == "cpu":
            weight = _tiling(kind).weight(problem.window, axes, problem.batch, cores)
        else:
            new = _tiling(kind).is_new(problem.inputs[1])
            weight = _tiling(kind).weight(problem.window, axes, problem.batch, new)
            calls += _SPECTRUM_CALLS * new
        return Work((weight,), 10.0 * weight, 8.0 * _moved(problem), calls=calls)

    return work


def _tiling(kind: str) -> Any:
    return import_module(f"hetero.ops.convolve2d.tiles_{'cpu' if kind == 'cpu' else 'device'}")


def _cores_elsewhere(info: dict[str, Any]) -> int | None:
    """The cores of another machine, whose profile is asked; None for this one."""
    return info.get("cores") if info.get("elsewhere") else None


def _axes(problem: Problem, kind: str, method: str, cores: int | None = None) -> Any:
    tiling = _tiling(kind)
    if method != "overlap_save":
        return tiling.whole(problem.window)
    return tiling.tiles(problem.window, cores) if kind == "cpu" else tiling.tiles(problem.window)


def _not_real(problem: Problem) -> str | None:
    if problem.dtype not in DEVICE_DTYPES:
        return f"dtype {problem.dtype}: it computes in {' and '.join(DEVICE_DTYPES)}"
    if not all(o.size for o in problem.inputs):
        return "nothing to compute: an operand has no elements"
    return None


def _spreads(problem: Problem) -> str | None:
    """Methods that add up more than the filter covers spread what is not finite."""
    if not problem.window.finite:
        return "values that are not finite would spread further than in the direct sum"
    return _not_real(problem)


def _fft_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    if (reason := _spreads(problem)) is not None:
        return reason
    if problem.window.wide_range:
        return "values differ so much in size that a transform would lose the small ones"
    if info["kind"] == "cuda" and not info.get("elsewhere"):
        from hetero.devices import cufft

        return cufft.obstacle()
    return None


def _tiles_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    if (reason := _fft_obstacle(problem, info)) is not None:
        return reason
    if _axes(problem, info["kind"], "overlap_save", _cores_elsewhere(info)) is None:
        return (
            "one tile is all there is: the filter is about as large as the image, or both are small"
        )
    return None


def _separable_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    if (reason := _spreads(problem)) is not None:
        return reason
    window = problem.window
    if not window.rank:
        return "the filter is not known to be of low rank"
    if info["kind"] != "cpu":
        from hetero.kernels.convolution import plan as plan_convolve

        most = plan_convolve.separable_limit(dtype=problem.dtype)
        if max(window.filter_height, window.filter_width) > most:
            return f"it takes filters up to {most} x {most}"
    return None


def _library_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    from hetero.ops.convolve2d import opencv

    here = not info.get("elsewhere")
    return _not_real(problem) or opencv.obstacle(problem.window, here)


def _on_cpu(name: str, module: str) -> Callable[..., Any]:
    """``run`` of a method on the CPU, whose module is loaded when it is first used."""

    @functools.cache
    def loaded() -> tuple[Callable[..., Any], Callable[..., Any]]:
        from hetero.ops.convolve2d import cpu

        return cpu.prepared, getattr(import_module(f"hetero.ops.convolve2d.{module}"), name)

    def run(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
        (image,), out, request = arguments
        prepared, compute = loaded()
        if request.filter.array is None:
            request = request._replace(filter=request.filter.downloaded())
        window = problem.window
        planes = out.reshape(-1, window.out_height, window.out_width)
        compute(prepared(image, out.dtype), request, window, planes)

    return run


def _on_device(name: str) -> Callable[..., Any]:
    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        from hetero.ops.convolve2d import device as own

        (image,), output, request = arguments
        getattr(own, name)(devices[0], problem, image, request, output)

    return run


def _prepare_direct(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    from hetero.ops.convolve2d import device as own

    return own.prepared_direct(device, problem, aligned, options)


def _by_cufft(method: str) -> Callable[..., Any]:
    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        from hetero.ops.convolve2d import fft_device

        (image,), output, request = arguments
        axes = _axes(problem, "cuda", method)
        fft_device.run(devices[0], problem, image, request, output, axes)

    return run


def _direct_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    return None if info["kind"] == "cpu" else _not_real(problem)


for _kind in ("cpu", "cuda", "opencl"):
    on_cpu = _kind == "cpu"
    for _method, _excludes, _work, _run in (
        (
            "direct",
            _direct_obstacle,
            _direct_work,
            _on_cpu("direct", "cpu") if on_cpu else _on_device("direct"),
        ),
        (
            "separable",
            _separable_obstacle,
            _separable_work,
            _on_cpu("separable", "cpu") if on_cpu else _on_device("separable"),
        ),
        (
            "fft",
            _fft_obstacle,
            _transform_work("fft"),
            _on_cpu("whole", "fft_cpu") if on_cpu else _by_cufft("fft"),
        ),
        (
            "overlap_save",
            _tiles_obstacle,
            _transform_work("overlap_save"),
            _on_cpu("overlap_save", "fft_cpu") if on_cpu else _by_cufft("overlap_save"),
        ),
    ):
        if _kind != "opencl" or _method in ("direct", "separable"):
            _launches = (_kind, _method) == ("cuda", "direct")
            registry.register(
                registry.Implementation(
                    *(NAME, _method, _kind, _excludes, _work, _run),
                    prepare=_prepare_direct if _launches else None,
                )
            )
registry.register(
    registry.Implementation(
        NAME, "library", "cpu", _library_obstacle, _direct_work, _on_cpu("filter2d", "opencv")
    )
)
