"""Jacobi's method: against sweeps written down plainly, on the CPU, OpenCL devices and GPUs."""

from __future__ import annotations

import itertools
from functools import partial

import in_bounds
import numpy as np
import pytest

from hetero import devices
from hetero.kernels.common.launch import Target
from hetero.kernels.jacobi import plan as plan_jacobi
from hetero.ops.linear_systems.systems import LIMIT, Stencil
from hetero.ops.poisson import jacobi

pytestmark = pytest.mark.optimised  # many sweeps
FLAT = [(1, 1), (2, 9), (26, 67), (41, 300)]
SHAPES = [*FLAT, (1, 2, 3), (7, 9, 11), (12, 6, 64)]
TOLERANCE = {"float32": 2e-6, "float64": 1e-14}


def operator(stencil, u):
    """A u, slowly."""
    padded = np.pad(u.astype(float), 1)
    centre = (slice(1, -1),) * u.ndim
    result = np.zeros(u.shape)
    for axis, step in enumerate(stencil.spacing):
        around = sum(np.roll(padded, shift, axis)[centre] for shift in (1, -1))
        result += (2 * padded[centre] - around) / step**2
    return result


def swept(stencil, f, u, sweeps):
    diagonal = sum(2 / step**2 for step in stencil.spacing)
    u = u.astype(float)
    for _ in range(sweeps):
        u = u + (f - operator(stencil, u)) / diagonal
    return u


def problem(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    stencil = Stencil(shape, tuple(0.5 + 0.3 * axis for axis in range(len(shape))))
    f, u = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    return stencil, f, u


def norm(values):
    return float(np.linalg.norm(values.ravel()))


def check_sweeps(solve, shape, dtype, blockings, bits):
    """Whatever the blocking: the sweeps asked for, the same bits each time, the true residual."""
    stencil, f, start = problem(shape, dtype)
    for sweeps in (0, 1, 2, 7, 12):
        expected = swept(stencil, f, start, sweeps)
        for blocking in blockings:
            u = start.copy()
            with pytest.MonkeyPatch.context() as patch:
                if blocking is not None:
                    patch.setattr(plan_jacobi, "default_depth", lambda grid, depth=blocking: depth)
                outcome = solve(stencil, f, u, sweeps=sweeps)
            assert outcome[:2] == (LIMIT, sweeps)
            np.testing.assert_allclose(u, expected, atol=TOLERANCE[dtype] * abs(expected).max())
            true = norm(f - operator(stencil, u))
            assert outcome.residual == pytest.approx(true, rel=1e-9)
            assert bits.setdefault(sweeps, (u.tobytes(), outcome.residual)) == (
                u.tobytes(),
                outcome.residual,
            )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sweeps_on_the_cpu(shape, dtype):
    check_sweeps(partial(jacobi.solve, ()), shape, dtype, (None,), {})


def test_no_sweep_leaves_its_arrays():
    in_bounds.check("""
for shape in ((40, 40), (33, 30), (1, 50), (50, 2), (6, 9, 11), (9, 1, 8)):
    hetero.solve_poisson(np.ones(shape), method="jacobi", device="cpu", maxiter=9)
""")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", FLAT, ids=str)
def test_sweeps_on_a_device(opencl, shape, dtype):
    """The same bits also from two and three slabs, of unequal sizes where the rows don't divide."""
    check_devices([devices.get(opencl)], shape, dtype)


def check_devices(found, shape, dtype, counts=(1, 2, 3)):
    bits = {}
    for count in counts:
        used = [found[i % len(found)] for i in range(count)]
        solve = partial(jacobi.solve, used)
        with used[0].active():  # as the executor has it
            check_sweeps(solve, shape, dtype, (None, *plan_jacobi.DEPTHS), bits)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [*FLAT, (700, 1001)], ids=str)
def test_sweeps_on_gpus(shape, dtype):
    check_devices([d for d in devices.available().values() if d.kind == "cuda"], shape, dtype)
    check_devices([devices.get("cuda:0")], shape, dtype, (4,))


def test_two_contexts(opencl):
    """Devices that cannot see each other's memory or events."""
    from hetero.devices.opencl import OpenCLDevice

    one = devices.get(opencl)
    check_devices([one, OpenCLDevice(99, one._device)], (26, 67), "float32", (1, 2, 4))


# -- Buffers of the caller -----------------------------------------------------------------------


def check_buffers(device, shape, dtype, offset=0):
    """f and u that lie on the device: f is not changed, u gets the result, of any row length."""
    stencil, f, start = problem(shape, dtype)
    expected = start.copy()
    options = {"sweeps": 9}
    outcome = jacobi.solve([device], stencil, f, expected, **options)
    with device.active():
        (there, _a), (here, _b) = (device.allocate(f.nbytes + 16) for _ in range(2))
        if offset:
            there, here = there + offset, here + offset
        device.upload(f, there)
        device.upload(start, here)
        assert outcome == jacobi.solve([device], stencil, there, here, dtype=dtype, **options)
        u, kept = np.empty_like(f), np.empty_like(f)
        device.download(here, u)
        device.download(there, kept)
    np.testing.assert_array_equal(u, expected)
    np.testing.assert_array_equal(kept, f)


@pytest.mark.parametrize("shape", [(26, 64), (26, 67)], ids=str)
def test_buffers(opencl, shape):
    check_buffers(devices.get(opencl), shape, "float32")
    check_buffers(devices.get(opencl), shape, "float64")


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 8])
@pytest.mark.parametrize("shape", [(26, 64), (26, 67)], ids=str)
def test_buffers_on_a_gpu(shape, offset):
    check_buffers(devices.get("cuda:0"), shape, "float32", offset)
    check_buffers(devices.get("cuda:0"), shape, "float64", offset)


# -- Plans and compilers -------------------------------------------------------------------------


def launches(warps):
    """One launch for each binary."""
    for dtype, shape in itertools.product(("float32", "float64"), ((8192, 8192), (500, 999))):
        grid = plan_jacobi.GridSlab.of(shape, (1.0, 1.0), dtype)
        rows = 0, shape[0]
        yield plan_jacobi.residual(grid, rows, Target(132))
        yield plan_jacobi.change_pitch(grid, 999, 1000, Target(132))
        for depth in plan_jacobi.DEPTHS:
            yield plan_jacobi.blocked(grid, rows, depth, Target(132, warps=warps))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_compiles_without_spills(arch):
    from compiled import spilling

    found = {(x.source, x.defines): x for warps in (True, False) for x in launches(warps)}
    found = list(found.values())[arch == "sm_90" :: 2]  # in turn
    assert spilling(found, arch) == []
