"""The ways to multiply two matrices, or a matrix and a vector: NumPy, our own kernels, cuBLAS; and
how a product is planned and run that the call cache does not know.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from ctypes import byref, c_double, c_float, c_int, c_longlong, c_void_p
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import kernels, registry, tables
from hetero.arrays import (
    HOST,
    Operand,
    alignment,
    as_array,
    describe,
    describe_used,
    kept,
    of_numpy,
    overlap,
)
from hetero.calling import execution, planner
from hetero.imports import INSTALL, load
from hetero.kernels.common.launch import Target
from hetero.moving import ranges, streaming, transfer
from hetero.ops.products.operands import build
from hetero.pricing import places, pricing
from hetero.pricing.plan import CPU, Plan
from hetero.registry import Arguments, Problem
from hetero.registry.models import Work
from hetero.tables import forced

if TYPE_CHECKING:
    from hetero.devices.base import Device

PRECISION = "HETERO_PRECISION"  # "ieee": float32 products multiply and add in float32 alone
VECTOR_BYTES = 16  # of the widest loads; operands are expected to be aligned for them
_N, _T = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
_INT32 = 2**31 - 1
# By dtype: what cuBLAS's functions begin with; alpha and beta, which it reads by address.
_KINDS = {
    "float32": ("s", byref(c_float(1.0)), byref(c_float(0.0))),
    "float64": ("d", byref(c_double(1.0)), byref(c_double(0.0))),
}
Function = Callable[..., Any]

# -- Calls -----------------------------------------------------------------------------------------


def refused(function: Function, *placed: str | None) -> Function:
    """NumPy's function, for what it decides about; first what a plan would raise."""
    planner.check_placement(function.__name__, *placed)
    return function


def on_host(
    function: Function, A: np.ndarray, B: np.ndarray, out: np.ndarray | None, *placed: str | None
) -> Function:
    """The function ``run(A, B, out)`` of such calls, placed on a device and by a method: it runs
    their plan, or is NumPy's own."""
    target = None if out is None else describe(out)
    problem = build(function.__name__, of_numpy(A), of_numpy(B), target)
    if problem is None:
        return refused(function, *placed)  # it raises or casts
    if out is None and forced.get() is not None:
        problem = planner.staying(problem, placed[0])
    plan = planner.plan(problem, *placed)
    run = host_call(plan, function)
    if not plan.keepable:
        return run
    pays = any(o.nbytes >= kept.LEAST_WATCHED for o in problem.inputs) and pricing.copies_pay(plan)

    def by_copies(A: np.ndarray, B: np.ndarray, out: np.ndarray | None = None) -> Any:
        """Plan anew where an operand may have a kept copy."""
        if A.flags.writeable and B.flags.writeable and (not pays or kept.obstacle()):
            return run(A, B, out)
        inputs = describe_used(A), describe_used(B, A)
        if inputs[0].kept is None and inputs[1].kept is None:
            return run(A, B, out)
        plan = planner.plan(replace(problem, inputs=inputs), *placed)
        return host_call(plan, function)(A, B, out)

    return by_copies


def host_call(plan: Plan, function: Function) -> Function:
    """The function ``run(A, B, out=None)`` that runs a plan on host operands: NumPy's own where it
    is the plan's choice, unless copies of operands count."""
    if plan.chosen.device == CPU and not plan.kept:
        return function
    inputs, output = plan.problem.inputs, plan.problem.output

    def run(A: np.ndarray, B: np.ndarray, out: np.ndarray | None = None) -> Any:
        target = None if out is None else output
        return execution.execute(plan, execution.Call((A, B), inputs, out, target))

    return run


def with_device_arrays(function: Function, A: Any, B: Any, out: Any, *placed: str | None) -> Any:
    """A product with an operand or ``out`` on a device."""
    now = tables.generation()
    arrays = tuple(map(as_array, (A, B)))
    operands = tuple(map(describe, arrays))
    target = None if out is None else describe(out)
    problem = build(function.__name__, *operands, target)
    plan = None if problem is None else planner.plan(problem, *placed)
    if plan is None:
        function = refused(function, *placed)
    if plan is None or not plan.problem.output.size:
        return _by_numpy(function, arrays, operands, out, target)
    if target is not None and any(overlap(target, operand) for operand in operands):
        # Written only after everything is read: computed apart, then put in its place.
        made = with_device_arrays(function, *arrays, None, *placed)
        transfer.put(made, describe(made), target)
        return out
    result = execution.execute(plan, execution.Call(arrays, operands, out, target))
    described = operands if target is None else (*operands, target)
    planner.learn(function.__name__, plan, arrays, out, described, placed, now)
    return result


def _by_numpy(
    function: Function,
    arrays: tuple[Any, ...],
    operands: tuple[Operand, ...],
    out: Any,
    target: Operand | None,
) -> Any:
    """NumPy's result, or its error, on copies in host memory."""
    hosts = [
        array if operand.location == HOST else transfer.to_host(array, operand)
        for array, operand in zip(arrays, operands, strict=True)
    ]
    if target is None:
        there = next(a for a, o in zip(arrays, operands, strict=True) if o.location != HOST)
        return load("hetero.ops.solvers.systems").like(there, np.asarray(function(*hosts)))
    if target.location == HOST:
        return function(*hosts, out=out)
    values = transfer.to_host(out, target).copy()
    values.flags.writeable = not target.readonly
    transfer.from_host(function(*hosts, out=values), target)
    return out


# -- What they take --------------------------------------------------------------------------------


def _run_blas(devices: tuple[()], problem: Problem, arguments: Arguments) -> None:
    getattr(np, problem.function)(*arguments.inputs, out=arguments.output)


def cpu_work(problem: Problem, info: dict[str, Any]) -> Work:
    """2 m n k flops, each operand and the result moved once; a batch is done one by one."""
    return _work(problem, problem.dims, problem.batch)


def gpu_work(problem: Problem, info: dict[str, Any]) -> Work:
    """As `cpu_work`, but a GPU does the whole batch at once, so it counts as more rows."""
    rows, *others = problem.dims
    return _work(problem, (rows * problem.batch, *others), 1)


def _work(problem: Problem, dims: tuple[int, ...], repeat: int) -> Work:
    moved = sum(o.nbytes for o in (*problem.inputs, problem.output)) / repeat
    return Work(dims, 2.0 * prod(dims), moved, repeat)


# -- Our own kernels -------------------------------------------------------------------------------


# What plans a family's launches, and how it calls extents and buffers, the matrix first.
_FAMILIES = {
    "matmul": (kernels.plan_matmul, "mnk", "ABC"),
    "matvec": (kernels.plan_matvec, "mk", "Axy"),
    "tensor": (kernels.plan_tensor, "mnk", "ABC"),
}


@functools.lru_cache(maxsize=4096)
def _planned(family: str, *given: Any) -> kernels.LaunchPlan:
    plan, extents, buffers = _FAMILIES[family]
    strides = [f"{buffer.lower()}_strides" for buffer in buffers]
    names = *extents, *strides, "batch", "dtype", "alignment", "target"
    return plan(**dict(zip(names, given, strict=True)))


def launch_plan(
    problem: Problem, aligned: int, target: Target, family: str = ""
) -> kernels.LaunchPlan:
    """The launches of a problem, by its operation's kernels or another family's; ``aligned``
    divides its operands' addresses."""
    given = *problem.dims, *problem.strides, problem.batch, problem.dtype, aligned, target
    return _planned(family or problem.operation, *given)


def _buffers(problem: Problem) -> tuple[str, ...]:
    """The names of a problem's inputs and of its result, in the kernels; of a row times a matrix
    the second input is the matrix."""
    A, B, C = _FAMILIES[problem.operation][2]
    columns = problem.inputs[1].shape[-1:]
    is_row = len(problem.inputs[1].shape) > 1 and columns != (1,) and problem.function == "matmul"
    return (B, A, C) if problem.operation == "matvec" and is_row else (A, B, C)


def _run_tiled(
    devices: tuple[Device], problem: Problem, arguments: Arguments, family: str = ""
) -> None:
    """Start the launches on buffers of the device."""
    (device,), given = devices, (*arguments.inputs, arguments.output)
    planned = launch_plan(problem, alignment(*given), device.target, family)
    buffers = dict(zip(_buffers(problem), given, strict=True))
    device.run_launches(planned, buffers, np.dtype(problem.dtype).itemsize)


def _prepare_tiled(
    device: Any, problem: Problem, aligned: int, options: Any, family: str = ""
) -> Any:
    """A function of the addresses of the inputs and the result that starts them."""
    planned = launch_plan(problem, aligned, device.target, family)
    return device.prepared(planned, _buffers(problem), np.dtype(problem.dtype).itemsize)


def _tiled_work(problem: Problem, info: dict[str, Any], family: str = "") -> Work:
    """As `gpu_work`, with the device's seconds that the kernels' own plan counts on."""
    work = gpu_work(problem, info)
    if not problem.strides or "arch" not in info:
        return work
    limits = {name: info[name] for name in ("multiprocessors", "block_limit", "shared_limit")}
    target = Target(**limits, capability=divmod(int(info["arch"].removeprefix("sm_")), 10))
    planned = launch_plan(problem, VECTOR_BYTES, target, family)
    return work._replace(estimate=planned.seconds)


def _no_tensor_cores(problem: Problem, info: dict[str, Any]) -> str | None:
    """Why a product is not made of 16-bit pieces, None where it is."""
    if info.get("arch") != "sm_90":
        return registry.Unasked("as tiled, but on NVIDIA GPUs of compute capability 9.0")
    if problem.dtype != "float32":
        return registry.Unasked("as tiled, but for float32")
    if problem.dims[-1] < kernels.LEAST_DEPTH:
        return registry.Unasked(f"as tiled, but for k from {kernels.LEAST_DEPTH} on")
    return f"{PRECISION}=ieee" if os.environ.get(PRECISION) == "ieee" else None


# -- cuBLAS, which is column-major: a row-major C = A B is the column-major C^T = B^T A^T ----------


def _leading(row: int, column: int, rows: int, columns: int) -> tuple[int, int] | None:
    """(op, leading dimension) of a matrix seen by columns; None where neither stride is 1."""
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return _N, max(column, rows) if columns > 1 else rows
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return _T, max(row, columns) if rows > 1 else columns
    return None


def gemm_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Why cuBLAS cannot do this matmul, None where it can."""
    if not (info.get("library") or info.get("elsewhere")):
        return f"cuBLAS is not here; {INSTALL['library']}"
    if not problem.strides:
        return None
    m, n, k = problem.dims
    a, b, c = problem.strides
    matrices = ("A", a, m, k), ("B", b, k, n), ("C", c, m, n)
    for name, (_, row, column), rows, columns in matrices:
        leading = _leading(row, column, rows, columns)
        if leading is None:
            return f"cuBLAS needs a unit stride in each matrix, {name} has ({row}, {column})"
        if max(rows, columns, leading[1]) > _INT32:
            return f"cuBLAS takes dimensions up to {_INT32}"
    return None


@functools.lru_cache(maxsize=4096)
def _gemm_arguments(
    dims: tuple[int, ...], strides: tuple[tuple[int, ...], ...], batch: int
) -> tuple[bool, list[Any], list[Any], list[Any], list[Any]]:
    """(operands swapped, ops and extents, then what follows each of the three addresses), as C's
    types, which a call passes on in half the time."""
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
    p, q, r = ([c_int(one), c_longlong(distance)] for one, distance in (p, q, (ldc, c_batch)))
    if batch == 1:
        return swapped, [c_int(one) for one in head], p[:1], q[:1], r[:1]
    return swapped, [c_int(one) for one in head], p, q, [*r, c_int(batch)]


def gemm(device: Any, problem: Problem) -> Callable[[int, int, int], None]:
    """C = A B in the current context, as a function of three addresses in the device's memory."""
    handles = device.state().handles
    if "cublas" not in handles:  # its functions, and a handle for the default stream
        cublas = load("hetero.devices.cuda.libraries").cublas()
        handles["cublas"] = cublas, c_void_p(cublas.create())
    cublas, handle = handles["cublas"]
    swapped, head, p, q, r = _gemm_arguments(problem.dims, problem.strides, problem.batch)
    kind, alpha, beta = _KINDS[problem.dtype]
    name = kind + ("gemm" if problem.batch == 1 else "gemm_strided_batched")
    function, head = getattr(cublas, name), (handle, *head, alpha)
    if swapped:
        return lambda A, B, C: function(*head, B, *p, A, *q, beta, C, *r)
    return lambda A, B, C: function(*head, A, *p, B, *q, beta, C, *r)


def _run_library(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    gemm(devices[0], problem)(*arguments.inputs, arguments.output)


# -- The rows --------------------------------------------------------------------------------------


_own = {"run": _run_tiled, "prepare": _prepare_tiled}
_by_pieces = {name: functools.partial(of, family="tensor") for name, of in _own.items()}
for operation, method, kinds, work, more in (
    ("matmul", "blas", ("cpu",), cpu_work, {"run": _run_blas}),
    ("matmul", "tiled", ("cuda",), _tiled_work, _own),
    ("matmul", "tiled", ("opencl",), gpu_work, {"run": _run_tiled}),
    ("matmul", "tensor", ("cuda",), functools.partial(_tiled_work, family="tensor"),
        {"excludes": _no_tensor_cores, **_by_pieces}),
    ("matmul", "library", ("cuda",), gpu_work,
        {"excludes": gemm_obstacle, "run": _run_library,
         "prepare": lambda device, problem, aligned, options: gemm(device, problem)}),
    ("matmul", "streamed", registry.PORTABLE, gpu_work,
        {"excludes": places.not_in_ranges, "run": streaming.run, "blocks": registry.ALWAYS,
         "price": ranges.price}),
    ("matvec", "blas", ("cpu",), cpu_work, {"run": _run_blas}),
    ("matvec", "tiled", ("cuda",), gpu_work, _own),
    ("matvec", "tiled", ("opencl",), gpu_work, {"run": _run_tiled}),
):  # fmt: skip
    registry.register_method(operation=operation, method=method, kinds=kinds, work=work, **more)
