"""The number of threads on which each method of the CPU is fastest, by its work.

A number is accepted if it is the fastest of all that are tried, and then beats all threads in each
of several duels. A wrong one costs every call from then on; a missed one, little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any

from hetero.calibration.measure import solving, timing
from hetero.calibration.measure.loop import Measured
from hetero.calibration.measure.workbench import Bench
from hetero.calibration.progress import Failure
from hetero.host import limits
from hetero.ops.cases import Budget, Case, Dims, Passes, TimedSolves
from hetero.registry import thread_counts
from hetero.registry.models import ModelKey

_SECONDS = (5e-6, 2e-3)  # shorter calls have one thread anyway, longer ones all
_SECONDS_OF_SOLVES = (5e-5, 1e-3)  # likewise, of a few steps
_POINTS, _POINTS_OF_SOLVES = 8, 3
_ALL = (0.5, 1.0)  # seconds for all cases together, quick and in full
_FEW = 4
_ROUNDS = 4
_DUELS, _TRIES = 7, 3  # calls of each side in a duel
_PAUSE = 5e-5  # after which idle threads sleep
_GAIN = 0.8  # of the time on all threads; above it they stay, since a limit costs something
_WIN = 0.9  # of the time on all threads: the most in each duel
_FAR = 2.0  # times the least time: a doubtful one; times that of all threads: not tried again
_HOPELESS = 8.0  # times the least of all threads', after which a call is not even repeated
_BEYOND = 16.0  # times the largest measured work: the last knot, with all threads


def tables(
    measured: Iterable[Measured], budget: Budget, failures: list[Failure]
) -> dict[ModelKey, dict[str, Any]]:
    """The part "threads" of each model of the CPU for which not all threads are best."""
    by_model = {}
    cases = [
        one
        for one in measured
        if not one.place.devices
        and isinstance(one.samples.seconds, dict)
        and thread_counts.pool(one.case.implementation) is not None
    ]
    bench = Bench()
    last = time.perf_counter() + _ALL[not budget.quick]
    cases.sort(key=lambda one: isinstance(one.case.how, TimedSolves))  # they use up the time
    for number, one in enumerate(cases):
        now = time.perf_counter()
        end = now + (last - now) / (len(cases) - number)
        try:
            made = table(one.case, one.samples.seconds, end, bench)
        except Exception as error:
            row = one.case.implementation
            failures.append(Failure(row.operation, one.place.name, "threads", error))
        else:
            if made is not None:
                by_model[one.key] = made
    return by_model


def table(
    case: Case,
    seconds: dict[Dims, float],
    end: float = math.inf,
    bench: Bench | None = None,
) -> dict[str, Any] | None:
    """A model's part "threads"; None where all threads are best for every size.

    Parameters
    ----------
    case : Case
        Of the CPU.
    seconds : dict
        Its samples: dimensions that the model knows -> seconds on all threads.
    end : float
        When to stop, by `time.perf_counter`; all threads stay for what was not measured by then.
    bench : Bench, optional
        Of the CPU; default: a new one.
    """
    pool = thread_counts.pool(case.implementation)
    most = limits.most(pool) if pool is not None else None
    if pool is None or most is None or most < 2:
        return None
    bench, rows = bench or Bench(), []
    for dims, work in _points(case, seconds):
        if time.perf_counter() > end:
            break
        call = _call(case, dims, bench)
        calls = {n: limits.limited(pool, n, call) for n in numbers(most)}
        rows.append((work, *fastest(calls, most, end=end)))
    if all(number == most for _, number, _ in rows):
        return None
    if rows[-1][1] != most:
        rows.append((_BEYOND * rows[-1][0], most, 1.0))
    flops, counts, ratios = (list(part) for part in zip(*rows, strict=True))
    return {"flops": flops, "threads": counts, "ratio": ratios, "of": most}


def numbers(most: int) -> list[int]:
    """The numbers of threads that are tried: one, few, half of them, all."""
    return sorted({1, min(_FEW, most), max(most // 2, 1), most})


def fastest(
    calls: dict[int, Callable[[], object]],
    most: int,
    clock: Callable[[], float] = time.perf_counter,
    switches: Callable[[], int] = timing.switches,
    end: float = math.inf,
) -> tuple[int, float]:
    """The fastest number of threads, and its time over that of all threads.

    Each is called right after itself and after a pause, in which idle threads go to sleep: programs
    do both. The number with the least time is then compared with all threads in duels, one right
    after the other, and has to win each of them: of many numbers, tried at many sizes, one has the
    least time by chance. What other load disturbed does not count, for all threads together are
    disturbed before one is. Where it is never quiet, all threads stay.

    Parameters
    ----------
    calls : dict
        Number of threads -> the call on that many.
    most : int
        How many there are.
    clock : callable
        Seconds.
    switches : callable
        How often this process had to leave a processor so far.
    end : float
        By the clock: all threads stay if nothing has won by then.
    """

    def seconds(number: int, limit: float = math.inf) -> float:
        """Seconds of two calls, or of a first one above the limit; infinite if other load
        disturbed one."""
        call, total, begin = calls[number], 0.0, clock()
        call()
        if (took := clock() - begin) > limit:
            return took
        for pause in (0.0, _PAUSE):
            until = clock() + pause
            while clock() < until:
                pass
            before, begin = switches(), clock()
            call()
            took = clock() - begin
            quiet = switches() - before <= timing.SWITCHES_PER_SECOND * took
            total += took if quiet else math.inf
        return total

    least = dict.fromkeys(calls, math.inf)
    left = [most, *(number for number in calls if number != most)]
    for _ in range(_ROUNDS):
        for number in tuple(left):
            least[number] = min(least[number], seconds(number, _HOPELESS * least[most]))
            if _FAR * least[most] < least[number] < math.inf:
                left.remove(number)
            if clock() > end:
                return most, 1.0
    best = min(left, key=lambda number: (least[number], number))
    if not least[best] < _GAIN * least[most] < math.inf:
        return most, 1.0
    ratios: list[float] = []
    for turn in range(3 * _DUELS):
        pair = (best, most) if turn % 2 else (most, best)
        took = {number: min(seconds(number) for _ in range(_TRIES)) for number in pair}
        least = {number: min(least[number], took[number]) for number in pair}
        if any(took[number] > _FAR * least[number] for number in pair):
            continue
        ratios.append(took[best] / took[most])
        if ratios[-1] > _WIN or clock() > end:
            break
        if len(ratios) == _DUELS:
            ratio = median(ratios)
            return (best, ratio) if ratio < _GAIN else (most, 1.0)
    return most, 1.0


def _call(case: Case, dims: Dims, bench: Bench) -> Callable[[], object]:
    """A call, or a solve of a few steps."""
    if not isinstance(case.how, TimedSolves):
        return bench.waiting(case, case.problem(*dims))
    return partial(solving.prepared(case, dims, bench), case.how.few)


def _points(case: Case, seconds: dict[Dims, float]) -> Iterable[tuple[Dims, float]]:
    """Dimensions of problems of increasing work, with the flops of each."""
    steps, most, (low, high) = 1, _POINTS, _SECONDS
    if isinstance(case.how, TimedSolves):
        steps, most, (low, high) = case.how.few, _POINTS_OF_SOLVES, _SECONDS_OF_SOLVES
        dims = {known: known for known in seconds}
    elif isinstance(case.how, Passes):
        dims = dict(case.how.knots)
    else:
        axes = case.axes or []
        longest = max(map(len, axes), default=0)
        along = (tuple(a[min(i, len(a) - 1)] for a in axes) for i in range(longest))
        dims = {point: point for point in along}
    by_flops: dict[float, Dims] = {}
    for known, given in dims.items():
        if low <= steps * seconds.get(known, 0.0) <= high:
            row, problem = case.implementation, case.problem(*given)
            by_flops.setdefault(row.work(problem, {"kind": row.kind}).flops, given)
    chosen = sorted(by_flops)
    if isinstance(case.how, TimedSolves):
        chosen = chosen[-most:]  # smaller ones run on one thread anyway
    step = max(1, -(-len(chosen) // most))
    return [(by_flops[flops], flops) for flops in chosen[::step]]
