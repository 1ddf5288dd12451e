"""Timing that bad samples cannot spoil, be they few or most of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from hetero.calibration.measure import load

_FAR = 2.0  # times the least sample: what takes longer met other load, which only adds
_MANY = 0.25  # of the samples
_PATIENCE = 3.0  # budgets, while no sample was undisturbed
_VERY_LONG = 10.0  # budgets
_REST = 0.002  # seconds after which the system lets this process go first, for a time slice
_LONGER, _ROUNDS = 5.0, 4  # budgets, rounds, while the least of some call was seen once
_LONGEST = 20.0  # budgets, however few rounds that are
_SAME = 1.1  # times the least sample: near enough that this one is no chance
_SHORTEST = 2e-5  # a sample shorter than this repeats the call, so that the clock's steps vanish


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of one call.

    Attributes
    ----------
    seconds : float
        `settled` of the samples that other load did not disturb; of all, where it disturbed all.
    samples : tuple of float
        All of them, in the order they were taken.
    disturbed : bool
        Whether a thread of this process had to leave its processor in every sample.
    scattered : bool
        Whether a quarter of the samples or more took over twice as long as the least.
    """

    seconds: float
    samples: tuple[float, ...]
    disturbed: bool = False
    scattered: bool = False


def center(samples: Sequence[float]) -> float:
    """Median of the samples within five median deviations of the median.

    Up to a fifth of the samples may be a hundred times too large: the result stays within the
    spread of the others.
    """
    middle = median(samples)
    deviation = median(abs(s - middle) for s in samples)
    kept = [s for s in samples if abs(s - middle) <= 5 * deviation]
    return median(kept or samples)


def settled(samples: Sequence[float]) -> float:
    """The `center` of the samples below twice the least one.

    Other load only adds, so that what takes far longer than another sample tells nothing. The
    median and not the least counts: that is what a call takes as a rule.
    """
    least = min(samples)
    return center([s for s in samples if s <= _FAR * least])


def spread(samples: Sequence[float]) -> float:
    """Uncertainty of the center, relative: median deviation over median, over sqrt(count)."""
    middle = median(samples)
    return median(abs(s - middle) for s in samples) / middle / len(samples) ** 0.5


def measure(
    call: Callable[[], object],
    *,
    budget: float,
    least: int = 3,
    most: int = 200,
    wanted_spread: float = 0.01,
    rest: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    switches: Callable[[], int] = load.switches,
) -> Measurement:
    """Time a call until its spread is small or its time is up.

    As long as other load disturbed all samples, more are taken, up to three times the budget. After
    such a sample the process rests, so that the next one has a fresh time slice.

    Parameters
    ----------
    call : callable
        Must not return before its work is done.
    budget : float
        Seconds after which no further sample is taken, the first call included. A first call that
        takes longer counts as a sample, unless it took twice the second one.
    least, most : int
        Bounds of the number of samples; ``least`` wins over ``budget``, but of calls that take ten
        times that two undisturbed ones are enough.
    wanted_spread : float
        Relative uncertainty (see `spread`) that ends the repetition.
    rest : callable, optional
        Called before each sample, and not timed.
    clock : callable
        Seconds.
    switches : callable
        How often this process had to leave a processor so far.
    """
    before, begin = switches(), clock()
    call()  # not counted, unless it is long: caches, pages, compilers
    first, number = clock() - begin, 1
    alone = switches() - before <= load.SWITCHES_PER_SECOND * first
    samples: list[float] = []
    undisturbed: list[float] = []
    while True:
        if rest is not None:
            rest()
        before = switches()
        start = clock()
        for _ in range(number):
            call()
        end = clock()
        if not samples and end - start < _SHORTEST and number == 1:
            number = max(2, min(100, int(_SHORTEST / max(end - start, 2e-7))))
            continue
        samples.append((end - start) / number)
        if switches() - before <= load.SWITCHES_PER_SECOND * (end - start):
            undisturbed.append(samples[-1])
        else:
            time.sleep(_REST)
        if len(samples) == 1 and budget < first <= _FAR * samples[0]:
            samples.insert(0, first)
            undisturbed[:0] = [first] * alone
            if first > _VERY_LONG * budget and len(undisturbed) == 2:
                least = min(least, 2)
        if len(samples) < least:
            continue
        if (
            len(samples) >= most
            or end - begin > (budget if undisturbed else _PATIENCE * budget)
            or (len(undisturbed) >= 5 and spread(undisturbed) < wanted_spread)
        ):
            far = sum(s > _FAR * min(samples) for s in samples)
            return Measurement(
                settled(undisturbed or samples),
                tuple(samples),
                disturbed=not undisturbed,
                scattered=far >= _MANY * len(samples),
            )


def in_turn(
    calls: Sequence[Callable[[], object]],
    *,
    budget: float,
    least: int = 2,
    most: int = 60,
    first: Sequence[float] = (),
    clock: Callable[[], float] = time.perf_counter,
    switches: Callable[[], int] = load.switches,
) -> tuple[Measurement, ...]:
    """Time calls of which the least counts, in turn, so that they meet the same other load.

    What is wanted of them is a difference, that a slow spell would spoil if it met only one. They
    are repeated until the budget is spent and the least of each was seen twice, or so much
    more time went by.

    Parameters
    ----------
    calls : sequence of callable
        Each must not return before its work is done.
    budget : float
        Seconds for all of them.
    least, most : int
        Bounds of the number of rounds.
    first : sequence of float
        Seconds of a round that was made already.
    clock, switches : callable
        As for `measure`.

    Returns
    -------
    tuple of Measurement
        Of each call; its seconds are the least.
    """
    samples: list[list[float]] = [[took] for took in first] or [[] for _ in calls]
    alone = [False] * len(calls)
    begin = clock() - sum(first)
    for rounds in range(1 + bool(first), most + 1):
        for number, call in enumerate(calls):
            before, start = switches(), clock()
            call()
            took = clock() - start
            samples[number].append(took)
            if switches() - before <= load.SWITCHES_PER_SECOND * took:
                alone[number] = True
            else:
                time.sleep(_REST)
        spent = clock() - begin
        sure = all(alone) and all(is_seen_twice(found) for found in samples)
        enough = spent > budget
        if not sure:
            enough = spent > (_LONGER if rounds >= _ROUNDS else _LONGEST) * budget
        if rounds >= least and enough:
            break
    return tuple(
        Measurement(
            min(found),
            tuple(found),
            disturbed=not is_alone,
            scattered=sum(s > _FAR * min(found) for s in found) >= _MANY * len(found),
        )
        for found, is_alone in zip(samples, alone, strict=True)
    )


def is_seen_twice(samples: Sequence[float], same: float = _SAME) -> bool:
    """Whether the least sample has another one near it, which chance would hardly give."""
    first, *others = sorted(samples)
    return bool(others) and others[0] <= same * first
