"""solve_cg on ordinary numbers, and where squares or x itself overflow or vanish.

On the CPU it makes SciPy's iterations.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import runtimes
import scipy.sparse as sp
from scipy.sparse.linalg import cg
from test_cg_contract import as_kind

import hetero
from hetero.host import loops


@pytest.mark.parametrize("kind", ["stencil", "csr", "csr64", "dense", "operator"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_takes_scipys_iterations(kind, diagonal):
    grid, seen, theirs = hetero.Poisson((20, 30)), [], []
    A = grid if kind == "stencil" else as_kind(kind.removesuffix("64"), grid.tocsr().toarray())
    if kind == "csr64":
        A.indptr, A.indices = (x.astype(np.int64) for x in (A.indptr, A.indices))
    b = np.random.default_rng(7).standard_normal(600)
    inverse = 1.0 / np.linspace(1.0, 3.0, 600) if diagonal else None
    M = sp.diags_array(inverse) if diagonal else None
    expected, info = cg(grid.tocsr(), b, rtol=1e-8, M=M, callback=theirs.append)
    options = {"rtol": 1e-8, "M": inverse, "device": "cpu", "callback": seen.append}
    x, found = hetero.solve_cg(A, b, **options)
    assert found == info == 0
    assert abs(len(seen) - len(theirs)) <= 1
    assert diagonal or 0.5 < len(seen) / grid.expected_iterations(1e-8) < 2.0
    np.testing.assert_allclose(x, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 9), (9, 1), (8, 11), (1, 1, 4), (3, 1, 5), (4, 5, 6)]
)
def test_operator_is_its_matrix(shape, dtype):
    grid = hetero.Poisson(shape, spacing=tuple(np.linspace(0.5, 0.9, len(shape))), dtype=dtype)
    v = np.random.default_rng(7).standard_normal(grid.shape[0]).astype(dtype)
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


# -- Numbers of any size ---------------------------------------------------------------------------

KINDS = ("dense", "csr", "poisson", "operator")
SIZES = {
    "float32": (1e-38, 1e-30, 1e-24, 1e-20, 1e19, 1e30),
    "float64": (1e-300, 1e-170, 1e-155, 1e155, 1e170, 1e300),
}
PLACES = [
    pytest.param(kind, *place.values, marks=place.marks)
    for kind in KINDS
    for place in runtimes.places()[: 1 if kind == "operator" else None]
]


def system(kind, dtype, scale=1.0):
    """(A as passed, the same dense in float64) of a well-conditioned system."""
    if kind == "poisson":
        grid = hetero.Poisson((6, 7), spacing=scale**-0.5, dtype=dtype)
        return grid, grid.tocsr().toarray().astype(float)
    whole = scale * (2.5 * np.eye(42) - np.eye(42, k=1) - np.eye(42, k=-1))
    return as_kind(kind, whole.astype(dtype)), whole


def ratio(whole, x, b):
    """norm(b - A x) / norm(b) where no square over- or underflows."""
    scale = 2.0 ** -np.frexp(np.abs(b).max())[1]
    b, x = (v.astype(np.longdouble) * scale for v in (b, x))
    return float(np.linalg.norm(b - whole @ x) / np.linalg.norm(b))


@pytest.mark.parametrize(("kind", "place"), PLACES)
@pytest.mark.parametrize("dtype", list(SIZES))
def test_any_size_of_right_hand_side(kind, place, dtype):
    A, whole = system(kind, dtype)
    unit = np.random.default_rng(0).standard_normal(len(whole))
    rtol = 1e-4 if dtype == "float32" else 1e-10
    for size in SIZES[dtype]:
        b = (unit * (size / np.abs(unit).max())).astype(dtype)
        x, info = hetero.solve_cg(A, b, rtol=rtol, device=place)
        assert info == 0, size
        assert ratio(whole, x, b) <= 1.01 * rtol, size


@pytest.mark.parametrize(("kind", "place"), PLACES)
@pytest.mark.parametrize("size", [1e-170, 1.0, 1e170])
def test_options_at_any_size(kind, place, size):
    """atol, x0, callback and M mean the same whatever the size."""
    A, whole = system(kind, "float64")
    rng = np.random.default_rng(1)
    unit, start = rng.standard_normal((2, len(whole)))
    b, x0, exact = unit * size, start * size, np.linalg.solve(whole, unit)
    options = {"M": None if kind == "operator" else "jacobi", "device": place}
    x, info = hetero.solve_cg(A, b, rtol=0, atol=0.5 * size, **options)
    assert info == 0
    assert 1e-3 < np.linalg.norm(unit - whole @ (x / size)) <= 0.5
    seen = []
    options["callback"] = lambda x: seen.append(x.copy())
    x, info = hetero.solve_cg(A, b, x0, rtol=1e-12, maxiter=4, **options)
    assert (info, len(seen)) == (4, 4)
    np.testing.assert_array_equal(seen[-1], x)
    assert np.linalg.norm(seen[0] / size - exact) < np.linalg.norm(start - exact)
    # Without iterations: the start that solves it is told from another one.
    for given, expected in ((exact * size, 0), (x0, 1)):
        x, info = hetero.solve_cg(A, b, given, rtol=1e-10, maxiter=0, device=place)
        assert info == expected
        np.testing.assert_array_equal(x, given)
    assert (x0 == start * size).all()
    # A start beside which b vanishes.
    x, info = hetero.solve_cg(A, 1e-200 * unit, np.ones(len(whole)), rtol=1e-8, device=place)
    assert info == 0
    assert ratio(whole, x, 1e-200 * unit) <= 1e-8


@pytest.mark.parametrize("place", runtimes.places())
@pytest.mark.parametrize(("dtype", "rtol", "far"), [("f4", 1e-4, 1e10), ("f8", 1e-9, 1e50)])
@pytest.mark.parametrize("grid", [(13, 12), (5, 6, 7)])
def test_spacings_whose_squares_are_out_of_range(place, dtype, rtol, far, grid):
    """A stencil's own sums (p.Ap, and on devices Ap.Ap) are of the size of A: 1 / spacing**2."""
    b = np.random.default_rng(2).standard_normal(np.prod(grid)).astype(dtype)
    expected, _ = hetero.solve_cg(hetero.Poisson(grid), b.astype(float), rtol=1e-12, device="cpu")
    for spacing in (1.0 / far, far):
        A = hetero.Poisson(grid, spacing=spacing, dtype=dtype)
        x, info = hetero.solve_cg(A, b, rtol=rtol, device=place)
        assert info == 0, spacing
        scaled, most = x.astype(float) / spacing**2, 1e-2 * abs(expected).max()
        np.testing.assert_allclose(scaled, expected, rtol=0, atol=most)


def test_a_result_that_its_own_scale_cannot_hold_is_not_called_converged():
    """x loses its digits below 1e-308: converged only where what is left still solves it."""
    b = np.array([3e-323, 5e-324])
    assert hetero.solve_cg(np.diag([3.0, 7.0]), b, rtol=1e-8)[1] > 0
    x, info = hetero.solve_cg(np.diag([1.0, 0.5]), b, rtol=1e-8)
    assert info == 0
    np.testing.assert_array_equal(x, [3e-323, 1e-323])


@pytest.mark.parametrize(("kind", "place"), PLACES)
@pytest.mark.parametrize("dtype", list(SIZES))
def test_an_x_that_overflows_is_not_handed_out(kind, place, dtype):
    tiny, sizes = (1e-307, (1e3, 1e60)) if dtype == "float64" else (1e-35, (1e5, 1e12))
    A, _ = system(kind, dtype, tiny)
    for size in sizes:
        with pytest.warns(RuntimeWarning, match="not finite"):
            x, info = hetero.solve_cg(A, np.full(42, size, dtype), device=place)
        assert info == -2
        assert np.isfinite(x).all()


def test_the_last_finite_iterate_is_the_one_before_it_overflowed():
    """x1 is finite, x2 is not: on the CPU, by whole loops too, x1 is what is left."""
    A = np.diag([1e-4, 1.0, 1.0, 1.0, 1.0]) * 1e-302
    b = np.full(5, 1e5)
    for matrix in (A, sp.csr_array(A)):
        seen = []
        note = lambda x, seen=seen: seen.append(x.copy())  # noqa: E731
        with pytest.warns(RuntimeWarning, match="not finite"):
            x, info = hetero.solve_cg(matrix, b, rtol=1e-14, callback=note)
        assert info == -2
        np.testing.assert_array_equal(x, [s for s in seen if np.isfinite(s).all()][-1])
