"""The ways to multiply two matrices: NumPy, our own kernels, cuBLAS."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.imports import INSTALL, load
from hetero.kernels.common.launch import Target
from hetero.moving import ranges, streaming
from hetero.ops.products import operands, tiled
from hetero.pricing import places, settings
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

NAME = "matmul"
VECTOR_BYTES = 16  # of the widest loads; operands are expected to be aligned for them
_SPLIT_CALLS = 1.15  # what a second launch and its buffer add to what a call costs the host
_LEAST_DEPTH = 128  # of products by pieces, which round no worse than float32 where there are many
_N, _T = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
_INT32 = 2**31 - 1
_constants = {
    name: (np.ones(1, name), np.zeros(1, name)) for name in ("float32", "float64")
}  # alpha and beta; kept alive, cuBLAS reads them by address
_alpha_beta = {name: (a.ctypes.data, b.ctypes.data) for name, (a, b) in _constants.items()}
_prefix = {"float32": "s", "float64": "d"}


def _run_blas(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    np.matmul(*arguments.inputs, out=arguments.output)


def _tiled_work(problem: Problem, info: dict[str, Any], family: str = "") -> Work:
    """As `operands.gpu_work`, with the device's seconds that the kernels' own plan counts on."""
    work = operands.gpu_work(problem, info)
    if not problem.strides or "arch" not in info:
        return work
    target = Target(
        info["multiprocessors"],
        info["block_limit"],
        shared_limit=info["shared_limit"],
        capability=divmod(int(info["arch"].removeprefix("sm_")), 10),
    )
    planned = tiled.launch_plan(problem, VECTOR_BYTES, target, family)
    calls = 1.0 if len(planned.launches) == 1 else _SPLIT_CALLS
    return work._replace(estimate=planned.seconds, calls=calls)


def _no_tensor_cores(problem: Problem, info: dict[str, Any]) -> str | None:
    """Why tensor cores cannot do this matmul, None where they can."""
    if info.get("arch") != "sm_90" and not info.get("elsewhere"):
        return "tensor multiplies on NVIDIA GPUs of compute capability 9.0"
    if problem.dtype != "float32":
        return f"tensor multiplies float32, got {problem.dtype}"
    if settings.is_ieee():
        return 'tensor cuts operands into pieces, which precision="ieee" excludes'
    if problem.dims[2] < _LEAST_DEPTH:
        return f"tensor takes k from {_LEAST_DEPTH} on, got {problem.dims[2]}"
    return None


# -- cuBLAS, which is column-major: a row-major C = A B is the column-major C^T = B^T A^T ----------


def _leading(row: int, column: int, rows: int, columns: int) -> tuple[int, int] | None:
    """(op, leading dimension) of a matrix seen by columns; None where neither stride is 1."""
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return _N, max(column, rows) if columns > 1 else rows
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return _T, max(row, columns) if rows > 1 else columns
    return None


def _no_library(info: dict[str, Any]) -> str | None:
    """Why there is no cuBLAS for a device, None where there is."""
    if info.get("library") or info.get("elsewhere"):
        return None
    return f"cuBLAS is not here; {INSTALL['library']}"


def gemm_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Why cuBLAS cannot do this matmul, None where it can."""
    if (reason := _no_library(info)) or not problem.strides:
        return reason
    m, n, k = problem.dims
    a, b, c = problem.strides
    for name, (_, row, column), rows, columns in (
        ("A", a, m, k),
        ("B", b, k, n),
        ("C", c, m, n),
    ):
        leading = _leading(row, column, rows, columns)
        if leading is None:
            return f"cuBLAS needs a unit stride in each matrix, {name} has ({row}, {column})"
        if max(rows, columns, leading[1]) > _INT32:
            return f"cuBLAS takes dimensions up to {_INT32}"
    return None


def _handle(device: Any) -> tuple[Any, int]:
    """cuBLAS's functions, and its handle for the default stream."""
    handles = device.state().handles
    handle = handles.get("cublas")
    if handle is None:
        cublas = load("hetero.devices.cuda.libraries").cublas()
        handle = handles["cublas"] = cublas, cublas.create()
    return handle


@functools.lru_cache(maxsize=4096)
def _gemm_arguments(
    dims: tuple[int, ...], strides: tuple[tuple[int, ...], ...], batch: int
) -> tuple[bool, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(operands swapped, ops and extents, then what follows each of the three addresses)."""
    m, n, k = dims
    (a_batch, *a), (b_batch, *b), (c_batch, *c) = strides
    op_c, ldc = _leading(*c, m, n)
    op_a, lda = _leading(*a, m, k)
    op_b, ldb = _leading(*b, k, n)
    swapped = op_c == _T  # row-major C: C^T = B^T A^T
    if swapped:
        head, p, q = (op_b ^ 1, op_a ^ 1, n, m, k), (ldb, b_batch), (lda, a_batch)
    else:
        head, p, q = (op_a, op_b, m, n, k), (lda, a_batch), (ldb, b_batch)
    if batch == 1:
        return swapped, head, p[:1], q[:1], (ldc,)
    return swapped, head, p, q, (ldc, c_batch, batch)


def gemm(device: Any, problem: Problem) -> Callable[[int, int, int], None]:
    """C = A B in the current context, as a function of three addresses in the device's memory."""
    cublas, handle = _handle(device)
    swapped, head, p, q, r = _gemm_arguments(problem.dims, problem.strides, problem.batch)
    alpha, beta = _alpha_beta[problem.dtype]
    name = _prefix[problem.dtype] + ("gemm" if problem.batch == 1 else "gemm_strided_batched")
    function = getattr(cublas, name)
    if swapped:
        return lambda A, B, C: function(handle, *head, alpha, B, *p, A, *q, beta, C, *r)
    return lambda A, B, C: function(handle, *head, alpha, A, *p, B, *q, beta, C, *r)


def _run_library(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    gemm(devices[0], problem)(*arguments.inputs, arguments.output)


def _prepare_library(device: Any, problem: Problem, aligned: int, options: Any) -> Any:
    return gemm(device, problem)


_method = functools.partial(registry.register_method, operation=NAME)
_method(method="blas", kinds=("cpu",), work=operands.cpu_work, run=_run_blas)
_method(method="tiled", kinds=("cuda",), work=_tiled_work, run=tiled.run, prepare=tiled.prepare)
_method(
    method="tensor",
    kinds=("cuda",),
    excludes=_no_tensor_cores,
    work=functools.partial(_tiled_work, family="tensor"),
    run=functools.partial(tiled.run, family="tensor"),
    prepare=functools.partial(tiled.prepare, family="tensor"),
)
_method(method="tiled", kinds=("opencl",), work=operands.gpu_work, run=tiled.run)
_method(
    method="library",
    kinds=("cuda",),
    excludes=gemm_obstacle,
    work=operands.gpu_work,
    run=_run_library,
    prepare=_prepare_library,
)
_method(
    method="streamed",
    kinds=registry.PORTABLE,
    excludes=places.not_in_ranges,
    work=registry.Composed(operands.gpu_work, ranges.price),
    run=registry.HostRun(streaming.run, registry.ALWAYS),
)
