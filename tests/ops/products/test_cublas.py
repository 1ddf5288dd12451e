"""What is handed to cuBLAS gives the products; SciPy's BLAS, by columns too, is in its place."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import fakes
import numpy as np
import pytest
from layouts import LAYOUTS
from scipy.linalg import blas

from hetero.ops.products import methods as cublas

HERE = {"library": "13.0"}


def columns(address, op, rows, count, leading):
    """A matrix that lies column by column, of which op(.) is rows by count."""
    shape = (count, rows) if op else (rows, count)
    assert leading >= shape[0]
    found = fakes.view(address, shape, "f8", (8, 8 * leading))
    return found.T if op else found


def c_function(function):
    """A function that takes numbers of C's types, too."""
    return lambda *given: function(*(getattr(one, "value", one) for one in given))


class Blas:
    """As `hetero.devices.cuda.libraries.cublas`, for float64."""

    @staticmethod
    @c_function
    def dgemm(handle, op_a, op_b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc):
        A, B = columns(A, op_a, m, k, lda), columns(B, op_b, k, n, ldb)
        C = columns(C, 0, m, n, ldc)
        alpha, beta = (x._obj.value for x in (alpha, beta))  # of `ctypes.byref`
        C[...] = alpha * blas.dgemm(1.0, A, B) + (beta and beta * C)

    @staticmethod
    @c_function
    def dgemm_strided_batched(handle, op_a, op_b, m, n, k, alpha, A, lda, a, B, ldb, b, beta,
                              C, ldc, c, count):  # fmt: skip
        for i in range(count):
            at = A + 8 * i * a, lda, B + 8 * i * b, ldb, beta, C + 8 * i * c, ldc
            Blas.dgemm(handle, op_a, op_b, m, n, k, alpha, *at)


STATE = SimpleNamespace(handles={"cublas": (Blas, 0)})
DEVICE = SimpleNamespace(state=lambda: STATE, local=SimpleNamespace(queue=None))
rng = np.random.default_rng(0)


def turned(lay):
    """The layout by columns that ``lay`` is by rows."""
    return lambda x: lay(x.swapaxes(-1, -2)).swapaxes(-1, -2)


DENSE = {"rows": LAYOUTS["C"], "columns": turned(LAYOUTS["C"])}
LAID = {**DENSE, "padded rows": LAYOUTS["padded"], "padded columns": turned(LAYOUTS["padded"])}


def problem(A, B, C):
    """What cuBLAS is asked for: the operands lie on a device as they are."""
    (m, n), k = C.shape[-2:], A.shape[-1]
    strides = tuple((0, *(s // 8 for s in x.strides))[-3:] for x in (A, B, C))
    batch = len(A) if A.ndim > 2 else 1
    return SimpleNamespace(dims=(m, n, k), strides=strides, batch=batch, dtype="float64")


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("layouts", itertools.product(LAID, LAID, DENSE))
def test_matrix_times_matrix(layouts, batch):
    shapes = zip(layouts, ((4, 5), (5, 6), (4, 6)), strict=True)
    A, B, C = (LAID[layout](rng.random((*batch, *shape))) for layout, shape in shapes)
    asked = problem(A, B, C)
    assert "not here" in cublas.gemm_obstacle(asked, {})
    assert cublas.gemm_obstacle(asked, HERE) is None
    cublas.gemm(DEVICE, asked)(*(z.ctypes.data for z in (A, B, C)))
    np.testing.assert_allclose(C, A @ B, rtol=1e-12)


@pytest.mark.parametrize(
    ("shape", "strides", "taken"),
    [
        *(((1, 4), strides, True) for strides in ((99, 1), (99, 3), (0, 2))),
        *(((5, 1), strides, True) for strides in ((1, 99), (2, 99), (3, 0))),
        *(((1, 1), strides, True) for strides in ((7, 9), (0, 0))),
        *(((5, 7), strides, True) for strides in ((1, 5), (7, 1), (1, 6), (8, 1))),
        *(((5, 7), strides, False) for strides in ((1, 4), (6, 1), (0, 1), (1, 0))),
        *(((5, 7), strides, False) for strides in ((2, 14), (28, 2))),
    ],
)
def test_strides_of_a_matrix(shape, strides, taken):
    """Any along one element; rows that repeat or overlap are none that cuBLAS knows."""
    A = np.lib.stride_tricks.as_strided(rng.random(200), shape, [8 * s for s in strides])
    B, C = rng.random((shape[1], 3)), np.empty((shape[0], 3))
    asked = problem(A, B, C)
    obstacle = cublas.gemm_obstacle(asked, HERE)
    assert obstacle is None if taken else "unit stride" in obstacle
    if taken:
        cublas.gemm(DEVICE, asked)(*(z.ctypes.data for z in (A, B, C)))
        np.testing.assert_allclose(C, A @ B, rtol=1e-12)
