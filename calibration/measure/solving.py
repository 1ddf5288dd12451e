"""Time solves of few and of more steps, and separate set-up from step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hetero.calibration.measure.timing import in_turn, measure, once
from hetero.calibration.measure.workbench import Bench, Samples
from hetero.host import pages
from hetero.ops.cases import Budget, Case, Dims, grid
from hetero.ops.linear_systems.solve import Solve

_LONG = 0.03  # seconds of a solve: of longer ones the first call counts, too
_STANDS_OUT = 2.5  # ratio of the solve of more steps to the one of few
_NO_SETUP = 1e-7  # seconds
_LEAST_STEP = 0.1  # of a solve's time per step: a lower bound of its steps' time
_SMALL = 4  # ratio of the largest size to one that is measured even if time is up


def parts(case: Case, dims: Dims, bench: Bench, budget: Budget) -> tuple[float, float]:
    """Seconds of set-up and of one step, of solves of few and of more steps.

    Where the steps take less than the set-up, more of them are timed, as long as that does not take
    too long: otherwise noise of the set-up would count as steps. In float32 the residual of too
    many would become subnormal, which is slow. Times that tell no step, since more steps took less
    time, are taken once more.
    """
    call, few, many = prepared(case, dims, bench), case.how.few, case.how.many
    if few == many:
        return _NO_SETUP, measure(partial(call, few), budget=budget.point, least=2)
    less = once(partial(call, few))
    if less <= _LONG:  # caches, pages
        less = once(partial(call, few))
    most = max(many, case.how.most)
    if few > 2:
        most = few + min(512, round(8 * dims[0] ** (1 / 3)))
    took = once(partial(call, many))
    while many < most and took <= min(_STANDS_OUT * less, budget.longest / 2.0):
        many = min(few + 2 * (many - few), most)
        took = once(partial(call, many))
    first: tuple[float, ...] = (less, took)
    for _ in range(2):
        calls = [partial(call, few), partial(call, many)]
        less, took = in_turn(calls, budget=budget.point, first=first)
        each, first = (took - less) / (many - few), ()
        if _LEAST_STEP * took / many < each <= took / many:
            break
    step = min(max(each, _LEAST_STEP * took / many), took / many)
    return max(less - few * step, _NO_SETUP), step


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


def take(case: Case, bench: Bench, budget: Budget, end: float) -> Samples:
    """Time solves of the smallest size, the largest, and those between until a time.

    Small ones are measured even if time is up: all together they take a third of the largest, and
    interpolating between the smallest and the largest would be too coarse.

    Where several devices share the work, their moves count as set-up: that is a small constant and
    then grows with the size, so two more sizes are measured.
    """
    prepared(case, case.smallest, bench)(1)  # compiles
    setup: dict[Dims, float] = {}
    step: dict[Dims, float] = {}
    sizes, *others = case.axes
    least = 4 if len(bench.devices) > 1 else 2
    for number, n in enumerate(outside_in(sizes)):
        late = time.perf_counter() > end
        if late and number >= least and n * _SMALL > sizes[-1]:
            continue
        for rest in grid(others):
            dims = (n, *rest)
            setup[dims], step[dims] = parts(case, dims, bench, budget)
    return Samples(step, setup=setup)
