"""What is measured of products: each implementation's time over sizes and shapes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hetero.arrays import HOST, spec
from hetero.calibration import fit
from hetero.calibration.efforts import Effort, axis
from hetero.calibration.workbench import Bench
from hetero.ops import module_of
from hetero.runtime import planner
from hetero.runtime.problem import DEVICE_DTYPES, Problem
from hetero.runtime.registry import Arguments, Implementation

_LEAST_EXTENT, _LEAST_KNOT = 4, 16
_BETWEEN = [48, 96]
_WAVES_STEP = 4.0  # ratio of neighbouring sizes where waves are counted
_HOST_HIDDEN = 1e-4  # seconds of device time beside which the host's share does not matter
_CLEARLY = 1.5
_LOOKS = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """What one model is fitted to: an implementation, a dtype, a layout, and its problems.

    ``axes`` are the knots that are measured. Where there is a ``reference``, these are few, and how
    far it is from that layout's model is interpolated between them. With ``by_waves`` the
    implementation estimates its own time, and how far off it is gets interpolated.
    """

    implementation: Implementation
    dtype: str
    layout: str
    axes: list[list[int]]
    problem: Callable[[tuple[int, ...]], Problem]
    reference: str | None = None
    by_waves: bool = False


def subjects(
    implementation: Implementation, place: str, effort: Effort, largest: dict[str, int]
) -> Iterator[Subject]:
    """The grids to measure for an implementation: dtypes, layouts, aligned and odd sizes."""
    operation = implementation.operation
    on = HOST if place == planner.CPU else place
    odd_too = place != planner.CPU
    for dtype in DEVICE_DTYPES:
        for odd in (False, True) if odd_too else (False,):
            for order in _orders(operation, odd_too):
                end, extents = largest[operation], 2 if operation == "matvec" else 3

                def problem(
                    dims: tuple[int, ...], dtype: str = dtype, order: str = order
                ) -> Problem:
                    return product(operation, dims, on, dtype, order)

                if not odd_too:
                    layout = order if operation == "matvec" else "*"
                    axes = [axis(_LEAST_EXTENT, end, effort.step)] * extents
                    yield Subject(implementation, dtype, layout, axes, problem)
                    continue
                fit_for = "odd" if odd else "aligned"
                layout, reference = f"{order} {fit_for}", None
                if by_waves := _by_waves(implementation):
                    sizes = axis(_LEAST_KNOT, end, max(effort.device_step, _WAVES_STEP))
                else:
                    if operation == "matmul" and order != "CC":
                        reference = f"CC {fit_for}"
                    elif odd:
                        reference = f"{order} aligned"
                    sizes = _knots(operation, end, effort.device_step, few=reference is not None)
                axes = [[n - odd for n in sizes]] * extents
                yield Subject(implementation, dtype, layout, axes, problem, reference, by_waves)


def _knots(operation: str, largest: int, step: float, few: bool) -> list[int]:
    """Sizes to measure on a device: powers of two, and what lies beside them.

    A library takes other ways for tiny sizes. Between 32 and 128 it works in tiles that fit some
    sizes and not others.
    """
    sizes = axis(_LEAST_KNOT, largest, step)
    if few:
        sizes = sizes[::2]
    elif operation == "matmul" and step <= 2.0:
        sizes += _BETWEEN
    return [_LEAST_EXTENT, *sorted(sizes)]


def product(
    operation: str, dims: tuple[int, ...], on: str, dtype: str = "float32", order: str = "C"
) -> Problem:
    """A matvec of dimensions (m, k), or matmul of (m, n, k), whose operands lie in one place."""
    m, *n, k = dims
    first = spec((m, k), dtype, on=on, order=order[0])
    second = spec((k, *n), dtype, on=on, order=order[-1])
    return module_of(operation).problem(first, second)


def _by_waves(implementation: Implementation) -> bool:
    """The own products on CUDA devices know the waves that they run in."""
    return (implementation.operation, implementation.method, implementation.kind) == (
        "matmul",
        "tiled",
        "cuda",
    )


def _orders(operation: str, on_device: bool) -> tuple[str, ...]:
    """Orders of the matrices, C or F each, that are measured apart."""
    if operation == "matvec":
        return "C", "F"
    return ("CC", "CF", "FC", "FF") if on_device else ("CC",)


def works(
    implementation: Implementation, place: str, effort: Effort, largest: dict[str, int]
) -> Iterator[tuple[Implementation, Problem, Arguments]]:
    """What `measure_subject` does on a device, with addresses that stand for nothing."""
    for subject in subjects(implementation, place, effort, largest):
        for dims in fit.grid(subject.axes):
            yield implementation, subject.problem(dims), Arguments((0, 0), 0)


def measure_subject(
    subject: Subject, bench: Bench, effort: Effort, seconds_left: float, host: float | None
) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float], float]:
    """Seconds on the grid, seconds of held-out shapes between its knots, the host's share.

    Knots that are not reached in ``seconds_left`` are missing, the largest ones. ``host`` is the
    host's share from `host_shares`, if it is known; it is in all these seconds, but not in those of
    an implementation that estimates the device's time.
    """
    end = time.perf_counter() + seconds_left
    seconds: dict[tuple[int, ...], float] = {}

    implementation = subject.implementation
    smallest = subject.problem(tuple(axis[0] for axis in subject.axes))
    alone = bench.seconds(implementation, smallest, effort.budget)
    least = bench.host_seconds(implementation, smallest, alone, 100)
    host = least if host is None else host

    def more(problem: Problem, device_seconds: float) -> float:
        """What the host does for this shape beyond its share, if that is clearly more.

        A library may launch several kernels for some shapes; that costs the host, not the device.
        What does not last is a slow spell of the machine.
        """
        seen = []
        while len(seen) < _LOOKS:
            seen.append(bench.host_seconds(implementation, problem, device_seconds, 7))
            if seen[-1] <= _CLEARLY * least:
                return 0.0
        return min(seen) - least

    def seconds_of(dims: tuple[int, ...]) -> float:
        problem = subject.problem(dims)
        device_seconds = bench.seconds(implementation, problem, effort.budget)
        if subject.by_waves:
            return device_seconds
        if device_seconds > _HOST_HIDDEN:
            return host + device_seconds
        return host + device_seconds + more(problem, device_seconds)

    def volume(dims: tuple[int, ...]) -> int:
        return int(np.prod([float(d) for d in dims]))

    grid = sorted(fit.grid(subject.axes), key=volume)
    rate = 0.0  # the best seen: volume per second
    for dims in grid:
        if rate and (volume(dims) / rate > effort.longest or time.perf_counter() > end):
            continue
        seconds[dims] = seconds_of(dims)
        rate = max(rate, volume(dims) / seconds[dims])
    draw = random.Random(1)
    held_out: dict[tuple[int, ...], float] = {}
    odd = subject.axes[0][0] % 2
    few = subject.reference or (subject.by_waves and subject.layout != "CC aligned")
    wanted = effort.held_out // 4 if few else effort.held_out
    for _ in range(wanted * 20):
        if len(held_out) >= wanted or time.perf_counter() > end + 0.2 * seconds_left:
            break
        dims = tuple(
            round(a[0] * (a[-1] / a[0]) ** draw.random()) // 4 * 4 - odd for a in subject.axes
        )
        if min(dims) > 1 and volume(dims) / rate <= effort.longest / 4:
            held_out[dims] = seconds_of(dims)
    return seconds, held_out, host
