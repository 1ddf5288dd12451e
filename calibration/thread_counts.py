"""On how many threads each method of the CPU is fastest, by its work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from hetero.calibration import load
from hetero.calibration.failures import Failure
from hetero.calibration.loop import Measured
from hetero.calibration.workbench import Bench
from hetero.kernels.cpu import limits
from hetero.runtime import thread_counts
from hetero.runtime.cases import Budget, Case, Dims, Passes, TimedSolves
from hetero.runtime.models import ModelKey

_SECONDS = (5e-6, 5e-3)  # calls of less have one thread anyway, of more all of them
_POINTS = 8
_FEW = 4
_ROUNDS = 7
_PAUSE = 5e-5  # after which idle threads sleep
_GAIN = 0.8  # of the time on all threads, above which they stay: noise, and what a limit costs
_HOPELESS = 2.0  # times the time on all threads, above which a number is not tried again


def tables(
    measured: Iterable[Measured], budget: Budget, failures: list[Failure]
) -> dict[ModelKey, dict[str, Any]]:
    """The part "threads" of each model of the CPU for which not all threads are best."""
    found = {}
    for one in measured:
        if one.place.devices or not isinstance(one.samples.seconds, dict):
            continue
        try:
            made = table(one.case, one.samples.seconds, budget)
        except Exception as error:
            row = one.case.implementation
            failures.append(Failure(row.operation, one.place.name, "threads", error))
        else:
            if made is not None:
                found[one.key] = made
    return found


def table(case: Case, seconds: dict[Dims, float], budget: Budget) -> dict[str, Any] | None:
    """A model's part "threads"; None where all threads are best for every size.

    Parameters
    ----------
    case : Case
        Of the CPU.
    seconds : dict
        Its samples: dimensions that the model knows -> seconds on all threads.
    budget : Budget
    """
    pool = thread_counts.pool(case.implementation)
    most = limits.most(pool) if pool is not None else None
    if most is None or most < 2 or isinstance(case.how, TimedSolves):
        return None
    bench, rows = Bench(), []
    end = time.perf_counter() + budget.patience * 20 * budget.point
    for problem, work in _points(case, seconds):
        if time.perf_counter() > end:
            break
        call = bench.waiting(case, problem)
        number, ratio = fastest({n: limits.limited(pool, n, call) for n in numbers(most)}, most)
        rows.append((work, number, ratio))
    if all(number == most for _, number, _ in rows):
        return None
    flops, counts, ratios = (list(part) for part in zip(*rows, strict=True))
    return {"flops": flops, "threads": counts, "ratio": ratios, "of": most}


def numbers(most: int) -> list[int]:
    """The numbers of threads that are tried: one, few, half of them, all."""
    return sorted({1, min(_FEW, most), max(most // 2, 1), most})


def fastest(
    calls: dict[int, Callable[[], object]],
    most: int,
    clock: Callable[[], float] = time.perf_counter,
    switches: Callable[[], int] = load.switches,
) -> tuple[int, float]:
    """The number of threads whose call is fastest, and its time over that of all threads.

    Each is called right after itself and after a pause, in which idle threads go to sleep: programs
    do both. The least time of several counts, and only of those that no other load disturbed, for
    all threads together are disturbed before one is. Where it is never quiet, all threads stay.

    Parameters
    ----------
    calls : dict
        Number of threads -> the call on so many.
    most : int
        How many there are.
    clock : callable
        Seconds.
    switches : callable
        How often this process had to leave a processor so far.
    """
    least = {number: [math.inf, math.inf] for number in calls}
    left = [most, *(number for number in calls if number != most)]
    for _ in range(_ROUNDS):
        for number in tuple(left):
            call, found = calls[number], least[number]
            call()
            for state, pause in enumerate((0.0, _PAUSE)):
                until = clock() + pause
                while clock() < until:
                    pass
                before, begin = switches(), clock()
                call()
                seconds = clock() - begin
                if switches() - before <= load.SWITCHES_PER_SECOND * seconds:
                    found[state] = min(found[state], seconds)
            if _HOPELESS * sum(least[most]) < sum(found) < math.inf:
                left.remove(number)
    cost = {number: sum(least[number]) for number in left}
    best = min(cost, key=lambda number: (cost[number], number))
    if not cost[best] < _GAIN * cost[most] < math.inf:
        return most, 1.0
    return best, cost[best] / cost[most]


def _points(case: Case, seconds: dict[Dims, float]) -> Iterable[tuple[Any, float]]:
    """Problems of increasing work, and their flops."""
    if isinstance(case.how, Passes):
        dims = dict(case.how.knots)
    else:
        axes = case.axes or []
        longest = max(map(len, axes), default=0)
        along = (tuple(a[min(i, len(a) - 1)] for a in axes) for i in range(longest))
        dims = {point: point for point in along}
    low, high = _SECONDS
    found: dict[float, Any] = {}
    for known, given in dims.items():
        if low <= seconds.get(known, 0.0) <= high:
            problem = case.problem(*given)
            work = case.implementation.work(problem, {"kind": case.implementation.kind})
            found.setdefault(work.flops * work.repeat, problem)
    chosen = sorted(found)
    step = max(1, -(-len(chosen) // _POINTS))
    return [(found[flops], flops) for flops in chosen[::step]]
