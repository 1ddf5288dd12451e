"""What is measured of products: each implementation's time over sizes, orders and alignments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from hetero import registry
from hetero.arrays import spec
from hetero.ops.cases import Budget, Case, Place, SampleGrid, thinned
from hetero.registry.problem import DEVICE_DTYPES, Problem

_POINT = 0.006  # seconds for a shape on a device; on the CPU `Budget.point`


class Extents(NamedTuple):
    """The extents that are measured, each with each: few, chosen by what those between lose."""

    largest: dict[str, int]  # by kind of device, "" for others
    cpu: tuple[int, ...]
    device: tuple[int, ...]
    relative: tuple[int, ...]  # there, of a layout that is fitted relative to another one's model
    estimated: tuple[int, ...] = ()  # where the implementation estimates its own time
    estimated_relative: tuple[int, ...] = ()


def _problem(operation: str, on: str, dtype: str, order: str, *dims: int) -> Problem:
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
    orders: dict[str, str],
    reference: str = "",
) -> Iterator[Case]:
    """Cases of every implementation at a place.

    ``orders`` has the orders of the matrices, C or F each, that are measured apart, and their
    models' names; on a device all but ``reference`` are fitted relative to that one.
    """
    number = len(registry.operation(operation).dims[0].split())
    largest = extents.largest.get(place.kind, extents.largest[""])
    for row in registry.lookup(operation):
        if row.kind != place.kind or row.price is not None:  # which is by the prices of others
            continue
        each = itertools.product(DEVICE_DTYPES, (0, 1) if place.devices else (0,), orders.items())
        for dtype, less, (order, layout) in each:
            problem = partial(_problem, operation, place.operands_on, dtype, order)
            sizes, how, point = extents.cpu, SampleGrid(budget.held_out, 4), budget.point
            if place.devices:
                first = reference if order != reference else ""
                whole = (largest - less,) * number
                by_estimate = row.work(problem(*whole), place.info).estimate > 0.0
                sizes, how = _on_device(extents, budget, layout, less, first, by_estimate)
                layout, point = _fit_for(layout, less), _POINT
            sizes = [*(n for n in sizes if n < largest), largest]
            sizes = [n - less for n in thinned(sizes, budget.step)]
            seconds = point * (len(sizes) ** number + how.held_out)
            case = Case(row, dtype, layout, how, [sizes] * number, problem, seconds=seconds)
            if row.obstacle(case.problem(*case.largest), place.info) is None:
                yield case


def _on_device(
    extents: Extents, budget: Budget, layout: str, less: int, first: str, by_estimate: bool
) -> tuple[tuple[int, ...], SampleGrid]:
    """The sizes of a case on a device, and how it is measured; ``first`` is the layout that is this
    one's reference."""
    relative = bool(less or first)
    held_out = budget.held_out // 2 if relative else budget.held_out
    if by_estimate:
        sizes = extents.estimated_relative if relative else extents.estimated
        return sizes, SampleGrid(held_out, 4, less, None, True)
    reference = _fit_for(first, less) if first else _fit_for(layout, 0) if less else None
    sizes = extents.relative if relative else extents.device
    return sizes, SampleGrid(held_out, 4, less, reference)


def _fit_for(layout: str, less: int) -> str:
    return f"{layout} {'odd' if less else 'aligned'}"
