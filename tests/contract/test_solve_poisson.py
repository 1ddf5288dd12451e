"""solve_poisson solves what it says, with every method on every device that is here."""

from __future__ import annotations

import itertools
import math
import re
import warnings

import numpy as np
import pytest
from scipy.sparse.linalg import spsolve

import hetero
from hetero import devices, registry
from hetero.errors import MethodNotAvailable


def ways():
    """(device, method) of everything that can run."""
    found = []
    for name in ("cpu", *devices.available()):
        kind = name.partition(":")[0]
        for implementation in registry.lookup("poisson"):
            if implementation.kind == kind:
                marks = [pytest.mark.gpu] if kind == "cuda" else []
                case = (name, implementation.method)
                found.append(pytest.param(*case, marks=marks, id="-".join(case)))
    return found


import hetero.ops  # noqa: E402  registers what `ways` lists

pytestmark = pytest.mark.optimised  # many sweeps
WAYS = ways()


def refused(device, method, f):
    """Whether sweeps are refused on a device, as those of 3-D grids are."""
    if device == "cpu" or method != "jacobi" or f.ndim < 3 or not f.size:
        return False
    with pytest.raises(MethodNotAvailable, match="on the CPU alone in three dimensions"):
        hetero.solve_poisson(f, device=device, method=method)
    return True


def exact(f, spacing):
    """The discrete solution by sparse elimination."""
    return spsolve(hetero.Poisson(f.shape, spacing).tocsr().tocsc(), f.ravel()).reshape(f.shape)


@pytest.mark.parametrize(("device", "method"), WAYS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (9, 16), (31, 31), (17, 40), (5, 6, 7)])
def test_against_elimination(device, method, shape):
    f = np.random.default_rng(0).random(shape) - 0.5
    if refused(device, method, f):
        return
    spacing = 0.5
    u, info = hetero.solve_poisson(
        f, spacing=spacing, device=device, method=method, return_info=True
    )
    expected = exact(f, spacing)
    assert (u.shape, u.dtype) == (f.shape, f.dtype)
    assert np.abs(u - expected).max() <= 1e-6 * np.abs(expected).max()
    assert (info["device"], info["method"]) == (device, method)
    residual = np.linalg.norm(f.ravel() - hetero.Poisson(shape, spacing) @ u.ravel())
    assert info["residual"] == pytest.approx(residual, rel=0.2, abs=1e-12)
    assert info["converged"]
    assert residual <= 1e-8 * np.linalg.norm(f)


@pytest.mark.parametrize(("device", "method"), WAYS)
def test_second_order(device, method):
    """u = sin(pi y) exp(x), its boundary values given: the error falls as h squared."""
    errors = []
    for n in (7, 15, 31):
        h = 1.0 / (n + 1)
        y, x = np.meshgrid(*(np.arange(n + 2) * h,) * 2, indexing="ij")
        full = np.sin(np.pi * y) * np.exp(x)
        f = ((np.pi**2 - 1.0) * full)[1:-1, 1:-1]
        boundary = ((full[0, 1:-1], full[-1, 1:-1]), (full[1:-1, 0], full[1:-1, -1]))
        u = hetero.solve_poisson(
            f, spacing=h, boundary=boundary, rtol=1e-9, device=device, method=method
        )
        errors.append(np.abs(u - full[1:-1, 1:-1]).max())
    rates = [a / b for a, b in itertools.pairwise(errors)]
    assert all(3.7 < rate < 4.3 for rate in rates), rates


@pytest.mark.parametrize(("device", "method"), WAYS)
def test_spacing_per_axis_and_a_constant_boundary(device, method):
    f = np.random.default_rng(1).random((12, 19))
    spacing = (0.1, 0.3)
    g = f.copy()
    for axis, layer in ((0, 0), (0, -1), (1, 0), (1, -1)):
        index = [slice(None)] * 2
        index[axis] = layer
        g[tuple(index)] += 2.5 / spacing[axis] ** 2
    u = hetero.solve_poisson(f, spacing=spacing, boundary=2.5, device=device, method=method)
    expected = exact(g, spacing)
    assert np.abs(u - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 1, 4)])
def test_a_boundary_around_grids_of_one_line(shape):
    """What is 2 everywhere outside is 2 inside."""
    u = hetero.solve_poisson(np.zeros(shape), boundary=2.0, rtol=1e-12)
    np.testing.assert_allclose(u, 2.0, rtol=1e-9)


@pytest.mark.parametrize(("device", "method"), WAYS)
def test_single_precision_goes_as_far_as_it_can(device, method):
    f = np.random.default_rng(2).random((33, 20)).astype("f4")
    u, info = hetero.solve_poisson(f, device=device, method=method, return_info=True)
    assert u.dtype == np.float32
    expected = exact(f.astype("f8"), 1.0)
    assert np.abs(u - expected).max() <= 2e-4 * np.abs(expected).max()
    assert info["residual"] <= 1e-4 * np.linalg.norm(f)


KEYS = ["device", "method", "iterations", "residual", "relative_residual", "converged", "status"]


@pytest.mark.parametrize(("device", "method"), WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_that_is_promised_of_info(device, method, dtype):
    for shape in ((0, 4), (3, 0, 2), (1, 1), (12, 13), (4, 5, 6)):
        f = np.random.default_rng(6).random(shape).astype(dtype)
        if refused(device, method, f):
            continue
        u, info = hetero.solve_poisson(f, device=device, method=method, return_info=True)
        assert list(info) == [*KEYS, "plan"]
        assert info["converged"] is True
        assert info["status"] == "converged"
        left = f.ravel() - (hetero.Poisson(shape) @ u.ravel() if f.size else 0.0)
        whole = np.linalg.norm(f) if f.size else 1.0
        tolerance = 3e-6 if dtype == "float32" else 1e-14
        assert info["relative_residual"] == pytest.approx(
            np.linalg.norm(left) / whole, rel=0.3, abs=tolerance
        )


@pytest.mark.parametrize(("device", "method"), WAYS)
@pytest.mark.parametrize(
    "shape", [(1, 1), (2, 60), (60, 2), (31, 30), (60, 45), (9, 10, 11), (1, 9, 40)]
)
def test_single_precision_reaches_its_default_tolerance(device, method, shape):
    """Smooth f are the hard ones: rounding u alone leaves a share of f that grows with n^2."""
    if refused(device, method, np.ones(shape, "f4")):
        return
    grids = np.meshgrid(*(np.linspace(0, 1, n + 2)[1:-1] for n in shape), indexing="ij")
    smooth = math.prod(np.sin(np.pi * x) for x in grids)
    rough = np.random.default_rng(7).random(shape) - 0.5
    for f in (np.ones(shape), smooth, rough):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            u, info = hetero.solve_poisson(
                f.astype("f4"), device=device, method=method, return_info=True
            )
        assert info["converged"]
        expected = exact(f, 1.0)
        assert np.abs(u - expected).max() <= 1e-4 * np.abs(expected).max()


def test_single_precision_on_a_large_grid():
    """Where it leaves a hundredth of f, though u is right to five digits."""
    f = np.ones((900, 1000), "f4")
    expected = hetero.solve_poisson(f.astype("f8"), device="cpu", method="dst")
    for method in ("dst", "multigrid"):
        u, info = hetero.solve_poisson(f, device="cpu", method=method, return_info=True)
        assert info["converged"]
        assert info["relative_residual"] > 1e-3
        assert np.abs(u - expected).max() <= 2e-4 * expected.max()


@pytest.mark.parametrize(("device", "method"), WAYS)
def test_stopping_short_is_said_once(device, method):
    """For the caller's limit, and for a tolerance that rounding does not let it meet."""
    f = np.random.default_rng(8).random((24, 30))
    options = {"device": device, "method": method}
    cases = [(f.astype("f4"), {"rtol": 1e-12}, "rounding")]
    if method != "dst":
        cases += [(f, {"maxiter": 3, "rtol": 1e-10}, "3 iterations: iteration limit")]
    for values, more, words in cases:
        for asked in (True, False):
            with pytest.warns(RuntimeWarning, match=f"^solve_poisson .*{words}") as seen:
                got = hetero.solve_poisson(values, **options, **more, return_info=asked)
            assert len(seen) == 1
            assert seen[0].filename == __file__
        hetero.solve_poisson(values, **options)  # silent: warnings are errors here
    with pytest.warns(RuntimeWarning):
        _, info = hetero.solve_poisson(cases[-1][0], **options, **cases[-1][1], return_info=True)
    assert info["converged"] is False
    assert got.shape == f.shape


@pytest.mark.parametrize(("device", "method"), WAYS)
def test_a_tolerance_of_zero_is_as_far_as_rounding_lets_it(device, method):
    for dtype in ("float32", "float64"):
        f = np.random.default_rng(9).random((21, 30)).astype(dtype)
        u, info = hetero.solve_poisson(f, rtol=0.0, device=device, method=method, return_info=True)
        assert info["converged"]
        assert info["iterations"] < 20_000
        assert info["relative_residual"] < 100 * np.finfo(dtype).eps
        assert np.abs(u - exact(f.astype("f8"), 1.0)).max() < 2e3 * np.finfo(dtype).eps


def test_a_method_that_cannot_get_there_is_not_chosen():
    """Whatever it would cost to make as many steps as are allowed."""
    f = np.random.default_rng(10).random((500, 400))
    for limit, out in (
        (0, {"jacobi", "multigrid"}),
        (5, {"jacobi", "multigrid"}),
        (10, {"jacobi"}),
        (10_000, {"jacobi"}),
        (None, set()),
    ):
        plan = hetero.plan("poisson", f, device="cpu", maxiter=limit)
        short = {c.method: c.reason for c in plan.candidates if c.reason is not None}
        assert set(short) == out
        assert all(f" {limit} are allowed" in reason for reason in short.values())
    for limit in (0, 5, 10):
        u, info = hetero.solve_poisson(f, maxiter=limit, return_info=True)
        assert info["converged"]
        assert np.linalg.norm(f.ravel() - hetero.Poisson(f.shape) @ u.ravel()) <= 1e-8 * (
            np.linalg.norm(f)
        )
    # Where it is the only one, it does what it can.
    plan = hetero.plan("poisson", f, device="cpu", method="jacobi", maxiter=5)
    assert plan.chosen.method == "jacobi"


def test_the_start_does_not_decide_the_dtype():
    f = np.ones((4, 5), "f4")
    assert hetero.solve_poisson(f, x0=np.zeros((4, 5))).dtype == np.float32
    with pytest.raises(ValueError, match="x0 must be real, got dtype complex128"):
        hetero.solve_poisson(f, x0=np.zeros((4, 5), complex))


@pytest.mark.parametrize("limit", [2.5, 2.0, "3", np.float64(4)])
def test_a_limit_is_an_integer(limit):
    message = re.escape(f"maxiter must be a whole number, got {limit!r}")
    with pytest.raises(ValueError, match=message):
        hetero.solve_poisson(np.ones((3, 3)), maxiter=limit)
    assert hetero.solve_poisson(np.ones((3, 3)), maxiter=np.int32(9)).shape == (3, 3)


def test_sweeps_are_counted_and_the_start_is_used():
    f = np.random.default_rng(3).random((10, 11))
    full = np.zeros((12, 13))
    for _ in range(7):
        near = full[:-2, 1:-1] + full[2:, 1:-1] + full[1:-1, :-2] + full[1:-1, 2:]
        full[1:-1, 1:-1] = (near + f) / 4
    u, info = hetero.solve_poisson(f, method="jacobi", rtol=0.0, maxiter=7, return_info=True)
    np.testing.assert_allclose(u, full[1:-1, 1:-1], rtol=1e-13)
    assert info["iterations"] == 7
    exactly = exact(f, 1.0)
    for method in ("jacobi", "multigrid"):
        _, info = hetero.solve_poisson(f, x0=exactly, method=method, return_info=True)
        assert info["iterations"] <= 1
    before = exactly.copy()
    hetero.solve_poisson(f, x0=exactly, method="jacobi", rtol=0.0, maxiter=3)
    assert (exactly == before).all()


def test_automatic_choice_is_the_plan():
    f = np.random.default_rng(4).random((50, 60))
    _, info = hetero.solve_poisson(f, return_info=True)
    plan = hetero.plan("poisson", f)
    assert (info["device"], info["method"]) == (plan.chosen.device, plan.chosen.method)
    assert {c.method for c in plan.candidates} == {"dst", "multigrid", "jacobi"}
    with hetero.use(device="cpu", method="jacobi"):
        _, info = hetero.solve_poisson(f, rtol=0.5, return_info=True)
    assert info["method"] == "jacobi"


BAD = {
    "one axis": (np.ones(3), {}, r"f must have 2 or 3 dimensions, got shape \(3,\)"),
    "four axes": (np.ones((2,) * 4), {}, "f must have 2 or 3 dimensions"),
    "complex": (np.ones((3, 3)) * 1j, {}, "f must be real, got dtype complex128"),
    "spacing": (np.ones((3, 3)), {"spacing": 0}, "spacing must be positive, got 0"),
    "one spacing": (np.ones((3, 3)), {"spacing": (1.0, -2.0)}, "spacing must be positive"),
    "three spacings": (np.ones((3, 3)), {"spacing": (1, 1, 1)}, "spacing must be one number or 2"),
    "a word for a spacing": (
        np.ones((3, 3)),
        {"spacing": "x"},
        "spacing must be one number or 2, got",
    ),
    "no spacing": (np.ones((3, 3)), {"spacing": float("nan")}, "spacing must be positive"),
    "rtol": (np.ones((3, 3)), {"rtol": -1e-3}, "rtol must be at least 0, got -0.001"),
    "maxiter": (np.ones((3, 3)), {"maxiter": -2}, "maxiter must be at least 0, got -2"),
    "x0": (np.ones((3, 3)), {"x0": np.ones((3, 4))}, "x0 must have f's shape"),
    "two numbers": (
        np.ones((3, 3)),
        {"boundary": (1, 2)},
        r"boundary must be a number or 2 pairs, got \(1, 2\)",
    ),
    "sides": (np.ones((3, 3)), {"boundary": ((0, 0),)}, "boundary must be a number or 2 pairs"),
    "a side": (
        np.ones((3, 4)),
        {"boundary": ((np.ones(3), 0), (0, 0))},
        r"boundary of axis 0 must be a number or of shape \(4,\), got shape \(3,\)",
    ),
    "complex side": (np.ones((3, 3)), {"boundary": 1j}, "boundary must be real"),
    "method": (np.ones((3, 3)), {"method": "sor"}, "method must be one of"),
    "device": (np.ones((3, 3)), {"device": "tpu"}, "device must be one of"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input(case):
    f, options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        hetero.solve_poisson(f, **options)


def test_what_is_not_finite_is_named():
    f = np.ones((9, 9))
    f[4, 4] = np.inf
    for method in ("multigrid", "dst"):
        with pytest.warns(RuntimeWarning, match="not finite"):
            hetero.solve_poisson(f, method=method)


def test_empty_and_integer():
    assert hetero.solve_poisson(np.zeros((0, 4))).shape == (0, 4)
    u = hetero.solve_poisson(np.ones((4, 5), int))
    assert u.dtype == np.float64
    np.testing.assert_allclose(u, exact(np.ones((4, 5)), 1.0), rtol=1e-6)


@pytest.mark.gpu
def test_device_arrays_stay_where_they_are():
    f = np.random.default_rng(5).random((40, 41))
    there = devices.get("cuda:0").array_of(f)
    for method in ("multigrid", "jacobi", "dst"):
        if (
            method == "dst"
            and hetero.plan("poisson", f, method="dst", device="cuda:0").candidates[0].reason
        ):
            continue
        u = hetero.solve_poisson(there, method=method, device="cuda:0")
        assert type(u) is type(there)
        np.testing.assert_allclose(hetero.to_host(u), exact(f, 1.0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(5, 5), (3, 4, 3)])
def test_a_grid_of_one_level_ends_where_rounding_does(opencl, shape):
    """A cycle solves it, as far as float32 does; what is left then is more than the tolerance."""
    _, info = hetero.solve_poisson(
        np.ones(shape, np.float32), method="multigrid", device=opencl, maxiter=30, return_info=True
    )
    assert info["converged"]
    assert info["iterations"] <= 4
