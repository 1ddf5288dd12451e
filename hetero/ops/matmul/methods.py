"""The ways to multiply two matrices: NumPy, our own kernels, cuBLAS."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import kernels, registry
from hetero.arrays import alignment
from hetero.moving import ranges, streaming
from hetero.ops.products import cublas, operands
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

NAME = "matmul"
VECTOR_BYTES = 16  # of the widest loads; operands are expected to be aligned for them
_SPLIT_CALLS = 1.15  # what a second launch and its buffer add to what a call costs the host


def _run_blas(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    np.matmul(*arguments.inputs, out=arguments.output)


@functools.lru_cache(maxsize=4096)
def _launch_plan(dims: tuple[int, ...], strides: tuple[tuple[int, ...], ...], **others: Any) -> Any:
    (m, n, k), (a, b, c) = dims, strides
    return kernels.plan_matmul(m=m, n=n, k=k, a_strides=a, b_strides=b, c_strides=c, **others)


def _launch_plan_of(device: Any, problem: Problem, aligned: int) -> Any:
    return _launch_plan(
        problem.dims,
        problem.strides,
        batch=problem.batch,
        dtype=problem.dtype,
        alignment=aligned,
        multiprocessors=device.multiprocessors,
        block_limit=device.block_limit,
        shared_limit=device.shared_limit,
        capability=device.capability,
    )


def _tiled_work(problem: Problem, info: dict[str, Any]) -> Work:
    """As `operands.gpu_work`, with the device's seconds that the kernels' own plan counts on."""
    work = operands.gpu_work(problem, info)
    if not problem.strides or "arch" not in info:
        return work
    major, minor = divmod(int(info["arch"].removeprefix("sm_")), 10)
    launch_plan = _launch_plan(
        problem.dims,
        problem.strides,
        batch=problem.batch,
        dtype=problem.dtype,
        alignment=VECTOR_BYTES,
        multiprocessors=info["multiprocessors"],
        block_limit=info["block_limit"],
        shared_limit=info["shared_limit"],
        capability=(major, minor),
    )
    calls = 1.0 if len(launch_plan.launches) == 1 else _SPLIT_CALLS
    return work._replace(estimate=launch_plan.seconds, calls=calls)


def _run_tiled(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    (device,), output = devices, arguments.output
    A, B = arguments.inputs
    launch_plan = _launch_plan_of(device, problem, alignment(A, B, output))
    device.run_launches(
        launch_plan, {"A": A, "B": B, "C": output}, np.dtype(problem.dtype).itemsize
    )


def _prepare_tiled(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    itemsize = np.dtype(problem.dtype).itemsize
    return device.prepared(_launch_plan_of(device, problem, aligned), ("A", "B", "C"), itemsize)


def _run_library(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    cublas.gemm(devices[0], problem)(*arguments.inputs, arguments.output)


def _prepare_library(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    return cublas.gemm(device, problem)


registry.register_method(
    operation=NAME,
    method="blas",
    kinds=("cpu",),
    work=operands.cpu_work,
    run=_run_blas,
)
registry.register_method(
    operation=NAME,
    method="tiled",
    kinds=("cuda",),
    work=_tiled_work,
    run=_run_tiled,
    prepare=_prepare_tiled,
)
registry.register_method(
    operation=NAME,
    method="library",
    kinds=("cuda",),
    excludes=cublas.gemm_obstacle,
    work=operands.gpu_work,
    run=_run_library,
    prepare=_prepare_library,
)
registry.register_method(
    operation=NAME,
    method="tiled",
    kinds=("opencl",),
    work=operands.gpu_work,
    run=_run_tiled,
)
registry.register_method(
    operation=NAME,
    method="streamed",
    kinds=registry.PORTABLE,
    excludes=ranges.obstacle,
    work=registry.Composed(operands.gpu_work, ranges.price),
    run=registry.HostRun(streaming.run, registry.ALWAYS),
)
