"""What the ways to convolve take: points, passes and bytes, and how a transform cuts the image."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hetero.ops.convolve2d import tiles_cpu, tiles_device
from hetero.ops.convolve2d.window import Axis
from hetero.registry.models import Work
from hetero.registry.problem import Problem

# What it costs the host to have a filter's spectrum made, beside what a convolution costs it.
_SPECTRUM_CALLS = 0.7

Info = dict[str, Any]
Axes = Callable[[Problem, Info], tuple[Axis, Axis] | None]


def _moved(problem: Problem) -> float:
    image, filter = problem.inputs
    return float(image.nbytes + filter.nbytes + problem.output.nbytes)


def _of_sum(problem: Problem, filter: tuple[int, int]) -> Work:
    w = problem.options
    dims = (problem.batch * w.out_height, w.out_width, *filter)
    return Work(dims, 2.0 * prod(dims), _moved(problem))


def of_direct(problem: Problem, info: Info) -> Work:
    """A filter of 2 or 3 taps counts as 2 x 2: only one of a single tap is a mere product."""
    filter = problem.options.filter_height, problem.options.filter_width
    return _of_sum(problem, (2, 2) if 1 < prod(filter) < 4 else filter)


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


def _of_transforms(problem: Problem, weight: int, calls: float = 1.0) -> Work:
    """All tiles' points, each counted as often as a transform passes over it."""
    return Work((weight,), 10.0 * weight, 8.0 * _moved(problem), calls=calls)


def of_transforms_on_cpu(axes: Axes) -> Callable[[Problem, Info], Work]:
    """Work of transforms of what ``axes`` gives, on the CPU."""

    def work(problem: Problem, info: Info) -> Work:
        cut, cores = axes(problem, info), _cores_elsewhere(info)
        weight = tiles_cpu.weight(problem.options, cut, problem.batch, cores)
        return _of_transforms(problem, weight)

    return work


def of_transforms_by_cufft(axes: Axes) -> Callable[[Problem, Info], Work]:
    """Work of transforms of what ``axes`` gives, by cuFFT; a new filter is transformed too."""

    def work(problem: Problem, info: Info) -> Work:
        new = tiles_device.is_new(problem.inputs[1])
        weight = tiles_device.weight(problem.options, axes(problem, info), problem.batch, new)
        return _of_transforms(problem, weight, 1.0 + _SPECTRUM_CALLS * new)

    return work


def _cores_elsewhere(info: Info) -> int | None:
    """The cores of another machine, whose profile is asked; None for this one."""
    return info.get("cores") if info.get("elsewhere") else None


def whole_on_cpu(problem: Problem, info: Info) -> Any:
    """One tile: the whole image, as SciPy transforms it."""
    return tiles_cpu.whole(problem.options)


def tiles_on_cpu(problem: Problem, info: Info) -> Any:
    """Tiles on the CPU, None where there is only one."""
    return tiles_cpu.tiles(problem.options, _cores_elsewhere(info))


def whole_on_device(problem: Problem, info: Info) -> Any:
    """One tile: the whole image, as cuFFT transforms it."""
    return tiles_device.whole(problem.options)


def tiles_on_device(problem: Problem, info: Info) -> Any:
    """Tiles on a device, None where there is only one."""
    return tiles_device.tiles(problem.options)
