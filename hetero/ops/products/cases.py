"""What is measured of products: each implementation's time over sizes, orders and alignments."""

from __future__ import annotations

from collections.abc import Iterator

from hetero.arrays import spec
from hetero.runtime import registry
from hetero.runtime.cases import Budget, Case, Dims, Place, SampleGrid, axis
from hetero.runtime.problem import DEVICE_DTYPES, Problem
from hetero.runtime.registry import Implementation

_LEAST_EXTENT, _LEAST_KNOT = 4, 16
_BETWEEN = [48, 96]
_ESTIMATE_STEP = 4.0  # ratio of neighbouring sizes where the implementation knows its own steps
_SECONDS = (0.7, 2.0)  # of a case on a device: quick, and in full
_BESIDE = 0.1  # of that, where another layout's model tells most


def product(
    operation: str, dims: Dims, on: str, dtype: str = "float32", order: str = "C"
) -> Problem:
    """A matvec of dimensions (m, k), or matmul of (m, n, k), whose operands lie in one place."""
    m, *n, k = dims
    first = spec((m, k), dtype, on=on, order=order[0])
    second = spec((k, *n), dtype, on=on, order=order[-1])
    return registry.operation(operation).problem(first, second)


def product_cases(
    operation: str,
    place: Place,
    budget: Budget,
    largest: int,
    orders: tuple[str, ...],
    layouts: tuple[str, ...],
    between: bool,
    seconds: tuple[float, float],
) -> Iterator[Case]:
    """Cases of every implementation at a place.

    Parameters
    ----------
    operation : str
    place, budget
    largest : int
        Largest extent.
    orders, layouts : tuple of str
        Orders of the matrices, C or F each, that are measured apart, and what their models are
        called; the first one is the reference of the others where ``between`` says so.
    between : bool
        Whether libraries take other ways between powers of two, and alike for each order.
    seconds : tuple of float
        How long a case may take on the CPU: quick, and in full.
    """
    seconds = _SECONDS if place.devices else seconds
    for implementation in registry.lookup(operation):
        if implementation.kind != place.kind or implementation.run is None:
            continue
        for dtype in DEVICE_DTYPES:
            for less in (0, 1) if place.devices else (0,):
                for order, layout in zip(orders, layouts, strict=True):
                    case = _case(
                        implementation,
                        place,
                        budget,
                        largest,
                        dtype,
                        order,
                        layout,
                        less,
                        between,
                        seconds[not budget.quick],
                    )
                    if implementation.excludes(case.problem(*case.largest), place.info) is None:
                        yield case


def _case(
    implementation: Implementation,
    place: Place,
    budget: Budget,
    largest: int,
    dtype: str,
    order: str,
    layout: str,
    less: int,
    between: bool,
    seconds: float,
) -> Case:
    operation = implementation.operation

    def problem(*dims: int) -> Problem:
        return product(operation, dims, place.operands_on, dtype, order)

    number = len(registry.operation(operation).dims[0].split())
    ahead = ""
    if not place.devices:
        sizes = axis(_LEAST_EXTENT, largest, budget.step)
        how = SampleGrid(budget.held_out, multiple=4)
    else:
        fit_for = "odd" if less else "aligned"
        reference = None
        work = implementation.work(problem(*(largest - less,) * number), place.info)
        by_estimate = work.estimate > 0.0
        if by_estimate:
            sizes = axis(_LEAST_KNOT, largest, max(budget.device_step, _ESTIMATE_STEP))
        else:
            if between and layout != "CC":
                reference = f"CC {fit_for}"
            elif less:
                reference = f"{layout} aligned"
            sizes = _knots(largest, budget.device_step, reference is not None, between)
        few = reference or (by_estimate and (less or order != "CC"))
        held_out = budget.held_out // 4 if few else budget.held_out
        how = SampleGrid(held_out, 4, less, reference, by_estimate)
        sizes = [n - less for n in sizes]
        layout = f"{layout} {fit_for}"
        seconds *= _BESIDE if reference else 1.0
        ahead = operation if implementation.method == "tiled" else ""
    return Case(
        implementation, dtype, layout, how, [sizes] * number, problem, seconds=seconds, ahead=ahead
    )


def _knots(largest: int, step: float, few: bool, between: bool) -> list[int]:
    """Sizes to measure on a device: powers of two, and what lies beside them.

    A library takes other ways for tiny sizes. Between 32 and 128 it works in tiles that fit some
    sizes and not others.
    """
    sizes = axis(_LEAST_KNOT, largest, step)
    if few:
        sizes = sizes[::2]
    elif between and step <= 2.0:
        sizes += _BETWEEN
    return [_LEAST_EXTENT, *sorted(sizes)]
