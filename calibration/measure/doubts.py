"""Which samples to doubt, by their neighbours and by the conservative constants.

On an idle machine true curves are far from smooth. Over 30 000 knots of an H200 and its host, the
most that one took was 3.4 times what its neighbours tell, and 5.4 times what the next larger one
took; 1 to 6 % of the knots are beyond the bounds from which one is measured again, and beyond
those from which one is kept out there was none. Samples that met bursts of other load were up to
67 and 222 times too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import exp, log, prod

from hetero.ops.cases import Dims

PEAK, FALL = 1.3, 1.5  # times the neighbours, and the next larger one: measured again
OFF = 1.5  # times what the knots tell, or less by that: a shape held out, measured again
HALF, DOUBLE = 1.3, 3.0  # times the other precision: float32 has half of the bytes and of the work
IMPOSSIBLE = 10.0  # times either: kept out
TOO_SLOW = 1e3  # times the conservative seconds: kept out
TOO_FAST = 1e4  # cards with float64 tensor units are 700 times as fast as the conservative one


def peaks(
    seconds: dict[Dims, float], ends: bool = True, amount: Callable[[Dims], float] = prod
) -> dict[Dims, float]:
    """How many times what its neighbours tell each one takes: the least over all axes.

    Between two neighbours a power law is expected; a first one should take no longer than the next,
    and a last one no longer than the rate of the one before tells, for an ``amount`` of work; these
    are left out without ``ends``.
    """
    found: dict[Dims, float] = {}
    for axis, line in _lines(seconds):
        for position, dims in enumerate(line):
            here = log(seconds[dims])
            before = line[position - 1] if position else None
            after = line[position + 1] if position + 1 < len(line) else None
            if not ends and (before is None or after is None):
                continue
            if before is None:
                expected = log(seconds[after])
            elif after is None:
                expected = log(seconds[before]) + log(amount(dims) / amount(before))
            else:
                part = log(dims[axis] / before[axis]) / log(after[axis] / before[axis])
                expected = (1.0 - part) * log(seconds[before]) + part * log(seconds[after])
            found[dims] = min(found.get(dims, float("inf")), exp(here - expected))
    return found


def falls(seconds: dict[Dims, float]) -> dict[Dims, float]:
    """How many times what the next larger one takes each one takes: the most over all axes."""
    found: dict[Dims, float] = {}
    for _, line in _lines(seconds):
        for dims, after in pairwise(line):
            found[dims] = max(found.get(dims, 0.0), seconds[dims] / seconds[after])
    return found


def fallen(seconds: dict[Dims, float]) -> dict[Dims, float]:
    """Those that a smaller one takes clearly longer than, and these, with how far beyond the bound.

    Of differences between samples, either may be wrong.
    """
    found: dict[Dims, float] = {}
    for _, line in _lines(seconds):
        for dims, after in pairwise(line):
            beyond = seconds[dims] / seconds[after] / FALL
            for one in (dims, after) if beyond > 1.0 else ():
                found[one] = max(found.get(one, 0.0), beyond)
    return found


def beside_other(
    seconds: dict[Dims, float], other: dict[Dims, float], times: float
) -> dict[Dims, float]:
    """Those that take more than so many times what they take in the other precision.

    With how far beyond that they are. If most of a curve does so, it is in the method's nature:
    some refine what they found in float32.
    """
    ratios = {d: s / other[d] / times for d, s in seconds.items() if d in other}
    beyond = {dims: ratio for dims, ratio in ratios.items() if ratio > 1.0}
    return beyond if len(beyond) <= len(ratios) / 2 else {}


def _lines(seconds: Iterable[Dims]) -> list[tuple[int, list[Dims]]]:
    """The axis and the dimensions, in order, that differ in it only; two of them at least."""
    groups: dict[tuple[int, Dims], list[Dims]] = {}
    for dims in seconds:
        for axis in range(len(dims)):
            groups.setdefault((axis, (*dims[:axis], 0, *dims[axis + 1 :])), []).append(dims)
    return [(axis, sorted(line)) for (axis, _), line in groups.items() if len(line) > 1]


def doubtful(
    seconds: dict[Dims, float], ratios: bool = False, amount: Callable[[Dims], float] = prod
) -> dict[Dims, float]:
    """Those to measure again, with how far beyond the bounds they are: 1 and more.

    Parameters
    ----------
    seconds : dict
        Of a curve, by dimensions.
    ratios : bool
        Whether these are no seconds but ratios to an estimate, which may fall.
    amount : callable
        What there is to do, for dimensions.
    """
    beyond = {dims: value / PEAK for dims, value in peaks(seconds, not ratios, amount).items()}
    for dims, value in falls(seconds).items() if not ratios else ():
        beyond[dims] = max(beyond[dims], value / FALL)
    return {dims: value for dims, value in beyond.items() if value > 1.0}


def impossible(
    seconds: dict[Dims, float], ratios: bool = False, amount: Callable[[Dims], float] = prod
) -> dict[Dims, float]:
    """Those that cannot be, with how many times too long they are; the rest is as in `doubtful`."""
    found = peaks(seconds, not ratios, amount)
    for dims, value in falls(seconds).items() if not ratios else ():
        found[dims] = max(found[dims], value)
    return {dims: value for dims, value in found.items() if value >= IMPOSSIBLE}


def between(dims: Dims, seconds: dict[Dims, float]) -> float | None:
    """Seconds by a power law between neighbours on both sides, None where it has them on no axis.

    Of several axes the geometric mean.
    """
    logs = []
    for axis in range(len(dims)):
        rest = (dims[:axis], dims[axis + 1 :])
        line = [d for d in seconds if (d[:axis], d[axis + 1 :]) == rest]
        before = max((d for d in line if d < dims), default=None)
        after = min((d for d in line if d > dims), default=None)
        if before is not None and after is not None:
            part = log(dims[axis] / before[axis]) / log(after[axis] / before[axis])
            logs.append((1.0 - part) * log(seconds[before]) + part * log(seconds[after]))
    return exp(sum(logs) / len(logs)) if logs else None


def unlike(
    seconds: dict[Dims, float], expected: Callable[[Dims], float]
) -> list[tuple[Dims, float, str]]:
    """Those far from the conservative seconds: how many times beyond the bounds, and how."""
    found = []
    for dims, value in seconds.items():
        ratio = value / expected(dims)
        if ratio > TOO_SLOW:
            found.append((dims, ratio / TOO_SLOW, f"{ratio:.0f} times the conservative constants"))
        elif ratio * TOO_FAST < 1.0:
            text = f"{1.0 / ratio:.0f} times faster than by the conservative constants"
            found.append((dims, 1.0 / (ratio * TOO_FAST), text))
    return found


def beside(
    held_out: dict[Dims, float], knots: Iterable[Dims], predicted: Callable[[Dims], float]
) -> dict[Dims, float]:
    """Shapes held out that the knots do not tell, and knots that such a shape tells to be wrong.

    Parameters
    ----------
    held_out : dict
        Measured seconds.
    knots : iterable of tuple of int
    predicted : callable
        Seconds by the knots, for dimensions.
    """
    knots = set(knots)
    axes = [sorted(set(extents)) for extents in zip(*knots, strict=True)]
    found: dict[Dims, float] = {}
    for dims, value in held_out.items():
        ratio = value / predicted(dims)
        if ratio > OFF:
            found[dims] = ratio / OFF
        elif ratio * OFF < 1.0:
            for corner in _corners(dims, axes):
                if corner in knots:
                    found[corner] = max(found.get(corner, 0.0), 1.0 / (ratio * OFF))
    return found


def _corners(dims: Dims, axes: list[list[int]]) -> list[Dims]:
    """The knots around a shape."""
    found: list[Dims] = [()]
    for extent, axis in zip(dims, axes, strict=True):
        below = [n for n in axis if n <= extent][-1:]
        above = [n for n in axis if n > extent][:1]
        found = [(*corner, n) for corner in found for n in (*below, *above)]
    return found
