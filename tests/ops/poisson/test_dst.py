"""The direct solver on the CPU: sine transforms of any extents, refined where rounding shows."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.sparse.linalg import spsolve

import hetero
from hetero.ops.linear_systems.operators import Poisson
from hetero.ops.linear_systems.types import CONVERGED, NOT_FINITE, ROUNDING, Stencil
from hetero.ops.multigrid import multigrid_cpu
from hetero.ops.poisson import dst_cpu

SHAPES = [(1, 1), (2, 1), (1, 7), (16, 31), (33, 40), (3, 4, 5), (9, 1, 34), (17, 12, 20)]


@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_a_sparse_direct_solve(shape):
    spacing = (0.5, 0.25, 0.3)[: len(shape)]
    f = np.random.default_rng(0).random(shape) - 0.3
    expected = spsolve(Poisson(shape, spacing).tocsr().tocsc(), f.ravel()).reshape(shape)
    u, kept = np.full(shape, np.nan), f.copy()
    outcome = dst_cpu.solve(Stencil(shape, spacing), f, u, rtol=1e-11)
    assert outcome.status == CONVERGED
    np.testing.assert_allclose(u, expected, rtol=0, atol=1e-12 * abs(expected).max())
    assert (f == kept).all()


@pytest.mark.parametrize("shape", [(700, 130), (40, 41, 42)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loaded", [False, True], ids=["NumPy", "compiled"])
def test_the_residual_is_the_true_one(shape, dtype, loaded, monkeypatch):
    """In blocks of rows, the shape has several; or by multigrid's loops, once they are loaded."""
    if not loaded:
        monkeypatch.delitem(sys.modules, multigrid_cpu.__name__)
    f = np.random.default_rng(1).random(shape).astype(dtype)
    u = np.empty_like(f)
    stencil = Stencil(shape, (1.0, 0.5, 2.0)[: len(shape)])
    outcome = dst_cpu.solve(stencil, f, u, rtol=0.0, refinements=0)
    assert (outcome.status, outcome.iterations) == (ROUNDING, 1)
    for norms in (dst_cpu.norms, multigrid_cpu.norms):
        size, whole = norms(stencil, f, u)
        assert outcome.residual == pytest.approx(size, rel=0.3)
        assert outcome.right_side == pytest.approx(whole, rel=1e-6)
    assert u.dtype == dtype
    A = Poisson(shape, stencil.spacing)
    residual = np.linalg.norm(f.astype("f8").ravel() - A @ u.astype("f8").ravel())
    assert outcome.residual == pytest.approx(residual, rel=0.3)
    assert residual < (1e-3 if dtype == "float32" else 1e-11) * np.linalg.norm(f)


def test_a_residual_too_large_is_refined():
    shape = 300, 400
    f = np.random.default_rng(2).random(shape).astype("f4")
    u, better = np.empty_like(f), np.empty_like(f)
    stencil = Stencil(shape, (1.0, 1.0))
    plain = dst_cpu.solve(stencil, f, u, rtol=1e-9, refinements=0)
    refined = dst_cpu.solve(stencil, f, better, rtol=1e-9, refinements=3)
    assert plain.iterations == 1 < refined.iterations
    assert refined.residual <= plain.residual


def test_a_tolerance_that_rounding_puts_out_of_reach_is_not_refined_for():
    """Unless the residual is asked to be as small as rounding lets it."""
    f = np.random.default_rng(2).random((300, 400)).astype("f4")
    u, info = hetero.solve_poisson(f, device="cpu", method="dst", return_info=True)
    rounding = np.finfo("f4").eps * 8 * np.linalg.norm(u.astype("f8"))
    assert info["iterations"] == 1
    assert info["residual"] <= rounding
    assert info["converged"]
    _, least = hetero.solve_poisson(f, device="cpu", method="dst", rtol=0.0, return_info=True)
    assert least["iterations"] == 2
    assert least["residual"] <= info["residual"]


@pytest.mark.parametrize("shape", [(15, 15), (2000, 1), (1, 6006), (31, 31, 31)])
@pytest.mark.parametrize("kind", ["smooth", "noise", "alternating"])
def test_what_nobody_asks_for_is_as_small_as_promised(shape, kind):
    """Rounding u leaves no less; and u is the same whether or not its residual is measured."""
    f = np.random.default_rng(4).random(shape) - (kind == "noise") / 2
    f = (-1.0) ** np.indices(shape).sum(axis=0) if kind == "alternating" else f
    f, placed = f.astype("f4"), {"device": "cpu", "method": "dst"}
    u, info = hetero.solve_poisson(f, **placed, return_info=True)
    np.testing.assert_array_equal(u, hetero.solve_poisson(f, **placed))
    v, b = u.astype("f8").ravel(), f.astype("f8").ravel()
    rounding = 4 * len(shape) * np.linalg.norm(v) / np.linalg.norm(b)
    residual = np.linalg.norm(b - Poisson(shape) @ v) / np.linalg.norm(b)
    assert residual <= np.finfo("f4").eps * max(1.0, rounding)
    assert info["relative_residual"] == pytest.approx(residual, rel=0.3)


def test_a_refinement_that_is_worse_is_not_kept(monkeypatch):
    """The solution before it stays, with its residual."""
    f = np.random.default_rng(3).random((20, 30)).astype("f4")
    stencil = Stencil(f.shape, (1.0, 1.0))
    plain = np.empty_like(f)
    expected = dst_cpu.solve(stencil, f, plain, rtol=1e-12, refinements=0)
    apply, calls = dst_cpu.apply, []

    def spoiled(*arguments, **options):
        calls.append(arguments)
        result = apply(*arguments, **options)
        return result + 1 if len(calls) > 1 else result

    monkeypatch.setattr(dst_cpu, "apply", spoiled)
    u = np.empty_like(f)
    outcome = dst_cpu.solve(stencil, f, u, rtol=1e-12, refinements=3)
    assert len(calls) == 2
    np.testing.assert_array_equal(u, plain)
    assert outcome.residual == expected.residual
    assert outcome.status == ROUNDING


def test_error_is_of_second_order():
    errors = []
    for n in (15, 30, 61):
        h = 1 / (n + 1)
        x = np.arange(1, n + 1) * h
        exact = np.sin(np.pi * x)[:, None, None] * np.outer(np.sin(np.pi * x), x * (1 - x))
        f = 2 * np.pi**2 * exact
        f += 2 * np.sin(np.pi * x)[:, None, None] * np.sin(np.pi * x)[:, None]
        u = np.empty_like(f)
        dst_cpu.solve(Stencil(f.shape, (h,) * 3), f, u)
        errors.append(abs(u - exact).max() / h**2)
    np.testing.assert_allclose(errors, errors[-1], rtol=0.02)


def test_not_finite():
    f = np.ones((20, 30))
    f[3, 4] = np.inf
    assert dst_cpu.solve(Stencil(f.shape, (1.0, 1.0)), f, np.empty_like(f)).status == NOT_FINITE
