"""Time solves of few and of more steps, and separate set-up from step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hetero.calibration.measure.timing import in_turn, once
from hetero.calibration.measure.workbench import Bench, Samples, watched
from hetero.host import pages
from hetero.ops.cases import Budget, Case, Dims, grid
from hetero.ops.linear_systems.solve import Solve

SETTLES = 0.002  # seconds for which threads may go on spinning after a call
_FEWEST = 4  # steps, of a large system
_POINTS = 2**22  # point updates, the least of a timed solve
_LONG = 0.03  # seconds of a solve: of longer ones the first call counts, too
_STANDS_OUT = 2.0  # ratio of the solve of more steps to the one of few
_NO_SETUP = 1e-7  # seconds
_LEAST_STEP = 0.1  # of a solve's time per step: a lower bound of its steps' time
_SMALL = 4  # ratio of the largest size to one that is measured even if time is up


def counts(case: Case, n: int) -> tuple[int, ...]:
    """Numbers of steps of the solves to time: one, or few and many."""
    few, many = case.how.few, case.how.many
    if few == many:
        return (few,)
    if few > 2:  # enough to stand out from the set-up
        points = _POINTS // n
        if case.implementation.kind == "cpu":  # few steps of a large system take long there
            few, many = max(min(few, points), _FEWEST), max(min(many, 2 * points), 3 * _FEWEST)
        # and few enough to keep the residual of a float32 solve from subnormals, which are slow.
        many = few + min(max(points, many - few), 512, round(8 * n ** (1 / 3)))
    return few, many


def most_steps(case: Case, n: int) -> int:
    """The largest number of steps of a timed solve, where those of `counts` do not stand out."""
    few, many = case.how.few, case.how.many
    if few <= 2:
        return max(many, case.how.most)
    return few + min(512, round(8 * n ** (1 / 3)))


def timed_solves(
    case: Case, dims: Dims, bench: Bench, budget: Budget, known: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The numbers of steps that were timed, few and more, and the least seconds of each.

    Where the steps take less than the set-up, more of them are timed, as long as that does not take
    too long: otherwise noise of the set-up would count as steps.

    Parameters
    ----------
    case, dims, bench, budget
    known : tuple of int
        Numbers of steps; default: what stands out.
    """
    call = prepared(case, dims, bench)
    if bench.device is None:
        time.sleep(SETTLES)
    warm = once(partial(call, (known or counts(case, dims[0]))[0]), bench.own)
    less = warm if warm > _LONG else None  # not counted else: caches, pages
    steps, first = known, ()
    if not known:
        by = partial(once, own=bench.own)
        steps, first = _that_stand_out(case, dims[0], call, budget, less, by)
    calls = [partial(call, number) for number in steps]
    least = 1 if known else 2
    timed = in_turn(calls, budget=budget.point, least=least, first=first, own=bench.own)
    for one in timed:
        bench.watch.note(one.disturbed)
    return steps, tuple(one.seconds for one in timed)


def _that_stand_out(
    case: Case,
    n: int,
    call: Callable[[int], None],
    budget: Budget,
    less: float | None,
    timed: Callable[[Callable[[], None]], float],
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Numbers of steps, and seconds of one solve of each; ``less``: of few, if it is known."""
    few, *more = steps = counts(case, n)
    if not more:
        return steps, () if less is None else (less,)
    (many,) = more
    most = most_steps(case, n)
    less = timed(partial(call, few)) if less is None else less
    took = timed(partial(call, many))
    while many < most and took <= min(_STANDS_OUT * less, budget.longest / 2.0):
        many = min(few + 2 * (many - few), most)
        took = timed(partial(call, many))
    return (few, many), (less, took)


def outside_in(sizes: Sequence[int]) -> list[int]:
    """The first, the last, the middle one, then the halves in the same manner."""
    order = [0, len(sizes) - 1]
    parts = [(0, len(sizes) - 1)]
    for low, high in parts:  # grows
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            parts += [(low, middle), (middle, high)]
    return [sizes[i] for i in dict.fromkeys(order)]


def prepared(case: Case, dims: Dims, bench: Bench) -> Callable[[int], None]:
    """A function that solves with a number of steps, its operands where the method takes them."""
    problem, run = case.problem(*dims), case.implementation.run
    arguments = case.arguments(*dims, devices=bench.devices)
    device = bench.device
    (b,), x, solve = arguments
    # Several devices begin from zero themselves, and results get memory that was used before.
    by_themselves = len(bench.devices) > 1 and isinstance(solve, Solve)
    owners = []
    if device is not None and not case.implementation.from_host:
        x, owner = device.allocate(b.nbytes)
        owners = [owner]
        arguments = arguments._replace(inputs=(bench.like(b),), output=x)

    def call(count: int) -> None:
        if owners:  # the closure keeps the buffers alive
            device.fill(x, b.nbytes)
            start = x
        else:  # a new array each time, as in a call
            start = (pages.empty if by_themselves else np.empty)(x.shape, x.dtype)
            if not by_themselves:
                start[...] = 0.0
        options = solve._replace(maxiter=count)
        if by_themselves:
            options = options._replace(from_zero=True)
        run(bench.devices, problem, arguments._replace(output=start, options=options))
        if device is not None:
            device.synchronize()

    return call


class Solves:
    """Times whole solves of one case, and keeps the fastest ones.

    Parameters
    ----------
    case, bench, budget
    samples : Samples
        Earlier ones.
    """

    def __init__(self, case: Case, bench: Bench, budget: Budget, samples: Samples) -> None:
        self._case, self._bench, self._budget = case, bench, budget
        self._timed, self._steps = dict(samples.timed), dict(samples.steps)
        self._marked = set(samples.marked)

    def look(self, dims: Dims) -> None:
        """Time solves of these dimensions, once more if they were timed."""
        known = tuple(map(int, self._steps.get(dims, ())))
        (steps, times), disturbed = watched(
            self._bench,
            timed_solves,
            *(self._case, dims, self._bench, self._budget, known),
        )
        before = self._timed.get(dims, times)
        self._timed[dims] = tuple(map(min, times, before))
        self._steps[dims] = tuple(map(float, steps))
        if not disturbed:
            self._marked.discard(dims)
        elif before is times:
            self._marked.add(dims)

    def samples(self) -> Samples:
        """The samples so far."""
        return replace(parted(self._timed, self._steps), marked=frozenset(self._marked))


def take(case: Case, bench: Bench, budget: Budget, seconds_left: float) -> Samples:
    """Time solves of the smallest size, the largest, and those between as time allows.

    Small ones are measured even if time is up: all together they take a third of the largest, and
    interpolating between the smallest and the largest would be too coarse.

    Where several devices share the work, their moves count as set-up: that is a small constant and
    then grows with the size, so two more sizes are measured.
    """
    prepared(case, case.smallest, bench)(1)  # compiles
    end = time.perf_counter() + seconds_left
    solves = Solves(case, bench, budget, Samples())
    sizes, *others = case.axes
    least = 4 if len(bench.devices) > 1 else 2
    for number, n in enumerate(outside_in(sizes)):
        late = time.perf_counter() > end
        if late and number >= least and n * _SMALL > sizes[-1]:
            continue
        for rest in grid(others):
            solves.look((n, *rest))
    return solves.samples()


def parted(timed: dict[Dims, tuple[float, ...]], steps: dict[Dims, tuple[float, ...]]) -> Samples:
    """Set-up and step of timed solves."""
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


def separable(samples: Samples) -> dict[Dims, bool]:
    """Whether the two times of each solve of few and more steps separate set-up from step."""
    separates = {}
    for dims, (few, *many) in samples.steps.items():
        if many:
            less, more = samples.timed[dims]
            each = (more - less) / (many[0] - few)
            separates[dims] = _LEAST_STEP * more / many[0] < each <= more / many[0]
    return separates
