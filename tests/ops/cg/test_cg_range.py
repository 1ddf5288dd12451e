"""solve_cg where squares overflow or vanish, and where x itself does."""

from __future__ import annotations

import numpy as np
import pytest
import runtimes
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator
from test_cg_contract import as_kind

import hetero

KINDS = ("dense", "csr", "poisson", "operator")
SIZES = {
    "float32": (1e-38, 1e-30, 1e-24, 1e-20, 1e19, 1e30),
    "float64": (1e-300, 1e-170, 1e-155, 1e155, 1e170, 1e300),
}
# Of a stencil its spacings: A's elements are 1 / spacing**2.
SPACINGS = {"float32": (1e-10, 1e10), "float64": (1e-50, 1e50)}


def places(kind):
    """Where a kind of system can be solved."""
    found = runtimes.places()[: 1 if kind == "operator" else None]
    return [pytest.param(kind, *place.values, marks=place.marks) for place in found]


PLACES = [place for kind in KINDS for place in places(kind)]


def system(kind, dtype):
    """(A as passed, the same dense in float64) of a well-conditioned system."""
    if kind == "poisson":
        grid = hetero.Poisson((6, 7), dtype=dtype)
        return grid, grid.tocsr().toarray().astype(float)
    whole = 2.5 * np.eye(42) - np.eye(42, k=1) - np.eye(42, k=-1)
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
    b, x0 = unit * size, start * size
    M = None if kind == "operator" else "jacobi"
    exact = np.linalg.solve(whole, unit)

    x, info = hetero.solve_cg(A, b, rtol=0, atol=0.5 * size, M=M, device=place)
    assert info == 0
    assert 1e-3 < np.linalg.norm(unit - whole @ (x / size)) <= 0.5
    seen = []
    x, info = hetero.solve_cg(
        A, b, x0, rtol=1e-12, maxiter=4, M=M, device=place, callback=lambda x: seen.append(x.copy())
    )
    assert (info, len(seen)) == (4, 4)
    np.testing.assert_array_equal(seen[-1], x)
    first = np.linalg.norm(start - exact)
    assert np.linalg.norm(seen[0] / size - exact) < first
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


@pytest.mark.parametrize(("kind", "place"), places("poisson"))
@pytest.mark.parametrize("dtype", list(SPACINGS))
@pytest.mark.parametrize("grid", [(13, 12), (5, 6, 7)])
def test_spacings_whose_squares_are_out_of_range(kind, place, dtype, grid):
    """A stencil's own sums (p.Ap, and on devices Ap.Ap) are of the size of A."""
    for spacing in SPACINGS[dtype]:
        A = hetero.Poisson(grid, spacing=spacing, dtype=dtype)
        unit = hetero.Poisson(grid)
        b = np.random.default_rng(2).standard_normal(A.shape[0]).astype(dtype)
        expected, _ = hetero.solve_cg(unit, b.astype(float), rtol=1e-12, device="cpu")
        options = {"rtol": 1e-4 if dtype == "float32" else 1e-9, "device": place}
        x, info = hetero.solve_cg(A, b, **options)
        assert info == 0, spacing
        np.testing.assert_allclose(
            x.astype(float) / spacing**2, expected, rtol=0, atol=1e-2 * abs(expected).max()
        )


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
    A, _ = system(kind, dtype)
    tiny, sizes = (1e-307, (1e3, 1e60)) if dtype == "float64" else (1e-35, (1e5, 1e12))
    if kind == "operator":
        times = A.matvec
        A = LinearOperator(A.shape, matvec=lambda v: times(v) * A.dtype.type(tiny), dtype=dtype)
    elif kind == "poisson":
        A = hetero.Poisson(A.grid, spacing=tiny**-0.5, dtype=dtype)
    else:
        A = A * np.dtype(dtype).type(tiny)
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
        with pytest.warns(RuntimeWarning, match="not finite"):
            x, info = hetero.solve_cg(
                matrix, b, rtol=1e-14, callback=lambda x, seen=seen: seen.append(x.copy())
            )
        finite = [s for s in seen if np.isfinite(s).all()]
        assert info == -2
        assert finite
        assert np.isfinite(x).all()
        np.testing.assert_array_equal(x, finite[-1])
