"""The CPU's rungs around their blocks' lengths, against NumPy and SciPy; how they are taken."""

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
from hetero.ops.rungs import loop

DTYPES = ("float32", "float64")
CLOSE = {"float32": 1e-5, "float64": 1e-13}


def named(operation):
    return [row.method for row in registry.rungs(operation, "cpu")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", named("matmul"))
def test_products_around_a_tile(rung, dtype):
    """A tile of B less one, whole, and one more; and the rows that are left of four."""
    rng = np.random.default_rng(3)
    depths = [*range(1, 6), DEPTH - 1, DEPTH, DEPTH + 1, 2 * DEPTH + 3]
    for k, n in itertools.product(depths, (1, WIDTH - 1, WIDTH, WIDTH + 1)):
        operands = [(rng.random(shape) - 0.5).astype(dtype) for shape in ((3, k), (k, n))]
        check(hetero.matmul(*operands, device="cpu", method=rung), operands, "ij,jk->ik")


def test_a_result_may_overlap_an_operand():
    A = np.random.default_rng(0).random((40, 40))
    expected = A @ A
    assert hetero.matmul(A, A, A, device="cpu", method="blocked") is A
    np.testing.assert_allclose(A, expected, rtol=1e-13)


@pytest.mark.parametrize("rung", named("matvec"))
def test_a_row_times_a_matrix(rung):
    A, x = np.random.default_rng(0).random((33, 65)), np.arange(33.0)
    x.flags.writeable = A.flags.writeable = False
    np.testing.assert_allclose(hetero.matmul(x, A, device="cpu", method=rung), x @ A, rtol=1e-13)
    with hetero.use(device="cpu", method=rung):
        np.testing.assert_allclose(hetero.matmul(x, A), x @ A, rtol=1e-13)
    np.testing.assert_allclose(
        hetero.matvec(A.T, x, device="cpu", method=rung), A.T @ x, rtol=1e-13
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rung", named("convolve2d"))
def test_convolutions_in_every_mode(rung, dtype):
    rng = np.random.default_rng(1)
    for shape, filter_shape in (((1, 1), (1, 1)), ((16, 17), (3, 4)), ((5, 33), (8, 1))):
        image, filter = rng.random(shape).astype(dtype), rng.random(filter_shape).astype(dtype)
        modes = ("full", "same", "valid") if filter_shape[0] <= shape[0] else ("full", "same")
        for mode, boundary in itertools.product(modes, ("fill", "wrap", "symm")):
            how = mode, boundary, 0.5
            made = hetero.convolve2d(image, filter, *how, device="cpu", method=rung)
            assert made.dtype == dtype
            expected = signal.convolve2d(image, filter, *how)
            np.testing.assert_allclose(made, expected, rtol=CLOSE[dtype], err_msg=str(how))


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


# -- How they are taken ----------------------------------------------------------------------------


def test_a_rung_is_taken_by_its_name_and_the_cpus():
    A = np.ones((8, 8))
    chosen = hetero.plan("matmul", A, A, device="cpu", method="sequential").chosen
    assert (chosen.device, chosen.method, chosen.seconds) == ("cpu", "sequential", None)
    with pytest.raises(MethodNotAvailable, match="a rung of the CPU; name it with device='cpu'"):
        hetero.matmul(A, A, method="reordered")
    with pytest.raises(MethodNotAvailable, match=r"'blas', 'blocked'.*, got 'nonsense'"):
        hetero.matmul(A, A, method="nonsense", device="cpu")
    for plan in (hetero.plan("matmul", A, A), hetero.plan("matmul", A, A, device="cpu")):
        assert {c.method for c in plan.candidates if c.device == "cpu"} == {"blas"}


def test_other_dtypes_are_numpys():
    """As where a device is named: a right result, and never a rung that cannot do it."""
    A = np.arange(9).reshape(3, 3)
    plan = hetero.plan("matmul", A, A, device="cpu", method="parallel")
    assert [c.method for c in plan.candidates] == ["blas", "parallel"]
    np.testing.assert_array_equal(hetero.matmul(A, A, device="cpu", method="parallel"), A @ A)


def test_an_ordinary_call_loads_no_rung():
    script = (
        "import sys, numpy as np, hetero; A = np.ones((9, 9)); hetero.matmul(A, A, device='cpu')\n"
        "hetero.solve_poisson(A, device='cpu', method='jacobi', rtol=1e-2)\n"
        "assert 'hetero.kernels.cpu.rungs' not in sys.modules\n"
        "hetero.matmul(A, A, device='cpu', method='blocked')\n"
        "assert 'hetero.kernels.cpu.rungs' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
