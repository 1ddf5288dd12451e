"""From cases to samples: knots of a grid and shapes between them, or solves, as the case says."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from math import prod

from hetero.calibration.measure import solving
from hetero.calibration.measure.timing import measure
from hetero.calibration.measure.workbench import Bench, Samples
from hetero.ops.cases import Budget, Case, Dims, Passes, TimedSolves, grid
from hetero.registry import growth

# Seconds of a call on the CPU, and on a device: shorter ones may be all overhead, and give no rate.
_TELLS = 1e-4, 1e-3
_ALLOWED = 1.5  # times what the other samples of a case allow
_SAME = 1.25  # ratio of two samples that confirm each other


def take(
    case: Case, bench: Bench, budget: Budget, seconds_left: float, host: float = 0.0
) -> Samples:
    """Measure a case: knots from small to large, then shapes between them.

    After ``seconds_left`` a knot gets as few calls as possible: without it, all larger ones would
    be guessed from those that are too short to give a rate. ``host``: the host's share of a call.
    """
    how, end = case.how, time.perf_counter() + seconds_left
    if isinstance(how, TimedSolves):
        return solving.take(case, bench, budget, end)
    if isinstance(how, Passes):
        knots, between = how.knots, how.held_out
        longest = longest_between = how.longest
    else:
        knots = {dims: dims for dims in sorted(grid(case.axes), key=prod)}
        between = {dims: dims for dims in between_knots(case)}
        longest, longest_between = budget.longest, budget.longest / 4
    tells = _TELLS[bool(bench.devices)]
    seconds: dict[Dims, float] = {}
    held_out: dict[Dims, float] = {}
    best = most = 0.0  # volume per second, and seconds, of all calls

    def is_longer(dims: Dims, than: float) -> bool:
        """Whether a call is predicted to take longer; not where all were too short for a rate."""
        return most > tells and prod(dims) / best > than

    for dims, sizes in knots.items():
        if seconds and is_longer(dims, longest):
            continue
        point = budget.point if time.perf_counter() <= end else 0.0
        seconds[dims] = taken = _timed(case, sizes, bench, point, host)
        best, most = max(best, prod(dims) / taken), max(most, taken)
    for dims, sizes in between.items():
        late = time.perf_counter() > end + 0.2 * seconds_left
        if late or (not isinstance(how, Passes) and len(held_out) >= how.held_out):
            break
        if not is_longer(dims, longest_between):
            held_out[dims] = _timed(case, sizes, bench, budget.point, host)
    return Samples(seconds, held_out, host=host)


def _timed(case: Case, sizes: Dims, bench: Bench, point: float, host: float) -> float:
    """Seconds of one call; the host's share is in it, but for what estimates a device's time."""
    how, problem = case.how, case.problem(*sizes)
    if isinstance(how, Passes):
        call = bench.waiting(case, problem)
        return measure(call, budget=point, least=how.number, most=30)
    return bench.seconds(case, problem, point) + (0.0 if how.by_estimate else host)


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


# -- Samples that contradict one another -----------------------------------------------------------


def contradicted(case: Case, samples: Samples) -> list[Dims]:
    """Samples that the others rule out: more work takes no less time, and n times the work at most
    n times as long.

    What a method estimates itself is measured by a device's clock, which other load does not bend.
    """
    seconds = samples.seconds
    if not seconds or getattr(case.how, "by_estimate", False):
        return []
    axes = [sorted(set(extents)) for extents in zip(*seconds, strict=True)]
    powers = [2 if case.layout == "dense" else 1] * len(axes)
    known = [seconds.get(dims, math.inf) for dims in grid(axes)]
    with contextlib.suppress(ValueError):  # a failed clock; the fit reports it
        most = growth.bounded(axes, known, powers, _ALLOWED).tolist()
        pairs = zip(grid(axes), known, most, strict=True)
        return [dims for dims, took, limit in pairs if limit < took < math.inf]
    return []


def again(
    case: Case, bench: Bench, budget: Budget, samples: Samples, dims: Collection[Dims]
) -> Samples:
    """Samples with some knots measured once more: the faster ones count, since load only adds."""
    seconds, setup = dict(samples.seconds), dict(samples.setup)
    for one in dims:
        if isinstance(case.how, TimedSolves):
            before = setup[one] + case.how.many * seconds[one]
            start, step = solving.parts(case, one, bench, budget)
            if start + case.how.many * step < before:
                setup[one], seconds[one] = start, step
        else:
            sizes = case.how.knots[one] if isinstance(case.how, Passes) else one
            taken = _timed(case, sizes, bench, budget.point, samples.host)
            seconds[one] = min(seconds[one], taken)
    return replace(samples, seconds=seconds, setup=setup)


def unconfirmed(
    case: Case, before: Samples, after: Samples, repeated: Collection[Dims]
) -> list[Dims]:
    """Samples that are still contradicted, and that no second one confirmed."""
    return [
        dims
        for dims in contradicted(case, after)
        if dims not in repeated or before.seconds[dims] > _SAME * after.seconds[dims]
    ]
