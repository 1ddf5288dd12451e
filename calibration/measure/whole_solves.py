"""From solves of few and more steps to set-up and step."""

from __future__ import annotations

import time
from dataclasses import replace

from hetero.calibration.measure import solving
from hetero.calibration.measure.samples import Samples, is_less, watched
from hetero.calibration.measure.workbench import Bench
from hetero.ops.cases import Budget, Case, Dims, grid

_NO_SETUP = 1e-7  # seconds
_LEAST_STEP = 0.1  # of a solve's time per step: what the steps take at least
_SMALL = 4  # times as large is the largest, whose time was spent already


class Solves:
    """Times whole solves of one case, and keeps the fastest ones.

    Parameters
    ----------
    case, bench, budget
    samples : Samples
        What is known of them.
    """

    def __init__(self, case: Case, bench: Bench, budget: Budget, samples: Samples) -> None:
        self._case, self._bench, self._budget = case, bench, budget
        self._timed, self._steps = dict(samples.timed), dict(samples.steps)
        self._marked, self._unsure = set(samples.marked), set(samples.unsure)

    def look(self, dims: Dims) -> None:
        """Time solves of these dimensions, once more if they were timed."""
        known = tuple(map(int, self._steps.get(dims, ())))
        (steps, found), disturbed = watched(
            self._bench,
            solving.timed_solves,
            *(self._case, dims, self._bench, self._budget, known),
        )
        before = self._timed.get(dims, found)
        self._timed[dims] = tuple(map(min, found, before))
        self._steps[dims] = tuple(map(float, steps))
        if not disturbed:
            self._marked.discard(dims)
        elif before is found:
            self._marked.add(dims)
        less = any(map(is_less, found, before))
        (set.add if less else set.discard)(self._unsure, dims)

    def samples(self) -> Samples:
        """What is known so far."""
        return replace(
            parted(self._timed, self._steps),
            marked=frozenset(self._marked),
            unsure=frozenset(self._unsure),
        )


def take(case: Case, bench: Bench, budget: Budget, seconds_left: float) -> Samples:
    """Of the smallest size, the largest, and those between that time is left for.

    Small ones are measured late, too: all together they take a third of the largest, and between
    the smallest and the largest nothing else would tell what they take.

    Several devices share the work, from host to host, so that moving counts as set-up: two sizes
    more, since that is a small constant and then grows with the size.
    """
    solving.prepared(case, case.smallest, bench)(1)  # compiles
    end = time.perf_counter() + seconds_left
    solves = Solves(case, bench, budget, Samples())
    sizes, *others = case.axes
    least = 4 if len(bench.devices) > 1 else 2
    for number, n in enumerate(solving.outside_in(sizes)):
        late = time.perf_counter() > end
        if late and number >= least and n * _SMALL > sizes[-1]:
            continue
        for rest in grid(others):
            solves.look((n, *rest))
    return solves.samples()


def parted(timed: dict[Dims, tuple[float, ...]], steps: dict[Dims, tuple[float, ...]]) -> Samples:
    """Set-up and step of the solves that were timed."""
    setup: dict[Dims, float] = {}
    step: dict[Dims, float] = {}
    for dims, (less, *more) in timed.items():
        few, *many = steps[dims]
        if not more:
            step[dims], setup[dims] = less, _NO_SETUP
            continue
        each = (more[0] - less) / (many[0] - few)
        step[dims] = min(max(each, _LEAST_STEP * more[0] / many[0]), more[0] / many[0])
        setup[dims] = max(less - few * step[dims], _NO_SETUP)
    return Samples(step, setup=setup, timed=timed, steps=steps)


def parts_apart(samples: Samples) -> dict[Dims, bool]:
    """Of each solve of few and more steps, whether its two times tell set-up and step apart."""
    found = {}
    for dims, (few, *many) in samples.steps.items():
        if many:
            less, more = samples.timed[dims]
            each = (more - less) / (many[0] - few)
            found[dims] = _LEAST_STEP * more / many[0] < each <= more / many[0]
    return found
