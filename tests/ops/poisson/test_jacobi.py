"""Jacobi's method: against sweeps written down plainly, on the CPU, OpenCL devices and GPUs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import runtimes
from cg_systems import on_device

import hetero
from hetero import devices
from hetero.devices.opencl import OpenCLDevice
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.ops.solvers import jacobi
from hetero.ops.solvers.systems import LIMIT, Solve, Stencil

pytestmark = pytest.mark.optimised  # many sweeps
FLAT = [(1, 1), (2, 9), (26, 67), (41, 300)]
BOXES = [(1, 2, 3), (7, 9, 11), (12, 6, 64)]
DTYPES = ["float32", "float64"]
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}


def problem(shape, dtype):
    rng = np.random.default_rng(0)
    stencil = Stencil(shape, tuple(0.5 + 0.3 * axis for axis in range(len(shape))))
    f, u = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    return stencil, f, u


def exactly(stencil, sweeps):
    return Solve(stencil, 0.0, 0.0, sweeps, exactly=True)


def check(used, shape, dtype, bits=None):
    """The sweeps asked for, the true residual, and the same bits whoever makes them."""
    stencil, f, start = problem(shape, dtype)
    A, diagonal = hetero.Poisson(*stencil), sum(2 / step**2 for step in stencil.spacing)
    expected, bits = start.astype(float).ravel(), {} if bits is None else bits
    for sweeps in range(13):
        if sweeps in (0, 1, 2, 7, 12):
            u = start.copy()
            outcome = jacobi.solve(used, exactly(stencil, sweeps), f, u)
            assert outcome[:2] == (LIMIT, sweeps)
            np.testing.assert_allclose(u.ravel(), expected, atol=TOLERANCE[dtype] * abs(u).max())
            residual = np.linalg.norm(f.ravel() - A @ u.astype(float).ravel())
            assert outcome.residual == pytest.approx(residual, rel=1e-9)
            found = u.tobytes(), outcome.residual
            assert bits.setdefault(sweeps, found) == found
        expected = expected + (f.ravel() - A @ expected) / diagonal


def check_devices(monkeypatch, found, shape, dtype, counts=(1, 2, 3)):
    """However many slabs there are, of unequal sizes too, and sweeps of a pass."""
    bits = {}
    for count, depth in itertools.product(counts, (1, plan_jacobi.DEPTH[dtype])):
        monkeypatch.setattr(plan_jacobi, "default_depth", lambda grid, depth=depth: depth)
        used = [found[i % len(found)] for i in range(count)]
        with used[0].active():  # as the executor has it
            check(used, shape, dtype, bits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*FLAT, *BOXES], ids=str)
def test_sweeps_on_the_cpu(shape, dtype):
    check((), shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*FLAT, "large"], ids=str)
@pytest.mark.parametrize("kind", runtimes.EACH_KIND)
def test_sweeps_on_devices(kind, shape, dtype, monkeypatch):
    if shape == "large":
        shape = (700, 1001) if kind == "cuda" else (65, 129)
    found = runtimes.of_kind(kind)
    check_devices(monkeypatch, found, shape, dtype)
    if kind == "cuda":
        check_devices(monkeypatch, found[:1], shape, dtype, (4,))


def test_two_contexts(opencl, monkeypatch):
    """Devices that cannot see each other's memory or events."""
    one = devices.get(opencl)
    found = [one, OpenCLDevice(99, one._device)]
    check_devices(monkeypatch, found, (26, 67), "float32", (2, 4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(26, 64), (26, 67)], ids=str)
@pytest.mark.parametrize("kind", runtimes.EACH_KIND)
def test_buffers(kind, shape, dtype):
    """f and u that lie on the device: f is not changed, u gets the result, of any row length."""
    device, (stencil, f, start) = runtimes.of_kind(kind)[0], problem(shape, dtype)
    expected, asked = start.copy(), exactly(stencil, 9)
    outcome = jacobi.solve([device], asked, f, expected)
    call = lambda *buffers: jacobi.solve([device], asked, *buffers, dtype)  # noqa: E731
    for offset in (0, 8) if kind == "cuda" else (0,):
        found, (kept, u) = on_device(device, call, f, start, offset=offset)
        assert found == outcome
        np.testing.assert_array_equal(u, expected)
        np.testing.assert_array_equal(kept, f)
