"""The least work for which BLAS's threads are put to sleep, so that a loop gets their cores.

A loop right after a product shares its cores with BLAS threads that busy-wait for more work. To put
them to sleep frees the cores, but the next product must wake them. Which costs more depends on the
host: on a virtual machine a thread may take milliseconds to wake. So both are timed as programs run
them, products and loops in turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import NamedTuple

import numpy as np

from hetero.calibration.measure.loop import Measured
from hetero.calibration.measure.workbench import Bench
from hetero.host import blas_spin, limits
from hetero.host.blas_spin import LONG
from hetero.ops.cases import Case, Dims, Passes, TimedSolves
from hetero.registry import thread_counts

SECONDS = 2.0  # in all
_POINTS = (2e-4, 8e-4, 3e-3)  # seconds of the loops that are tried
_NEAR = 2.0  # a point stands for loops within this factor of its seconds
_TRIED = 6  # candidate calls for each of them
_LEAST, _MOST = 9, 120  # duels for a loop; more than the least only within its share of time
_TURNS = 4  # of products and loops, in each half of a duel
_GAIN, _LOSS = 0.97, 1.05  # ratios to the time with spinning threads: worth it; too slow
_LATER = 1e-2  # seconds of work from which on they sleep where that slows a loop of `LONG`
_EXTENT = 600  # of the product: enough for all threads


def least_work(measured: Iterable[Measured]) -> float | None:
    """Seconds of a loop from which on it pays to put BLAS's threads to sleep.

    Parameters
    ----------
    measured : iterable of Measured
        Those of the CPU with loops of about `_POINTS` seconds are run again.

    Returns
    -------
    float or None
        None: nothing is better than `hetero.host.blas_spin.LONG`.
    """
    if not blas_spin.spin_is_shortened():
        return None
    A = np.random.default_rng(0).random((_EXTENT, _EXTENT), dtype=np.float32)

    def product() -> None:
        A @ A

    bench, end, least = Bench(), time.perf_counter() + SECONDS, None
    left = [*_loops(measured, bench)]
    while left:
        seconds, loop = left.pop()  # the longest one
        # The shortest loop gains least, which takes longest to measure: it has all time left.
        share = time.perf_counter() + SECONDS / (len(_POINTS) + 1) if left else end
        ratio = compared(
            loop, product, blas_spin.shorten_spin, blas_spin.restore_spin, share=share, end=end
        )
        if ratio is None:
            return least
        if max(ratio) > _LOSS:
            return _LATER if least is None and seconds > LONG / _NEAR else least
        if ratio.typical < _GAIN:  # longer loops gain less in proportion
            least = seconds / math.sqrt(_NEAR)
    return least


class Ratio(NamedTuple):
    """Time of products and loops in turn with sleeping threads over that with spinning ones.

    Attributes
    ----------
    typical : float
        The median of the duels.
    whole : float
        The ratio of total times: a product that is sometimes late counts by what it costs.
    """

    typical: float
    whole: float


def _loops(measured: Iterable[Measured], bench: Bench) -> list[tuple[float, Callable[[], object]]]:
    """Calls of the CPU's loops with their seconds, the one nearest to each of `_POINTS`.

    Only of multi-threaded loops: the others need none of the cores that BLAS leaves.
    """
    calls = [
        (seconds, one.case, dims)
        for one in measured
        if not one.place.devices and thread_counts.pool(one.case.implementation) == limits.LOOPS
        for dims, seconds in _timed(one.case, one.samples.seconds)
    ]
    chosen = []
    for point in _POINTS:
        near = [c for c in calls if point / _NEAR < c[0] < _NEAR * point]
        near.sort(key=lambda c: abs(math.log(c[0] / point)))
        for seconds, case, dims in near[:_TRIED]:
            call = bench.waiting(case, case.problem(*dims))
            if blas_spin.shares_loops(call):
                chosen.append((seconds, call))
                break
    return chosen


def _timed(case: Case, samples: dict[Dims, float]) -> Iterator[tuple[Dims, float]]:
    """Dimensions of the problems that were timed, each with its seconds."""
    if isinstance(case.how, Passes):
        given = dict(case.how.knots)
    elif case.axes and not isinstance(case.how, TimedSolves):
        given = {dims: dims for dims in samples}
    else:
        return
    for known, dims in given.items():
        if known in samples:
            yield dims, samples[known]


def compared(
    loop: Callable[[], object],
    product: Callable[[], object],
    quiet: Callable[[], object],
    usual: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    share: float = -math.inf,
    end: float = math.inf,
) -> Ratio | None:
    """Time of products and loops in turn with sleeping threads over that with spinning ones.

    Parameters
    ----------
    loop, product : callable
        By the loops' threads; by BLAS's.
    quiet, usual : callable
        Make idle threads of BLAS sleep, and spin again.
    clock : callable
        Seconds.
    share, end : float
        By the clock: the end of duels beyond the least number; when to give up with fewer.

    Returns
    -------
    Ratio or None
        None if it was given up.
    """

    def seconds(asleep: bool) -> float:
        product()
        begin = clock()
        for _ in range(_TURNS):
            if asleep:
                quiet()
            try:
                loop()
            finally:
                usual()
            product()
        return clock() - begin

    asleep, spinning = [], []
    for turn in range(_MOST):
        for is_asleep in (True, False) if turn % 2 else (False, True):
            (asleep if is_asleep else spinning).append(seconds(is_asleep))
        now = clock()
        if turn + 1 >= _LEAST and now > min(share, end):
            break
        if now > end:
            return None
    ratios = [a / b for a, b in zip(asleep, spinning, strict=True)]
    return Ratio(median(ratios), sum(asleep) / sum(spinning))
