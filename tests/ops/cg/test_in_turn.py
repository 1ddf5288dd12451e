"""solve_cg(method="adaptive"): it begins on the CPU, and moves to a device where that pays."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import hetero
from hetero import devices, profile, registry
from hetero.errors import MethodNotAvailable
from hetero.ops.solvers import cg_in_turn
from hetero.ops.solvers import cg_problem as operands
from hetero.ops.solvers.cg_in_turn import Schedule
from hetero.pricing import pricing

N = 150
LEAST = 9  # iterations of a system of condition number 2


def system(dtype="float64", condition=1e4):
    Q, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((N, N)))
    return np.ascontiguousarray(((Q * np.geomspace(1.0, condition, N)) @ Q.T), dtype)


def moving_after(monkeypatch, count):
    """Every solve moves after so many iterations, or where it next asks."""

    class Fixed(Schedule):
        def is_due(self, norms, seconds, bound, left):
            return len(norms) >= count

    fixed = Fixed(1.0, 0.1, 1.0)
    monkeypatch.setattr(cg_in_turn, "schedule_of", lambda *_: fixed)


# -- The decision ----------------------------------------------------------------------------------


def seconds(schedule, norms, bound, slower=1.0):
    """What a solve with these residuals takes, and the best decision in hindsight; iterations on
    the CPU take longer than predicted by a factor."""
    c, g, move, *_ = schedule
    c *= slower
    n = len(norms)
    best = min(n * c, move + n * g)
    for done in range(1, n):
        if schedule.is_due(norms[:done], [c] * done, bound, 10 * n):
            return done * c + move + (n - done) * g, best
    return n * c, best


def falling(n, bound=1e-5):
    """Residuals that meet the bound with iteration n, at one rate."""
    return [math.exp(math.log(bound) * (i + 1) / n) * (1 - 1e-9) for i in range(n)]


@pytest.mark.parametrize("pays_from", [9, 13, 20, 60, 300])
@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3, 0.6, 0.9])
def test_whatever_the_number_of_iterations_it_takes_twice_the_best_at_most(pays_from, ratio):
    schedule = Schedule(1.0, ratio, pays_from * (1.0 - ratio))
    assert schedule.pays_from == pytest.approx(pays_from)
    worst, means = 0.0, []
    around = range(pays_from - 8, pays_from + 9)
    for n in {*range(1, 54), *around, *range(54, 6 * pays_from, 1 + pays_from // 20)}:
        took, best = seconds(schedule, falling(n), 1e-5)
        worst = max(
            worst,
            took / best,
            *(t / b for t, b in (seconds(schedule, falling(n), 1e-5, s) for s in (0.5, 4.0)))
            if n >= LEAST
            else (),
        )
        means.append(took / best)
        # Residuals that do not fall until the last iteration: the forecast knows nothing.
        took, best = seconds(schedule, [1.0] * (n - 1) + [1e-6], 1e-5)
        if n > pays_from:
            assert took <= 2.0 * best
    assert worst <= 2.0
    assert np.exp(np.mean(np.log(means))) < 1.45


def test_where_a_device_does_not_pay_it_stays(monkeypatch):
    slower = Schedule(1.0, 1.1, 1.0)
    assert not any(slower.is_due([1.0] * n, [1.0] * n, 1e-9, 10**6) for n in range(1, 200))
    schedule = Schedule(1.0, 0.1, 9.0)
    # Few iterations may still be done: they do not pay for the move.
    assert schedule.is_due([1.0] * 6, [1.0] * 6, 1e-9, 1000)
    assert not schedule.is_due([1.0] * 6, [1.0] * 6, 1e-9, 10)
    # Once in a while another process has the core.
    assert not schedule.is_due([1.0, 0.1, 1e-2, 1e-3], [1.0, 1.0, 1.0, 90.0], 1e-5, 1000)


# -- The plan --------------------------------------------------------------------------------------


def plan(n, iterations=None, device=None, method=None, **options):
    constants = profile.shipped("h100")
    problem = operands.from_dims((n,), "float64", "host", iterations)
    machine = constants.machine()
    return pricing.price(replace(problem, **options), constants, machine, device, method)


def test_it_leads_where_a_device_pays_late():
    sizes = {n: plan(n) for n in (64, 256, 512, 1024, 2048, 4096, 8192, 16384)}
    leading = [n for n, one in sizes.items() if one.chosen.method == "adaptive"]
    assert leading
    for n, one in sizes.items():
        row = next(c for c in one.candidates if c.method == "adaptive")
        if n in leading:
            assert "begins on the CPU; cuda:0 pays from" in str(one).splitlines()[1]
            assert row.seconds == pytest.approx(sum(row.terms.values()))
        else:
            assert isinstance(row.reason, registry.Unasked)
    assert sizes[16384].chosen.method in ("fused", "hybrid")


def test_where_it_is_not_asked():
    """A number of iterations that is known needs none; a device that is named gets the solve."""
    assert "is for an unknown number of iterations" in str(plan(1024, 50))
    with pytest.raises(MethodNotAvailable, match="is for an unknown number of iterations"):
        plan(1024, 50, method="adaptive")
    one = plan(1024, device="cuda:0")
    assert one.chosen.method in ("fused", "hybrid")
    assert "name it with method='adaptive'" in str(one)
    assert plan(1024, device="cuda:0", method="adaptive").chosen.method == "adaptive"
    assert "begins on the CPU; cuda:0 is slower" in str(plan(32, method="adaptive"))


# -- The solve -------------------------------------------------------------------------------------


@pytest.mark.parametrize("M", [None, "jacobi"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("after", [1, 2, 7, 30])
def test_iterates_go_on_as_if_nothing_had_moved(opencl, monkeypatch, after, dtype, M):
    A = system(dtype, 1e3)
    A = A * np.linspace(1.0, 3.0, N, dtype=dtype) * np.linspace(1.0, 3.0, N, dtype=dtype)[:, None]
    b = np.random.default_rng(2).random(N).astype(dtype)
    rtol = 1e-3 if dtype == "float32" else 1e-9
    known = {"rtol": rtol, "M": M, "x0": np.linspace(-1.0, 1.0, N).astype(dtype)}
    moving_after(monkeypatch, after)
    seen, expected = [], []
    placed = {"device": opencl, "method": "adaptive"}
    x, info = hetero.solve_cg(A, b, **known, **placed, callback=lambda x: seen.append(x.copy()))
    assert not devices.troubles()
    assert info == 0
    assert np.linalg.norm(b - A.astype(float) @ x) <= rtol * np.linalg.norm(b)
    assert (seen[-1] == x).all()
    hetero.solve_cg(A, b, **known, device="cpu", callback=lambda x: expected.append(x.copy()))
    # A new start in steepest descent would take some 20 more.
    assert len(seen) == pytest.approx(len(expected), rel=0.1)
    both = min(after + 5, len(seen), len(expected))
    tolerance = (3e3 if dtype == "float32" else 3e6) * np.finfo(dtype).eps * abs(x).max()
    np.testing.assert_allclose(seen[:both], expected[:both], rtol=0, atol=tolerance)


def test_the_limit_counts_across_the_move(opencl, monkeypatch):
    A, b = system(), np.ones(N)
    moving_after(monkeypatch, 5)
    placed = {"device": opencl, "method": "adaptive"}
    for limit in (1, 4, 5, 6, 20):
        seen = []
        x, info = hetero.solve_cg(A, b, maxiter=limit, **placed, callback=seen.append)
        assert info == len(seen) == limit
        alone, _ = hetero.solve_cg(A, b, maxiter=limit, device="cpu")
        np.testing.assert_allclose(x, alone, rtol=1e-8)
    # A right side that needs scaling stays on the CPU.
    A, b, factor = system("float32", 10.0), np.ones(N, "float32"), np.float32(2.0**100)
    x, info = hetero.solve_cg(A, factor * b, **placed)
    assert info == 0
    np.testing.assert_allclose(x / factor, hetero.solve_cg(A, b, device="cpu")[0], rtol=1e-5)
