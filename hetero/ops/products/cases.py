"""What is measured of products: each implementation's time over sizes, orders and alignments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hetero import registry
from hetero.arrays import spec
from hetero.ops.cases import Budget, Case, Dims, Place, SampleGrid, thinned
from hetero.registry import Implementation
from hetero.registry.problem import DEVICE_DTYPES, Problem

_POINT = 0.006  # seconds for a shape on a device; on the CPU `Budget.point`


class Extents(NamedTuple):
    """The extents that are measured, each with each: few, chosen by what those between lose.

    Attributes
    ----------
    cpu, device : tuple of int
    relative : tuple of int
        On a device, for a layout that is fitted relative to another layout's model.
    estimated, estimated_relative : tuple of int
        Where the implementation estimates its own time.
    """

    cpu: tuple[int, ...]
    device: tuple[int, ...]
    relative: tuple[int, ...]
    estimated: tuple[int, ...] = ()
    estimated_relative: tuple[int, ...] = ()


def product(
    operation: str, dims: Dims, on: str, dtype: str = "float32", order: str = "C"
) -> Problem:
    """A matvec of dimensions (m, k), or matmul of (m, n, k), with all operands in one place."""
    m, *n, k = dims
    first = spec((m, k), dtype, on=on, order=order[0])
    second = spec((k, *n), dtype, on=on, order=order[-1])
    return registry.operation(operation).problem(first, second)


def product_cases(
    operation: str,
    place: Place,
    budget: Budget,
    extents: Extents,
    largest: int,
    orders: tuple[str, ...],
    layouts: tuple[str, ...],
    first_is_reference: bool,
) -> Iterator[Case]:
    """Cases of every implementation at a place.

    Parameters
    ----------
    operation : str
    place, budget
    extents : Extents
    largest : int
        Of the extents.
    orders, layouts : tuple of str
        Orders of the matrices, C or F each, that are measured apart, and their models' names.
    first_is_reference : bool
        Whether the first layout is the reference of the others, on a device.
    """
    for implementation in registry.lookup(operation):
        if implementation.kind != place.kind or implementation.run is None:
            continue
        if implementation.price is not None:  # by the prices of others
            continue
        for dtype in DEVICE_DTYPES:
            for less in (0, 1) if place.devices else (0,):
                for order, layout in zip(orders, layouts, strict=True):
                    case = _case(
                        implementation,
                        place,
                        budget,
                        extents,
                        largest,
                        dtype,
                        order,
                        layout,
                        less,
                        layouts[0] if first_is_reference and layout != layouts[0] else "",
                    )
                    if implementation.obstacle(case.problem(*case.largest), place.info) is None:
                        yield case


def _case(
    implementation: Implementation,
    place: Place,
    budget: Budget,
    extents: Extents,
    largest: int,
    dtype: str,
    order: str,
    layout: str,
    less: int,
    first: str,
) -> Case:
    """``first`` is the layout that is this one's reference."""
    operation = implementation.operation

    def problem(*dims: int) -> Problem:
        return product(operation, dims, place.operands_on, dtype, order)

    number = len(registry.operation(operation).dims[0].split())
    if not place.devices:
        sizes, point = extents.cpu, budget.point
        how = SampleGrid(budget.held_out, multiple=4)
    else:
        point = _POINT
        fit_for = "odd" if less else "aligned"
        reference = None
        work = implementation.work(problem(*(largest - less,) * number), place.info)
        by_estimate = work.estimate > 0.0
        relative = bool(less or first)
        if by_estimate:
            sizes = extents.estimated_relative if relative else extents.estimated
        else:
            sizes = extents.relative if relative else extents.device
            if first:
                reference = f"{first} {fit_for}"
            elif less:
                reference = f"{layout} aligned"
        held_out = budget.held_out // 2 if relative else budget.held_out
        how = SampleGrid(held_out, 4, less, reference, by_estimate)
        layout = f"{layout} {fit_for}"
    sizes = [*(n for n in sizes if n < largest), largest]
    sizes = [n - less for n in thinned(sizes, budget.step)]
    seconds = point * (len(sizes) ** number + how.held_out)
    return Case(implementation, dtype, layout, how, [sizes] * number, problem, seconds=seconds)
