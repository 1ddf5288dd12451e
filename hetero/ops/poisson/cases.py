"""What calibration measures of Poisson's equation: set-up and one step over the unknowns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from hetero.arrays import spec
from hetero.devices.base import Device
from hetero.ops import poisson
from hetero.ops.cases import Budget, Case, Place, TimedSolves, numbers
from hetero.ops.linear_systems.cases import SECONDS, even_grid, rows, timed, unknowns
from hetero.ops.linear_systems.solve import Solve
from hetero.ops.linear_systems.systems import Stencil
from hetero.ops.multigrid import grids
from hetero.ops.poisson import methods
from hetero.registry import Arguments
from hetero.registry.problem import DEVICE_DTYPES, Problem


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation, in two and three dimensions."""
    for row in rows(methods.NAME, place):
        method = methods.BY_NAME[row.method]
        direct, cycles = not method.iterations, method.coarsest is not None
        how = TimedSolves(1, 1) if direct else timed(cycles)
        one_grid = [grids.coarsest(place.kind)] if cycles else []
        axes = [one_grid + unknowns(place, budget, cycles)]
        for dtype, ndim in itertools.product(DEVICE_DTYPES, (2, 3)):
            problem = functools.partial(_problem, ndim, dtype)
            arguments = functools.partial(_arguments, ndim, dtype, direct)
            case = Case(row, dtype, f"{ndim}d", how, axes, problem, arguments, seconds=SECONDS)
            if row.obstacle(case.problem(*case.smallest), place.info) is None:
                yield case


def _problem(ndim: int, dtype: str, n: int) -> Problem:
    return poisson.problem(spec(even_grid(n, ndim), dtype), rtol=0.0, maxiter=1)


def _arguments(
    ndim: int, dtype: str, direct: bool, n: int, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    """A direct method's tolerance and extents are as most calls have them."""
    shape = tuple(side - direct for side in even_grid(n, ndim))
    f = numbers(shape, dtype)  # no solve ends before its last step
    asked = {"lenient": direct, "measured": not direct}
    solve = Solve(Stencil(shape, (1.0,) * ndim), 1e-8 * direct, 0.0, 1, **asked)
    return Arguments((f,), np.zeros(shape, dtype), solve)
