"""Doubtful samples: which to measure again, and what those count that stay disturbed.

On an idle machine true curves are far from smooth. Over 30 000 knots of an H200 and its host, the
largest ratio to the neighbours' interpolant was 3.4, and to the next larger size 5.4; 1 to 6 % of
the knots exceed the bounds for measuring again. Samples that met bursts of other load were up to 67
and 222 times too long.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from math import exp, log, prod
from statistics import median
from typing import NamedTuple

from hetero.calibration.measure import solving
from hetero.calibration.measure.workbench import Samples
from hetero.ops.cases import Case, Dims, Place, TimedSolves, grid
from hetero.registry import growth

# Ratios beyond which a sample is measured again.
PEAK, FALL = 1.3, 1.5  # to the neighbours' interpolant; to the next larger size
_ALLOWED = 1.5  # times what undisturbed samples allow: one that met other load counts no more

Seconds = dict[Dims, float]


# -- Neighbours --


def estimator(case: Case, place: Place) -> Callable[[Dims], float] | None:
    """The method's own estimate in seconds, if its model is a correction of that."""
    if not getattr(case.how, "by_estimate", False):
        return None

    @functools.cache
    def seconds(dims: Dims) -> float:
        return case.implementation.work(case.problem(*dims), place.info).estimate

    return seconds


class Curves(NamedTuple):
    """Curves of a case that should be smooth.

    Attributes
    ----------
    curves : list of dict
        Of solves: of a step, of few steps, and of a common larger number of steps.
    ratios : bool
        Whether the values are ratios to the method's own estimate, which may fall.
    amount : callable
        Work by dimensions.
    power : int
        Of each dimension in the work.
    """

    curves: list[Seconds]
    ratios: bool = False
    amount: Callable[[Dims], float] = prod
    power: int = 1


def curves_of(case: Case, place: Place, samples: Samples) -> Curves:
    """The curves of a case's samples."""
    if isinstance(case.how, TimedSolves):

        @functools.cache
        def amount(dims: Dims) -> float:  # a dense matrix has the square of the unknowns' number
            work = case.implementation.work(case.problem(*dims), place.info)
            return work.flops + work.bytes

        return Curves(solve_curves(samples), False, amount, 2 if case.layout == "dense" else 1)
    if (estimate := estimator(case, place)) is not None:
        return Curves(
            [{d: s / estimate(d) for d, s in samples.seconds.items()}], ratios=True, power=0
        )
    return Curves([samples.seconds])


def solve_curves(samples: Samples) -> list[Seconds]:
    """Of solves: seconds of a step, of few steps, and of a common larger number of steps."""
    if not samples.timed:
        return [samples.seconds]
    few = {dims: seconds[0] for dims, seconds in samples.timed.items()}
    if all(len(steps) < 2 for steps in samples.steps.values()):
        return [samples.seconds, few]
    number = median(steps[-1] for steps in samples.steps.values())
    more = {
        dims: samples.timed[dims][-1] + (number - steps[-1]) * samples.seconds[dims]
        for dims, steps in samples.steps.items()
    }
    return [samples.seconds, few, {dims: max(more[dims], few[dims]) for dims in more}]


def _lines(seconds: Iterable[Dims]) -> list[tuple[int, list[Dims]]]:
    """Lines of the grid along each axis, in order, of two knots at least."""
    groups: dict[tuple[int, Dims], list[Dims]] = {}
    for dims in seconds:
        for axis in range(len(dims)):
            groups.setdefault((axis, (*dims[:axis], 0, *dims[axis + 1 :])), []).append(dims)
    return [(axis, sorted(line)) for (axis, _), line in groups.items() if len(line) > 1]


def _interpolated(seconds: Seconds, dims: Dims, axis: int, before: Dims, after: Dims) -> float:
    """Logarithm of the seconds by a power law between two neighbours."""
    part = log(dims[axis] / before[axis]) / log(after[axis] / before[axis])
    return (1.0 - part) * log(seconds[before]) + part * log(seconds[after])


def _deviations(
    seconds: Seconds, ratios: bool, amount: Callable[[Dims], float]
) -> dict[Dims, tuple[float, float]]:
    """Ratio of each sample to its neighbours' interpolant, and to the next larger size.

    Over all axes, the least of the former and the largest of the latter. At the ends, the first
    sample should take no longer than the second, and the last one should keep the rate of the one
    before; ratios have no such bounds.
    """
    deviations: dict[Dims, tuple[float, float]] = {}
    for axis, line in _lines(seconds):
        for dims, before, after in zip(line, [None, *line], [*line[1:], None], strict=False):
            if ratios and (before is None or after is None):
                continue
            if before is None:
                expected = log(seconds[after])
            elif after is None:
                expected = log(seconds[before]) + log(amount(dims) / amount(before))
            else:
                expected = _interpolated(seconds, dims, axis, before, after)
            fall = 0.0 if ratios or after is None else seconds[dims] / seconds[after]
            peak, most = deviations.get(dims, (math.inf, 0.0))
            deviations[dims] = min(peak, exp(log(seconds[dims]) - expected)), max(most, fall)
    return deviations


def doubtful(
    seconds: Seconds, ratios: bool = False, amount: Callable[[Dims], float] = prod
) -> Seconds:
    """Samples to measure again, with their ratio to the bounds, which is above 1.

    Parameters
    ----------
    seconds : dict
        A curve.
    ratios, amount
        As in `Curves`.
    """
    deviations = _deviations(seconds, ratios, amount).items()
    beyond = {dims: max(peak / PEAK, fall / FALL) for dims, (peak, fall) in deviations}
    return {dims: value for dims, value in beyond.items() if value > 1.0}


def decreasing(seconds: Seconds) -> Seconds:
    """Pairs of neighbours of which the larger is clearly faster, with the ratio to the bound.

    Of differences between samples, such as a step's seconds, either may be wrong.
    """
    doubts: Seconds = {}
    for _, line in _lines(seconds):
        for dims, after in pairwise(line):
            beyond = seconds[dims] / seconds[after] / FALL
            for one in (dims, after) if beyond > 1.0 else ():
                doubts[one] = max(doubts.get(one, 0.0), beyond)
    return doubts


def between(dims: Dims, seconds: Seconds) -> float | None:
    """Seconds interpolated between neighbours: the geometric mean over all axes that have two.

    None where no axis has a neighbour on both sides.
    """
    logs = []
    for axis in range(len(dims)):
        rest = (dims[:axis], dims[axis + 1 :])
        line = [d for d in seconds if (d[:axis], d[axis + 1 :]) == rest]
        before = max((d for d in line if d < dims), default=None)
        after = min((d for d in line if d > dims), default=None)
        if before is not None and after is not None:
            logs.append(_interpolated(seconds, dims, axis, before, after))
    return exp(sum(logs) / len(logs)) if logs else None


# -- What they count --


def believable(case: Case, place: Place, samples: Samples) -> tuple[Samples, list[Dims]]:
    """The samples with others in place of some, and the dimensions of these.

    One that always met other load is no longer than those that did not allow. A solve whose times
    do not separate set-up and step gets both from its neighbours.
    """
    apart = solving.separable(samples)
    mixed = [dims for dims in samples.seconds if not apart.get(dims, True)]
    mixed = [dims for dims in mixed if between(dims, _without(samples.seconds, mixed)) is not None]
    made = replace(
        samples,
        seconds=_filled(samples.seconds, mixed),
        setup=_filled(samples.setup, mixed),
    )
    curves, _, _, power = curves_of(case, place, samples)
    *_, curve = curves
    axes = [sorted(set(extents)) for extents in zip(*curve, strict=True)]
    known = [math.inf if d in samples.marked else curve.get(d, math.inf) for d in grid(axes)]
    limits = growth.bounded(axes, known, [power] * len(axes), _ALLOWED).tolist()
    for dims, limit in zip(grid(axes), limits, strict=True):
        if dims in samples.marked and limit < curve.get(dims, 0.0) and dims not in mixed:
            for seconds in (made.seconds, made.setup):
                if dims in seconds:
                    seconds[dims] *= limit / curve[dims]
            mixed.append(dims)
    return made, mixed


def _without(seconds: Seconds, out: Iterable[Dims]) -> Seconds:
    return {dims: value for dims, value in seconds.items() if dims not in out}


def _filled(seconds: Seconds, out: Iterable[Dims]) -> Seconds:
    """The samples with some interpolated between the others."""
    left = _without(seconds, out)
    filled = {dims: between(dims, left) for dims in out if dims in seconds}
    return seconds | {dims: value for dims, value in filled.items() if value is not None}
