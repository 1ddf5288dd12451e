"""Conjugate gradients on devices, against the recurrence in NumPy.

As a script this file is what Oclgrind simulates.
"""

from __future__ import annotations

import math
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import runtimes
import scipy.sparse as sp
from cg_systems import KINDS, gpus, recurrence, solve, system_of, vectors
from test_cg_contract import CupySparse

import hetero
from hetero import devices
from hetero.arrays import describe
from hetero.devices import peers
from hetero.devices.cuda.compiler import CooperativeKernel
from hetero.errors import DeviceError
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.common.launch import Target
from hetero.moving import transfer
from hetero.ops.solvers import cg_device
from hetero.ops.solvers import systems as types
from hetero.ops.solvers.exchange import Part

DTYPES = ("float64", "float32")


@pytest.fixture(params=runtimes.EACH_KIND)
def device(request):
    """A device of each kind that is here."""
    return runtimes.of_kind(request.param)[0]


# -- A matrix that is there -----------------------------------------------------------------------


def put(device, host):
    with device.active():
        array, buffer = device.new_array(host.shape, host.dtype)
        device.upload(host, buffer)
    return array


class CupyCsr(CupySparse):
    """Its arrays lie on a device, and `get` copies it."""

    __module__, format, copies = CupySparse.__module__, "csr", 0

    def __init__(self, A, device):
        super().__init__(A)
        parts = A.indptr, A.indices, A.data
        self.indptr, self.indices, self.data = (put(device, part) for part in parts)

    def get(self):
        self.copies += 1
        return super().get()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sparse_matrix_on_the_device_is_not_copied(device, dtype):
    """Not to its own device, also from a vector of the host; once to the CPU, for its diagonal and
    where the solve has another dtype."""
    A = hetero.Poisson((20, 30), dtype=dtype).tocsr()
    b = np.random.default_rng(0).standard_normal(600).astype(dtype)
    there, on = CupyCsr(A, device), {"device": device.name, "rtol": 1e-5}
    expected, _ = hetero.solve_cg(A, b, **on)
    for rhs in (b, put(device, b), b, put(device, b)):
        x, info = hetero.solve_cg(there, rhs, **on)
        x = x if isinstance(x, np.ndarray) else transfer.to_host(x, describe(x))
        assert (info, there.copies) == (0, 0)
        np.testing.assert_array_equal(x, expected)
    assert hetero.plan("cg", there, b, **on).chosen.terms.get("upload", 0.0) < 1e-3
    for number, options in enumerate(({"M": "jacobi"}, {"device": "cpu"}), 1):
        there = CupyCsr(A, device)
        x, info = hetero.solve_cg(there, b, **(on | options))
        assert (info, there.copies) == (0, 1), number
        np.testing.assert_allclose(x, expected, rtol=1e-3)
    gaps = CupyCsr(A, device)  # of which the values lie two apart
    with device.active():  # PyCUDA looks at the context's device
        gaps.data = put(device, np.repeat(A.data, 2))[::2]
    x, info = hetero.solve_cg(gaps, b, **on)
    assert (info, gaps.copies) == (0, 1)
    np.testing.assert_array_equal(x, expected)
    other = b.astype("float64" if dtype == "float32" else "float32")
    x, info = hetero.solve_cg(there, other, **on)
    assert (info, x.dtype, there.copies) == (0, "float64", 2 if dtype == "float32" else 1)
    x, info = hetero.solve_cg(CupyCsr(A, device), b * (1 + 2j), rtol=1e-5)  # on the CPU
    assert info == 0
    np.testing.assert_allclose(x, expected * (1 + 2j), rtol=1e-3)


# -- Agreement -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "diagonal"),
    [
        *((kind, "float64", False) for kind in KINDS),
        *((kind, "float64", True) for kind in ("stencil2", "stencil3", "csr", "dense")),
        *((kind, "float32", False) for kind in ("odd2", "stencil3", "csr64", "dense")),
        ("stencil2", "float32", True),
    ],
)
def test_agrees_with_the_recurrence(device, kind, dtype, diagonal):
    system, A = system_of(kind, dtype)
    b, x0 = vectors(A.shape[0], dtype)
    M = np.random.default_rng(3).uniform(0.5, 2.0, len(b)).astype(dtype) if diagonal else None
    rtol, slack = (1e-8, 1) if dtype == "float64" else (1e-4, 3)
    tolerance = rtol * np.linalg.norm(b)
    iterates = recurrence(A, b, x0, tolerance, 2000, M)
    outcome, x = solve([device], system, b, x0, rtol=rtol, preconditioner=M)
    true = np.linalg.norm(b.astype(float) - A.astype(float) @ x.astype(float))
    assert outcome.status == types.CONVERGED
    assert abs(outcome.iterations - (len(iterates) - 1)) <= slack
    assert true <= tolerance * (1 if dtype == "float64" else 1.01)
    assert outcome.residual == pytest.approx(true, rel=1e-2)


@pytest.mark.parametrize(
    ("kind", "parts", "diagonal"),
    [
        *((kind, 2, True) for kind in ("stencil2", "stencil3", "dense, columns")),
        *((kind, 3, False) for kind in ("odd2", "csr64", "dense")),
        *(("csr", 3, True), ("dense", 3, True)),
    ],
)
@pytest.mark.parametrize("meet", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_several_devices(device, monkeypatch, kind, parts, diagonal, meet):
    if not meet:
        monkeypatch.setattr(peers, "meet", lambda devices: False)
    used = gpus(parts) if device.kind == "cuda" else [device] * parts
    system, A = system_of(kind, "float64")
    b, x0 = vectors(A.shape[0], "float64")
    M = np.random.default_rng(3).uniform(0.5, 2.0, len(b)) if diagonal else None
    options = {"rtol": 1e-9, "preconditioner": M}
    alone, x = solve([device], system, b, x0, **options)
    outcome, y = solve(used, system, b, x0, **options)
    assert outcome.status == types.CONVERGED
    assert abs(outcome.iterations - alone.iterations) <= 1
    np.testing.assert_allclose(y, x, rtol=0, atol=1e-7)
    assert np.linalg.norm(b - A @ y) <= 1e-9 * np.linalg.norm(b)
    again, z = solve(used, system, b, x0, **options)
    assert again == outcome
    np.testing.assert_array_equal(z, y)


def test_an_interrupt_leaves_the_device_usable(device):
    system, A = system_of("stencil2", "float64")
    b, x0 = vectors(A.shape[0], "float64")

    def interrupt(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve([device], system, b, x0, rtol=1e-8, callback=interrupt)
    assert solve([device], system, b, x0, rtol=1e-8)[0].status == types.CONVERGED


# -- The cooperative kernel ----------------------------------------------------------------------


def one_block(used, stencil, dtype):
    """The cooperative iteration in a block of its own, which every device can hold."""
    (device,) = used
    how = {"dtype": dtype.name, "shared_limit": 1 << 20}
    plan = plan_cg.cooperative(plan_cg.GridShare.of(*stencil.box), Target(1), **how)
    defines = (*plan.defines, ("SHARED_BYTES", plan.shared_bytes))
    kernel = device.build(plan.source, plan.kernel, defines)

    def launch(grid, arguments, stream):
        device.launch(kernel, grid, plan.block, arguments)

    return [(plan, SimpleNamespace(launch=launch))]


@pytest.mark.parametrize("shape", [(1, 1), (4, 60), (13, 39)])
def test_many_iterations_in_one_launch(opencl, monkeypatch, shape):
    device, dtype = devices.get(opencl), "float32" if shape == (4, 60) else "float64"
    system = types.Stencil(shape, (0.9, 1.2))
    b, x0 = vectors(math.prod(shape), dtype)
    rtol = 1e-9 if dtype == "float64" else 1e-4
    options = [{"rtol": rtol}, {"maxiter": 1}]
    expected = [solve([device], system, b, x0, **o) for o in options]
    monkeypatch.setattr(cg_device, "resident", one_block)
    for (outcome, x), o in zip(expected, options, strict=True):
        mine, y = solve([device], system, b, x0, **o)
        assert mine.status == outcome.status
        assert abs(mine.iterations - outcome.iterations) <= 1
        np.testing.assert_allclose(y, x, rtol=0, atol=100 * rtol)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        *(((1, 1), 1), ((133, 64), 1), ((300, 301), 1), ((512, 512), 1), ("largest", 1)),
        *((shape, n) for n in (2, 3) for shape in ((4, 7), (133, 64), (512, 512), (260, 700))),
    ],
)
def test_cooperative_launches(monkeypatch, shape, dtype, parts):
    if shape == "largest":  # four rows a block and a row above and below are six points a thread
        shape = (4 * devices.get("cuda:0").multiprocessors, 500)
    system, used = types.Stencil(shape, (0.9, 1.2)), []
    b, x0 = vectors(math.prod(shape), dtype)
    options, choose = {"rtol": 1e-4, "maxiter": 5000}, cg_device.resident
    monkeypatch.setattr(cg_device, "resident", lambda *a: used.append(choose(*a)) or used[-1])
    outcome, x = solve(gpus(parts), system, b, x0, **options)
    again, y = solve(gpus(parts), system, b, x0, **options)
    assert used[0] is not None
    assert again == outcome
    np.testing.assert_array_equal(x, y)
    monkeypatch.setattr(cg_device, "resident", lambda *_: None)
    expected, _ = solve(gpus(1), system, b, x0, **options)
    assert outcome.status == expected.status == types.CONVERGED
    assert abs(outcome.iterations - expected.iterations) <= 1 + expected.iterations // 100


@pytest.mark.gpu
@pytest.mark.parametrize("side", [300, 3000])
def test_a_device_that_is_waited_for_in_vain(monkeypatch, side):
    """Launches of one device stop: the solve ends in bounded time, as a failed device's."""
    monkeypatch.setattr(peers, "PATIENCE", 0.3)
    pair, system = gpus(2), types.Stencil((side, side), (1.0, 1.0))
    b, x0 = vectors(side * side, "float64")
    started, launch, begin = [], CooperativeKernel.launch, Part.start

    def some(kernel, *arguments):
        started.append(kernel)
        if len(started) != 4:
            launch(kernel, *arguments)

    def one_alone(part, *launches):
        started.append(part)
        if len(started) < 8 or part is started[0]:
            begin(part, *launches)

    if side > 1000:
        monkeypatch.setattr(Part, "start", one_alone)
    else:
        monkeypatch.setattr(CooperativeKernel, "launch", some)
    began = time.monotonic()
    with pytest.raises(DeviceError, match="for another device, in vain"):
        solve(pair, system, b, x0, rtol=1e-12)
    assert time.monotonic() - began < 5.0
    monkeypatch.undo()
    assert solve(pair, system, b, x0, rtol=1e-2)[0].status == types.CONVERGED


# -- Oclgrind ------------------------------------------------------------------------------------


def identity(device, nbytes):
    """A preconditioner of its own launches: z = r."""
    return SimpleNamespace(bound=lambda r, z, symmetric: partial(device.copy, *z, *r, nbytes))


def simulate():
    """Run every kernel once."""
    from hetero.devices import opencl

    device = opencl.OpenCLDevice(0, runtimes.simulator())
    device.multiprocessors, device.block_limit = 2, 64
    for shape in ((9, 33), (3, 6, 8)):
        b, x0 = vectors(math.prod(shape), "float64")
        system = types.Stencil(shape, (1.0,) * len(shape))
        for M in (None, np.ones(len(b)), identity(device, b.nbytes)):
            solve([device], system, b, x0, maxiter=3, preconditioner=M)
    for mean in (4, 40):
        A = sp.random_array((70, 70), density=mean / 140, rng=np.random.default_rng(0))
        A = (A + A.T + 40 * sp.eye_array(70)).tocsr()
        b, x0 = vectors(70, "float64")
        for M in (None, np.ones(70)):
            for system in (
                types.Csr(A.indptr, A.indices, A.data),
                types.Dense(A.toarray(), 70, (70, 1)),
            ):
                solve([device], system, b, x0, maxiter=3, preconditioner=M)
    cg_device.resident = one_block
    b, x0 = vectors(60, "float64")
    solve([device], types.Stencil((6, 10), (1.0, 1.0)), b, x0, maxiter=3)


def test_no_races_nor_bounds():
    assert runtimes.simulated(__file__) == ""


if __name__ == "__main__":
    simulate()
