"""An operation and a kind of device for tests of calibration, where nothing takes long.

The operation doubles an array. The device is a piece of the host's memory, on which NumPy computes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np
import pytest

import hetero.ops  # noqa: F401  the operations that there are
from hetero import devices, registry
from hetero.arrays import Spec, describe, spec
from hetero.calling import execution, planner
from hetero.devices.base import Device
from hetero.ops.cases import Budget, Case, Place, SampleGrid
from hetero.profile import inventory
from hetero.registry.models import Work
from hetero.registry.problem import DEVICE_DTYPES, Problem, dtype_obstacle

# -- An operation --------------------------------------------------------------------------------


def double(x, *, device=None, method=None):
    """Twice x, an array of one dimension."""
    x = np.asarray(x)
    plan = planner.plan_call(OPERATION, (x,), {}, device, method)
    return execution.execute(plan, execution.Call((x,), (describe(x),)))


def problem(x) -> Problem:
    operand = describe(x)
    obstacle = dtype_obstacle(operand)
    name = operand.dtype.name
    output = spec(operand.shape, operand.dtype, on=operand.location).operand()
    return Problem("double", operand.shape, name, (operand,), output, device_obstacle=obstacle)


def from_dims(dims, dtype, on) -> Problem:
    return problem(Spec(dims, dtype, on=on))


OPERATION = registry.Operation(
    name="double",
    function="double",
    call=double,
    summary="twice an array",
    dims=("N",),
    problem=problem,
    from_dims=from_dims,
    cases=__name__,
)


def work(problem, info) -> Work:
    return Work(problem.dims, float(problem.dims[0]), 2.0 * problem.output.nbytes)


def run_here(devices, problem, arguments) -> None:
    np.multiply(arguments.inputs[0], 2, out=arguments.output)


def run_there(devices, problem, arguments) -> None:
    x, y = (memory.view(problem.dtype) for memory in (*arguments.inputs, arguments.output))
    n = problem.dims[0]
    np.multiply(x[:n], 2, out=y[:n])


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """What calibration measures: two dtypes, a few sizes."""
    for row in registry.lookup("double"):
        if row.kind == place.kind:
            for dtype in DEVICE_DTYPES:

                def sized(n: int, dtype: str = dtype) -> Problem:
                    return from_dims((n,), dtype, place.operands_on)

                yield Case(row, dtype, "*", SampleGrid(held_out=2), [[16, 1024, 65536]], sized)


# -- A kind of device ----------------------------------------------------------------------------


class Toy(Device):
    """A device whose memory is the host's: a buffer is an array of bytes."""

    kind = dialect = "toy"
    multiprocessors, block_limit = 1, 1

    def __init__(self, ordinal: int = 0) -> None:
        self.name = f"toy:{ordinal}"

    def describe(self):
        names = {"kind": "toy", "name": "a toy", "driver": "1", "toolkit": None}
        return names | {"memory_bytes": 1 << 22, "multiprocessors": 1}

    def active(self):
        return contextlib.nullcontext(self)

    def allocate(self, nbytes):
        memory = np.zeros(-(-nbytes // 8) * 8, np.uint8)
        return memory, memory

    def enqueue(self, direction, array, buffer, offset=0, stream=None, awake=False):
        host, there = array.reshape(-1).view(np.uint8), buffer[offset : offset + array.nbytes]
        if direction == "upload":
            there[...] = host
        else:
            host[...] = there

    def copy(self, target, source, nbytes, target_offset=0, source_offset=0, stream=None):
        part = source[source_offset : source_offset + nbytes]
        target[target_offset : target_offset + nbytes] = part

    def build(self, text, kernel, defines):
        raise NotImplementedError

    launch = build

    def probe(self):
        """Works as it is."""

    def event(self, stream=None):
        return time.perf_counter()

    def elapsed(self, start, end):
        return end - start

    def synchronize(self, stream=None):
        """Nothing is under way."""

    def pinned(self, nbytes):
        return np.zeros(nbytes, np.uint8)


@contextlib.contextmanager
def installed(*toys):
    """Have the operation and some toys, one by default, among those that there are."""
    rows = [
        registry.Implementation("double", "numpy", place, registry.no_obstacle, work, run)
        for place, run in (("cpu", run_here), ("toy", run_there))
    ]
    found = {device.name: device for device in toys or (Toy(),)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_operations", {**registry._operations, "double": OPERATION})
        patch.setitem(registry._implementations, "double", rows)
        patch.setattr(devices.here, "found", {**devices.available(), **found})
        inventory.changed()
        yield
        devices.here.proved.difference_update(found)
    inventory.changed()
