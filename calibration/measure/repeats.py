"""Samples that met other load, or cannot be, are taken again later: bursts of load last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from math import prod
from typing import NamedTuple

from hetero.calibration.fit import fit
from hetero.calibration.measure import doubts, expected, whole_solves
from hetero.calibration.measure.samples import Samples
from hetero.calibration.portions import has_own_clock
from hetero.ops.cases import Budget, Case, Dims, Passes, Place, TimedSolves, grid
from hetero.registry.models import Work, bind
from hetero.registry.problem import DEVICE_DTYPES

SINGLE = DEVICE_DTYPES[0]
_ROUNDS = 12
_PART = (
    0.25  # of the time left, for one round: many looks at different times find more than long ones
)
# Of the time that measuring took, to repeat: idle, where there are slow spells, under load.
_SHARE, _SHARE_RESTLESS, _SHARE_BUSY = 0.08, 0.2, 1.0
_MOST_RESTLESS = 4.0  # seconds
_IDLE, _BUSY = 0.02, 0.1  # of the samples, that met other load or are far beyond the bounds
_LEAST_POINTS = 50  # that there is time for in any case
_CALLS = 5  # that one sample takes
_MARKED = 1.5  # how far beyond the bounds a sample counts that met other load
_UNSURE = 0.9  # within the bounds, but the last look took less than those before
# Of what the host's clock times, so that anything else may have met a slow spell, too; how doubtful
# that is.
_RESTLESS, _SEEN_ONCE = 0.02, 0.5
_NOT_APART = 2.0  # beyond them is a solve whose times do not tell set-up and step apart
_MISSING = 1e3  # as much does one count that was left out: all larger ones follow from it
_SAME = 1.25  # times another sample: near enough to be true
_TWICE = 2.0  # times the bounds, beyond which a sample is believed when it is seen twice more
_PAUSE = 0.1  # seconds between two rounds

Again = Callable[[int, list[Dims]], Samples]


class Doubt(NamedTuple):
    """A sample to take again."""

    beyond: float  # the bounds, times
    case: int
    dims: Dims


class Settled(NamedTuple):
    """How far samples were taken again: numbers of all, of repeated, and of still doubtful ones."""

    samples: int
    again: int
    left: int


def settle(
    cases: list[tuple[Case, Place, Samples]],
    again: Again,
    budget: Budget,
    seconds: float,
    noisy: bool = False,
    clock: Callable[[], float] | None = None,
) -> Settled:
    """Take samples again until none is doubtful, each has been seen again, or time is up.

    Parameters
    ----------
    cases : list
        Each with its place and samples.
    again : callable
        ``again(number, dims)`` takes samples of a case again and returns all of its samples.
    budget : Budget
    seconds : float
        That measuring took so far.
    noisy : bool
        Whether no sample is believed before it was seen again.
    clock : callable, optional

    """
    clock = clock or time.perf_counter
    start = clock()
    found = [samples for _, _, samples in cases]
    usual = [expected.conservative(case, place) for case, place, _ in cases]
    rates = [_rate(samples) for samples in found]
    others = _in_other_precision(cases)
    believed: dict[tuple[int, Dims], int] = {}
    beyond_of: dict[int, dict[Dims, float]] = {}
    repeated = 0

    def doubtful(changed: Iterable[int]) -> list[Doubt]:
        for index in {*changed, *(others[i] for i in changed if i in others)}:
            case, place, _ = cases[index]
            rate = 0.0 if noisy else rates[index]
            other = found[others[index]] if index in others else None
            beyond_of[index] = _doubts(case, place, found[index], budget, rate, usual[index], other)
        left = [
            Doubt(beyond, index, dims)
            for index, doubtful in beyond_of.items()
            for dims, beyond in doubtful.items()
            if dims in found[index].marked
            or believed.get((index, dims), 0)
            < (2 if beyond > _TWICE or dims in found[index].unsure else 1)
        ]
        if noisy or restless:
            left += [
                Doubt(1.0 if noisy else _SEEN_ONCE, index, dims)
                for index, samples in enumerate(found)
                for dims in (*samples.seconds, *samples.held_out)
                if dims not in beyond_of[index] and not believed.get((index, dims))
                if noisy or not has_own_clock(cases[index][0])
            ]
        return left

    by_host = [samples for case, _, samples in cases if not has_own_clock(case)]
    restless = sum(len(samples.unsure) for samples in by_host) > _RESTLESS * _number(by_host)
    left = doubtful(range(len(cases)))
    bad = sum(d.beyond > _TWICE or d.dims in found[d.case].marked for d in left)
    share = _share(bad / max(_number(found), 1), noisy)
    if restless:
        share = max(share, min(_SHARE_RESTLESS, _MOST_RESTLESS / max(seconds, 1e-9)))
    end = start + max(share * seconds, _LEAST_POINTS * budget.point)
    for number in range(_ROUNDS):
        chosen = _affordable(left, cases, found, budget, _PART * (end - clock()))
        pause = _PAUSE if number else 0.0
        if not chosen or clock() + pause > end:
            break
        time.sleep(pause)
        changed = set()
        enough = clock() + _PART * (end - clock())
        for index, dims in chosen.items():
            if clock() > enough:
                break
            changed.add(index)
            before, found[index] = found[index], again(index, dims)
            repeated += len(dims)
            for one in dims:
                if _took(before, one) <= _SAME * _took(found[index], one):
                    believed[index, one] = believed.get((index, one), 0) + 1
        left = doubtful(changed)
    return Settled(_number(found), repeated, sum(noisy or d.beyond > _UNSURE for d in left))


def _share(bad: float, noisy: bool) -> float:
    """Of the time that measuring took, how much may be spent again, by the share of bad samples."""
    busy = 1.0 if noisy else min(max((bad - _IDLE) / (_BUSY - _IDLE), 0.0), 1.0)
    return _SHARE + busy * (_SHARE_BUSY - _SHARE)


def _number(found: list[Samples]) -> int:
    """How many samples these are."""
    return sum(len(samples.seconds) + len(samples.held_out) for samples in found)


def _doubts(
    case: Case,
    place: Place,
    samples: Samples,
    budget: Budget,
    rate: float,
    usual: Callable[[Dims], float] | None,
    other: Samples | None,
) -> dict[Dims, float]:
    """Which samples of a case are to be taken again, and how far beyond the bounds they are.

    None where it cannot be told: an operation whose descriptions fail costs its own models only.
    """
    with contextlib.suppress(Exception):
        return _judged(case, place, samples, budget, rate, usual, other)
    return {}


def _judged(
    case: Case,
    place: Place,
    samples: Samples,
    budget: Budget,
    rate: float,
    usual: Callable[[Dims], float] | None,
    other: Samples | None,
) -> dict[Dims, float]:
    if not samples.seconds:
        return {}
    found: dict[Dims, float] = {}

    def add(more: dict[Dims, float]) -> None:
        for dims, beyond in more.items():
            found[dims] = max(found.get(dims, 0.0), beyond)

    if isinstance(case.how, TimedSolves):
        for curve in expected.curves(samples):
            add(doubts.doubtful(curve, amount=expected.amount(case, place)))
        add(doubts.fallen(samples.seconds))
        apart = whole_solves.parts_apart(samples)
        add({dims: _NOT_APART for dims, is_apart in apart.items() if not is_apart})
    else:
        estimate = expected.estimated(case, place)
        if estimate is None:
            knots = {d: s for d, s in samples.seconds.items() if d not in _held_out(case)}
            add(doubts.doubtful(knots))
        else:
            ratios = {dims: value / estimate(dims) for dims, value in samples.seconds.items()}
            add(doubts.doubtful(ratios, ratios=True))
        add(_beside(case, samples, estimate))
        # It seemed too slow for what else there is to measure, or took the time for that.
        if samples.marked or _rate(samples) > _SAME * rate:
            add(dict.fromkeys(_missing(case, samples, budget), _MISSING))
    if usual is not None:
        some = {d: samples.seconds[d] for d in expected.spread_out(list(samples.seconds))}
        add({d: beyond for d, beyond, _ in doubts.unlike(some, usual)})
    if other is not None:
        times = doubts.HALF if case.dtype == SINGLE else doubts.DOUBLE
        if case.dtype == SINGLE or not place.devices:
            both = zip(expected.curves(samples), expected.curves(other), strict=False)
            for one, beside in both:
                add(doubts.beside_other(one, beside, times))
    add(dict.fromkeys(samples.marked, _MARKED))
    add(dict.fromkeys(samples.unsure, _UNSURE))
    return found


def _in_other_precision(cases: list[tuple[Case, Place, Samples]]) -> dict[int, int]:
    """Of cases that differ in precision only: the number of each -> that of the other.

    None of what a GPU's own clock times, which slow spells of the host do not touch.
    """
    found: dict[int, int] = {}
    first: dict[tuple[str, ...], int] = {}
    for number, (case, place, _) in enumerate(cases):
        if has_own_clock(case):
            continue
        row = case.implementation
        before = first.setdefault((place.name, row.operation, row.method, case.layout), number)
        if before != number:
            found |= {before: number, number: before}
    return found


def _held_out(case: Case) -> set[Dims]:
    return set(case.how.held_out) - set(case.how.knots) if isinstance(case.how, Passes) else set()


def _beside(
    case: Case, samples: Samples, estimate: Callable[[Dims], float] | None
) -> dict[Dims, float]:
    """Doubts that shapes held out cast on themselves or on knots."""
    outside = _held_out(case)
    knots = {dims: s for dims, s in samples.seconds.items() if dims not in outside}
    held_out = samples.held_out or {d: samples.seconds[d] for d in outside if d in samples.seconds}
    if not held_out:
        return {}
    axes = [sorted(set(extents)) for extents in zip(*knots, strict=True)]
    of = estimate or (lambda dims: 1.0)
    try:
        model = fit.surface(axes, {dims: s / of(dims) for dims, s in knots.items()}, {})
    except (KeyError, ValueError):  # too few to be a grid
        return {}
    cost = bind(model)

    def predicted(dims: Dims) -> float:
        inside = tuple(min(n, axis[-1]) for n, axis in zip(dims, axes, strict=True))
        return of(dims) * sum(cost(Work(inside if estimate else dims, 0.0, 0.0)))

    return doubts.beside(held_out, knots, predicted)


def _rate(samples: Samples) -> float:
    """The best one seen: volume per second."""
    return max((prod(dims) / seconds for dims, seconds in samples.seconds.items()), default=0.0)


def _missing(case: Case, samples: Samples, budget: Budget) -> dict[Dims, float]:
    """Knots that were left out, with seconds by measured ones beside them: not too long."""
    passes = isinstance(case.how, Passes)
    knots = set(case.how.knots if passes else grid(case.axes))
    longest = case.how.longest if passes else budget.longest
    axes = [sorted(set(extents)) for extents in zip(*knots, strict=True)]
    found = {}
    for dims in knots - set(samples.seconds):
        smaller = [
            (*dims[:i], axis[axis.index(dims[i]) - 1], *dims[i + 1 :])
            for i, axis in enumerate(axes)
            if dims[i] > axis[0]
        ]
        smaller = [one for one in smaller if one in knots]
        if all(one in samples.seconds for one in smaller):
            by_each = [samples.seconds[one] * prod(dims) / prod(one) for one in smaller]
            seconds = min(by_each, default=budget.point)
            if seconds <= longest:
                found[dims] = seconds
    return found


def _took(samples: Samples, dims: Dims) -> float:
    """Seconds of a sample."""
    if dims in samples.timed:
        return max(samples.timed[dims])
    return samples.held_out.get(dims) or samples.seconds.get(dims, float("inf"))


def _affordable(
    found: list[Doubt],
    cases: list[tuple[Case, Place, Samples]],
    samples: list[Samples],
    budget: Budget,
    seconds: float,
) -> dict[int, list[Dims]]:
    """Case -> what to take again of it, as much as there is time for.

    Both the worst first, and what takes least of what is as doubtful.
    """
    chosen: dict[int, list[Dims]] = {}

    def rank(doubt: Doubt) -> tuple[float, float]:
        return -doubt.beyond, _took(samples[doubt.case], doubt.dims)

    for _, index, dims in sorted(found, key=rank):
        took = _took(samples[index], dims)
        if took == float("inf"):
            took = _missing(cases[index][0], samples[index], budget)[dims]
        whole = sum(samples[index].timed.get(dims, (took,)))
        least = budget.point / max(getattr(cases[index][0].how, "number", 1), 1)
        needed = max(_CALLS * whole, least)
        if needed <= seconds:
            seconds -= needed
            chosen.setdefault(index, []).append(dims)
    return chosen
