"""The direct solver's kernels on OpenCL, NumPy's FFT in cuFFT's place; with cuFFT on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import runtimes

from hetero import devices
from hetero.devices.cuda import cufft
from hetero.ops.linear_systems.operators import Poisson
from hetero.ops.linear_systems.systems import Stencil
from hetero.ops.poisson import dst

SHAPES = [(1, 1), (1, 5), (6, 1), (4, 7), (33, 40), (3, 4, 5), (9, 1, 34)]


class NumpyTransform:
    """What `cufft.RealTransform` does, on the host."""

    def __init__(self, device, length, rows, dtype):
        self.device, self.length, self.rows, self.dtype = device, length, rows, dtype

    def __call__(self, buffer):
        values = np.empty((self.rows, self.length + 2), self.dtype)
        self.device.download(buffer, values)
        found = np.fft.rfft(values[:, : self.length], axis=1)
        single = self.dtype == "float32"
        values = np.ascontiguousarray(found.astype("c8" if single else "c16")).view(self.dtype)
        self.device.upload(values, buffer)


@pytest.fixture(params=["opencl", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    """(device, transform)."""
    if request.param == "opencl":
        return runtimes.opencl_device(), NumpyTransform
    names = [n for n in devices.available() if n.startswith(request.param)]
    if not names:
        pytest.skip(f"no {request.param} device")
    if reason := cufft.obstacle():
        pytest.skip(reason)
    return devices.get(names[0]), cufft.RealTransform


def on_device(device, array):
    buffer, owner = device.allocate(array.nbytes)
    device.upload(np.ascontiguousarray(array), buffer)
    return buffer, owner


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_solves_exactly(place, shape, dtype, monkeypatch):
    device, transform = place
    monkeypatch.setattr(dst, "_CHUNK_BYTES", 4096)  # several chunks even here
    spacing = (0.5, 0.25, 0.125)[: len(shape)]
    u = (np.random.default_rng(0).random(shape) - 0.5).astype(dtype)
    A = Poisson(shape, spacing)
    f = (A @ u.astype("f8").ravel()).reshape(shape).astype(dtype)
    with device.active():
        solver = dst.Solver(device, Stencil(shape, spacing), np.dtype(dtype), transform)
        source, first = on_device(device, f)
        target, second = on_device(device, np.full(shape, np.nan, dtype))
        size, whole, _ = solver.solve(source, target, 1e-10)
        found, kept = np.empty(shape, dtype), np.empty(shape, dtype)
        device.download(target, found)
        device.download(source, kept)
        del first, second
    np.testing.assert_allclose(found, u, atol=2e-5 if dtype == "float32" else 1e-12)
    assert (kept == f).all()
    residual = np.linalg.norm(f.astype("f8").ravel() - A @ found.astype("f8").ravel())
    assert whole == pytest.approx(np.linalg.norm(f), rel=1e-6)
    if dtype == "float64":
        assert size <= 1e-10 * whole
        assert size == pytest.approx(residual, abs=1e-11 * whole)
    else:
        assert size <= 1e-4 * whole


def test_a_refinement_that_is_worse_is_not_kept(place, monkeypatch):
    device, transform = place
    f = np.random.default_rng(3).random((12, 17)).astype("f4")
    with device.active():
        solver = dst.Solver(device, Stencil(f.shape, (1.0, 1.0)), f.dtype, transform)
        source, first = on_device(device, f)
        target, second = on_device(device, f)
        expected, _, _ = solver.solve(source, target, 1.0)
        plain, found = np.empty_like(f), np.empty_like(f)
        device.download(target, plain)
        apply = solver.apply

        def spoiled(right, u):
            apply(right, u)
            if right is not source:
                device.upload(np.ones_like(f), u)

        monkeypatch.setattr(solver, "apply", spoiled)
        size, _, solves = solver.solve(source, target, 1e-12)
        device.download(target, found)
        del first, second
    np.testing.assert_array_equal(found, plain)
    assert (size, solves) == (expected, 2)
