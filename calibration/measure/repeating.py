"""Repeating doubtful samples at the end, since bursts of other load last for a while.

A sample is doubtful if all of its calls met other load, or if the other samples of its case rule it
out: more work takes no less time, and n times the work takes at most n times as long. It counts
once a second one confirms it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from hetero.calibration.measure import solving
from hetero.calibration.measure.workbench import Samples
from hetero.ops.cases import Budget, Case, Dims, Place, TimedSolves, grid
from hetero.registry import growth

_SHARE = 0.5  # of the time that measuring took, at most
_LEAST_POINTS = 50  # samples: the time of this many is granted in any case
_ROUNDS = 5
_PAUSE = 0.1  # seconds between two rounds
_ALLOWED = 1.5  # times what the other samples allow
_SAME = 1.25  # ratio to the sample before that confirms it

Again = Callable[[int, list[Dims]], Samples]


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
    clock: Callable[[], float] = time.perf_counter,
) -> Settled:
    """Take doubtful samples again until none is left, or time is up; the most doubtful first.

    Parameters
    ----------
    cases : list
        Each with its place and samples.
    again : callable
        ``again(number, dims)`` takes samples of a case again and returns all of its samples.
    budget : Budget
    seconds : float
        That measuring took so far.
    clock : callable, optional
    """
    end = clock() + max(_SHARE * seconds, _LEAST_POINTS * budget.point)
    current = [samples for _, _, samples in cases]
    confirmed: set[tuple[int, Dims]] = set()
    repeated = 0

    def doubtful() -> list[tuple[float, int, Dims]]:
        found = [
            (beyond, index, dims)
            for index, (case, _, _) in enumerate(cases)
            for dims, beyond in doubts(case, current[index]).items()
            if dims in current[index].marked or (index, dims) not in confirmed
        ]
        return sorted(found, key=lambda doubt: -doubt[0])

    left = doubtful()
    for number in range(_ROUNDS):
        if not left or clock() > end:
            break
        time.sleep(_PAUSE if number else 0.0)
        by_case: dict[int, list[Dims]] = {}
        for _, index, one in left:
            by_case.setdefault(index, []).append(one)
        for index, dims in by_case.items():
            if clock() > end:
                break
            before, current[index] = current[index], again(index, dims)
            repeated += len(dims)
            confirmed.update(
                (index, one)
                for one in dims
                if _took(before, one) <= _SAME * _took(current[index], one)
            )
        left = doubtful()
    total = sum(len(samples.seconds) + len(samples.held_out) for samples in current)
    return Settled(total, repeated, len(left))


def doubts(case: Case, samples: Samples) -> dict[Dims, float]:
    """Doubtful samples, each with how many times as long it is as it may be.

    What a method estimates itself is measured by a device's clock, which other load does not bend.
    """
    found = dict.fromkeys(samples.marked, 1.0)
    if isinstance(case.how, TimedSolves):
        separable = solving.separable(samples)
        found |= {dims: 1.0 for dims, is_so in separable.items() if not is_so}
    if samples.seconds and not getattr(case.how, "by_estimate", False):
        with contextlib.suppress(ValueError):  # a failed clock; the fit reports it
            found |= _beyond(samples.seconds, 2 if case.layout == "dense" else 1)
    return found


def _beyond(seconds: dict[Dims, float], power: int) -> dict[Dims, float]:
    """The samples that the others rule out, each over what they allow."""
    axes = [sorted(set(extents)) for extents in zip(*seconds, strict=True)]
    known = [seconds.get(dims, math.inf) for dims in grid(axes)]
    most = growth.bounded(axes, known, [power] * len(axes), _ALLOWED).tolist()
    pairs = zip(grid(axes), known, most, strict=True)
    return {dims: took / limit for dims, took, limit in pairs if limit < took < math.inf}


def _took(samples: Samples, dims: Dims) -> float:
    """Seconds of a sample."""
    if dims in samples.timed:
        return max(samples.timed[dims])
    return samples.held_out.get(dims) or samples.seconds.get(dims, math.inf)
