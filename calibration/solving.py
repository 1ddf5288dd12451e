"""How long solves with few and with more steps take, of which set-up and step are told apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hetero.calibration.measure import measure
from hetero.calibration.workbench import Bench
from hetero.runtime.cases import Budget, Case, Dims

SETTLES = 0.002  # seconds for which threads may go on spinning after a call
_FEWEST = 4  # steps, of a large system
_POINTS = 2**22  # point updates that are timed at least


def counts(case: Case, n: int) -> tuple[int, ...]:
    """How many steps the solves have that are timed: one number, or two."""
    few, many = case.how.few, case.how.many
    if few == many:
        return (few,)
    if few > 2:  # so many that they stand out from the set-up
        points = _POINTS // n
        if case.implementation.kind == "cpu":  # where few steps of a large system take long
            few, many = max(min(few, points), _FEWEST), max(min(many, 2 * points), 3 * _FEWEST)
        # and not so many that the residual of a float32 solve gets subnormal, which is slow.
        many = few + min(max(points, many - few), 512, round(8 * n ** (1 / 3)))
    return few, many


def timed_solves(case: Case, dims: Dims, bench: Bench, budget: Budget) -> tuple[float, ...]:
    """Seconds of solves with few and with more steps."""
    return tuple(solves(case, dims, counts(case, dims[0]), bench, budget))


def outside_in(sizes: Sequence[int]) -> list[int]:
    """The first, the last, the middle one, then what lies between in the same manner."""
    order = [0, len(sizes) - 1]
    parts = [(0, len(sizes) - 1)]
    for low, high in parts:  # grows
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            parts += [(low, middle), (middle, high)]
    return [sizes[i] for i in dict.fromkeys(order)]


def solves(
    case: Case, dims: Dims, counts: tuple[int, ...], bench: Bench, budget: Budget
) -> list[float]:
    """Seconds of solves of so many steps, operands where they run.

    The fastest of several: what else the machine does only adds, and spoils the difference.
    """
    call = prepared(case, dims, bench)
    if bench.device is None:
        time.sleep(SETTLES)
    found = []
    for count in counts:
        measured = measure(partial(call, count), budget=budget.point, least=3, most=9)
        bench.watch.note(measured.disturbed, measured.scattered)
        found.append(min(measured.samples))
    return found


def prepared(case: Case, dims: Dims, bench: Bench) -> Callable[[int], None]:
    """A function that solves with so many steps, operands where they run."""
    problem, run = case.problem(*dims), case.implementation.run
    arguments = case.arguments(*dims, devices=bench.devices)
    device = bench.device
    (b,), x, solve = arguments
    owners = []
    if device is not None:
        x, owner = device.allocate(b.nbytes)
        owners = [owner]
        arguments = arguments._replace(inputs=(bench.like(b),), output=x)

    def call(count: int) -> None:
        if owners:  # which keep the buffers as long as this function is there
            device.fill(x, b.nbytes)
            start = x
        else:  # a new array each time, as in a call
            start = np.empty_like(x)
            start[...] = 0.0
        options = solve._replace(maxiter=count)
        run(bench.devices, problem, arguments._replace(output=start, options=options))
        if device is not None:
            device.synchronize()

    return call
