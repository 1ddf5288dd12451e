"""The ways to convolve: what each takes, and when it cannot."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.ops.convolve2d import loops, rungs, streamed, tiles_cpu, tiles_device
from hetero.ops.convolve2d.operands import NAME
from hetero.ops.convolve2d.window import Axis, mode_of
from hetero.runtime import pipeline, registry
from hetero.runtime.models import Work
from hetero.runtime.problem import DEVICE_DTYPES, Problem
from hetero.runtime.registry import Arguments

if TYPE_CHECKING:
    from hetero.devices.base import Device

# What it costs the host to have a filter's spectrum made, beside what a convolution costs it.
_SPECTRUM_CALLS = 0.7

Info = dict[str, Any]
Excludes = Callable[[Problem, Info], str | None]
Axes = Callable[[Problem, Info], tuple[Axis, Axis] | None]


# -- What each costs -------------------------------------------------------------------------------


def _moved(problem: Problem) -> float:
    image, filter = problem.inputs
    return float(image.nbytes + filter.nbytes + problem.output.nbytes)


def _sum_work(problem: Problem, filter: tuple[int, int]) -> Work:
    w = problem.options
    dims = (problem.batch * w.out_height, w.out_width, *filter)
    return Work(dims, 2.0 * prod(dims), _moved(problem))


def _direct_work(problem: Problem, info: Info) -> Work:
    """A filter of 2 or 3 taps counts as 2 x 2: only one of a single tap is a mere product."""
    filter = problem.options.filter_height, problem.options.filter_width
    return _sum_work(problem, (2, 2) if 1 < prod(filter) < 4 else filter)


def _separable_work(problem: Problem, info: Info) -> Work:
    """As the direct sum with a filter of as many taps as the passes have together."""
    w = problem.options
    return _sum_work(problem, (w.rank * (w.filter_height + w.filter_width), 1))


def _separable_work_on_cpu(problem: Problem, info: Info) -> Work:
    """The direct sum of a few products is SciPy's, which two passes do not catch up with."""
    w = problem.options
    taps = w.rank * (w.filter_height + w.filter_width)
    if w.has_few(np.dtype(problem.dtype).char):
        taps = max(taps, w.filter_height * w.filter_width + 1)
    return _sum_work(problem, (taps, 1))


def _transform_work(problem: Problem, weight: int, calls: float = 1.0) -> Work:
    """All tiles' points, each counted as often as a transform passes over it."""
    return Work((weight,), 10.0 * weight, 8.0 * _moved(problem), calls=calls)


def _work_on_cpu(axes: Axes) -> Callable[[Problem, Info], Work]:
    def work(problem: Problem, info: Info) -> Work:
        cut, cores = axes(problem, info), _cores_elsewhere(info)
        weight = tiles_cpu.weight(problem.options, cut, problem.batch, cores)
        return _transform_work(problem, weight)

    return work


def _work_by_cufft(axes: Axes) -> Callable[[Problem, Info], Work]:
    def work(problem: Problem, info: Info) -> Work:
        new = tiles_device.is_new(problem.inputs[1])
        weight = tiles_device.weight(problem.options, axes(problem, info), problem.batch, new)
        return _transform_work(problem, weight, 1.0 + _SPECTRUM_CALLS * new)

    return work


# -- How a transform cuts the image ----------------------------------------------------------------


def _cores_elsewhere(info: Info) -> int | None:
    """The cores of another machine, whose profile is asked; None for this one."""
    return info.get("cores") if info.get("elsewhere") else None


def _whole_on_cpu(problem: Problem, info: Info) -> Any:
    return tiles_cpu.whole(problem.options)


def _tiles_on_cpu(problem: Problem, info: Info) -> Any:
    return tiles_cpu.tiles(problem.options, _cores_elsewhere(info))


def _whole_on_device(problem: Problem, info: Info) -> Any:
    return tiles_device.whole(problem.options)


def _tiles_on_device(problem: Problem, info: Info) -> Any:
    return tiles_device.tiles(problem.options)


# -- Why one cannot --------------------------------------------------------------------------------


def _not_real(problem: Problem, info: Info) -> str | None:
    if problem.dtype not in DEVICE_DTYPES:
        return f"dtype {problem.dtype}: it computes in {' and '.join(DEVICE_DTYPES)}"
    if not (problem.batch and all(problem.dims)):
        return "nothing to compute: an operand has no elements"
    return None


def _not_streamed(problem: Problem, info: Info) -> str | None:
    return _not_real(problem, info) or pipeline.obstacle(problem, info)


def _stands_in(problem: Problem) -> str | None:
    """SciPy's loop takes long, but for real numbers there is nothing to compile."""
    if _not_real(problem, {}) is not None:
        return None
    return f"dtype {problem.dtype}: it is for what no other method computes"


def _no_mode(problem: Problem, info: Info) -> str | None:
    if mode_of(problem.options) is None:
        return "the part of the convolution that is wanted is none of SciPy's modes"
    return None


def _loops(problem: Problem) -> tuple[str, ...]:
    return (loops.SUMS.of(problem.dtype),)


def _loops_of_direct(problem: Problem) -> tuple[str, ...]:
    dtype = np.dtype(problem.dtype)
    few = loops.are_few(problem.options, problem.batch, dtype)
    return () if few or loops.is_one(problem.options, problem.batch) else _loops(problem)


def _spreads(problem: Problem, info: Info) -> str | None:
    """Methods that add up more than the filter covers spread what is not finite."""
    if not problem.options.finite:
        return "values that are not finite would spread further than in the direct sum"
    return _not_real(problem, info)


def _loses(problem: Problem, info: Info) -> str | None:
    if (reason := _spreads(problem, info)) is not None:
        return reason
    if problem.options.wide_range:
        return "values differ so much in size that a transform would lose the small ones"
    return None


def _loses_or_no_cufft(problem: Problem, info: Info) -> str | None:
    if (reason := _loses(problem, info)) is not None or info.get("elsewhere"):
        return reason
    from hetero.devices import cufft

    return cufft.obstacle()


def _or_one_tile(excludes: Excludes, axes: Axes) -> Excludes:
    def obstacle(problem: Problem, info: Info) -> str | None:
        if (reason := excludes(problem, info)) is not None:
            return reason
        if axes(problem, info) is None:
            return (
                "one tile is all there is: the filter is about as large as the image, or both are "
                "small"
            )
        return None

    return obstacle


def _high_rank(problem: Problem, info: Info) -> str | None:
    if (reason := _spreads(problem, info)) is not None:
        return reason
    return None if problem.options.rank else "the filter is not known to be of low rank"


def _high_rank_or_large(problem: Problem, info: Info) -> str | None:
    if (reason := _high_rank(problem, info)) is not None:
        return reason
    from hetero.kernels.convolution import plan as plan_convolve

    most = plan_convolve.separable_limit(dtype=problem.dtype)
    if max(problem.options.filter_height, problem.options.filter_width) > most:
        return f"it takes filters up to {most} x {most}"
    return None


def _not_opencvs(problem: Problem, info: Info) -> str | None:
    from hetero.ops.convolve2d import opencv

    here = not info.get("elsewhere")
    return _not_real(problem, info) or opencv.obstacle(problem.options, here)


# -- What runs -------------------------------------------------------------------------------------


def _on_cpu(module: str, name: str) -> Callable[..., Any]:
    """``run`` of a method on the CPU, whose module is loaded when it is first used."""

    @functools.cache
    def loaded() -> Callable[..., Any]:
        return getattr(import_module(f"hetero.ops.convolve2d.{module}"), name)

    def run(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
        (image,), out, options = arguments
        if options.filter.array is None:
            options = options._replace(filter=options.filter.downloaded())
        window = problem.options
        planes = out.reshape(-1, window.out_height, window.out_width)
        loaded()(as_stack(image, out.dtype), options, window, planes)

    return run


def as_stack(image: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The image as (batch, h, w) of the dtype that is computed in, rows contiguous."""
    image = np.asarray(image, dtype)
    image = image.reshape(-1, *image.shape[-2:])
    if image.strides[-1] != dtype.itemsize and image.shape[-1] > 1:
        image = np.ascontiguousarray(image)
    return image


def _by_scipy(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    from hetero.ops.convolve2d.scipy_cpu import by_scipy

    (image,), out, options = arguments
    out[...] = by_scipy(image, options, problem.options)


def _on_device(name: str) -> Callable[..., Any]:
    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        from hetero.ops.convolve2d import direct_device

        (image,), output, options = arguments
        getattr(direct_device, name)(devices[0], problem, image, options, output)

    return run


def _prepare_direct(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    from hetero.ops.convolve2d import direct_device

    return direct_device.prepared_direct(device, problem, aligned, options)


def _by_cufft(axes: Axes) -> Callable[..., Any]:
    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
        from hetero.ops.convolve2d import fft_device

        (image,), output, options = arguments
        fft_device.run(devices[0], problem, image, options, output, axes(problem, {}))

    return run


_LOOPS, _CUFFT = ("loops", "numba"), ("nvmath-python", "nvidia-cufft")
_USES = {
    ("direct", "cpu"): _LOOPS,
    ("separable", "cpu"): _LOOPS,
    ("fft", "cpu"): ("scipy",),
    ("overlap_save", "cpu"): ("scipy",),
    ("library", "cpu"): ("opencv-python", "opencv-python-headless"),
    ("scipy", "cpu"): ("scipy",),
    ("fft", "cuda"): _CUFFT,
    ("overlap_save", "cuda"): _CUFFT,
}
for _method, _kind, _excludes, _work, _run, *_more in (
    (
        "direct",
        "cpu",
        _not_real,
        _direct_work,
        _on_cpu("direct_cpu", "direct"),
        {"loops": _loops_of_direct},
    ),
    (
        "separable",
        "cpu",
        _high_rank,
        _separable_work_on_cpu,
        _on_cpu("direct_cpu", "separable"),
        {"loops": _loops},
    ),
    ("fft", "cpu", _loses, _work_on_cpu(_whole_on_cpu), _on_cpu("fft_cpu", "whole")),
    (
        "overlap_save",
        "cpu",
        _or_one_tile(_loses, _tiles_on_cpu),
        _work_on_cpu(_tiles_on_cpu),
        _on_cpu("fft_cpu", "overlap_save"),
    ),
    ("library", "cpu", _not_opencvs, _direct_work, _on_cpu("opencv", "filter2d")),
    ("scipy", "cpu", _no_mode, _direct_work, _by_scipy, {"stands_in": _stands_in}),
    (
        "direct",
        "cuda",
        _not_real,
        _direct_work,
        _on_device("direct"),
        {"prepare": _prepare_direct},
    ),
    ("separable", "cuda", _high_rank_or_large, _separable_work, _on_device("separable")),
    (
        "fft",
        "cuda",
        _loses_or_no_cufft,
        _work_by_cufft(_whole_on_device),
        _by_cufft(_whole_on_device),
    ),
    (
        "overlap_save",
        "cuda",
        _or_one_tile(_loses_or_no_cufft, _tiles_on_device),
        _work_by_cufft(_tiles_on_device),
        _by_cufft(_tiles_on_device),
    ),
    ("direct", "opencl", _not_real, _direct_work, _on_device("direct")),
    ("separable", "opencl", _high_rank_or_large, _separable_work, _on_device("separable")),
    *(
        (
            "streamed",
            kind,
            _not_streamed,
            _direct_work,
            streamed.run,
            {
                "blocks": registry.ALWAYS,
                "price": streamed.price,
                "stands_in": pipeline.stands_in,
            },
        )
        for kind in ("cuda", "opencl")
    ),
):
    registry.register(
        registry.Implementation(
            *(NAME, _method, _kind, _excludes, _work, _run),
            uses=_USES.get((_method, _kind), ()),
            **next(iter(_more), {}),
        )
    )
for _rung in rungs.rows(NAME, _not_real, _direct_work):
    registry.register(_rung)
