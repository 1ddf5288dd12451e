"""Products by own kernels: their launch plans, and how these are run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero import kernels
from hetero.arrays import alignment
from hetero.kernels.common.launch import Target
from hetero.ops.products import operands
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device


class _Family(NamedTuple):
    """What plans an operation's launches, and how it calls extents, strides and buffers."""

    plan: Callable[..., kernels.LaunchPlan]
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    buffers: tuple[str, ...]  # the matrix first


_MATMUL = ("m", "n", "k"), ("a_strides", "b_strides", "c_strides"), ("A", "B", "C")
_MATVEC = ("m", "k"), ("a_strides", "x_strides", "y_strides"), ("A", "x", "y")
_FAMILIES = {
    "matmul": _Family(kernels.plan_matmul, *_MATMUL),
    "matvec": _Family(kernels.plan_matvec, *_MATVEC),
    "tensor": _Family(kernels.plan_tensor, *_MATMUL),
}


@functools.lru_cache(maxsize=4096)
def _planned(name: str, dims: Any, strides: Any, **others: Any) -> kernels.LaunchPlan:
    family = _FAMILIES[name]
    named = dict(zip(family.extents, dims, strict=True))
    named |= zip(family.strides, strides, strict=True)
    return family.plan(**named, **others)


def launch_plan(
    problem: Problem, aligned: int, target: Target, family: str = ""
) -> kernels.LaunchPlan:
    """The launches of a problem; ``aligned`` divides its operands' addresses."""
    asked = {"batch": problem.batch, "dtype": problem.dtype, "alignment": aligned}
    family = family or problem.operation
    return _planned(family, problem.dims, problem.strides, target=target, **asked)


def _buffers(problem: Problem) -> tuple[str, ...]:
    """The names of a problem's inputs and of its result, in the kernels."""
    names = _FAMILIES[problem.operation].buffers
    if problem.operation == "matvec" and operands.is_row_times_matrix(problem):
        return names[1], names[0], names[2]
    return names


def run(devices: tuple[Device], problem: Problem, arguments: Arguments, family: str = "") -> None:
    """Start the launches on buffers of the device; a problem's operation has a family of kernels,
    and may have others."""
    (device,), places = devices, (*arguments.inputs, arguments.output)
    planned = launch_plan(problem, alignment(*places), device.target, family)
    buffers = dict(zip(_buffers(problem), places, strict=True))
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)


def prepare(device: Any, problem: Problem, aligned: int, options: Any, family: str = "") -> Any:
    """A function of the addresses of the inputs and the result that starts them."""
    planned = launch_plan(problem, aligned, device.target, family)
    return device.prepared(planned, _buffers(problem), np.dtype(problem.dtype).itemsize)
