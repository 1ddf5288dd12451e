"""What calibration measures of the matrix product."""

from __future__ import annotations

from collections.abc import Iterator

from hetero.ops.cases import Budget, Case, Place
from hetero.ops.products.cases import Extents, product_cases

SHARED = (4096, 4096, 4096)
_EXTENTS = Extents(
    largest={"cpu": 2048, "opencl": 512, "": 8192},
    cpu=(4, 16, 32, 128, 256, 1024, 2048),
    device=(4, 64, 256, 1024, 2048, 4096, 8192),
    relative=(4, 256, 8192),
    estimated=(16, 64, 256, 1024, 8192),
    estimated_relative=(16, 256, 8192),
)
_ORDERS = {order: order for order in ("CC", "CF", "FC", "FF")}


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation, by dtype, on devices also by the orders and by alignment."""
    orders = _ORDERS if place.devices else {"CC": "*"}
    yield from product_cases("matmul", place, budget, _EXTENTS, orders, "CC")
