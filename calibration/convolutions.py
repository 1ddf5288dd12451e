"""Convolutions: seconds of each method over the sizes of images and filters.

A quick calibration compiles nothing for this: it measures how fast memory is copied and a real
transform, and estimates all from that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero import planner
from hetero.arrays import HOST, Operand, spec
from hetero.calibration import fit
from hetero.calibration.measure import measure
from hetero.calibration.probes import Effort
from hetero.calibration.workbench import Bench
from hetero.devices.base import Device
from hetero.filtering.request import Filter, Request
from hetero.ops import convolving
from hetero.problem import DEVICE_DTYPES, Problem
from hetero.registry import Implementation, lookup

OPERATION = convolving.OPERATION
_IMAGES = {
    "cpu": (4, 16, 64, 256, 1024, 4096),
    "cuda": (16, 256, 1024, 4096, 8192),
    "opencl": (4, 16, 64, 256),
}
_FILTERS = (1, 3, 5, 7, 9, 11, 15, 31, 63, 129)
_DEVICE_FILTERS = (1, 3, 7, 15, 63)  # fewer: each takes some kernels to compile
_LIBRARY_FILTERS = (1, 3, 5, 7, 9, 11)
_TAPS = (6, 14, 30, 62, 126)  # of a column and a row together
_DEVICE_TAPS = (6, 30, 126)
_HELD_OUT = ((100, 4), (300, 13), (700, 6), (1500, 3), (2900, 20))
_LONGEST = 0.1
_BLOCK = 256  # bytes of a row that the CPU's loop makes at least
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
        window = convolving.window(*shapes, "same", rank=rank)
        return convolving.described(image, filter, np.dtype(self.dtype), window)


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
            axes, form = [images, [number // 2 for number in taps]], "surface"
        elif method == "fft":
            axes, form = [images], "surface"
        elif method == "overlap_save":
            axes, form = [[n for n in images if n >= 64]], "surface"
        subject = Subject(implementation, dtype, axes, form)
        example = subject.problem(images[-1], 5, HOST)
        if axes[0] and implementation.excludes(example, info) is None:
            yield subject


class FilterBench(Bench):
    """Images and filters to measure with."""

    def __init__(self, device: Device | None) -> None:
        super().__init__(device)
        self._requests: dict[Any, Request] = {}

    def array(self, operand: Operand, number: int, turn: int = 0) -> Any:
        """An image, or in the second place a request with a filter, which is of rank 1."""
        if number != 1:
            return super().array(operand, number, turn)
        key = (operand.shape, operand.dtype)
        if key not in self._requests:
            line = 0.5 + np.random.default_rng(1).random(operand.shape[0])
            values = np.outer(line, line) / line.sum() ** 2
            self._requests[key] = Request(Filter(values.astype(operand.dtype)), 0.0)
        return self._requests[key]


def measure_subject(
    subject: Subject, bench: FilterBench, place: str, effort: Effort, seconds_left: float
) -> dict[str, Any]:
    """The model of a subject; knots that would take too long, or too late, are extrapolated."""
    implementation = subject.implementation
    info = {"kind": implementation.kind}
    on = HOST if place == planner.CPU else place

    own_loop = place == planner.CPU and implementation.method == "direct"
    least_width = _BLOCK // np.dtype(subject.dtype).itemsize if own_loop else 1

    def work(n: int, filter_size: int) -> tuple[Problem, tuple[int, ...]]:
        problem = subject.problem(n, filter_size, on)
        dims = implementation.work(problem, info).dims
        if subject.form == "filter":
            dims = dims[0] * max(dims[1], least_width), dims[2] * dims[3]
        return problem, dims

    def able(n: int, filter_size: int) -> bool:
        return implementation.excludes(subject.problem(n, filter_size, on), info) is None

    def seconds_of(problem: Problem) -> float:
        """The fastest of several: what else the machine does only adds."""
        call = bench.waiting(implementation, problem)
        time.sleep(_SETTLES)
        return min(measure(call, budget=effort.budget, most=30).samples)

    # Without an axis of filters: one that is small beside the image.
    knots = [(*dims, min(65, max(dims[0] // 8, 1)))[:2] for dims in fit.grid(subject.axes)]
    found = [work(n, f) for n, f in knots if able(n, f)]
    for problem, _ in found[:1] if place == planner.CPU else found:
        bench.waiting(implementation, problem)()  # compiles
    end = time.perf_counter() + seconds_left
    seconds: dict[tuple[int, ...], float] = {}
    rate = 0.0
    for problem, dims in sorted(found, key=lambda pair: math.prod(pair[1])):
        volume = math.prod(dims)
        if rate and (volume / rate > _LONGEST or time.perf_counter() > end):
            continue
        seconds[dims] = seconds_of(problem)
        rate = max(rate, volume / seconds[dims])
    held_out: dict[tuple[int, ...], float] = {}
    for n, f in _HELD_OUT:
        if n > subject.axes[0][-1] or time.perf_counter() > end + 0.2 * seconds_left:
            continue
        if not able(n, f):
            continue
        problem, dims = work(n, f)
        if math.prod(dims) / rate <= _LONGEST:
            held_out[dims] = seconds_of(problem)
    axes = [sorted({dims[i] for _, dims in found}) for i in range(len(found[0][1]))]
    model = fit.surface(axes, seconds, held_out)
    if subject.form == "filter":
        model["form"] = "filter"
        model["constants"]["least_width"] = least_width
    return model


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
        flops = {"direct": 2.5, "library": 2.5, "separable": 1.5, "fft": 1.0}.get(method, 1.2)
        constants = {
            "overhead": overhead * (2.0 if "fft" in method else 1.0),
            "flops_per_second": flops * rate * (4.0 if device is not None else 1.0),
            "bytes_per_second": rate,
        }
        return {**model, "constants": constants}

    return of_method
