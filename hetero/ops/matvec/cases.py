"""What calibration measures of the matrix-vector product."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from hetero import registry
from hetero.arrays import spec
from hetero.calling import planner
from hetero.devices.base import Device
from hetero.ops import matvec
from hetero.ops.cases import Budget, Case, Place, SmallCall
from hetero.ops.products.calls import host_call
from hetero.ops.products.cases import Extents, product_cases
from hetero.ops.products.methods import LARGEST

SHARED = (16384, 8192)
_OPERATION, _METHOD = "matvec", "tiled"
_EXTENTS = Extents(
    largest=LARGEST,
    cpu=(4, 16, 128, 256, 512, 1024, 2048, 8192),
    device=(4, 64, 256, 512, 1024, 2048, 4096, 16384),
    relative=(4, 256, 1024, 16384),
)


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation, by dtype and order, on devices also by alignment."""
    orders = {"C": "C", "F": "F"}
    yield from product_cases(_OPERATION, place, budget, _EXTENTS, orders)


def small_call(device: Device) -> SmallCall | None:
    """A product with 16 x 16 elements by the own kernel, where the device has it."""
    tiled = [i for i in registry.lookup(_OPERATION) if (i.kind, i.method) == (device.kind, _METHOD)]
    if not tiled:
        return None
    A, x = np.ones((16, 16), np.float32), np.ones(16, np.float32)
    problem = matvec.problem(spec(A.shape, A.dtype, on=device.name), spec(x.shape, x.dtype))
    plan = planner.plan(matvec.problem(A, x), device.name, _METHOD)
    call = host_call(plan, np.matvec)
    return SmallCall(tiled[0], problem, (A, x), partial(call, A, x))
