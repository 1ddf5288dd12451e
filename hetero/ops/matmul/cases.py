"""What calibration measures of the matrix product."""

from __future__ import annotations

from collections.abc import Iterator

from hetero.ops.products.cases import product_cases
from hetero.runtime.cases import Budget, Case, Place

_OPERATION = "matmul"
_LARGEST = {"cpu": 2048, "opencl": 512}
_LARGEST_QUICK = {"cpu": 1024, "opencl": 256}
_LARGEST_OTHERS, _LARGEST_OTHERS_QUICK = 4096, 8192
_SECONDS = 1.5, 3.3  # of a case on the CPU: quick, and in full
_ORDERS = ("CC", "CF", "FC", "FF")


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation, by dtype, on devices also by the orders and by alignment."""
    if budget.quick:
        largest = _LARGEST_QUICK.get(place.kind, _LARGEST_OTHERS_QUICK)
    else:
        largest = _LARGEST.get(place.kind, _LARGEST_OTHERS)
    orders, layouts = (_ORDERS, _ORDERS) if place.devices else (("CC",), ("*",))
    yield from product_cases(_OPERATION, place, budget, largest, orders, layouts, True, _SECONDS)
