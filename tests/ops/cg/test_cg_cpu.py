"""Conjugate gradients on the CPU: against SciPy and dense solves, and where they break down."""

from __future__ import annotations

import math
import pickle

import in_bounds
import numba
import numpy as np
import pytest
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import aslinearoperator, cg

from hetero.ops.krylov import cg_cpu
from hetero.ops.linear_systems import types
from hetero.ops.linear_systems.operators import Poisson

DTYPES = [np.float32, np.float64]
KINDS = ["stencil", "csr", "csr64", "dense", "fortran", "operator"]
# 64-bit indices with one dtype only: each combination is compiled.
CASES = [(k, d) for k in KINDS for d in DTYPES if (k, d) != ("csr64", np.float32)]
RTOL = {np.float32: 1e-4, np.float64: 1e-9}


def system_of(kind, matrix, grid=None):
    """The matrix (csr_array) as one kind of system."""
    full = matrix.toarray()
    strides = tuple(s // full.itemsize for s in full.strides)
    if kind == "stencil":
        return grid.stencil
    if kind == "csr":
        return types.Csr(matrix.indptr, matrix.indices, matrix.data)
    if kind == "csr64":
        return types.Csr(
            matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data
        )
    if kind == "dense":
        return types.Dense(full, len(full), strides)
    if kind == "fortran":
        return types.Dense(np.asfortranarray(full), len(full), strides[::-1])
    return aslinearoperator(matrix)


def solve(system, b, x=None, **options):
    x = np.zeros_like(b) if x is None else x
    options = {"rtol": 1e-9, "atol": 0.0, "maxiter": 10 * b.size, **options}
    return x, cg_cpu.solve(system, b, x, **options)


def csr_of(matrix):
    return system_of("csr", csr_array(matrix))


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("shape", [(13, 21), (5, 6, 7)])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_every_kind_of_system(kind, shape, dtype, rng):
    grid = Poisson(shape, spacing=0.5, dtype=dtype)
    matrix = grid.tocsr()
    b = rng.standard_normal(grid.shape[0]).astype(dtype)
    x, outcome = solve(system_of(kind, matrix, grid), b, rtol=RTOL[dtype])
    assert outcome.status == types.CONVERGED
    exact = np.linalg.solve(matrix.toarray().astype(float), b.astype(float))
    assert np.abs(x - exact).max() <= 100 * RTOL[dtype] * np.abs(exact).max()
    size, true = float(np.linalg.norm(b)), float(np.linalg.norm(b - matrix @ x))
    assert outcome.residual <= RTOL[dtype] * size
    assert outcome.residual == pytest.approx(true, rel=0.2, abs=1e-6 * size)


def test_no_loop_leaves_its_arrays():
    in_bounds.check("""
for shape in ((40, 40), (1, 50), (50, 2), (6, 9, 11), (9, 1, 8)):
    A, b = hetero.Poisson(shape), np.ones(np.prod(shape))
    for matrix in (A, A.tocsr()):
        for M in (None, "jacobi"):
            hetero.solve_cg(matrix, b, M=M, method="numba", device="cpu", maxiter=5)
""")


@pytest.mark.parametrize("kind", ["stencil", "csr", "dense", "operator"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_takes_scipys_iterations(kind, diagonal, rng):
    grid = Poisson((20, 30))
    b = rng.standard_normal(600)
    inverse = 1.0 / np.linspace(1.0, 3.0, 600) if diagonal else None
    seen = []
    theirs, info = cg(
        grid.tocsr(),
        b,
        rtol=1e-8,
        M=diags_array(inverse) if diagonal else None,
        callback=lambda x: seen.append(1),
    )
    assert info == 0
    x, outcome = solve(system_of(kind, grid.tocsr(), grid), b, rtol=1e-8, preconditioner=inverse)
    assert abs(outcome.iterations - len(seen)) <= 1
    np.testing.assert_allclose(x, theirs, atol=1e-6 * np.abs(theirs).max())


def test_a_function_as_preconditioner_is_the_diagonal_it_applies(rng):
    matrix = diags_array(np.linspace(1.0, 1e4, 500)).tocsr() + Poisson((20, 25)).tocsr()
    inverse = 1.0 / matrix.diagonal()
    b = rng.standard_normal(500)

    def apply(r, z):
        np.multiply(inverse, r, out=z)

    x, outcome = solve(csr_of(matrix), b, preconditioner=inverse)
    y, other = solve(csr_of(matrix), b, preconditioner=apply)
    plain = solve(csr_of(matrix), b)[1]
    assert abs(outcome.iterations - other.iterations) <= 1
    assert outcome.iterations < 0.5 * plain.iterations
    np.testing.assert_allclose(x, y, rtol=1e-7)


@pytest.mark.parametrize("kind", ["stencil", "csr", "dense"])
def test_start_callback_and_limit(kind, rng):
    grid = Poisson((24, 24))
    matrix, exact = grid.tocsr(), rng.standard_normal(576)
    system, b = system_of(kind, matrix, grid), grid.tocsr() @ exact
    x, outcome = solve(system, b, x=exact.copy(), rtol=1e-10)
    assert outcome.iterations == 0
    assert outcome.status == types.CONVERGED

    norms = []
    x, outcome = solve(
        system, b, maxiter=7, callback=lambda x: norms.append(np.linalg.norm(b - matrix @ x))
    )
    assert (outcome.status, outcome.iterations, len(norms)) == (types.LIMIT, 7, 7)
    assert outcome.residual == pytest.approx(norms[-1], rel=1e-9)
    together = solve(system, b, maxiter=7)[0]
    np.testing.assert_allclose(x, together, rtol=1e-12, atol=1e-12)
    untouched = exact.copy()
    assert solve(system, b * 2, x=untouched, maxiter=0)[1].status == types.LIMIT
    np.testing.assert_array_equal(untouched, exact)


def test_zero_right_hand_side_gives_zero():
    x, outcome = solve(Poisson((9, 9)).stencil, np.zeros(81), x=np.ones(81))
    assert outcome[:3] == (types.CONVERGED, 0, 0.0)
    assert not x.any()


def test_absolute_tolerance(rng):
    grid = Poisson((16, 16))
    b = rng.standard_normal(256)
    x, outcome = solve(grid.stencil, b, rtol=0.0, atol=0.3)
    assert outcome.status == types.CONVERGED
    assert 1e-3 < np.linalg.norm(b - grid @ x) <= 0.3


@pytest.mark.parametrize("kind", ["csr", "dense", "operator"])
def test_indefinite(kind):
    matrix = csr_array(diags_array(np.linspace(3.0, -1.0, 40)))
    x, outcome = solve(system_of(kind, matrix), np.ones(40))
    assert outcome.status == types.INDEFINITE
    assert np.isfinite(x).all()
    assert outcome.residual == pytest.approx(np.linalg.norm(np.ones(40) - matrix @ x))


@pytest.mark.parametrize("kind", ["csr", "dense", "operator"])
@pytest.mark.parametrize("where", ["matrix", "b"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_not_finite(kind, where, bad):
    matrix, b = Poisson((6, 7)).tocsr(), np.ones(42)
    (matrix.data if where == "matrix" else b)[17] = bad
    with np.errstate(invalid="ignore"):
        x, outcome = solve(system_of(kind, matrix), b)
    assert outcome.status == types.NOT_FINITE
    assert np.isfinite(x).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_converged_means_the_true_residual(dtype):
    """Below what rounding allows, the answer is LIMIT and the true residual, not success."""
    grid = Poisson((64, 64), dtype=dtype)
    b = np.ones(4096, dtype)
    x, outcome = solve(grid.stencil, b, rtol=1e-3 * np.finfo(dtype).eps, maxiter=10**5)
    true = np.linalg.norm(b.astype(float) - Poisson((64, 64)) @ x.astype(float))
    assert outcome.status == types.LIMIT
    assert outcome.iterations < 5000
    assert outcome.residual == pytest.approx(true, rel=0.5)
    assert true < 1e4 * np.finfo(dtype).eps * np.linalg.norm(b)


@pytest.mark.parametrize("kind", ["stencil", "csr"])
def test_repeats_bit_for_bit_on_any_number_of_threads(kind, rng):
    grid = Poisson((96, 100))  # enough unknowns to be shared
    b = rng.standard_normal(grid.shape[0])
    system = system_of(kind, grid.tocsr(), grid) if kind == "stencil" else csr_of(grid.tocsr())
    most = numba.get_num_threads()
    found = []
    try:
        for threads in (most, most, 1):
            numba.set_num_threads(threads)
            found.append(solve(system, b, maxiter=15)[0])
            assert numba.get_num_threads() == threads
    finally:
        numba.set_num_threads(most)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


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


def test_scipy_takes_the_operator(rng):
    grid = Poisson((15, 12), spacing=(0.1, 0.2))
    b = rng.standard_normal(180)
    x, info = cg(grid, b, rtol=1e-10)
    assert info == 0
    assert np.linalg.norm(b - grid.tocsr() @ x) <= 1.01e-10 * np.linalg.norm(b)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (((5,),), "shape"),
        (((5, 0),), "shape"),
        (((5, 5), 0.0), "spacing"),
        (((5, 5), (1.0, math.inf)), "spacing"),
        (((5, 5), (1.0, 1.0, 1.0)), "spacing"),
        (((5, 5), 1.0, np.int32), "dtype"),
    ],
)
def test_operator_names_a_wrong_argument(arguments, named):
    with pytest.raises(ValueError, match=f"{named} must be .*, got"):
        Poisson(*arguments)


def test_second_order_against_a_known_solution():
    errors = []
    for n in (15, 31, 63):
        s = np.sin(np.pi * np.arange(1, n + 1) / (n + 1))
        exact = np.multiply.outer(s, s)
        grid = Poisson((n, n), spacing=1 / (n + 1))
        x, outcome = solve(grid.stencil, (2 * np.pi**2 * exact).ravel(), rtol=1e-12)
        assert outcome.status == types.CONVERGED
        errors.append(np.abs(x - exact.ravel()).max())
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.02)
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize("shape", [(48, 48), (14, 14, 14)])
def test_expected_iterations_are_near(shape, rng):
    grid = Poisson(shape)
    outcome = solve(grid.stencil, rng.standard_normal(grid.shape[0]), rtol=1e-8)[1]
    assert 0.5 < outcome.iterations / grid.expected_iterations(1e-8) < 2.0


@pytest.mark.parametrize("kind", ["stencil", "csr"])
def test_a_preconditioner_that_is_not_positive_definite(kind):
    grid = Poisson((12, 12))
    outcome = solve(
        system_of(kind, grid.tocsr(), grid), np.ones(144), preconditioner=np.full(144, -1.0)
    )[1]
    assert (outcome.status, outcome.iterations) == (types.INDEFINITE, 0)


def test_the_status_of_every_ending():
    matrix = Poisson((6, 7)).tocsr()
    parts = types.Csr(matrix.indptr, matrix.indices, matrix.data)
    ends = {
        types.CONVERGED: {"b": np.ones(42), "maxiter": 100},
        types.LIMIT: {"b": np.ones(42), "maxiter": 2},
        types.NOT_FINITE: {"b": np.full(42, np.nan), "maxiter": 100},
    }
    for status, options in ends.items():
        outcome = cg_cpu.solve(parts, x=np.zeros(42), rtol=1e-8, atol=0.0, **options)
        assert outcome.status == status
    outcome = cg_cpu.solve(
        parts._replace(data=-parts.data), np.ones(42), np.zeros(42), rtol=1e-8, atol=0.0, maxiter=9
    )
    assert outcome.status == types.INDEFINITE
