"""The rungs of the matrix product: kernels on the way to "tiled", each taken by its name only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetero.kernels import Launch, LaunchPlan
from hetero.kernels.matmul.rungs import RUNGS, Shape, plan_rung
from hetero.ops import rungs
from hetero.ops.products import operands
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _plan(rung: str, device: Device, problem: Problem, shape: Shape | None = None) -> LaunchPlan:
    (m, n, k), strides = problem.dims, problem.strides
    sizes = {"m": m, "n": n, "k": k, "batch": problem.batch, "dtype": problem.dtype}
    sizes |= dict(zip(("a_strides", "b_strides", "c_strides"), strides, strict=True))
    return plan_rung(rung, **sizes, card=device.card(), shape=shape)


def _run(
    rung: str, device: Device, problem: Problem, arguments: Arguments, shape: Shape | None = None
) -> None:
    buffers = dict(zip("ABC", (*arguments.inputs, arguments.output), strict=True))
    planned = _plan(rung, device, problem, shape)
    rungs.run_plan(device, planned, buffers, np.dtype(problem.dtype).itemsize)


def _launches(rung: str, device: Device, problem: Problem, shape: Shape) -> tuple[Launch, ...]:
    return _plan(rung, device, problem, shape).launches


def _sizes(problem: Problem) -> tuple[int, int, int]:
    m, n, k = problem.dims
    return m * problem.batch, n, k


def register(operation: str) -> None:
    """Add the rungs' rows for an operation."""
    row = {"operation": operation, "work": operands.gpu_work}
    rungs.register(RUNGS, _run, _sizes, launches=_launches, **row)
