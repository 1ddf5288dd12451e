"""The rungs of the matrix-vector product: kernels on the way to "tiled", taken by name only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetero.kernels.matvec.rungs import RUNGS, Shape, plan_rung
from hetero.ops import rungs
from hetero.ops.products import operands
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


def _run(
    rung: str, device: Device, problem: Problem, arguments: Arguments, shape: Shape | None = None
) -> None:
    (m, k), strides = problem.dims, problem.strides
    sizes = {"m": m, "k": k, "batch": problem.batch, "dtype": problem.dtype}
    sizes |= dict(zip(("a_strides", "x_strides", "y_strides"), strides, strict=True))
    planned = plan_rung(rung, **sizes, card=device.card(), shape=shape)
    matrix, vector = operands.matrix_and_vector(problem, arguments.inputs)
    buffers = {"A": matrix, "x": vector, "y": arguments.output}
    rungs.run_plan(device, planned, buffers, np.dtype(problem.dtype).itemsize)


def _sizes(problem: Problem) -> tuple[int, int]:
    m, k = problem.dims
    return m * problem.batch, k


def register(operation: str) -> None:
    """Add the rungs' rows for an operation."""
    row = {"operation": operation, "work": operands.gpu_work}
    rungs.register(RUNGS, _run, _sizes, **row)
