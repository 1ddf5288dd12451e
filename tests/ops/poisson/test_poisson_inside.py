"""solve_poisson is right for all numbers its dtypes have: f, spacings, boundaries, starts. What it
expects before: iterations, and memory."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from fakes import raising
from test_solve_poisson import WAYS

import hetero
from hetero.host import cpu
from hetero.ops.solvers import poisson as equation
from hetero.ops.solvers.poisson_methods import expected_iterations

pytestmark = pytest.mark.optimised  # many sweeps
MAGNITUDES = [("float32", e) for e in (-120, -80, -60, 62, 100)]
MAGNITUDES += [("float64", e) for e in (-1000, -664, -565, -520, 505, 664, 990)]


def right_side(dtype, shape=(13, 10)):
    return (np.random.default_rng(0).random(shape) - 0.3).astype(dtype)


def reference(f, **options):
    return hetero.solve_poisson(f.astype("f8"), device="cpu", method="dst", **options)


def close(u, expected, dtype):
    tolerance = 1e-4 if dtype == "float32" else 1e-6
    np.testing.assert_allclose(u, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(("device", "method"), [w for w in WAYS if w.values[0] != "cpu"])
def test_an_ordinary_f_stays_on_its_device(device, method, monkeypatch):
    """A solver's norm of f says that its values are ordinary, also where rounding ends it all."""
    fetched = raising(AssertionError("the values were fetched"))
    monkeypatch.setattr(equation, "_in_other_units", fetched)
    placed = {"device": device, "method": method, "return_info": True}
    for dtype, rtol in itertools.product(("float32", "float64"), (None, 0.0)):
        assert hetero.solve_poisson(right_side(dtype), rtol=rtol, **placed)[1]["converged"]


@pytest.mark.parametrize(("device", "method"), WAYS)
@pytest.mark.parametrize(("dtype", "exponent"), MAGNITUDES)
def test_any_magnitude_of_f(device, method, dtype, exponent):
    """No square of it vanishes or overflows: u follows f, and what is said of it holds."""
    plain = right_side(dtype)
    f = np.ldexp(plain, exponent)
    u, info = hetero.solve_poisson(f, device=device, method=method, return_info=True)
    assert u.dtype == dtype
    v, size = np.ldexp(u.astype("f8"), -exponent), np.linalg.norm(plain.astype("f8"))
    close(v, reference(plain), dtype)
    assert info["converged"]
    left = plain.astype("f8").ravel() - hetero.Poisson(plain.shape) @ v.ravel()
    relative = np.linalg.norm(left) / size
    assert info["relative_residual"] == pytest.approx(relative, rel=0.5, abs=1e-13)
    expected = math.ldexp(info["relative_residual"] * size, exponent)
    assert info["residual"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("device", "method"), WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponents", [(-60, -60), (60, 60), (-70, -71)], ids=str)
def test_any_spacing(device, method, dtype, exponents):
    """In float32 1 / h^2 has no room, in float64 its products have not."""
    exponents = [exponent if dtype == "float32" else 8 * exponent for exponent in exponents]
    least, f = min(exponents), right_side(dtype)
    options = {"device": device, "method": method, "return_info": True}
    steps = tuple(2.0**exponent for exponent in exponents)
    u, info = hetero.solve_poisson(np.ldexp(f, -least), spacing=steps, **options)
    expected = reference(f, spacing=tuple(step / min(steps) for step in steps))
    close(np.ldexp(u.astype("f8"), -least), expected, dtype)
    assert info["converged"]


@pytest.mark.parametrize(("device", "method"), WAYS)
def test_boundary_values_at_spacings_whose_squares_vanish(device, method):
    """Without f, the spacing does not matter, and a constant boundary is the solution."""
    placed = {"device": device, "method": method}
    for spacing in (1e-200, 1.0, 1e200):
        u = hetero.solve_poisson(np.zeros((9, 12)), spacing=spacing, boundary=3.0, **placed)
        np.testing.assert_allclose(u, 3.0, rtol=1e-6)


@pytest.mark.parametrize(("device", "method"), WAYS)
def test_what_no_number_holds_is_said(device, method):
    """u beyond the largest number, or below the smallest."""
    f = right_side("float64")
    options = {"device": device, "method": method, "return_info": True}
    with pytest.warns(RuntimeWarning, match="not finite"):
        _, info = hetero.solve_poisson(f, spacing=1e200, **options)
    assert not info["converged"]
    with pytest.warns(RuntimeWarning, match=r"norm\(f - A u\) is 1 of norm\(f\)"):
        u, info = hetero.solve_poisson(f, spacing=1e-200, **options)
    assert not u.any()
    assert not info["converged"]
    assert info["relative_residual"] == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["multigrid", "jacobi"])
def test_a_limit_is_said_where_u_has_few_digits(method):
    """u between two of the smallest numbers is no reason to take the limit for rounding."""
    f = np.ldexp(right_side("float32", (40, 50)), -125)
    with pytest.warns(RuntimeWarning, match="iteration limit"):
        hetero.solve_poisson(f, device="cpu", method=method, maxiter=2)


@pytest.mark.parametrize(("device", "method"), WAYS)
def test_a_start_far_from_f_and_zero(device, method):
    """Zeros at once, whatever the start."""
    options = {"device": device, "method": method, "return_info": True}
    f = right_side("float32")
    u, info = hetero.solve_poisson(f, x0=np.full_like(f, 1e38), **options)
    assert info["converged"]
    close(u, reference(f), "float32")
    flat = method == "jacobi" and device != "cpu"
    for shape in ((5, 4), (40, 50), *[(9, 10, 11)] * (not flat)):
        for start in (None, np.ones(shape)):
            u, info = hetero.solve_poisson(np.zeros(shape), x0=start, **options)
            assert not u.any()
            assert info["converged"]
            assert info["iterations"] <= 1
            assert info["residual"] == info["relative_residual"] == 0.0


# -- Before a solve --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(30, 20), (9, 200), (1, 50), (12, 13, 14), (3, 80, 3)])
def test_expected_iterations_are_about_what_it_takes(shape):
    f = np.random.default_rng(11).random(shape)
    for method in ("jacobi", "multigrid"):
        _, info = hetero.solve_poisson(f, device="cpu", method=method, return_info=True)
        problem = info["plan"].problem
        expected = expected_iterations(method, problem)
        assert info["iterations"] <= 1.3 * expected + 64
        assert expected <= 6 * info["iterations"] + 8


@pytest.mark.parametrize("method", ["dst", "multigrid", "jacobi"])
def test_too_little_memory_is_said_before_it_is_used(method, monkeypatch):
    monkeypatch.setattr(cpu, "available_memory", lambda: 200 << 20)
    f = np.ones((2, 10_000_000), "f4")
    with pytest.raises(MemoryError, match=r"GiB more for f of shape \(2, 10000000\), 0.2 GiB are"):
        hetero.solve_poisson(f, device="cpu", method=method, maxiter=1)


FREE = {"": ("max", 7, 0), "a/b": (9000, 8900, 0), "other": (1, 1, 0)}
GROUPS = [  # own group, its parents' and others' (limit, used, page cache), bytes available
    *((own, {"": (1000, 990, 600)}, 910) for own in ("/", "/of/the/host", "/../elsewhere")),
    ("/a/b/c", FREE | {"a": (5000, 4000, 100), "a/b/c": (10**18, 10, 0)}, 100),
    ("/a/b/c", FREE | {"a": (5000, 5100, 100), "a/b/c": (10**18, 10, 0)}, 50),
]


@pytest.mark.parametrize(("own", "groups", "available"), GROUPS)
def test_the_tightest_of_control_groups_counts(own, groups, available, tmp_path, monkeypatch):
    """The page cache of a container is available."""
    for path, (limit, taken, cached) in groups.items():
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{taken}\n")
        stat = f"anon 5\ninactive_file {cached}\nactive_file {cached // 2}\n"
        (folder / "memory.stat").write_text(stat)
    (tmp_path / "own").write_text(f"9:name=systemd:/init\n0::{own}\n")
    monkeypatch.setattr(cpu, "_GROUPS", tmp_path)
    planted = lambda path: tmp_path / "own" if path == "/proc/self/cgroup" else Path(path)  # noqa: E731
    monkeypatch.setattr(cpu, "Path", planted)
    assert cpu.available_memory() == available
