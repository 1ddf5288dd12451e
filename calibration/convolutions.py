"""Convolutions: seconds of each method over the sizes of images and filters.

A quick calibration compiles nothing for this: it measures how fast memory is copied and a real
transform, and estimates all from that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from hetero.arrays import HOST, Operand, spec
from hetero.calibration import fit
from hetero.calibration.efforts import Effort
from hetero.calibration.measure import measure
from hetero.calibration.workbench import Bench
from hetero.devices.base import Device
from hetero.ops.convolve2d import operands as convolving
from hetero.ops.convolve2d.filters import Filter, Options
from hetero.ops.convolve2d.window import window
from hetero.runtime import planner
from hetero.runtime.problem import DEVICE_DTYPES, Problem
from hetero.runtime.registry import Arguments, Implementation, lookup

OPERATION = convolving.NAME
_IMAGES = {
    "cpu": (4, 16, 32, 64, 128, 256, 512, 1024, 4096),
    "cuda": (16, 256, 1024, 4096, 8192),
    "opencl": (4, 16, 64, 256),
}
_TILED = (32, 64, 128, 256, 512, 768, 1024, 2048, 4096)
_FILTERS = (1, 2, 3, 5, 7, 11, 17, 31, 63, 129)
_DEVICE_FILTERS = (1, 3, 7, 15, 63)  # fewer: each takes some kernels to compile
_LIBRARY_FILTERS = (1, 2, 3, 5, 7, 9, 11)
_TAPS = (6, 14, 30, 62, 126)  # of a column and a row together
_DEVICE_TAPS = (6, 30, 126)
_HELD_OUT = ((100, 4), (300, 13), (700, 6), (1500, 3), (2900, 20))
_LONGEST = 0.03  # seconds of one call; with images alone to go through, four times that
_ROUNDS = 6
_SHORT = 0.002  # seconds of a call, above which three rounds are enough
_SETTLES = 0.002  # seconds for which threads may go on spinning after a call


@dataclass(frozen=True, slots=True)
class Subject:
    """An implementation with a dtype, and the problems that its model is fitted to.

    Attributes
    ----------
    axes : list of list of int
        Sizes of images and filters, or of images alone.
    form : str
        Of the model.
    """

    implementation: Implementation
    dtype: str
    axes: list[list[int]]
    form: str

    def problem(self, n: int, filter_size: int, on: str) -> Problem:
        """N x n, filtered to the same size; the filter of rank 1 where that is the subject."""
        shapes = (n, n), (filter_size, filter_size)
        image, filter = (spec(shape, self.dtype, on=on).operand() for shape in shapes)
        filter = filter._replace(location=HOST)
        rank = int(self.implementation.method == "separable")
        found = window(*shapes, "same", rank=rank)
        return convolving.described(image, filter, np.dtype(self.dtype), found)


def subjects(
    implementation: Implementation, info: dict[str, Any], largest: int
) -> Iterator[Subject]:
    """What to measure for one implementation, images up to ``largest`` squared."""
    kind, method = implementation.kind, implementation.method
    images = [n for n in _IMAGES[kind] if n <= largest]
    for dtype in DEVICE_DTYPES:
        filters = _FILTERS if kind == "cpu" else _DEVICE_FILTERS
        axes, form = [images, list(filters)], "filter"
        if method == "library":
            axes = [images, list(_LIBRARY_FILTERS)]
        elif method == "separable":
            taps = _TAPS if kind == "cpu" else _DEVICE_TAPS
            axes = [images, [number // 2 for number in taps]]
        elif method == "fft":
            axes, form = [images], "surface"
        elif method == "overlap_save":
            tiled = _TILED if kind == "cpu" else images[1:]
            axes, form = [[n for n in tiled if n <= largest]], "surface"
        subject = Subject(implementation, dtype, axes, form)
        example = subject.problem(images[-1], 5, HOST)
        if axes[0] and implementation.excludes(example, info) is None:
            yield subject


class FilterBench(Bench):
    """Images and filters to measure with."""

    def __init__(self, device: Device | None) -> None:
        super().__init__(device)
        self._requests: dict[Any, Options] = {}

    def array(self, operand: Operand, number: int, turn: int = 0) -> Any:
        """An image, or in the second place a request with a filter, which is of rank 1."""
        if number != 1:
            return super().array(operand, number, turn)
        key = (operand.shape, operand.dtype)
        if key not in self._requests:
            line = 0.5 + np.random.default_rng(1).random(operand.shape[0])
            values = np.outer(line, line) / line.sum() ** 2
            self._requests[key] = Options(Filter(values.astype(operand.dtype)), 0.0)
        return self._requests[key]

    def arguments(self, inputs: list[Any], output: Any) -> Arguments:
        """An image, and a request with a filter."""
        image, request = inputs
        return Arguments((image,), output, request)


class Measurement:
    """The measured knots of one subject, and the model made of them.

    Knots that would take too long, or too late, are extrapolated.
    """

    def __init__(self, subject: Subject, bench: FilterBench, place: str, effort: Effort) -> None:
        self.subject = subject
        self._bench = bench
        self._on = HOST if place == planner.CPU else place
        self._budget = effort.budget / rounds(place)
        self._block = 1
        if place == planner.CPU and subject.implementation.method in ("direct", "separable"):
            from hetero.ops.convolve2d import cpu

            self._block = cpu.block_width(np.dtype(subject.dtype))
        # Without an axis of filters: one that is small beside the image.
        knots = [(*dims, min(33, max(dims[0] // 48, 3)))[:2] for dims in fit.grid(subject.axes)]
        self._knots = self._work(knots)
        largest = subject.axes[0][-1]
        self._held_out = self._work([(n, f) for n, f in _HELD_OUT if n <= largest])
        for problem in list(self._knots.values())[: 1 if place == planner.CPU else None]:
            bench.waiting(subject.implementation, problem)()  # compiles
        self._seconds: dict[tuple[int, ...], float] = {}
        self._typical: dict[tuple[int, ...], list[float]] = {}
        self._rate = 0.0
        self._rounds = 0
        self._longest = _LONGEST * (4.0 if len(subject.axes) == 1 else 1.0)

    def _work(self, sizes: list[tuple[int, int]]) -> dict[tuple[int, ...], Problem]:
        """What the model knows a problem by -> the problem, smaller ones first."""
        found = {}
        implementation = self.subject.implementation
        info = {"kind": implementation.kind}
        for n, filter_size in sizes:
            problem = self.subject.problem(n, filter_size, self._on)
            if implementation.excludes(problem, info) is not None:
                continue
            dims = implementation.work(problem, info).dims
            if self.subject.form == "filter":
                h, w = dims[0], -(-dims[1] // self._block) * self._block
                dims = h * w, dims[2] * dims[3]
            found[dims] = problem
        return dict(sorted(found.items(), key=lambda item: math.prod(item[0])))

    def round(self, seconds_left: float) -> None:
        """Measure all, once more.

        The fastest call tells methods and sizes apart, since what else the machine does only adds.
        """
        end = time.perf_counter() + seconds_left
        again = bool(self._seconds)
        self._rounds += 1
        for dims, problem in {**self._knots, **self._held_out}.items():
            volume = math.prod(dims)
            if self._rate and (volume / self._rate > self._longest or time.perf_counter() > end):
                continue
            if again and dims not in self._seconds:
                continue
            if self._rounds > _ROUNDS // 2 and self._seconds[dims] > _SHORT:
                continue
            call = self._bench.waiting(self.subject.implementation, problem)
            time.sleep(_SETTLES)
            measured = measure(call, budget=self._budget, least=2, most=30)
            fastest = min(measured.samples)
            self._seconds[dims] = min(self._seconds.get(dims, math.inf), fastest)
            self._typical.setdefault(dims, []).append(measured.seconds)
            self._rate = max(self._rate, volume / self._seconds[dims])

    def slower(self) -> list[float]:
        """Of each knot, how much longer than the fastest call a typical one took."""
        return [median(times) / self._seconds[dims] for dims, times in self._typical.items()]

    def model(self, slower: float) -> dict[str, Any]:
        """The fitted model, all seconds times ``slower``."""
        axes = [
            sorted({dims[i] for dims in self._knots}) for i in range(len(next(iter(self._knots))))
        ]
        fastest = self._seconds
        if self._on == HOST:
            fastest = {dims: _least_above(dims, fastest) for dims in fastest}
        measured = {dims: slower * seconds for dims, seconds in fastest.items()}
        seconds = {dims: measured[dims] for dims in self._knots if dims in measured}
        held_out = {
            dims: measured[dims]
            for dims in self._held_out
            if dims in measured and dims not in seconds
        }
        model = fit.surface(axes, seconds, held_out)
        if self.subject.form == "filter":
            model["form"] = "filter"
            model["constants"]["block"] = self._block
        return model


def _least_above(dims: tuple[int, ...], seconds: dict[tuple[int, ...], float]) -> float:
    """The least seconds of these dimensions or any that are no smaller.

    More work takes no less time; what was seen to be slower than more work met a slow spell.
    """
    return min(
        found
        for other, found in seconds.items()
        if all(n >= m for n, m in zip(other, dims, strict=True))
    )


def works(
    implementation: Implementation, info: dict[str, Any], place: str, largest: int
) -> Iterator[tuple[Implementation, Problem, Arguments]]:
    """What `Measurement` does on a device, with addresses that stand for nothing."""
    bench = FilterBench(None)
    for subject in subjects(implementation, info, largest):
        sizes = [*fit.grid(subject.axes), *(size for size in _HELD_OUT if size[0] <= largest)]
        for n, filter_size in sizes:
            problem = subject.problem(n, filter_size, place)
            if implementation.excludes(problem, info) is None:
                inputs = [0, bench.array(problem.inputs[1], 1)]
                yield implementation, problem, bench.arguments(inputs, 0)


def weight(subject: Subject) -> float:
    """A subject's share of the time in proportion."""
    return float(max(math.prod(map(len, subject.axes)), 20))


def rounds(place: str) -> int:
    """How often everything is measured: a slow spell of a CPU is longer than one measurement."""
    return _ROUNDS if place == planner.CPU else 1


def compile_for(dtype: str) -> None:
    """Compile the CPU's loops for a dtype, by using them once."""
    bench = FilterBench(None)
    for implementation in lookup(OPERATION):
        if implementation.kind == "cpu" and implementation.method in ("direct", "separable"):
            for subject in subjects(implementation, {"kind": "cpu"}, 256):
                if subject.dtype == dtype:
                    bench.waiting(implementation, subject.problem(64, 5, HOST))()


def estimate(device: Device | None) -> Callable[[str], dict[str, Any]]:
    """Of a method's name, a "roofline" model from the speed of copying memory."""
    from hetero.calibration.solves import estimate as of_copies

    model = of_copies(device)
    rate = model["constants"]["bytes_per_second"]
    overhead = 3e-5 if device is None else 4e-5

    def of_method(method: str) -> dict[str, Any]:
        # Flops that a method does while a byte is copied: typical of the machines measured.
        on_cpu = {"direct": 14.0, "library": 2.5, "separable": 5.0, "fft": 3.5, "overlap_save": 4.0}
        on_device = {"direct": 10.0, "separable": 6.0, "fft": 4.0, "overlap_save": 4.8}
        flops = (on_cpu if device is None else on_device)[method]
        constants = {
            "overhead": overhead * (2.0 if "fft" in method else 1.0),
            "flops_per_second": flops * rate,
            "bytes_per_second": rate,
        }
        return {**model, "constants": constants}

    return of_method
