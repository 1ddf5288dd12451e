"""The rungs of the matrix product: kernels on the way to "tiled", each taken by its name only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetero import registry
from hetero.kernels import Launch, LaunchPlan
from hetero.kernels.matmul.rungs import CPU_RUNGS, RUNGS, Shape, chosen, plan_rung, shapes
from hetero.ops import rungs
from hetero.ops.products import operands
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _plan(rung: str, device: Device, problem: Problem, shape: Shape | None = None) -> LaunchPlan:
    (m, n, k), (a, b, c) = problem.dims, problem.strides
    return plan_rung(
        rung,
        m=m,
        n=n,
        k=k,
        batch=problem.batch,
        dtype=problem.dtype,
        a_strides=a,
        b_strides=b,
        c_strides=c,
        card=device.card(),
        shape=shape,
    )


def _launch(
    rung: str, device: Device, problem: Problem, arguments: Arguments, shape: Shape | None = None
) -> None:
    buffers = dict(zip("ABC", (*arguments.inputs, arguments.output), strict=True))
    planned = _plan(rung, device, problem, shape)
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)


def _launches(rung: str, device: Device, problem: Problem, shape: Shape) -> tuple[Launch, ...]:
    return _plan(rung, device, problem, shape).launches


def _blocks(rung: str, device: Device, problem: Problem) -> tuple[tuple[Shape, ...], Shape]:
    (m, n, k), card, dtype = problem.dims, device.card(), problem.dtype
    own = chosen(rung, dtype, m * problem.batch, n, k, card)
    return shapes(rung, dtype, card), own


def register(operation: str) -> None:
    """Add the rungs' rows for an operation."""
    for name, rung in RUNGS.items():
        registry.register_method(
            operation=operation,
            method=name,
            kinds=registry.PORTABLE,
            work=operands.gpu_work,
            **rungs.fields(name, _launch, _blocks, _launches),
            rung=rung,
        )
    row = {"operation": operation, "excludes": rungs.as_devices, "work": operands.cpu_work}
    rungs.register_on_cpu(operation, CPU_RUNGS, operands.on_cpu, **row)
