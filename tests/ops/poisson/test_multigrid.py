"""Multigrid converges at its rate for all extents, its cycle is a symmetric preconditioner, and
several devices give the bits of one.

As a script this file is what Oclgrind simulates: ``python tests/ops/poisson/test_multigrid.py
good``, or ``race`` for kernels without their barriers.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
import runtimes
from cg_systems import on_device

from hetero import devices
from hetero.devices import opencl
from hetero.ops.solvers import multigrid, multigrid_device
from hetero.ops.solvers.operators import Poisson
from hetero.ops.solvers.systems import CONVERGED, LIMIT, ROUNDING, Solve, Stencil

PLANES = [(128, 128), (97, 113), (127, 127), (101, 3), (40, 530)]
BOXES = [(32, 30, 29), (5, 40, 71), (33, 33, 33)]
UNEVEN = [((100, 90), (0.01, 1.0)), ((40, 41, 42), (1.0, 0.3, 3.0)), ((100, 100), (1.0, 0.1))]
PLACES = runtimes.places()


def solve(place, stencil, f, u, rtol, maxiter):
    asked = Solve(stencil, rtol, 0.0, maxiter)
    if place == "cpu":
        return multigrid.solve((), asked, f, u)
    device = devices.get(place) if isinstance(place, str) else place
    call = lambda *buffers: multigrid_device.solve([device], asked, *buffers, u.dtype)  # noqa: E731
    outcome, (_, u[...]) = on_device(device, call, f, u)
    return outcome


def source(shape, dtype=np.float64):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("place", PLACES)
def test_convergence_factors(place):
    """0.05 in 2-D and 0.08 in 3-D, whatever the extents' parity; 0.13 at uneven spacings."""
    few = slice(None) if place == "cpu" or place.startswith("cuda") else slice(2)
    cases = [(shape, (0.5, 0.5), 0.08) for shape in PLANES[few]]
    cases += [(shape, (1.0,) * 3, 0.11) for shape in BOXES[few]]
    for shape, spacing, most in cases + [(*case, 0.15) for case in UNEVEN[few]]:
        stencil, f, u = Stencil(shape, spacing), source(shape), np.zeros(shape)
        norms = []
        for _ in range(5):
            outcome = solve(place, stencil, f, u, rtol=0.0, maxiter=1)
            norms.append(np.linalg.norm(f.ravel() - Poisson(*stencil) @ u.ravel()))
            assert outcome.residual == pytest.approx(norms[-1], rel=1e-6)
        assert (norms[-1] / norms[0]) ** (1 / 4) < most, stencil


def test_several_tiles_along_y():
    """In 3-D the CPU cuts planes of more than a megabyte's rows; all are where they belong."""
    u, found = source((40, 130, 130)), np.zeros((40, 130, 130))
    f = (Poisson(u.shape) @ u.ravel()).reshape(u.shape)
    outcome = solve("cpu", Stencil(u.shape, (1.0,) * 3), f, found, rtol=1e-9, maxiter=20)
    assert outcome.status == CONVERGED
    np.testing.assert_allclose(found, u, rtol=0, atol=1e-7)


@pytest.mark.parametrize("place", PLACES)
def test_one_cycle_does_not_tell_that_rounding_ends_it(place):
    stencil, f = Stencil((65, 70), (1.0, 1.0)), source((65, 70), "f4")
    u = np.zeros_like(f)
    assert solve(place, stencil, f, u, rtol=1e-12, maxiter=100).status == ROUNDING
    for most, status in ((1, LIMIT), (2, ROUNDING)):
        outcome = solve(place, stencil, f, u.copy(), rtol=1e-12, maxiter=most)
        assert (outcome.status, outcome.iterations) == (status, most)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(5, 6), (90, 97), (18, 20, 21)])
def test_one_cycle_is_symmetric_and_positive_definite(place, shape):
    stencil = Stencil(shape, (1.0, 0.7, 0.8)[: len(shape)])
    x, y = source((2, np.prod(shape)))

    def cycle(r, z):
        hierarchy = multigrid_device.DeviceHierarchy([devices.get(place)], stencil, x.dtype)
        hierarchy.bound([r], [z], symmetric=True)()

    def apply(r):
        z = np.full_like(r, np.nan)
        if place == "cpu":
            multigrid.CpuHierarchy(stencil, x.dtype).apply(r, z)
            return z
        return on_device(devices.get(place), cycle, r, z)[1][1]

    mx, my = apply(x), apply(y)
    assert y @ mx == pytest.approx(x @ my, rel=1e-10)
    assert x @ mx > 0
    # It is close to A's inverse: what it leaves of an error is short in the energy norm.
    A = Poisson(shape, stencil.spacing)
    error = x - apply(A @ x)
    assert error @ (A @ error) < 0.4**2 * (x @ (A @ x))


# -- Several devices -----------------------------------------------------------------------------

SHARED = [
    ((300, 200), (1.0, 1.2)),
    ((257, 255), (1.0, 1.0)),
    ((64, 40, 50), (1.0, 1.0, 1.0)),
    ((500, 33), (1.0, 3.0)),  # rows are not coarsened at first
    ((51, 49), (1.0, 1.0)),  # of which a part has one tile
]


@pytest.fixture(params=runtimes.EACH_KIND)
def found(request, monkeypatch):
    """Devices of a kind: one that comes several times, or all there are. They divide three grids
    or so."""
    monkeypatch.setattr(multigrid, "LEAST_SHARED", 2000)
    return runtimes.of_kind(request.param)


def together(found, parts, stencil, f, rtol=1e-8, start=None):
    used, u = [found[i % len(found)] for i in range(parts)], np.full_like(f, np.nan)
    u = u if start is None else start.copy()
    asked = Solve(stencil, rtol, 0.0, 50, from_zero=start is None)
    return multigrid_device.solve(used, asked, f, u, f.dtype), u


@pytest.mark.parametrize(("parts", "dtype"), [(2, np.float32), (3, np.float64)])
@pytest.mark.parametrize(("shape", "spacing"), SHARED)
def test_the_bits_of_one_device(found, parts, shape, spacing, dtype):
    """From zero, with what was kept, and from another start."""
    stencil, f, u = Stencil(shape, spacing), source(shape, dtype), np.zeros(shape, dtype)
    rtol = 1e-9 if dtype == np.float64 else 1e-4
    expected = solve(found[0], stencil, f, u, rtol, 50)
    for start in (None, None, u):
        outcome, v = together(found, parts, stencil, f, rtol if start is None else 1e-3, start)
        assert outcome.status == CONVERGED
        assert outcome.iterations == (expected.iterations if start is None else 0)
        assert outcome.residual == pytest.approx(expected.residual, rel=1e-6)
        np.testing.assert_array_equal(v, u)


@pytest.mark.parametrize("shape", [(33, 70), (20, 16, 16), (32, 6, 20)])
def test_each_of_many_devices_has_planes(found, shape):
    """More devices than a pass has tiles along the first axis, and than a grid has planes for."""
    stencil, f, u = Stencil(shape, (1.0,) * len(shape)), source(shape), np.zeros(shape)
    solve(found[0], stencil, f, u, 1e-8, 50)
    for parts in (9, 17):
        np.testing.assert_array_equal(together(found, parts, stencil, f)[1], u)


# -- Compilers and the simulator -----------------------------------------------------------------


def simulate(case):
    """One cycle in 2-D and in 3-D, over several tiles, or without the barriers."""
    simulator = runtimes.simulator()  # it is believed for a kernel that has its barriers
    if case == "race":
        text = opencl.kernel_text
        opencl.kernel_text = lambda *which: text(*which).replace("__syncthreads();", "")
    device = opencl.OpenCLDevice(0, simulator)
    device.multiprocessors, device.block_limit = 1, 256
    for shape in ((9, 30),) if case == "race" else ((13, 250), (4, 11, 9), (7, 13, 2)):
        f = source(shape)
        stencil = Stencil(shape, (1.0,) * len(shape))
        outcome = solve(device, stencil, f, np.zeros_like(f), rtol=1e-9, maxiter=1)
        assert case == "race" or outcome.residual < 0.3 * np.linalg.norm(f)


def test_no_races_nor_bounds():
    assert runtimes.simulated(__file__, "good") == ""
    assert "data race" in runtimes.simulated(__file__, "race")


if __name__ == "__main__":
    simulate(sys.argv[1])
