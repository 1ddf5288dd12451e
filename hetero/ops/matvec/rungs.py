"""The rungs of the matrix-vector product: kernels on the way to "tiled", taken by name only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.kernels import LaunchPlan
from hetero.kernels.matvec.rungs import (
    CONSTANT_BYTES,
    CPU_RUNGS,
    RUNGS,
    HeldPlan,
    Shape,
    chosen,
    plan_rung,
    shapes,
)
from hetero.kernels.procedure.card import Card
from hetero.ops import rungs
from hetero.ops.products import operands
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


@functools.lru_cache(maxsize=1024)
def _plan(
    rung: str,
    dims: tuple[int, int],
    batch: int,
    dtype: str,
    strides: tuple[tuple[int, ...], ...],
    card: Card,
    shape: Shape | None,
) -> LaunchPlan | HeldPlan:
    (m, k), (a, x, y) = dims, strides
    return plan_rung(
        rung,
        m=m,
        k=k,
        batch=batch,
        dtype=dtype,
        a_strides=a,
        x_strides=x,
        y_strides=y,
        card=card,
        shape=shape,
    )


def _launch(
    rung: str, device: Device, problem: Problem, arguments: Arguments, shape: Shape | None = None
) -> None:
    p, card = problem, device.card()
    planned = _plan(rung, p.dims, p.batch, p.dtype, p.strides, card, shape)
    matrix, vector = operands.matrix_and_vector(problem, arguments.inputs)
    buffers = {"A": matrix, "x": vector, "y": arguments.output}
    itemsize = np.dtype(problem.dtype).itemsize
    if isinstance(planned, HeldPlan):
        run_held(device, planned, buffers, itemsize)
    else:
        device.run_launches(planned, buffers, itemsize)


def _blocks(rung: str, device: Device, problem: Problem) -> tuple[tuple[Shape, ...], Shape]:
    (m, k), card, dtype = problem.dims, device.card(), problem.dtype
    own = chosen(rung, dtype, m * problem.batch, k, card)
    return shapes(rung, dtype, card), own


def run_held(device: Device, planned: HeldPlan, buffers: dict[str, Any], itemsize: int) -> None:
    """Run a plan; each launch has its own piece of x in constant memory."""
    vectors, owner = buffers["x"], None
    if planned.pack is not None:
        vectors, owner = device.allocate(planned.packed * itemsize)
        device.run_launches(planned.pack, buffers | {"packed": vectors}, itemsize)
    same = planned.pieces[0].launch
    where = same.source, same.kernel, same.defines
    with device.constant_memory(*where, "held", CONSTANT_BYTES) as (kernel, held):
        buffers["held"] = held
        for begin, count, launch in planned.pieces:
            device.copy(held, vectors, count * itemsize, 0, begin * itemsize)
            given = [buffers[a] if type(a) is str else a for a in launch.arguments]
            device.launch(kernel, launch.grid, launch.block, given)
    del owner


def register(operation: str) -> None:
    """Add the rungs' rows for an operation."""
    for name, rung in RUNGS.items():
        registry.register_method(
            operation=operation,
            method=name,
            kinds=registry.PORTABLE,
            work=operands.gpu_work,
            **rungs.fields(name, _launch, _blocks),
            rung=rung,
        )
    row = {"operation": operation, "excludes": rungs.as_devices, "work": operands.cpu_work}
    rungs.register_on_cpu(operation, CPU_RUNGS, operands.on_cpu, **row)
