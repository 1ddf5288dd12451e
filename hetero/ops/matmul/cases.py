"""What calibration measures of the matrix product."""

from __future__ import annotations

from collections.abc import Iterator

from hetero.ops.cases import Budget, Case, Place
from hetero.ops.products.cases import Extents, product_cases

_OPERATION = "matmul"
_EXTENTS = Extents(
    cpu=(4, 16, 32, 128, 256, 1024, 2048),
    device=(4, 64, 256, 1024, 2048, 4096, 8192),
    relative=(4, 256, 8192),
    estimated=(16, 64, 256, 1024, 8192),
    estimated_relative=(16, 256, 8192),
)
SHARED = (4096, 4096, 4096)
_LARGEST = {"cpu": 2048, "opencl": 512}
_LARGEST_OTHERS = 8192
_ORDERS = ("CC", "CF", "FC", "FF")


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation, by dtype, on devices also by the orders and by alignment."""
    largest = _LARGEST.get(place.kind, _LARGEST_OTHERS)
    orders, layouts = (_ORDERS, _ORDERS) if place.devices else (("CC",), ("*",))
    yield from product_cases(_OPERATION, place, budget, _EXTENTS, largest, orders, layouts, True)
