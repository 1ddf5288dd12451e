"""What is handed to cuBLAS gives the products; SciPy's BLAS, by columns too, is in its place."""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace

import fakes
import numpy as np
import pytest
from scipy.linalg import blas

from hetero import registry
from hetero.ops import matmul
from hetero.ops.products import cublas

HERE = {"library": "13.0"}
LIBRARY = next(row for row in registry.lookup("matvec") if row.method == "library")


def value(address):
    return ctypes.c_double.from_address(address).value


def columns(address, op, rows, count, leading):
    """A matrix that lies column by column, of which op(.) is rows by count."""
    shape = (count, rows) if op else (rows, count)
    assert leading >= shape[0]
    found = fakes.view(address, shape, "f8", (8, 8 * leading))
    return found.T if op else found


class Blas:
    """As ``nvmath.bindings.cublas``, for float64."""

    @staticmethod
    def dgemv(handle, op, m, n, alpha, A, lda, x, incx, beta, y, incy):
        rows, steps = (n, m) if op else (m, n)
        A = columns(A, op, rows, steps, lda)
        x, y = (fakes.view(at, (size,), "f8", (8 * step,)) for at, size, step in
                ((x, steps, incx), (y, rows, incy)))  # fmt: skip
        y[...] = value(alpha) * blas.dgemv(1.0, A, x) + (value(beta) and value(beta) * y)

    @classmethod
    def dgemv_strided_batched(cls, handle, op, m, n, alpha, A, lda, a, x, incx, b, beta, y, incy, c,
                              count):  # fmt: skip
        for i in range(count):
            at = A + 8 * i * a, lda, x + 8 * i * b, incx, beta, y + 8 * i * c, incy
            cls.dgemv(handle, op, m, n, alpha, *at)

    @staticmethod
    def dgemm(handle, op_a, op_b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc):
        A, B = columns(A, op_a, m, k, lda), columns(B, op_b, k, n, ldb)
        C = columns(C, 0, m, n, ldc)
        C[...] = value(alpha) * blas.dgemm(1.0, A, B) + (value(beta) and value(beta) * C)

    @classmethod
    def dgemm_strided_batched(cls, handle, op_a, op_b, m, n, k, alpha, A, lda, a, B, ldb, b, beta,
                              C, ldc, c, count):  # fmt: skip
        for i in range(count):
            at = A + 8 * i * a, lda, B + 8 * i * b, ldb, beta, C + 8 * i * c, ldc
            cls.dgemm(handle, op_a, op_b, m, n, k, alpha, *at)


DEVICE = SimpleNamespace(
    state=lambda: SimpleNamespace(handles={"cublas": (Blas, 0)}),
    local=SimpleNamespace(queue=None),
)
LAYOUTS = {
    "rows": lambda *shape: np.empty(shape),
    "columns": lambda *shape: np.empty((*shape[:-2], *shape[:-3:-1])).swapaxes(-1, -2),
    "padded rows": lambda *shape: np.empty((*shape[:-1], shape[-1] + 3))[..., :-3],
    "padded columns": lambda *shape: np.empty((*shape[:-2], shape[-1], shape[-2] + 2)).swapaxes(
        -1, -2
    )[..., :-2, :],
}
rng = np.random.default_rng(0)


def drawn(layout, *shape):
    found = LAYOUTS[layout](*shape)
    found[...] = rng.random(shape)
    return found


def problem(dims, *arrays):
    """What cuBLAS is asked for: the operands lie on a device as they are."""
    batched = arrays[0].ndim > 2
    strides = [[s // 8 for s in x.strides] for x in arrays]
    strides = [each if batched else [0, *each] for each in strides]
    batch = len(arrays[0]) if batched else 1
    return SimpleNamespace(
        dims=dims, strides=tuple(map(tuple, strides)), batch=batch, dtype="float64"
    )


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "k"), [(5, 7), (7, 5), (1, 4), (4, 1)])
def test_matrix_times_vector(layout, m, k, batch):
    A = drawn(layout, *batch, m, k)
    for step in (1, 2):
        x = rng.random((*batch, k * step))[..., ::step]
        y = np.full((*batch, m * step), np.nan)[..., ::step]
        asked = problem((m, k), A, x, y)
        assert cublas.gemv_obstacle(asked, HERE) is None
        cublas.gemv(DEVICE, asked)(*(z.ctypes.data for z in (A, x, y)))
        np.testing.assert_allclose(y, (A @ x[..., None])[..., 0], rtol=1e-12)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("layouts", itertools.product(LAYOUTS, LAYOUTS, ("rows", "columns")))
def test_matrix_times_matrix(layouts, batch):
    m, n, k = 4, 6, 5
    A, B = drawn(layouts[0], *batch, m, k), drawn(layouts[1], *batch, k, n)
    C = drawn(layouts[2], *batch, m, n)
    asked = problem((m, n, k), A, B, C)
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
        *(((5, 7), strides, False) for strides in ((1, 4), (6, 1), (0, 1), (1, 0), (2, 14))),
    ],
)
def test_strides_of_a_matrix(shape, strides, taken):
    """Any along one element; rows that repeat or overlap are none that cuBLAS knows."""
    A = np.lib.stride_tricks.as_strided(rng.random(200), shape, [8 * s for s in strides])
    x, y = rng.random(shape[1]), np.empty(shape[0])
    asked = problem(shape, A, x, y)
    assert (cublas.gemv_obstacle(asked, HERE) is None) == taken
    if taken:
        cublas.gemv(DEVICE, asked)(*(z.ctypes.data for z in (A, x, y)))
        np.testing.assert_allclose(y, A @ x, rtol=1e-12)


def test_what_cublas_does_not_take():
    A, x, y = np.ones((5, 7)), np.ones(7), np.ones(5)
    wide = np.ones((10, 14))[::2, ::2]
    for arrays, info, reason in (
        ((A, x, y), {}, "not here"),
        ((A, x[::-1], y), HERE, "positive strides of x and y, got -1 and 1"),
        ((A, x, y[::-1]), HERE, "positive strides of x and y, got 1 and -1"),
        ((wide, x, y), HERE, "unit stride"),
    ):
        assert reason in cublas.gemv_obstacle(problem((5, 7), *arrays), info)
    B, C = np.ones((7, 4)), np.ones((5, 4))
    assert "unit stride" in cublas.gemm_obstacle(problem((5, 4, 7), wide, B, C), HERE)
    for m, k in ((1, 7), (5, 1)):  # a stride along one element does not matter
        x, y = (np.ones(n)[::-1] if n == 1 else np.ones(n) for n in (k, m))
        assert cublas.gemv_obstacle(problem((m, k), np.ones((m, k)), x, y), HERE) is None


def test_remembered_calls_take_the_operands_in_their_order():
    """Also a vector times a matrix, whose matrix comes second."""
    A, x, y = rng.random((5, 7)), rng.random(7), np.empty(5)
    for first, second in ((A, x), (x, A.T)):
        run = LIBRARY.prepare(DEVICE, matmul.problem(first, second), 8, None)
        run(first.ctypes.data, second.ctypes.data, y.ctypes.data)
        np.testing.assert_allclose(y, A @ x, rtol=1e-12)
        y[...] = np.nan
