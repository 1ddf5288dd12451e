"""From cases to samples: grids, passes or solves, as the case says."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from hetero.calibration.measure import solving
from hetero.calibration.measure.timing import in_turn
from hetero.calibration.measure.workbench import Bench, Samples, watched
from hetero.ops.cases import Budget, Case, Dims, Passes, SampleGrid, TimedSolves, grid

_SHORT = 0.002  # seconds of a call, above which half of the passes are enough
_LONG = 0.005  # above which one pass is
# Seconds of a call on the CPU, and on a device: shorter ones may be all overhead, and give no rate.
_TELLS = 1e-4, 1e-3


def take(
    case: Case,
    bench: Bench,
    budget: Budget,
    seconds_left: float,
    host: float | None = None,
    before: Samples | None = None,
) -> Samples:
    """Measure a case.

    Parameters
    ----------
    case, bench, budget
    seconds_left : float
        After which a knot gets as few calls as possible: without it, all larger ones would be
        guessed from those that are too short to give a rate.
    host : float, optional
        The host's share of a call, if it is known.
    before : Samples, optional
        Of the passes made so far.
    """
    if isinstance(case.how, Passes):
        return _pass(case, bench, budget, seconds_left, before)
    if isinstance(case.how, TimedSolves):
        return solving.take(case, bench, budget, seconds_left)
    return _grid(case, bench, budget, seconds_left, host)


def again(
    case: Case, bench: Bench, budget: Budget, samples: Samples, dims: Sequence[Dims]
) -> Samples:
    """Measure some of a case's samples once more: the faster ones count, since load only adds."""
    time.sleep(solving.SETTLES)
    if isinstance(case.how, TimedSolves):
        solves = solving.Solves(case, bench, budget, samples)
        for one in dims:
            solves.look(one)
        return solves.samples()
    marked = set(samples.marked)
    seconds, held_out = dict(samples.seconds), dict(samples.held_out)
    if isinstance(case.how, SampleGrid):
        shapes = _Shapes(case, bench, budget, samples.host)
    for one in dims:
        if isinstance(case.how, Passes):
            sizes = {**case.how.held_out, **case.how.knots}[one]
            taken, disturbed = watched(bench, _timed, case, sizes, bench, budget)
        else:
            taken, disturbed = shapes.timed(one)
        where = held_out if one in held_out else seconds
        where[one] = min(where.get(one, taken), taken)
        (set.add if disturbed else set.discard)(marked, one)
    marks = frozenset(marked)
    return replace(samples, seconds=seconds, held_out=held_out, marked=marks)


class _Shapes:
    """Seconds of single calls of one case, by dimensions.

    ``host`` is in all these seconds, but not in those of an implementation that estimates the
    device's time.
    """

    def __init__(self, case: Case, bench: Bench, budget: Budget, host: float | None) -> None:
        self._case, self._bench, self.point = case, bench, budget.point
        if host is None:
            smallest = case.problem(*case.smallest)
            alone = bench.seconds(case, smallest, budget.point)
            host = bench.host_seconds(case, smallest, alone)
        self.host = host

    def timed(self, dims: Dims) -> tuple[float, bool]:
        """Seconds, and whether other load disturbed them: a device, by waiting for its host."""
        case, bench = self._case, self._bench
        seconds, disturbed = watched(bench, bench.seconds, case, case.problem(*dims), self.point)
        if bench.queue is not None:
            disturbed = bench.queue.waited
        return seconds + (0.0 if case.how.by_estimate else self.host), disturbed


def _grid(
    case: Case, bench: Bench, budget: Budget, seconds_left: float, host: float | None
) -> Samples:
    """Knots from small to large, then random shapes between them."""
    end = time.perf_counter() + seconds_left
    shapes = _Shapes(case, bench, budget, host)
    seconds: dict[Dims, float] = {}
    marked: set[Dims] = set()

    def seconds_of(dims: Dims) -> float:
        taken, disturbed = shapes.timed(dims)
        if disturbed:
            marked.add(dims)
        return taken

    rate = _Rate({}, bench)
    for dims in sorted(grid(case.axes), key=prod):
        if seconds and rate.seconds(dims) > budget.longest:
            continue
        if time.perf_counter() > end:
            shapes.point = 0.0
        seconds[dims] = seconds_of(dims)
        rate.add(dims, seconds[dims])
    held_out: dict[Dims, float] = {}
    for dims in between_knots(case):
        late = time.perf_counter() > end + 0.2 * seconds_left
        if len(held_out) >= case.how.held_out or late:
            break
        if rate.seconds(dims) <= budget.longest / 4:
            held_out[dims] = seconds_of(dims)
    return Samples(seconds, held_out, host=shapes.host, marked=frozenset(marked))


class _Rate:
    """The best volume per second so far."""

    def __init__(self, seconds: dict[Dims, float], bench: Bench) -> None:
        self._tells = _TELLS[bool(bench.devices)]
        self._best = self._most = 0.0
        for dims, taken in seconds.items():
            self.add(dims, taken)

    def add(self, dims: Dims, taken: float) -> None:
        self._best, self._most = max(self._best, prod(dims) / taken), max(self._most, taken)

    def seconds(self, dims: Dims) -> float:
        """Predicted seconds of a call; 0 where all calls were too short for a rate."""
        return prod(dims) / self._best if self._most > self._tells else 0.0


def between_knots(case: Case) -> Iterator[Dims]:
    """Random shapes between the knots of a `SampleGrid`, the same ones each time."""
    draw = random.Random(1)
    multiple, less = case.how.multiple, case.how.less
    for _ in range(case.how.held_out * 20):
        dims = tuple(
            round(a[0] * (a[-1] / a[0]) ** draw.random()) // multiple * multiple - less
            for a in case.axes
        )
        if min(dims) > 1:
            yield dims


def _pass(
    case: Case, bench: Bench, budget: Budget, seconds_left: float, before: Samples | None
) -> Samples:
    """Measure all knots once more.

    The fastest call counts, since other load only adds.
    """
    how = case.how
    if before is None:
        before = Samples()
        for dims in list(how.knots.values())[: None if bench.devices else 1]:
            bench.waiting(case, case.problem(*dims))()  # compiles
    number, seconds = before.passes, dict(before.seconds)
    rate = _Rate(seconds, bench)
    end = time.perf_counter() + seconds_left
    marked = set(before.marked)
    time.sleep(solving.SETTLES)
    for dims, sizes in {**how.knots, **how.held_out}.items():
        if seconds and rate.seconds(dims) > how.longest:
            continue
        if time.perf_counter() > end:
            if dims in seconds:
                continue
            budget = replace(budget, point=0.0)
        if seconds.get(dims, 0.0) > (_SHORT if number >= how.number / 2 else _LONG):
            continue
        taken, disturbed = watched(bench, _timed, case, sizes, bench, budget)
        if dims not in seconds or not disturbed:
            (set.add if disturbed else set.discard)(marked, dims)
        seconds[dims] = min(seconds.get(dims, taken), taken)
        rate.add(dims, seconds[dims])
    return replace(before, seconds=seconds, passes=number + 1, marked=frozenset(marked))


def _timed(case: Case, sizes: Dims, bench: Bench, budget: Budget) -> float:
    """Seconds of the fastest call of one pass."""
    call = bench.waiting(case, case.problem(*sizes))
    call()  # not counted: caches, pages
    point = budget.point / case.how.number
    (measured,) = in_turn([call], budget=point, most=30, own=bench.own)
    bench.watch.note(measured.disturbed)
    return measured.seconds
