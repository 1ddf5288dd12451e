"""Products by own kernels: their launch plans, and how these are run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero import kernels
from hetero.arrays import alignment
from hetero.ops.products import operands
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


class _Family(NamedTuple):
    """What plans an operation's launches, and how it calls extents, strides, buffers and limits."""

    plan: Callable[..., kernels.LaunchPlan]
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    buffers: tuple[str, ...]  # the matrix first
    limits: tuple[str, ...] = ("multiprocessors", "block_limit", "capability")


_MATMUL = _Family(
    kernels.plan_matmul,
    ("m", "n", "k"),
    ("a_strides", "b_strides", "c_strides"),
    ("A", "B", "C"),
    ("multiprocessors", "block_limit", "capability", "shared_limit"),
)
_MATVEC = _Family(
    kernels.plan_matvec, ("m", "k"), ("a_strides", "x_strides", "y_strides"), ("A", "x", "y")
)
_FAMILIES = {"matmul": _MATMUL, "matvec": _MATVEC}


@functools.lru_cache(maxsize=4096)
def _planned(operation: str, dims: Any, strides: Any, limits: Any, *rest: Any) -> Any:
    family, (batch, dtype, aligned) = _FAMILIES[operation], rest
    named = dict(zip(family.extents, dims, strict=True))
    named |= zip(family.strides, strides, strict=True)
    named |= zip(family.limits, limits, strict=True)
    return family.plan(batch=batch, dtype=dtype, alignment=aligned, **named)


def launch_plan(problem: Problem, aligned: int, limit: Callable[[str], Any]) -> kernels.LaunchPlan:
    """The launches of a problem whose operands' addresses ``aligned`` divides, on a device of which
    ``limit(name)`` tells the limits."""
    limits = tuple(map(limit, _FAMILIES[problem.operation].limits))
    rest = problem.batch, problem.dtype, aligned
    return _planned(problem.operation, problem.dims, problem.strides, limits, *rest)


def _buffers(problem: Problem) -> tuple[str, ...]:
    """The names of a problem's inputs and of its result, in the kernels."""
    names = _FAMILIES[problem.operation].buffers
    if problem.operation == "matvec" and operands.is_row_times_matrix(problem):
        return names[1], names[0], names[2]
    return names


def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    """Start the launches on buffers of the device."""
    (device,), places = devices, (*arguments.inputs, arguments.output)
    planned = launch_plan(problem, alignment(*places), functools.partial(getattr, device))
    buffers = dict(zip(_buffers(problem), places, strict=True))
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)


def prepare(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    """A function of the addresses of the inputs and the result that starts them."""
    planned = launch_plan(problem, aligned, functools.partial(getattr, device))
    return device.prepared(planned, _buffers(problem), np.dtype(problem.dtype).itemsize)
