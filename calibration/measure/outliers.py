"""Outliers: which samples to distrust, by their neighbours and by prior estimates.

Samples that stay impossible when repeated are dropped from the fits, and reported.

On an idle machine true curves are far from smooth. Over 30 000 knots of an H200 and its host, the
largest ratio to the neighbours' interpolant was 3.4, and to the next larger size 5.4; 1 to 6 % of
the knots exceed the bounds for measuring again, and none those for dropping. Samples that met
bursts of other load were up to 67 and 222 times too long.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from math import exp, log, prod
from statistics import median
from typing import Any, NamedTuple

from hetero import profile
from hetero.calibration.measure import solving
from hetero.calibration.measure.workbench import Samples
from hetero.ops.cases import Case, Dims, Passes, Place, TimedSolves
from hetero.registry.models import ModelKey

# Ratios beyond which a sample is measured again.
PEAK, FALL = 1.3, 1.5  # to the neighbours' interpolant; to the next larger size
HELD_OUT_TOLERANCE = 1.5  # of a held-out shape to the knots' interpolant, either way
HALF, DOUBLE = 1.3, 3.0  # of float32 to float64, which has twice the bytes and work; the other way
# Ratios beyond which it is dropped.
IMPOSSIBLE = 10.0  # to the neighbours' interpolant, and to the next larger size
DISTURBED = 2.0  # times the bounds for measuring again, where it always met other load
TOO_SLOW = 1e3  # to the prior
TOO_FAST = 1e4  # of the prior to it: float64 tensor units are 700 times as fast as the prior's card

_MOST = 0.25  # fraction of a curve's samples, beyond which all of it is dropped
_FEW = 2  # samples, too few for one to contradict another
_FLAT = 10.0  # ratio of the longest sample to the shortest, below which they give no rate
_COMPARED = 8  # knots of a curve that are compared with the prior
_INSEPARABLE = "set-up and step cannot be separated"

Model = dict[str, Any]
Seconds = dict[Dims, float]


class Unbelievable(Exception):
    """A curve that is dropped as a whole, with the reason."""


# -- Priors: what is expected of samples before they are taken --


def estimator(case: Case, place: Place) -> Callable[[Dims], float] | None:
    """The method's own estimate in seconds, if its model is a correction of that."""
    if not getattr(case.how, "by_estimate", False):
        return None

    @functools.cache
    def seconds(dims: Dims) -> float:
        return case.implementation.work(case.problem(*dims), place.info).estimate

    return seconds


@functools.cache
def _constants() -> profile.Profile:
    return profile.shipped("conservative")


def prior(case: Case, place: Place) -> Callable[[Dims], float] | None:
    """Seconds by the conservative constants, of one step where solves have several."""
    row = case.implementation
    cost = _constants().cost(
        place.name, place.kind, row.operation, row.method, case.dtype, case.layout
    )
    if cost is None or case.problem is None:
        return None
    sizes = {**case.how.held_out, **case.how.knots} if isinstance(case.how, Passes) else {}

    @functools.cache
    def seconds(dims: Dims) -> float:
        work = row.work(case.problem(*sizes.get(dims, dims)), place.info)
        overhead, compute = cost(work)
        if isinstance(case.how, TimedSolves) and case.how.few < case.how.many:
            compute /= max(work.repeat, 1)
        return overhead * work.calls + compute

    return seconds


def far_from_prior(
    seconds: Seconds, expected: Callable[[Dims], float]
) -> list[tuple[Dims, float, str]]:
    """Samples far from the prior, among the `compared` ones: ratio to the bound, and the reason."""
    far = []
    for dims in dict.fromkeys(compared(seconds)):
        ratio = seconds[dims] / expected(dims)
        if ratio > TOO_SLOW:
            far.append((dims, ratio / TOO_SLOW, f"{ratio:.0f} times the conservative constants"))
        elif ratio * TOO_FAST < 1.0:
            text = f"{1.0 / ratio:.0f} times faster than by the conservative constants"
            far.append((dims, 1.0 / (ratio * TOO_FAST), text))
    return far


def compared(seconds: Seconds) -> list[Dims]:
    """A few knots of a curve, with the last one, to compare with the prior."""
    dims = list(seconds)
    return dims[:: max(len(dims) // _COMPARED, 1)] + dims[-1:]


# -- Neighbours --


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
    """

    curves: list[Seconds]
    ratios: bool = False
    amount: Callable[[Dims], float] = prod


def curves_of(case: Case, place: Place, samples: Samples) -> Curves:
    """The curves of a case's samples."""
    if isinstance(case.how, TimedSolves):

        @functools.cache
        def amount(dims: Dims) -> float:  # a dense matrix has the square of the unknowns' number
            work = case.implementation.work(case.problem(*dims), place.info)
            return work.flops + work.bytes

        return Curves(solve_curves(samples), amount=amount)
    if (estimate := estimator(case, place)) is not None:
        return Curves([{d: s / estimate(d) for d, s in samples.seconds.items()}], ratios=True)
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


def impossible(
    seconds: Seconds, ratios: bool = False, amount: Callable[[Dims], float] = prod
) -> Seconds:
    """Samples to drop, with how many times too long they are; parameters as in `doubtful`."""
    worst = {dims: max(both) for dims, both in _deviations(seconds, ratios, amount).items()}
    return {dims: value for dims, value in worst.items() if value >= IMPOSSIBLE}


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


def above_other_precision(seconds: Seconds, other: Seconds, times: float) -> Seconds:
    """Samples above ``times`` those of the other precision, with the ratio to that bound.

    None where most of a curve is: that is the method's nature, such as iterative refinement of a
    float32 solution.
    """
    ratios = {d: s / other[d] / times for d, s in seconds.items() if d in other}
    beyond = {dims: ratio for dims, ratio in ratios.items() if ratio > 1.0}
    return beyond if len(beyond) <= len(ratios) / 2 else {}


def contradicted(
    held_out: Seconds, knots: Iterable[Dims], predicted: Callable[[Dims], float]
) -> Seconds:
    """Held-out shapes slower than the knots predict, and knots around one that is faster.

    Parameters
    ----------
    held_out : dict
        Measured seconds.
    knots : iterable of tuple of int
    predicted : callable
        Seconds interpolated between the knots, by dimensions.
    """
    knots = set(knots)
    axes = [sorted(set(extents)) for extents in zip(*knots, strict=True)]
    doubts: Seconds = {}
    for dims, value in held_out.items():
        ratio = value / predicted(dims)
        if ratio > HELD_OUT_TOLERANCE:
            doubts[dims] = ratio / HELD_OUT_TOLERANCE
        elif ratio * HELD_OUT_TOLERANCE < 1.0:
            for corner in _corners(dims, axes):
                if corner in knots:
                    beyond = 1.0 / (ratio * HELD_OUT_TOLERANCE)
                    doubts[corner] = max(doubts.get(corner, 0.0), beyond)
    return doubts


def _corners(dims: Dims, axes: list[list[int]]) -> list[Dims]:
    """The corners of the grid cell that a shape lies in."""
    corners: list[Dims] = [()]
    for extent, axis in zip(dims, axes, strict=True):
        below = [n for n in axis if n <= extent][-1:]
        above = [n for n in axis if n > extent][:1]
        corners = [(*corner, n) for corner in corners for n in (*below, *above)]
    return corners


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


# -- What is dropped --


def believable(case: Case, place: Place, samples: Samples) -> tuple[Samples, dict[Dims, str]]:
    """The samples without outliers, which are interpolated between the others.

    Returns
    -------
    Samples
    dict
        The dropped dimensions -> why.

    Raises
    ------
    Unbelievable
        If too few are left, or the curve as a whole is far from the prior.
    """
    if not samples.seconds:
        return samples, {}
    if _has_no_rate(case, samples):
        raise Unbelievable(f"{len(samples.seconds)} samples give no rate for larger sizes")
    if (expected := prior(case, place)) is not None:
        far = far_from_prior(samples.seconds, expected)
        if len(far) > _MOST * len(compared(samples.seconds)):
            raise Unbelievable(f"{far[0][2]} at {_size(far[0][0])}")
    curves, ratios, amount = curves_of(case, place, samples)
    out: dict[Dims, str] = {}
    disturbed: dict[Dims, str] = {}
    for curve in curves:
        for dims, times in impossible(curve, ratios, amount).items():
            out[dims] = f"{times:.0f} times its neighbours"
        for dims, beyond in doubtful(curve, ratios, amount).items():
            if beyond > DISTURBED and dims in samples.marked:
                disturbed[dims] = "measured under other load only"
    if len(out) > max(_MOST * len(samples.seconds), len(samples.seconds) > _FEW):
        raise Unbelievable(f"{len(out)} of {len(samples.seconds)} samples cannot be")
    apart = solving.separable(samples)
    mixed = {dims: _INSEPARABLE for dims in samples.seconds if not apart.get(dims, True)}
    out = {**_replaceable(samples, mixed), **_replaceable(samples, disturbed), **out}
    if not out:
        return samples, {}
    seconds, setup = _without(samples.seconds, out), _without(samples.setup, out)
    if isinstance(case.how, TimedSolves):  # a size without one of its samples has no model
        broken = {dims[0] for dims in samples.seconds if dims not in seconds}
        seconds = {dims: value for dims, value in seconds.items() if dims[0] not in broken}
        setup = {dims: value for dims, value in setup.items() if dims[0] not in broken}
    if not seconds:
        raise Unbelievable("no sample can be")
    return replace(samples, seconds=seconds, setup=setup), out


def _has_no_rate(case: Case, samples: Samples) -> bool:
    """Whether most knots are missing, and the others so short that they may be all overhead."""
    if isinstance(case.how, TimedSolves):
        return False
    number = len(case.how.knots) if isinstance(case.how, Passes) else prod(map(len, case.axes))
    measured = samples.seconds.values()
    return len(measured) < _MOST * number and max(measured) < _FLAT * min(measured)


def _replaceable(samples: Samples, out: dict[Dims, str]) -> dict[Dims, str]:
    """The outliers that can be interpolated between the other samples."""
    left = {dims: s for dims, s in samples.seconds.items() if dims not in out}
    return {dims: why for dims, why in out.items() if between(dims, left) is not None}


def _without(seconds: Seconds, out: Iterable[Dims]) -> Seconds:
    """The samples with outliers interpolated, or missing where they cannot be."""
    left = {dims: value for dims, value in seconds.items() if dims not in out}
    filled = {dims: between(dims, left) for dims in out if dims in seconds}
    return left | {dims: value for dims, value in filled.items() if value is not None}


def prior_model(key: ModelKey, kind: str, why: str) -> Model | None:
    """The conservative model in place of a dropped one, or None where there is none."""
    models = profile.shipped("conservative").data["models"]
    for place in (key.place, f"{kind}:*"):
        for layout in (key.layout, "*"):
            model = models.get(str(key._replace(place=place, layout=layout)))
            if model is not None:
                return {**copy.deepcopy(model), "samples": {"kept_out": why}}
    return None


def is_prior(model: Model) -> bool:
    """Whether a model is a conservative one in place of another."""
    return isinstance(model.get("samples", {}).get("kept_out"), str)


def report(models: dict[str, Model]) -> list[str]:
    """One line for each model of a profile from which samples were dropped."""
    lines = []
    for key, model in models.items():
        out = model.get("samples", {}).get("kept_out")
        name = " ".join(part for part in ModelKey.parse(key) if part != "*")
        if is_prior(model):
            lines.append(f"{name}: {out}; conservative constants are used instead")
        elif out := [one for one in out or () if one[1] != _INSEPARABLE]:  # these are common
            dims, why = out[0]
            more = f" and {len(out) - 1} more" if len(out) > 1 else ""
            lines.append(f"{name} at {_size(dims)}{more}: {why}")
    return lines


def _size(dims: Iterable[int]) -> str:
    return " x ".join(map(str, dims))
