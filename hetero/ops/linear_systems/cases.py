"""What the cases of the solves share."""

from __future__ import annotations

from hetero import registry
from hetero.ops.cases import Budget, Place, TimedSolves, thinned
from hetero.registry import Implementation

SECONDS = 0.5  # of a case
PLAIN = "scipy"  # the method that is not measured
_CYCLES = 1, 4  # of multigrid: float32 meets no rounding yet
_ITERATIONS = 4, 12
_SMALLEST = 2**8
_LARGEST = {"cpu": 2**20, "opencl": 2**16}
_LARGEST_OTHERS = 2**24


def rows(operation: str, place: Place) -> list[Implementation]:
    """The implementations there are at a place."""
    found = registry.lookup(operation)
    return [i for i in found if i.kind == place.kind and i.method != PLAIN]


def timed(cycles: bool) -> TimedSolves:
    """Numbers of cycles, or of iterations."""
    return TimedSolves(*(_CYCLES if cycles else _ITERATIONS))


def unknowns(
    place: Place,
    budget: Budget,
    cycles: bool = False,
    limits: tuple[dict[str, int], int] = (_LARGEST, _LARGEST_OTHERS),
    ratio: int = 4,
    finer: float = 1.0,
) -> list[int]:
    """Numbers of unknowns to measure: up to a limit by kind of device, or for others.

    Of the smallest system multigrid would be no more than its coarsest grid. That many
    steps from one to the next are one of the budget's.
    """
    by_kind, others = limits
    largest = min(by_kind.get(place.kind, others), budget.largest_solve)
    sizes = [_SMALLEST * ratio if cycles else _SMALLEST]
    while sizes[-1] * ratio <= largest:
        sizes.append(sizes[-1] * ratio)
    return thinned(sizes, budget.solve_step ** (1.0 / finer))


def even_grid(n: int, ndim: int) -> tuple[int, ...]:
    """The most even grid of about n points; an extent is no power of two less one."""
    return (round(n ** (1.0 / ndim)),) * ndim
