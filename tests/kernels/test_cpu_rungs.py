"""The CPU's rungs around their blocks' lengths, against NumPy and SciPy; no call takes them."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from scipy import signal
from test_agree import check

import hetero
from hetero import registry
from hetero.errors import MethodNotAvailable
from hetero.kernels.cpu.rungs import DEPTH, WIDTH
from hetero.ops import benchmark
from hetero.ops.rungs import loop

DTYPES = ("float32", "float64")
CLOSE = {"float32": 1e-5, "float64": 1e-13}


def named(operation):
    return [row.method for row in benchmark.rungs(registry.operation(operation), "cpu")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", named("matmul"))
def test_products_around_a_tile(rung, dtype):
    """A tile of B less one, whole, and one more; and the rows that are left of four."""
    rng = np.random.default_rng(3)
    depths = [*range(1, 6), DEPTH - 1, DEPTH, DEPTH + 1, 2 * DEPTH + 3]
    for k, n in itertools.product(depths, (1, WIDTH - 1, WIDTH, WIDTH + 1)):
        operands = [(rng.random(shape) - 0.5).astype(dtype) for shape in ((3, k), (k, n))]
        made = np.zeros((3, n), dtype)
        loop("matmul", rung)(*operands, made)
        check(made, operands, "ij,jk->ik")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", named("matvec"))
def test_products_with_a_vector(rung, dtype):
    for m, k in ((1, 1), (1, 9), (33, 65)):
        A, x = (np.random.default_rng(0).random(s).astype(dtype) for s in ((m, k), (k,)))
        made = np.zeros(m, dtype)
        loop("matvec", rung)(A, x, made)
        check(made, (A, x), "ij,j->i")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", named("convolve2d"))
def test_convolutions(rung, dtype):
    rng = np.random.default_rng(1)
    for shape, filter_shape in (((1, 1), (1, 1)), ((16, 17), (3, 4)), ((8, 33), (8, 1))):
        image, filter = rng.random(shape).astype(dtype), rng.random(filter_shape).astype(dtype)
        expected = signal.convolve2d(image, filter, "valid")
        made = np.zeros(expected.shape, dtype)
        loop("convolve2d", rung)(image, filter[::-1, ::-1].copy(), made)
        np.testing.assert_allclose(made, expected, rtol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", named("poisson"))
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 9), (7, 1, 5), (3, 4, 6)])
def test_a_sweep(rung, dtype, shape):
    """What NumPy makes of the six neighbours, with zeros around the grid."""
    u, f = np.random.default_rng(2).random((2, *shape)).astype(dtype)
    factors = tuple(np.dtype(dtype).type(v) for v in (0.2, 0.1, 0.15, 0.3))
    made = np.full_like(u, np.nan)
    loop("jacobi", rung)(u, f, made, factors)
    expected, around = factors[-1] * f, np.pad(u, 1)
    for axis, factor in enumerate(factors[:-1]):
        for step in (-1, 1):
            expected += factor * np.roll(around, step, axis)[1:-1, 1:-1, 1:-1]
    np.testing.assert_allclose(made, expected, rtol=CLOSE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", named("kmeans"))
def test_labels(rung, dtype):
    """The nearest centroid's, of two equal ones the first."""
    rng = np.random.default_rng(4)
    for n, d, k in ((1, 1, 1), (65, 3, 7), (130, 17, 33)):
        X, centroids = rng.random((n, d)).astype(dtype), rng.random((k, d)).astype(dtype)
        centroids[k // 2] = centroids[0]
        labels = np.full(n, -1, np.int32)
        loop("kmeans", rung)(X, centroids, labels)
        distances = np.square(X[:, None] - centroids).sum(axis=2)
        np.testing.assert_array_equal(labels, distances.argmin(axis=1))


# -- No call takes them ----------------------------------------------------------------------------


@pytest.mark.parametrize("rung", named("matmul"))
def test_no_call_takes_a_rung_of_the_cpu(rung):
    A, placed = np.eye(3), {"device": "cpu", "method": rung}
    for call in (hetero.use, lambda **given: hetero.matmul(A, A, **given)):
        with pytest.raises(MethodNotAvailable, match=f"'blas',.*got '{rung}'.*'hetero ladder'"):
            call(**placed)


@pytest.mark.parametrize(
    "method", [None, *(r.method for r in registry.lookup("matvec") if r.kind == "cpu")]
)
def test_a_row_times_a_matrix(method, monkeypatch):
    """By hetero's functions, and by NumPy's where `hetero.install` takes them."""
    monkeypatch.setenv("HETERO_ACCEL_LEAST", "0")
    x, B = np.ones(3), np.arange(12.0).reshape(3, 4)
    with hetero.install(recording=True), hetero.use(device="cpu", method=method):
        for call in (
            *(lambda: hetero.matmul(x, B), lambda: hetero.matvec(B.T, x), lambda: x @ B),
            *(lambda: x.dot(B), lambda: np.dot(x, B), lambda: (x[None] @ B)[0]),
        ):
            np.testing.assert_array_equal(call(), [12, 15, 18, 21])


def test_an_ordinary_call_loads_no_rung():
    script = (
        "import sys, numpy as np, hetero; A = np.ones((9, 9)); hetero.matmul(A, A, device='cpu')\n"
        "hetero.solve_poisson(A, device='cpu', method='jacobi', rtol=1e-2)\n"
        "assert 'hetero.kernels.cpu.rungs' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
