"""Multigrid converges at its rate for all extents, and its cycle is a symmetric preconditioner.

As a script this file is what Oclgrind simulates: ``python tests/ops/poisson/test_multigrid.py
good``, or ``race`` for kernels without their barriers.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import compiled
import in_bounds
import numpy as np
import pytest
import runtimes

from hetero import devices
from hetero.kernels import Launch
from hetero.kernels.common.launch import Target
from hetero.kernels.multigrid import plan as plan_multigrid
from hetero.ops.linear_systems.operators import Poisson
from hetero.ops.linear_systems.solve import Solve
from hetero.ops.linear_systems.systems import CONVERGED, LIMIT, ROUNDING, Stencil
from hetero.ops.multigrid import multigrid_cpu, multigrid_device

PLANES = [(127, 127), (128, 128), (97, 113), (101, 3), (40, 530)]
BOXES = [(33, 33, 33), (32, 30, 29), (5, 40, 71)]
UNEVEN = [((100, 100), (1.0, 0.1)), ((100, 90), (0.01, 1.0)), ((40, 41, 42), (1.0, 0.3, 3.0))]


def solve(place, stencil, f, u, rtol, maxiter):
    asked = Solve(stencil, rtol, 0.0, maxiter)
    if place == "cpu":
        return multigrid_cpu.solve((), asked, f, u)
    device = devices.get(place) if isinstance(place, str) else place
    with device.active():
        (source, _a), (target, _b) = (device.allocate(f.nbytes) for _ in range(2))
        device.upload(f, source)
        device.upload(u, target)
        outcome = multigrid_device.solve([device], asked, source, target, f.dtype)
        device.download(target, u)
    return outcome


def places():
    return [
        pytest.param(n, marks=[pytest.mark.gpu] if n.startswith("cuda") else [], id=n)
        for n in ("cpu", *devices.available())
    ]


def factor(place, stencil, cycles=5):
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
    """0.05 in 2-D and 0.08 in 3-D, whatever the extents' parity; 0.13 at uneven spacings."""
    few = slice(None) if place == "cpu" or place.startswith("cuda") else slice(1, 3)
    for shape in PLANES[few]:
        assert factor(place, Stencil(shape, (0.5, 0.5))) < 0.08
    for shape in BOXES[few]:
        assert factor(place, Stencil(shape, (1.0,) * 3)) < 0.11
    for shape, spacing in UNEVEN[few]:
        assert factor(place, Stencil(shape, spacing)) < 0.15


def test_no_loop_leaves_its_arrays():
    in_bounds.check("""
for shape in ((40, 40), (33, 30), (1, 50), (50, 2), (6, 9, 11), (9, 1, 8), (20, 21, 18)):
    hetero.solve_poisson(np.ones(shape), method="multigrid", device="cpu")
""")


def test_several_tiles_along_y():
    """In 3-D the CPU cuts planes of more than a megabyte's rows; all are where they belong."""
    shape = (40, 130, 130)
    stencil = Stencil(shape, (1.0,) * 3)
    u = np.random.default_rng(7).random(shape)
    f = (Poisson(shape) @ u.ravel()).reshape(shape)
    found = np.zeros(shape)
    outcome = solve("cpu", stencil, f, found, rtol=1e-9, maxiter=20)
    assert outcome.status == CONVERGED
    np.testing.assert_allclose(found, u, rtol=0, atol=1e-7)


def test_threads_share_a_hierarchy():
    """Four at once, of one shape: each gets what it gets alone, to the last bit."""
    stencil = Stencil((90, 97), (1.0, 1.0))
    rhs = np.random.default_rng(8).random((4, *stencil.shape))

    def solved(f):
        results = []
        for _ in range(8):
            u = np.zeros_like(f)
            outcome = solve("cpu", stencil, f, u, rtol=1e-8, maxiter=30)
            results.append((outcome, u.tobytes()))
        return results

    alone = [solved(f)[0] for f in rhs]
    with ThreadPoolExecutor(4) as pool:
        for expected, together in zip(alone, pool.map(solved, rhs), strict=True):
            assert set(together) == {expected}


@pytest.mark.parametrize("place", places())
def test_one_cycle_does_not_tell_that_rounding_ends_it(place):
    stencil = Stencil((65, 70), (1.0, 1.0))
    f = np.random.default_rng(4).random(stencil.shape).astype("f4")
    u = np.zeros_like(f)
    assert solve(place, stencil, f, u, rtol=1e-12, maxiter=100).status == ROUNDING
    for most, status in ((1, LIMIT), (2, ROUNDING)):
        outcome = solve(place, stencil, f, u.copy(), rtol=1e-12, maxiter=most)
        assert (outcome.status, outcome.iterations) == (status, most)


@pytest.mark.parametrize("place", places())
@pytest.mark.parametrize("shape", [(5, 6), (90, 97), (18, 20, 21)])
def test_one_cycle_is_symmetric_and_positive_definite(place, shape):
    stencil = Stencil(shape, (1.0, 0.7, 0.8)[: len(shape)])
    x, y = np.random.default_rng(6).random((2, np.prod(shape))) - 0.5
    if place == "cpu":
        hierarchy = multigrid_cpu.CpuHierarchy(stencil, x.dtype)

        def apply(r):
            z = np.full_like(r, np.nan)
            hierarchy.apply(r, z)
            return z
    else:
        device = devices.get(place)
        with device.active():
            hierarchy = multigrid_device.DeviceHierarchy([device], stencil, x.dtype)

        def apply(r):
            with device.active():
                (source, a), (target, b) = (device.allocate(r.nbytes) for _ in range(2))
                device.upload(r, source)
                device.upload(np.full_like(r, np.nan), target)
                hierarchy.bound([source], [target], symmetric=True)()
                z = np.empty_like(r)
                device.download(target, z)
                del a, b
                return z

    mx, my = apply(x), apply(y)
    assert y @ mx == pytest.approx(x @ my, rel=1e-10)
    assert x @ mx > 0
    # It is close to A's inverse: what it leaves of an error is short in the energy norm.
    A = Poisson(shape, stencil.spacing)
    error = x - apply(A @ x)
    assert error @ (A @ error) < 0.4**2 * (x @ (A @ x))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiles_without_spills(dtype, arch):
    real = {"float32": "float", "float64": "double"}[dtype]
    for shape, coarse in (((64, 1, 64), (32, 1, 32)), ((64, 64, 64), (32, 32, 32))):
        plan = plan_multigrid.plan_sweep(shape, coarse, dtype, Target(132))
        variants = ((0, 0), (0, 1), (1, 1), (3, 0), (3, 1))
        for mode, aligned in variants[arch == "sm_90" :: 2]:  # in turn
            defines = plan.defines(bool(aligned), 0, mode)
            assert compiled.compile_cuda(Launch("multigrid.cu", "", defines, 1, 1, ()), arch) == 0
    for file in ("multigrid_coarse.cu", "multigrid_squares.cu"):
        assert compiled.compile_cuda(Launch(file, "", (("REAL", real),), 1, 1, ()), arch) == 0


# -- Oclgrind ------------------------------------------------------------------------------------


def simulate(case):
    """One cycle in 2-D and in 3-D, over several tiles, or without the barriers."""
    from hetero.devices import opencl

    simulator = runtimes.simulator()  # it is believed for a kernel that has its barriers
    if case == "race":
        text = opencl.kernel_text

        def edited(name, dialect):
            return text(name, dialect).replace("__syncthreads();", "")

        opencl.kernel_text = edited
    device = opencl.OpenCLDevice(0, simulator)
    device.multiprocessors, device.block_limit = 1, 256
    for shape in ((9, 30),) if case == "race" else ((13, 250), (4, 11, 9), (7, 13, 2)):
        stencil = Stencil(shape, (1.0,) * len(shape))
        f = np.random.default_rng(0).random(shape)
        outcome = solve(device, stencil, f, np.zeros_like(f), rtol=1e-9, maxiter=1)
        assert case == "race" or outcome.residual < 0.3 * np.linalg.norm(f)


def test_no_races_nor_bounds():
    assert runtimes.simulated(__file__, "good") == ""


def test_a_race_is_seen():
    assert "data race" in runtimes.simulated(__file__, "race")


if __name__ == "__main__":
    simulate(sys.argv[1])
