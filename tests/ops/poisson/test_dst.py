"""The direct solver: sine transforms of any extents, refined where rounding shows; on the CPU, on
OpenCL with NumPy's FFT in cuFFT's place, and on a GPU."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce

import numpy as np
import pytest
import runtimes
from cg_systems import on_device
from host_transforms import RealTransform
from scipy import fft

import hetero
from hetero.devices.cuda import libraries
from hetero.host import loops
from hetero.imports import load
from hetero.ops.solvers import dst
from hetero.ops.solvers.operators import Poisson
from hetero.ops.solvers.systems import Solve, Stencil


@pytest.fixture(params=["tridiagonal systems", "division"])
def along_first(request, monkeypatch):
    """How the first axis is solved on the CPU: by compiled loops, and where there are none."""
    if request.param == "division":
        monkeypatch.setattr(loops, "is_ready", lambda name: False)
    else:
        load("hetero.kernels.cpu.vectors")  # which few points are not worth importing Numba for


@pytest.mark.parametrize("shape", [(15, 15), (2000, 1), (1, 6006), (9, 11, 10), (33, 34, 35)])
@pytest.mark.parametrize("kind", ["smooth", "noise", "alternating"])
def test_what_nobody_asks_for_is_as_small_as_promised(shape, kind, along_first):
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
    assert info["iterations"] == 1 or kind == "alternating"


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "shape",
    [
        *((1, 1), (2, 53), (47, 47), (71, 71), (79, 79), (101, 101), (127, 127), (128, 128)),
        *((256, 256), (256, 257), (128, 16), (2, 3, 40), (33, 34, 35), (40, 40, 40), (41,) * 3),
        *((512, 513), (2000, 3)),
    ],
)
def test_matrices_and_tridiagonal_systems_solve_as_transforms_do(shape, dtype, along_first):
    """On both sides of the extents up to which they are taken, of the sizes up to which BLAS sums
    without threads, and of a block of systems; NaN goes everywhere."""
    f = np.random.default_rng(4).standard_normal(shape).astype(dtype)
    spacing = tuple(1.0 / (n + 1) for n in shape)
    angles = [0.5 * np.pi * np.arange(1, n + 1) / (n + 1) for n in shape]
    eigenvalues = [(2.0 * np.sin(x) * (len(x) + 1)) ** 2 for x in angles]
    spectrum = fft.dstn(f.astype("f8"), 1) / reduce(np.add.outer, eigenvalues)
    expected = fft.idstn(spectrum, 1)
    u = hetero.solve_poisson(f, spacing=spacing, device="cpu", method="dst")
    times = 24.0 if shape == (256, 256) else 16.0  # the longest sums, along both axes
    atol = times * np.finfo(dtype).eps * abs(expected).max()
    np.testing.assert_allclose(u, expected, rtol=0, atol=atol)
    f.flat[0] = np.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        assert np.isnan(hetero.solve_poisson(f, device="cpu", method="dst")).all()


@pytest.mark.parametrize(("dtype", "columns", "rtol"), [("f4", 16, 1e-3), ("f8", 64, 2e-12)])
def test_products_with_matrices_meet_a_tolerance_near_rounding(dtype, columns, rtol):
    """Of a smooth solution they round more than the solution itself does."""
    shape, spacing, eps = (128, columns), (1.0, 512.0), np.finfo(dtype).eps
    u = 4.0 * eps * np.sign(np.random.default_rng(0).random(shape) - 0.5)
    u[0, 0] = 0.9
    b = Poisson(shape, spacing) @ fft.idstn(u, 1, norm="ortho").ravel()
    f, placed = b.reshape(shape).astype(dtype), {"device": "cpu", "method": "dst"}
    u = hetero.solve_poisson(f, spacing=spacing, rtol=rtol, **placed)
    left = f.astype("f8").ravel() - Poisson(shape, spacing) @ u.astype("f8").ravel()
    assert np.linalg.norm(left) <= rtol * np.linalg.norm(f.astype("f8"))


def test_a_norm_that_overflows_is_no_large_one():
    f = np.full((64, 64), 1e160)
    placed = {"device": "cpu", "method": "dst", "rtol": 1e-13, "return_info": True}
    u, info = hetero.solve_poisson(f, **placed)
    left = np.ldexp(f.ravel() - Poisson(f.shape) @ u.ravel(), -532)
    relative = np.linalg.norm(left) / np.linalg.norm(np.ldexp(f, -532))
    assert info["relative_residual"] == pytest.approx(relative, rel=0.5, abs=0.0)
    assert info["converged"] == (info["relative_residual"] <= 1e-13)
    np.testing.assert_array_equal(u, hetero.solve_poisson(f, **placed | {"return_info": False}))
    x0 = u * (1.0 + 1e-9)
    for method in ("multigrid", "jacobi"):
        there = placed | {"method": method, "rtol": 1e-12, "maxiter": 1}
        with pytest.warns(RuntimeWarning):
            assert not hetero.solve_poisson(f, x0=x0, **there)[1]["converged"]


@pytest.mark.parametrize("size", [1e-24, 1e-18, 1.0, 1e18, 1e20])
def test_a_tolerance_is_met_where_squares_leave_the_range(size):
    """Of a norm that is infinite, any rounding would be a small part."""
    f, spacing = np.random.default_rng(6).standard_normal((2, 74)) * size, (0.2, 0.02)
    f = f.astype("f4")
    A, b = Poisson(f.shape, spacing), f.astype("f8").ravel()
    placed = {"spacing": spacing, "rtol": 1e-6, "method": "dst", "device": "cpu"}
    u, info = hetero.solve_poisson(f, **placed, return_info=True)
    residual = np.linalg.norm(b - A @ u.astype("f8").ravel())
    assert info["converged"] == (residual <= 1e-6 * np.linalg.norm(b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if not info["converged"] else "error")
        np.testing.assert_array_equal(hetero.solve_poisson(f, **placed), u)


@pytest.mark.parametrize("shape", [(15, 15, 15), (21, 17, 18), (12, 13, 14)])
def test_noise_in_single_precision_takes_no_more_than_the_transforms(shape, monkeypatch):
    """Rounding u leaves more than they do, in lengths without large prime factors."""
    monkeypatch.setattr(dst, "residual", None)
    f = np.random.default_rng(6).standard_normal(shape).astype("f4")
    u = hetero.solve_poisson(f, device="cpu", method="dst")
    left = np.linalg.norm(f.ravel() - Poisson(shape) @ u.astype("f8").ravel())
    assert left <= np.finfo("f4").eps * 4 * len(shape) * np.linalg.norm(u)


@pytest.mark.parametrize("method", ["dst", "multigrid"])
@pytest.mark.parametrize(
    ("shape", "spacing"),
    [((5, 7), (1e20, 1.0)), ((3, 4, 5), (1e25, 1.0, 2.0)), ((1, 1), (2e9, 1e-12))],
)
def test_a_first_axis_of_points_far_apart_is_finite_in_float32(method, shape, spacing, along_first):
    """Its h^2 overflows, and factors of tridiagonal systems along it vanish."""
    f = np.random.default_rng(4).random(shape).astype("f4")
    placed = {"device": "cpu", "spacing": spacing, "method": method, "rtol": 1e-4}
    expected = hetero.solve_poisson(f.astype("f8"), **placed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        u = hetero.solve_poisson(f, **placed)
    np.testing.assert_allclose(u, expected, rtol=1e-5)


def unaligned(f):
    made = np.empty(f.nbytes + 1, np.uint8)[1:].view(f.dtype).reshape(f.shape)
    made[...] = f
    return made


@pytest.mark.parametrize(
    "lay", [lambda f: f[::-1, ::2], lambda f: f.astype(">f4"), unaligned, lambda f: f.astype(int)]
)
def test_a_remembered_call_takes_f_as_it_lies(lay):
    """Strided, of another byte order, unaligned, of whole numbers; all read-only."""
    f = lay(np.random.default_rng(6).random((12, 14)) * 9)
    f.flags.writeable = False
    plain = np.array(f, f.dtype.newbyteorder("="))
    expected = hetero.solve_poisson(plain, device="cpu", method="dst", return_info=True)[0]
    for _ in range(3):
        u = hetero.solve_poisson(f, device="cpu", method="dst")
        np.testing.assert_array_equal(u, expected)


def test_a_remembered_call_looks_at_the_values():
    f, placed = np.random.default_rng(7).random((9, 9)), {"device": "cpu", "method": "dst"}
    for _ in range(3):
        u = hetero.solve_poisson(f, **placed)
    np.testing.assert_allclose(hetero.solve_poisson(np.ldexp(f, 900), **placed), np.ldexp(u, 900))
    assert not hetero.solve_poisson(0.0 * f, **placed).any()
    f[3, 4] = np.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        hetero.solve_poisson(f, **placed)


# -- On devices ----------------------------------------------------------------------------------


@pytest.fixture(params=runtimes.EACH_KIND)
def device(request, monkeypatch):
    if request.param == "cuda" and (reason := libraries.cufft_obstacle()):
        pytest.skip(reason)
    if request.param == "opencl":
        monkeypatch.setattr(libraries, "RealTransform", RealTransform)
    return runtimes.of_kind(request.param)[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (6, 1), (4, 7), (33, 40), (3, 4, 5), (9, 1, 34)])
def test_a_device_solves_exactly(device, shape, dtype, monkeypatch):
    monkeypatch.setattr(dst, "_CHUNK_BYTES", 4096)  # several chunks even here
    spacing = (0.5, 0.25, 0.125)[: len(shape)]
    u, A = (np.random.default_rng(0).random(shape) - 0.5).astype(dtype), Poisson(shape, spacing)
    f = (A @ u.astype("f8").ravel()).reshape(shape).astype(dtype)
    with device.active():
        solver = dst.Solver(device, Stencil(shape, spacing), f.dtype)
    call = partial(solver.solve, rtol=1e-10)
    said, (kept, found) = on_device(device, call, f, np.full_like(f, np.nan))
    np.testing.assert_array_equal(kept, f)
    size, whole = said.residual, said.right_side
    single = dtype == "float32"
    np.testing.assert_allclose(found, u, atol=2e-5 if single else 1e-12)
    residual = np.linalg.norm(f.astype("f8").ravel() - A @ found.astype("f8").ravel())
    assert whole == pytest.approx(np.linalg.norm(f), rel=1e-6)
    assert size <= (1e-4 if single else 1e-10) * whole
    assert size == pytest.approx(residual, abs=(1e-4 if single else 1e-11) * whole)


def test_threads_do_not_share_what_a_device_keeps(device):
    fields = np.random.default_rng(8).random((4, 33, 40))
    asked = Solve(Stencil(fields.shape[1:], (1.0, 1.0)), 1e-8, 0.0, 1)

    def solve(f):
        call = lambda *buffers: dst.solve([device], asked, *buffers, f.dtype)  # noqa: E731
        return [on_device(device, call, f, np.zeros_like(f))[1][1] for _ in range(5)]

    expected = [solve(f)[0] for f in fields]
    with ThreadPoolExecutor(len(fields)) as pool:
        for found, u in zip(pool.map(solve, fields), expected, strict=True):
            np.testing.assert_array_equal(found, [u] * len(found))


@pytest.mark.parametrize("kind", ["noise", "alternating"])
def test_a_device_leaves_no_more_than_rounding_u_does(device, kind):
    shape = 33, 34, 35
    f = np.random.default_rng(4).random(shape) - 0.5
    f = (-1.0) ** np.indices(shape).sum(axis=0) if kind == "alternating" else f
    f, stencil = f.astype("f4"), Stencil(shape, (1.0,) * 3)
    with device.active():
        solver = dst.Solver(device, stencil, f.dtype)
    call = partial(solver.solve, rtol=1e-8, lenient=True)
    said, (_, found) = on_device(device, call, f, np.full_like(f, np.nan))
    rounding = np.finfo("f4").eps * stencil.eigenvalue_bounds()[1] * np.linalg.norm(found)
    assert said.iterations == 1 or kind == "alternating"
    assert said.residual <= max(rounding, np.finfo("f4").eps * np.linalg.norm(f))
