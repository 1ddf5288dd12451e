"""The ways to multiply a matrix and a vector: NumPy, our own kernels."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import kernels, registry
from hetero.arrays import alignment
from hetero.ops.products import operands
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

NAME = "matvec"
# Rows and columns of the largest matrix that calibration measures, by kind of device; of others.
LARGEST = {"cpu": 8192, "opencl": 1024, "": 16384}


def _cpu_work(problem: Problem, info: dict[str, Any]) -> Work:
    return _as_measured(operands.cpu_work(problem, info), info)


def _gpu_work(problem: Problem, info: dict[str, Any]) -> Work:
    return _as_measured(operands.gpu_work(problem, info), info)


def _as_measured(work: Work, info: dict[str, Any]) -> Work:
    """The work with the dimensions of a shorter matrix of as many elements, if one is very long.

    Each element is read once, whatever the shape, and that is what takes the time. A matrix that
    has few elements for its length tells of the start of a call, not of the rate.
    """
    m, k = work.dims
    most = LARGEST.get(info.get("kind"), LARGEST[""])
    fold = min(max(m, k) / most, most / min(m, k))
    if fold <= 1.0:
        return work
    m, k = (m / fold, k * fold) if m > k else (m * fold, k / fold)
    return work._replace(dims=(round(m), round(k)))


def _run_blas(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    getattr(np, problem.function)(*arguments.inputs, out=arguments.output)


@functools.lru_cache(maxsize=4096)
def _launch_plan(dims: tuple[int, ...], strides: tuple[tuple[int, ...], ...], **others: Any) -> Any:
    (m, k), (a, x, y) = dims, strides
    return kernels.plan_matvec(m=m, k=k, a_strides=a, x_strides=x, y_strides=y, **others)


def _launch_plan_of(device: Any, problem: Problem, aligned: int) -> Any:
    return _launch_plan(
        problem.dims,
        problem.strides,
        batch=problem.batch,
        dtype=problem.dtype,
        alignment=aligned,
        multiprocessors=device.multiprocessors,
        block_limit=device.block_limit,
        capability=device.capability,
    )


def _run_tiled(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    (device,), output = devices, arguments.output
    A, x = operands.matrix_and_vector(problem, arguments.inputs)
    launch_plan = _launch_plan_of(device, problem, alignment(A, x, output))
    device.run_launches(
        launch_plan, {"A": A, "x": x, "y": output}, np.dtype(problem.dtype).itemsize
    )


def _prepare_tiled(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    matrix, _ = operands.matrix_and_vector(problem, [0, 1])
    names = ("A", "x", "y") if matrix == 0 else ("x", "A", "y")
    itemsize = np.dtype(problem.dtype).itemsize
    return device.prepared(_launch_plan_of(device, problem, aligned), names, itemsize)


registry.register_method(
    operation=NAME,
    method="blas",
    kinds=("cpu",),
    work=_cpu_work,
    run=_run_blas,
)
registry.register_method(
    operation=NAME,
    method="tiled",
    kinds=("cuda",),
    work=_gpu_work,
    run=_run_tiled,
    prepare=_prepare_tiled,
)
registry.register_method(
    operation=NAME,
    method="tiled",
    kinds=("opencl",),
    work=_gpu_work,
    run=_run_tiled,
)
