"""method="library": cuBLAS through `nvmath.bindings.cublas`, in PyCUDA's context and stream.

cuBLAS thinks in columns. A row-major C = A B is handed over as the column-major C^T = B^T A^T.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.errors import DeviceError, DeviceMemoryError
from hetero.problem import Problem

_N, _T = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
_INT32 = 2**31 - 1
_constants = {
    name: (np.ones(1, name), np.zeros(1, name)) for name in ("float32", "float64")
}  # alpha and beta; kept alive, cuBLAS reads them by address
_alpha_beta = {name: (a.ctypes.data, b.ctypes.data) for name, (a, b) in _constants.items()}
_prefix = {"float32": "s", "float64": "d"}


def _leading(row: int, column: int, rows: int, columns: int) -> tuple[int, int] | None:
    """(op, leading dimension) of a matrix seen by columns; None where neither stride is 1."""
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return _N, max(column, rows) if columns > 1 else rows
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return _T, max(row, columns) if rows > 1 else columns
    return None


def gemm_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Why cuBLAS cannot do this matmul, None where it can."""
    if not info.get("library"):
        return "cuBLAS is not here; pip install 'hetero[library]'"
    if not problem.strides:
        return None
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


def gemv_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Why cuBLAS cannot do this matvec, None where it can."""
    if not info.get("library"):
        return "cuBLAS is not here; pip install 'hetero[library]'"
    if not problem.strides:
        return None
    m, k = problem.dims
    (_, row, column), (_, x), (_, y) = problem.strides
    leading = _leading(row, column, m, k)
    if leading is None:
        return f"cuBLAS needs a unit stride in A, which has ({row}, {column})"
    if (x < 1 and k > 1) or (y < 1 and m > 1):
        return f"cuBLAS needs positive strides of x and y, got {x} and {y}"
    if max(m, k, leading[1], x, y) > _INT32:
        return f"cuBLAS takes dimensions up to {_INT32}"
    return None


def _handle(device: Any) -> tuple[Any, int]:
    from nvmath.bindings import cublas

    handles = device.state().handles
    if "cublas" not in handles:
        try:
            handles["cublas"] = cublas.create()  # on the default stream, as everything here
        except cublas.cuBLASError as error:
            raise _error(error) from error
    return cublas, handles["cublas"]


def _error(error: Exception) -> DeviceError:
    kind = DeviceMemoryError if "ALLOC_FAILED" in str(error) else DeviceError
    return kind(f"cuBLAS: {error}")


def gemm(device: Any, problem: Problem, A: int, B: int, C: int) -> None:
    """C = A B on addresses in the device's memory."""
    cublas, handle = _handle(device)
    m, n, k = problem.dims
    (a_batch, *a), (b_batch, *b), (c_batch, *c) = problem.strides
    op_c, ldc = _leading(*c, m, n)
    if op_c == _T:  # row-major: C^T = B^T A^T
        first, second = (B, b, b_batch, (k, n)), (A, a, a_batch, (m, k))
        rows, columns, flip = n, m, 1
    else:
        first, second = (A, a, a_batch, (m, k)), (B, b, b_batch, (k, n))
        rows, columns, flip = m, n, 0
    (p, p_strides, p_batch, p_shape), (q, q_strides, q_batch, q_shape) = first, second
    op_p, ld_p = _leading(*p_strides, *p_shape)
    op_q, ld_q = _leading(*q_strides, *q_shape)
    alpha, beta = _alpha_beta[problem.dtype]
    prefix = _prefix[problem.dtype]
    try:
        if problem.batch == 1:
            getattr(cublas, prefix + "gemm")(
                handle,
                op_p ^ flip,
                op_q ^ flip,
                rows,
                columns,
                k,
                alpha,
                p,
                ld_p,
                q,
                ld_q,
                beta,
                C,
                ldc,
            )
        else:
            getattr(cublas, prefix + "gemm_strided_batched")(
                handle,
                op_p ^ flip,
                op_q ^ flip,
                rows,
                columns,
                k,
                alpha,
                p,
                ld_p,
                p_batch,
                q,
                ld_q,
                q_batch,
                beta,
                C,
                ldc,
                c_batch,
                problem.batch,
            )
    except cublas.cuBLASError as error:
        raise _error(error) from error


def gemv(device: Any, problem: Problem, A: int, x: int, y: int) -> None:
    """y = A x on addresses in the device's memory."""
    cublas, handle = _handle(device)
    m, k = problem.dims
    (a_batch, row, column), (x_batch, x_step), (y_batch, y_step) = problem.strides
    op, lda = _leading(row, column, m, k)
    rows, columns = (m, k) if op == _N else (k, m)
    x_step, y_step = max(x_step, 1), max(y_step, 1)
    alpha, beta = _alpha_beta[problem.dtype]
    prefix = _prefix[problem.dtype]
    try:
        if problem.batch == 1:
            getattr(cublas, prefix + "gemv")(
                handle, op, rows, columns, alpha, A, lda, x, x_step, beta, y, y_step
            )
        else:
            getattr(cublas, prefix + "gemv_strided_batched")(
                handle,
                op,
                rows,
                columns,
                alpha,
                A,
                lda,
                a_batch,
                x,
                x_step,
                x_batch,
                beta,
                y,
                y_step,
                y_batch,
                problem.batch,
            )
    except cublas.cuBLASError as error:
        raise _error(error) from error
