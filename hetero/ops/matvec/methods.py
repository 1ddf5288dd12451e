"""The ways to multiply a matrix and a vector: NumPy, our own kernels, cuBLAS."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.arrays import alignment
from hetero.ops.products import operands as products
from hetero.runtime import registry, tuning
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments

if TYPE_CHECKING:
    from hetero.devices.base import Device

NAME = "matvec"


def _run_blas(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    getattr(np, problem.function)(*arguments.inputs, out=arguments.output)


@functools.lru_cache(maxsize=4096)
def _steps(
    dims: tuple[int, ...],
    batch: int,
    dtype: str,
    strides: tuple[tuple[int, ...], ...],
    alignment: int,
    multiprocessors: int,
    block_limit: int,
    capability: tuple[int, int] | None,
    tuning: Any,
) -> Any:
    from hetero import kernels

    m, k = dims
    a, x, y = strides
    return kernels.plan_matvec(
        m=m,
        k=k,
        batch=batch,
        dtype=dtype,
        a_strides=a,
        x_strides=x,
        y_strides=y,
        multiprocessors=multiprocessors,
        alignment=alignment,
        block_limit=block_limit,
        capability=capability,
        tuning=tuning,
    )


def _steps_of(device: Any, problem: Problem, aligned: int) -> Any:
    return _steps(
        problem.dims,
        problem.batch,
        problem.dtype,
        problem.strides,
        aligned,
        device.multiprocessors,
        device.block_limit,
        device.capability,
        tuning.of_device(device),
    )


def _run_tiled(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    (device,), output = devices, arguments.output
    A, x = products.matrix_and_vector(problem, arguments.inputs)
    steps = _steps_of(device, problem, alignment(A, x, output))
    device.run_steps(steps, {"A": A, "x": x, "y": output}, np.dtype(problem.dtype).itemsize)


def _prepare_tiled(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    matrix, _ = products.matrix_and_vector(problem, [0, 1])
    names = ("A", "x", "y") if matrix == 0 else ("x", "A", "y")
    itemsize = np.dtype(problem.dtype).itemsize
    return device.prepared(_steps_of(device, problem, aligned), names, itemsize)


def _library_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    from hetero.ops.products import cublas

    return cublas.gemv_obstacle(problem, info)


def _run_library(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    from hetero.ops.products import cublas

    A, x = products.matrix_and_vector(problem, arguments.inputs)
    cublas.gemv(devices[0], problem)(A, x, arguments.output)


def _prepare_library(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    from hetero.ops.products import cublas

    launch = cublas.gemv(device, problem)
    if products.matrix_and_vector(problem, [0, 1])[0] == 0:
        return launch
    return lambda x, A, y: launch(A, x, y)


for _implementation in (
    registry.Implementation(
        NAME, "blas", "cpu", registry.no_obstacle, products.cpu_work, _run_blas
    ),
    registry.Implementation(
        NAME,
        "tiled",
        "cuda",
        registry.no_obstacle,
        products.gpu_work,
        _run_tiled,
        prepare=_prepare_tiled,
    ),
    registry.Implementation(
        NAME,
        "library",
        "cuda",
        _library_obstacle,
        products.gpu_work,
        _run_library,
        prepare=_prepare_library,
    ),
    registry.Implementation(
        NAME, "tiled", "opencl", registry.no_obstacle, products.gpu_work, _run_tiled
    ),
):
    registry.register(_implementation)
