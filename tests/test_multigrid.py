"""Multigrid converges at its rate for all extents, and its cycle is a symmetric preconditioner."""

from __future__ import annotations

import numpy as np
import pytest

from hetero import devices
from hetero.solvers import grids, multigrid_cpu, multigrid_device
from hetero.solvers.operators import Poisson
from hetero.solvers.words import CONVERGED, LIMIT, Stencil

EVEN = [(127, 127), (128, 128), (97, 113), (64, 200), (101, 3)]
BOXES = [(33, 33, 33), (32, 30, 29)]
UNEVEN = [((100, 100), (1.0, 0.1)), ((100, 90), (0.01, 1.0)), ((40, 41, 42), (1.0, 0.3, 3.0))]
SMALL = [(1, 1), (2, 1), (1, 300), (17, 17), (2, 2, 300)]


def solve(place, stencil, f, u, **options):
    if place == "cpu":
        return multigrid_cpu.solve(stencil, f, u, **options)
    return multigrid_device.solve(devices.get(place), stencil, f, u, dtype=f.dtype, **options)


def places():
    return [
        pytest.param(n, marks=[pytest.mark.gpu] if n.startswith("cuda") else [], id=n)
        for n in ("cpu", *devices.available())
    ]


def factor(place, stencil, cycles=6):
    """Mean factor by which a cycle shrinks the residual, the first one left out."""
    f = np.random.default_rng(0).random(stencil.shape) - 0.5
    A = Poisson(stencil.shape, stencil.spacing)
    norms = []
    u = np.zeros_like(f)
    for _ in range(cycles):
        outcome = solve(place, stencil, f, u, rtol=0.0, maxiter=1)
        norms.append(np.linalg.norm(f.ravel() - A @ u.ravel()))
        assert outcome.residual == pytest.approx(norms[-1], rel=1e-6)
    return (norms[-1] / norms[0]) ** (1 / (cycles - 1))


@pytest.mark.parametrize("place", places())
def test_convergence_factors(place):
    """0.10 to 0.15 in 2-D, 0.21 in 3-D, whatever the extents' parity."""
    for shape in EVEN:
        assert factor(place, Stencil(shape, (0.5, 0.5))) < 0.16
    for shape in BOXES:
        assert factor(place, Stencil(shape, (1.0,) * 3)) < 0.23
    for shape, spacing in UNEVEN:
        assert factor(place, Stencil(shape, spacing)) < 0.26


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("shape", SMALL)
def test_small_and_narrow(place, shape):
    f = np.random.default_rng(1).random(shape)
    u = np.zeros_like(f)
    outcome = solve(place, Stencil(shape, (1.0,) * len(shape)), f, u, rtol=1e-10, maxiter=30)
    assert outcome.status == CONVERGED
    assert np.linalg.norm(f.ravel() - Poisson(shape) @ u.ravel()) <= 1.01e-10 * np.linalg.norm(f)


@pytest.mark.parametrize("place", places())
def test_rounding_ends_it(place):
    f = np.random.default_rng(2).random((65, 70)).astype("f4")
    u = np.zeros_like(f)
    outcome = solve(place, Stencil(f.shape, (1.0, 1.0)), f, u, rtol=1e-12, maxiter=100)
    assert outcome.status == LIMIT
    assert outcome.iterations < 30
    assert outcome.residual < 1e-4 * np.linalg.norm(f)


@pytest.mark.parametrize("place", places())
def test_one_cycle_is_symmetric_and_positive_definite(place):
    stencil = Stencil((40, 37), (1.0, 0.7))
    x, y = np.random.default_rng(3).random((2, 40 * 37)) - 0.5
    if place == "cpu":
        hierarchy = multigrid_cpu.Hierarchy(stencil, x.dtype)

        def apply(r):
            z = np.full_like(r, np.nan)
            hierarchy.apply(r, z)
            return z
    else:
        device = devices.get(place)

        def apply(r):
            with device.active():
                hierarchy = multigrid_device.Hierarchy(device, stencil, r.dtype)
                (source, a), (target, b) = (device.allocate(r.nbytes) for _ in range(2))
                device.upload(r, source)
                device.upload(np.full_like(r, np.nan), target)
                hierarchy.apply(source, target)
                z = np.empty_like(r)
                device.download(target, z)
                del a, b
                return z

    mx, my = apply(x), apply(y)
    assert y @ mx == pytest.approx(x @ my, rel=1e-10)
    assert x @ mx > 0


def test_grids():
    levels = grids.hierarchy(Stencil((127, 63), (1.0, 1.0)))
    assert [g.shape for g in levels] == [(1, 127, 63), (1, 63, 31), (1, 31, 15), (1, 15, 7)][
        : len(levels)
    ]
    transfer = levels[0].transfers[1]
    assert transfer.weight[:4].tolist() == [0.5, 0.0, 0.5, 0.0]
    assert transfer.taps[0].tolist() == [0.25, 0.5, 0.25, 0.0]
    stretched = grids.hierarchy(Stencil((100, 100), (1.0, 0.1)))
    assert stretched[1].shape == (1, 100, 50)


@pytest.mark.parametrize(("n", "m"), [(127, 63), (64, 32), (101, 50), (7, 7), (3, 1)])
def test_restriction_is_the_scaled_transpose_of_interpolation(n, m):
    t = grids._transfer(n, m)
    P, R = np.zeros((n, m)), np.zeros((m, n))
    for i in range(n):
        for j, w in ((t.left[i], 1 - t.weight[i]), (t.left[i] + 1, t.weight[i])):
            if 0 <= j < m:
                P[i, j] += w
    for j in range(m):
        for k, w in enumerate(t.taps[j]):
            if w:
                R[j, t.first[j] + k] += w
    np.testing.assert_allclose(R, P.T * (m + 1) / (n + 1), atol=1e-12)
    line = np.arange(1, m + 1) / (m + 1)
    inside = (np.arange(1, n + 1) / (n + 1)) <= line[-1] + 1e-12
    np.testing.assert_allclose((P @ line)[inside], (np.arange(1, n + 1) / (n + 1))[inside])
