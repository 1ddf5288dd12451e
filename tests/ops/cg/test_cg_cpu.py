"""Conjugate gradients on the CPU: SciPy's iterations, the same bits, and `hetero.Poisson`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import aslinearoperator, cg

import hetero
from hetero.host import loops
from hetero.ops.solvers.operators import Poisson

DTYPES = [np.float32, np.float64]


def kinds(grid):
    """A grid's system as each kind that is taken."""
    matrix = grid.tocsr()
    long = csr_array(matrix)
    long.indptr, long.indices = (x.astype(np.int64) for x in (long.indptr, long.indices))
    return {
        "stencil": grid,
        "csr": matrix,
        "csr64": long,
        "dense": matrix.toarray(),
        "operator": aslinearoperator(matrix),
    }


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("kind", ["stencil", "csr", "csr64", "dense", "operator"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_takes_scipys_iterations(kind, diagonal, rng):
    grid, seen, theirs = Poisson((20, 30)), [], []
    b = rng.standard_normal(600)
    inverse = 1.0 / np.linspace(1.0, 3.0, 600) if diagonal else None
    M = diags_array(inverse) if diagonal else None
    expected, info = cg(grid.tocsr(), b, rtol=1e-8, M=M, callback=theirs.append)
    options = {"rtol": 1e-8, "M": inverse, "device": "cpu", "callback": seen.append}
    x, found = hetero.solve_cg(kinds(grid)[kind], b, **options)
    assert found == info == 0
    assert abs(len(seen) - len(theirs)) <= 1
    assert diagonal or 0.5 < len(seen) / grid.expected_iterations(1e-8) < 2.0
    np.testing.assert_allclose(x, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 9), (9, 1), (8, 11), (1, 1, 4), (3, 1, 5), (4, 5, 6)]
)
def test_operator_is_its_matrix(shape, dtype, rng):
    grid = Poisson(shape, spacing=tuple(np.linspace(0.5, 0.9, len(shape))), dtype=dtype)
    v = rng.standard_normal(grid.shape[0]).astype(dtype)
    matrix = grid.tocsr()
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(grid @ v, matrix @ v, rtol=0, atol=tolerance * abs(matrix).max())
    assert (grid @ v).dtype == grid.dtype == matrix.dtype == dtype
    assert abs(matrix - matrix.T).max() == 0
    values = np.linalg.eigvalsh(matrix.toarray().astype(float))
    np.testing.assert_allclose(grid.eigenvalue_bounds(), (values[0], values[-1]), rtol=1e-5)
    assert pickle.loads(pickle.dumps(grid)).stencil == grid.stencil


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_the_inverse_itself_preconditions_where_multigrid_is_not_compiled(dtype, monkeypatch):
    ready = loops.is_ready
    monkeypatch.setattr(loops, "is_ready", lambda name: "multigrid" not in name and ready(name))
    A = hetero.Poisson((12, 9), dtype=dtype if dtype == "float32" else "float64")
    b = np.random.default_rng(4).random(108).astype(dtype)
    steps = []
    x, info = hetero.solve_cg(A, b, M="multigrid", device="cpu", callback=steps.append)
    assert info == 0
    assert len(steps) <= 2
    np.testing.assert_allclose(A @ x, b, rtol=0, atol=1e-4)
