"""solve_cg by the CPU and a device in turn: methods "hybrid" and "adaptive"."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
from fakes import moves
from test_solve_cg import systems

import hetero
from hetero import devices, profile, registry
from hetero.arrays import describe, describe_used
from hetero.errors import MethodNotAvailable
from hetero.moving import transfer
from hetero.ops.solvers import cg_adaptive
from hetero.ops.solvers import cg_problem as operands
from hetero.ops.solvers.cg_adaptive import Schedule
from hetero.pricing import pricing

N = 126
LEAST = 9  # iterations of a system of condition number 2


def dense(condition=1e3):
    Q, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((N, N)))
    A, scale = (Q * np.geomspace(1.0, condition, N)) @ Q.T, np.linspace(1.0, 3.0, N)
    return np.ascontiguousarray(A * scale * scale[:, None])


def moving_after(monkeypatch, count):
    """Every adaptive solve moves after ``count`` iterations, or where it next asks."""
    monkeypatch.setattr(cg_adaptive, "schedule_of", lambda *_: Schedule(1.0, 0.1, 1.0))
    monkeypatch.setattr(Schedule, "is_due", lambda schedule, norms, *_: len(norms) >= count)


# -- The solves ------------------------------------------------------------------------------------


def test_an_adaptive_solve_holds_no_kept_matrix(opencl):
    """What it remembers of a shape has no copies on devices, which would never be given back."""
    A = hetero.keep(dense())
    for _ in range(2):
        hetero.solve_cg(A, np.ones(N), device=opencl, method="adaptive")
    known = weakref.ref(describe_used(A).kept)
    del A
    gc.collect()
    assert known() is None


def test_hybrid_judges_float32_in_float64(opencl):
    """The residual of a third is 0 in float32, and 3e-8 in truth."""
    A, b = np.full((1, 1), 3.0, np.float32), np.ones(1, np.float32)
    assert hetero.solve_cg(A, b, rtol=1e-10, device=opencl, method="hybrid")[1] > 0


@pytest.mark.parametrize("M", [None, "jacobi"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("method", "name", "after"),
    [
        *(("hybrid", name, 0) for name in ("dense", "dense F", "csr array", "poisson")),
        ("hybrid", "poisson 3d", 0),
        *(("adaptive", "ill-conditioned", after) for after in (1, 2, 7, 30)),
    ],
)
def test_iterates_are_the_cpus(opencl, monkeypatch, method, name, after, dtype, M):
    A, whole = systems(dtype).get(name) or 2 * (dense().astype(dtype),)
    n = len(whole)
    b, x0 = np.random.default_rng(2).random(n).astype(dtype), np.linspace(-1.0, 1.0, n)
    rtol = {"float32": 1e-3 if after else 1e-5, "float64": 1e-9 if after else 1e-10}[dtype]
    known = {"rtol": rtol, "M": M, "x0": x0.astype(dtype)}
    moving_after(monkeypatch, after)
    assert hetero.plan("cg", A, b, device=opencl, method=method).chosen.method == method
    seen, expected = [], []
    placed = {"device": opencl, "method": method, "callback": lambda x: seen.append(x.copy())}
    x, info = hetero.solve_cg(A, b, **known, **placed)
    assert not devices.troubles()
    assert (info, x.dtype) == (0, dtype)
    assert np.linalg.norm(b - whole.astype(float) @ x) <= rtol * np.linalg.norm(b)
    assert (seen[-1] == x).all()
    hetero.solve_cg(A, b, **known, device="cpu", callback=lambda x: expected.append(x.copy()))
    # A new start in steepest descent would take some 20 more.
    assert len(seen) == pytest.approx(len(expected), rel=0.1 if after else 0.0, abs=2)
    both = min(after + 5, len(seen), len(expected))
    slack = 1e3 if not after else 3e3 if dtype == "float32" else 3e6
    tolerance = slack * np.finfo(dtype).eps * abs(x).max()
    np.testing.assert_allclose(seen[:both], expected[:both], rtol=0, atol=tolerance)


def test_each_iteration_of_hybrid_moves_p_there_and_a_p_back(opencl, monkeypatch):
    """A matrix on the host goes there once, one that is there stays."""
    A, before = dense(10.0), []
    with hetero.use(device=opencl, results="device"):
        there, b = hetero.matmul(A, np.eye(N)), hetero.matvec(A, A[0])
    moved = moves(monkeypatch, type(devices.get(opencl)), 8 * N)
    seen, placed = [], {"device": opencl, "method": "hybrid"}
    hetero.solve_cg(A, A[0], callback=seen.append, **placed)
    assert len(seen) > 3
    assert moved.count(("upload", A.nbytes)) == 1
    # The residual at the end is a product too.
    assert [n for way, n in moved if way == "download"] == [8 * N] * (len(seen) + 1)
    moved.clear()
    # What else may still be writing the matrix is waited for.
    monkeypatch.setattr(transfer, "follow", lambda device, operands: before.append([*operands]))
    x, info = hetero.solve_cg(there, b, rtol=1e-10, **placed)
    assert not devices.troubles()
    assert (info, describe(x).location, max(moved)) == (0, opencl, ("upload", 8 * N))
    assert any(o.shape == (N, N) for operands in before for o in operands)
    np.testing.assert_allclose(hetero.to_host(x), A[0], rtol=0, atol=1e-8)


def test_the_limit_counts_across_the_move(opencl, monkeypatch):
    A, b = dense(1e4), np.ones(N)
    moving_after(monkeypatch, 5)
    placed = {"device": opencl, "method": "adaptive"}
    for limit in (1, 4, 5, 6, 20):
        seen = []
        x, info = hetero.solve_cg(A, b, maxiter=limit, **placed, callback=seen.append)
        assert info == len(seen) == limit
        alone, _ = hetero.solve_cg(A, b, maxiter=limit, device="cpu")
        np.testing.assert_allclose(x, alone, rtol=1e-8)
    # A right side that needs scaling stays on the CPU.
    A, b, factor = dense(10.0).astype("f4"), np.ones(N, "float32"), np.float32(2.0**100)
    x, info = hetero.solve_cg(A, factor * b, **placed)
    assert info == 0
    np.testing.assert_allclose(x / factor, hetero.solve_cg(A, b, device="cpu")[0], rtol=1e-5)


# -- The decision to move --------------------------------------------------------------------------


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


@pytest.mark.parametrize("pays_from", [9, 13, 20, 60, 100])
@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3, 0.6, 0.9])
def test_whatever_the_number_of_iterations_it_takes_twice_the_best_at_most(pays_from, ratio):
    schedule = Schedule(1.0, ratio, pays_from * (1.0 - ratio))
    assert schedule.pays_from == pytest.approx(pays_from)
    taken = []
    around = range(pays_from - 8, pays_from + 9)
    for n in {*range(1, 54), *around, *range(54, 6 * pays_from, 1 + pays_from // 20)}:
        falling = [math.exp(math.log(1e-5) * (i + 1) / n) * (1 - 1e-9) for i in range(n)]
        for slower in (1.0, 0.5, 4.0)[: 3 if n >= LEAST else 1]:
            took, best = seconds(schedule, falling, 1e-5, slower)
            assert took <= 2.0 * best
            if slower == 1.0:
                taken.append(took / best)
        # Residuals that do not fall until the last iteration: the forecast knows nothing.
        took, best = seconds(schedule, [1.0] * (n - 1) + [1e-6], 1e-5)
        if n > pays_from:
            assert took <= 2.0 * best
    assert np.exp(np.mean(np.log(taken))) < 1.45


def test_where_a_device_does_not_pay_it_stays():
    slower = Schedule(1.0, 1.1, 1.0)
    assert not any(slower.is_due([1.0] * n, [1.0] * n, 1e-9, 10**6) for n in range(1, 200))
    schedule = Schedule(1.0, 0.1, 9.0)
    # Few iterations may still be done: they do not pay for the move.
    assert schedule.is_due([1.0] * 6, [1.0] * 6, 1e-9, 1000)
    assert not schedule.is_due([1.0] * 6, [1.0] * 6, 1e-9, 10)
    # Once in a while another process has the core.
    assert not schedule.is_due([1.0, 0.1, 1e-2, 1e-3], [1.0, 1.0, 1.0, 90.0], 1e-5, 1000)


def plan(n, iterations=None, device=None, method=None):
    constants = profile.shipped("h100")
    problem = operands.from_dims((n,), "float64", "host", iterations)
    return pricing.price(problem, constants, constants.machine(), device, method)


def test_it_leads_where_a_device_pays_late():
    """A number of iterations that is known needs none; a device that is named gets the solve."""
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
    with pytest.raises(MethodNotAvailable, match="is for an unknown number of iterations"):
        plan(1024, 50, method="adaptive")
    one = plan(1024, device="cuda:0")
    assert one.chosen.method in ("fused", "hybrid")
    assert "name it with method='adaptive'" in str(one)
    assert plan(1024, device="cuda:0", method="adaptive").chosen.method == "adaptive"
