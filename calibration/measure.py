"""Timing that a few bad samples cannot spoil."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

_SHORTEST = 2e-5  # a sample shorter than this repeats the call, so that the clock's steps vanish


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of one call.

    Attributes
    ----------
    seconds : float
        Median of the samples that are no outliers.
    samples : tuple of float
        All of them, in the order they were taken.
    """

    seconds: float
    samples: tuple[float, ...]


def center(samples: Sequence[float]) -> float:
    """Median of the samples within five median deviations of the median.

    Up to a fifth of the samples may be a hundred times too large: the result stays within the
    spread of the others.
    """
    middle = median(samples)
    deviation = median(abs(s - middle) for s in samples)
    kept = [s for s in samples if abs(s - middle) <= 5 * deviation]
    return median(kept or samples)


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
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time a call until its spread is small or its time is up.

    Parameters
    ----------
    call : callable
        Must not return before its work is done.
    budget : float
        Seconds after which no further sample is taken, the first call included.
    least, most : int
        Bounds of the number of samples; ``least`` wins over ``budget``.
    wanted_spread : float
        Relative uncertainty (see `spread`) that ends the repetition.
    clock : callable
        Seconds.
    """
    begin = clock()
    call()  # not counted: caches, pages, compilers
    number = 1
    samples: list[float] = []
    while True:
        start = clock()
        for _ in range(number):
            call()
        end = clock()
        if not samples and end - start < _SHORTEST and number == 1:
            number = max(2, min(100, int(_SHORTEST / max(end - start, 2e-7))))
            continue
        samples.append((end - start) / number)
        if len(samples) < least:
            continue
        if (
            len(samples) >= most
            or end - begin > budget
            or (len(samples) >= 5 and spread(samples) < wanted_spread)
        ):
            return Measurement(center(samples), tuple(samples))
