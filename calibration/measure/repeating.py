"""Repeating doubtful samples at the end, since bursts of other load last for a while.

The most doubtful come first, in rounds, until none is doubtful or the time for repeating is up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import NamedTuple

from hetero.calibration.measure import outliers, solving
from hetero.calibration.measure.workbench import Samples
from hetero.calibration.worklist import has_own_clock
from hetero.ops.cases import Budget, Case, Dims, Passes, Place, TimedSolves, grid

# Fractions of the measuring time: on an idle machine, with slow spells, under load.
_SHARE, _SHARE_RESTLESS, _SHARE_BUSY = 0.08, 0.2, 1.0
_MOST_RESTLESS = 4.0  # seconds
_IDLE, _BUSY = 0.02, 0.1  # fractions of bad samples, from `_SHARE` to `_SHARE_BUSY`
_LEAST_POINTS = 50  # samples: the time of this many is granted in any case
_CALLS = 5  # calls of one sample
_ROUNDS = 12
_PART = 0.25  # of the time left, for one round: many short rounds meet more states of the machine
_PAUSE = 0.1  # seconds between two rounds
# How doubtful a sample is, as a ratio to the bounds in `outliers`.
_MISSING = 1e3  # a knot that was left out: all larger ones are extrapolated from it
_INSEPARABLE = 2.0  # the times of a solve do not separate set-up and step
_MARKED = 1.5  # measured under other load only
_UNSURE = 0.9  # the last repetition improved it clearly
_SEEN_ONCE = 0.5  # any, where the fraction of the host's samples that improved is ...
_RESTLESS = 0.02  # ... above this: all of them may have met a slow spell
# When a sample is accepted.
_SAME = 1.25  # ratio to an earlier sample that confirms it
_TWICE = 2.0  # ratio to the bounds, beyond which it must be confirmed twice

Again = Callable[[int, list[Dims]], Samples]


class Doubt(NamedTuple):
    """A sample to take again."""

    beyond: float  # ratio to the bounds
    case: int
    dims: Dims


class Settled(NamedTuple):
    """Numbers of samples: all, those taken again, and those that are still doubtful."""

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
    """Take samples again until none is doubtful, each was confirmed, or time is up.

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
        Whether each sample must be confirmed.
    clock : callable, optional

    """
    clock = clock or time.perf_counter
    start = clock()
    current = [samples for _, _, samples in cases]
    judges = [_Judge(case, place, samples, budget, noisy) for case, place, samples in cases]
    confirmed: dict[tuple[int, Dims], int] = {}
    beyond_of: dict[int, dict[Dims, float]] = {}
    repeated = 0

    def doubtful(changed: Iterable[int]) -> list[Doubt]:
        for index in changed:
            beyond_of[index] = judges[index].doubts(current[index])
        left = []
        for index, beyond in beyond_of.items():
            samples = current[index]
            for dims, ratio in beyond.items():
                needed = 2 if ratio > _TWICE or dims in samples.unsure else 1
                if dims in samples.marked or confirmed.get((index, dims), 0) < needed:
                    left.append(Doubt(ratio, index, dims))
        if noisy or restless:
            left += [
                Doubt(1.0 if noisy else _SEEN_ONCE, index, dims)
                for index, samples in enumerate(current)
                for dims in (*samples.seconds, *samples.held_out)
                if dims not in beyond_of[index] and not confirmed.get((index, dims))
                if noisy or not has_own_clock(cases[index][0])
            ]
        return left

    by_host = [samples for case, _, samples in cases if not has_own_clock(case)]
    restless = sum(len(samples.unsure) for samples in by_host) > _RESTLESS * _number(by_host)
    left = doubtful(range(len(cases)))
    bad = sum(d.beyond > _TWICE or d.dims in current[d.case].marked for d in left)
    share = _share(bad / max(_number(current), 1), noisy)
    if restless:
        share = max(share, min(_SHARE_RESTLESS, _MOST_RESTLESS / max(seconds, 1e-9)))
    end = start + max(share * seconds, _LEAST_POINTS * budget.point)
    for number in range(_ROUNDS):
        chosen = _affordable(left, cases, current, budget, _PART * (end - clock()))
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
            before, current[index] = current[index], again(index, dims)
            repeated += len(dims)
            for one in dims:
                if _took(before, one) <= _SAME * _took(current[index], one):
                    confirmed[index, one] = confirmed.get((index, one), 0) + 1
        left = doubtful(changed)
    return Settled(_number(current), repeated, sum(noisy or d.beyond > _UNSURE for d in left))


def _share(bad: float, noisy: bool) -> float:
    """Time for repeating over that of measuring, by the fraction of bad samples."""
    busy = 1.0 if noisy else min(max((bad - _IDLE) / (_BUSY - _IDLE), 0.0), 1.0)
    return _SHARE + busy * (_SHARE_BUSY - _SHARE)


def _number(of_cases: list[Samples]) -> int:
    """The number of all samples."""
    return sum(len(samples.seconds) + len(samples.held_out) for samples in of_cases)


class _Judge:
    """Judges which samples of a case are doubtful.

    Parameters
    ----------
    case, place
    samples : Samples
        The first ones.
    budget
    noisy : bool
        Whether the best rate among the first samples is doubtful, too.
    """

    def __init__(
        self, case: Case, place: Place, samples: Samples, budget: Budget, noisy: bool
    ) -> None:
        self._case, self._place, self._budget = case, place, budget
        self._rate = 0.0 if noisy else _rate(samples)
        how = case.how
        self._held_out = set(how.held_out) - set(how.knots) if isinstance(how, Passes) else set()

    def doubts(self, samples: Samples) -> dict[Dims, float]:
        """Samples to take again, with the ratio to the bounds.

        None where it fails: an operation that raises an exception loses its own models only.
        """
        with contextlib.suppress(Exception):
            if samples.seconds:
                return self._doubts(samples)
        return {}

    def _doubts(self, samples: Samples) -> dict[Dims, float]:
        case, place = self._case, self._place
        doubts: dict[Dims, float] = {}

        def add(more: dict[Dims, float]) -> None:
            for dims, beyond in more.items():
                doubts[dims] = max(doubts.get(dims, 0.0), beyond)

        knots = {d: s for d, s in samples.seconds.items() if d not in self._held_out}
        curves, ratios, amount, _ = outliers.curves_of(case, place, replace(samples, seconds=knots))
        for curve in curves:
            add(outliers.doubtful(curve, ratios, amount))
        if isinstance(case.how, TimedSolves):
            add(outliers.decreasing(samples.seconds))
            separable = solving.separable(samples)
            add({dims: _INSEPARABLE for dims, is_so in separable.items() if not is_so})
        elif samples.marked or _rate(samples) > _SAME * self._rate:
            # Other knots were left out because these samples were slow or took all the time.
            add(dict.fromkeys(_missing(case, samples, self._budget), _MISSING))
        add(dict.fromkeys(samples.marked, _MARKED))
        add(dict.fromkeys(samples.unsure, _UNSURE))
        return doubts


def _rate(samples: Samples) -> float:
    """The highest volume per second."""
    return max((prod(dims) / seconds for dims, seconds in samples.seconds.items()), default=0.0)


def _missing(case: Case, samples: Samples, budget: Budget) -> dict[Dims, float]:
    """Knots that were left out but should not take too long, with extrapolated seconds."""
    passes = isinstance(case.how, Passes)
    knots = set(case.how.knots if passes else grid(case.axes))
    longest = case.how.longest if passes else budget.longest
    axes = [sorted(set(extents)) for extents in zip(*knots, strict=True)]
    missing = {}
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
                missing[dims] = seconds
    return missing


def _took(samples: Samples, dims: Dims) -> float:
    """Seconds of a sample."""
    if dims in samples.timed:
        return max(samples.timed[dims])
    return samples.held_out.get(dims) or samples.seconds.get(dims, float("inf"))


def _affordable(
    doubts: list[Doubt],
    cases: list[tuple[Case, Place, Samples]],
    samples: list[Samples],
    budget: Budget,
    seconds: float,
) -> dict[int, list[Dims]]:
    """Case -> samples that can be repeated in a time: the most doubtful, then the shortest."""
    chosen: dict[int, list[Dims]] = {}

    def rank(doubt: Doubt) -> tuple[float, float]:
        return -doubt.beyond, _took(samples[doubt.case], doubt.dims)

    for _, index, dims in sorted(doubts, key=rank):
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
