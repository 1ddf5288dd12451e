"""Conjugate gradients preconditioned by multigrid on several devices: as on one of them."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import runtimes
from cg_systems import poisson, solve

import hetero
from hetero import devices, profile
from hetero.calling import execution
from hetero.devices import meetings
from hetero.errors import DeviceError
from hetero.ops.cg import operands
from hetero.ops.cg.operands import System
from hetero.ops.linear_systems.exchange import Exchange
from hetero.ops.linear_systems.systems import CONVERGED, NOT_FINITE, Stencil
from hetero.ops.multigrid import grids, multigrid_device
from hetero.ops.multigrid.multigrid_device import Memory
from hetero.pricing import pricing
from hetero.profile import inventory

SHAPES = [
    ((96, 64), (1.0, 1.2)),
    ((77, 65), (1.0, 1.0)),  # odd rows: a part's vectors begin where no wide load does
    ((33, 12, 14), (1.0, 0.9, 1.1)),
    ((32, 5, 21), (1.0, 1.0, 1.0)),
]


@pytest.fixture(autouse=True)
def from_2000_points(monkeypatch):
    """Two grids or so are divided."""
    monkeypatch.setattr(grids, "LEAST_SHARED", 2000)


@pytest.fixture(params=["opencl", pytest.param("cuda", marks=pytest.mark.gpu)])
def found(request):
    """Devices of a kind: one that comes several times, or all there are."""
    if request.param == "opencl":
        return [runtimes.opencl_device()]
    return [d for d in devices.available().values() if d.kind == "cuda"]


@pytest.fixture(params=[True, False], ids=["meet", "events"])
def meet(request, found, monkeypatch):
    """Whether CUDA devices meet; others order copies by events anyway."""
    if found[0].kind != "cuda" and request.param:
        pytest.skip("OpenCL devices do not meet")
    if not request.param:
        monkeypatch.setattr(meetings, "trusted", lambda devices: False)


def preconditioned(found, parts, stencil, b, x0=None, **options):
    """(outcome, x) from a start, or from zero."""
    used = tuple(found[i % len(found)] for i in range(parts))
    whole = SimpleNamespace(stencil=stencil)
    M = System(whole, b.dtype, "multigrid").on(used)[1]
    start = np.full_like(b, np.nan) if x0 is None else x0
    options = {"from_zero": x0 is None and parts > 1, "preconditioner": M} | options
    if x0 is None and parts == 1:
        start = np.zeros_like(b)
    return solve(used, stencil, b, start, **options)


def vectors(stencil, dtype=np.float64):
    return np.random.default_rng(4).standard_normal((2, np.prod(stencil.shape))).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("shape", "spacing"), SHAPES)
@pytest.mark.parametrize("parts", [2, 3])
def test_agrees_with_one_device(found, meet, parts, shape, spacing, dtype):
    stencil = Stencil(shape, spacing)
    b, x0 = vectors(stencil, dtype)
    double = dtype == np.float64
    rtol, close = (1e-9, 1e-13) if double else (1e-4, 1e-5)
    for start in (None, x0):
        for options in ({"maxiter": 1}, {"maxiter": 3}, {"rtol": rtol, "maxiter": 30}):
            alone, x = preconditioned(found, 1, stencil, b, start, **options)
            outcome, y = preconditioned(found, parts, stencil, b, start, **options)
            assert outcome.status == alone.status
            assert abs(outcome.iterations - alone.iterations) <= ("rtol" in options)
            slack = close if outcome.iterations == alone.iterations else 10 * rtol
            np.testing.assert_allclose(y, x, rtol=0, atol=slack * np.abs(x).max())
            again, z = preconditioned(found, parts, stencil, b, start, **options)
            assert again == outcome
            np.testing.assert_array_equal(z, y)
        assert outcome.status == CONVERGED
        if double:
            residual = b - poisson(shape, spacing, dtype) @ y
            assert np.linalg.norm(residual) <= rtol * np.linalg.norm(b)


def test_what_the_host_sees_meanwhile(found, meet):
    """x after each iteration."""
    stencil = Stencil((70, 50), (1.0, 1.0))
    b, x0 = vectors(stencil)
    seen = []
    options = {"rtol": 1e-8, "callback": lambda x: seen.append(x.copy())}
    outcome, x = preconditioned(found, 2, stencil, b, x0, **options)
    assert len(seen) == outcome.iterations
    for number, there in enumerate(seen, 1):
        _, expected = preconditioned(found, 2, stencil, b, x0, maxiter=number)
        np.testing.assert_array_equal(there, expected)
    again, y = preconditioned(found, 2, stencil, b, x0, rtol=1e-8)
    assert again == outcome
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("shape", [(31, 80), (40, 40)])
def test_grids_that_are_not_divided_are_one_device_s(found, shape):
    """Of too few rows, or of too few points."""
    stencil = Stencil(shape, (1.0, 1.0))
    b, _ = vectors(stencil)
    alone, x = preconditioned(found, 1, stencil, b, rtol=1e-8)
    outcome, y = preconditioned(found, 2, stencil, b, np.zeros_like(b), rtol=1e-8)
    assert outcome == alone
    np.testing.assert_array_equal(y, x)


def test_what_is_not_finite_leaves_nothing_behind(found):
    """The hierarchy is kept, and its vectors with it."""
    stencil = Stencil((64, 64), (1.0, 1.0))
    b, x0 = vectors(stencil)
    expected = preconditioned(found, 2, stencil, b, x0, rtol=1e-8)
    bad = b.copy()
    bad[2000] = np.nan
    outcome, x = preconditioned(found, 2, stencil, bad, x0, rtol=1e-8)
    assert outcome[:2] == (NOT_FINITE, 0)
    np.testing.assert_array_equal(x, x0)
    outcome, x = preconditioned(found, 2, stencil, b, x0, rtol=1e-8)
    assert outcome == expected[0]
    np.testing.assert_array_equal(x, expected[1])


@pytest.mark.parametrize("k", [0, 11, 40, 101, 180])
def test_a_device_that_fails(found, monkeypatch, k):
    """At a launch before the iteration, in a cycle, in those of the vectors: the next solve makes a
    new hierarchy."""
    stencil = Stencil((96, 64), (1.0, 1.0))
    b, x0 = vectors(stencil)
    options = {"rtol": 1e-12}
    expected = preconditioned(found, 2, stencil, b, x0, **options)
    kind = type(found[0])
    launch, launches, made = kind.launch, itertools.count(), []

    def failing(self, *arguments):
        if next(launches) == k:
            raise DeviceError("unplugged")
        launch(self, *arguments)

    with monkeypatch.context() as broken:
        broken.setattr(kind, "launch", failing)
        broken.setattr(Exchange, "recorded", lambda *_: None)  # graphs call it no more
        with pytest.raises(DeviceError, match="unplugged"):
            preconditioned(found, 2, stencil, b, x0, **options)
    build = multigrid_device.DeviceHierarchy.__init__
    monkeypatch.setattr(
        multigrid_device.DeviceHierarchy,
        "__init__",
        lambda self, *a: made.append(self) or build(self, *a),
    )
    outcome, x = preconditioned(found, 2, stencil, b, x0, **options)
    assert len(made) == 1
    assert outcome == expected[0]
    np.testing.assert_array_equal(x, expected[1])


def test_a_lost_device_of_the_hierarchy_is_seen_by_the_solve(found, monkeypatch):
    """Where devices meet in cycles alone in vain, conjugate gradients would go on with them."""
    stencil = Stencil((64, 64), (1.0, 1.0))
    b, x0 = vectors(stencil)
    check = Exchange.check

    def lost(exchange):
        if isinstance(exchange.parts[0], Memory):
            raise DeviceError("in vain")
        check(exchange)

    monkeypatch.setattr(Exchange, "check", lost)
    with pytest.raises(DeviceError, match="in vain"):
        preconditioned(found, 2, stencil, b, x0, maxiter=2)


# -- Choosing ------------------------------------------------------------------------------------


def test_solve_cg_on_all_devices_of_a_kind(monkeypatch):
    device = runtimes.opencl_device()
    name = device.name
    both = {**inventory.devices()[name], "members": (name, name), "constants": "opencl*2"}
    monkeypatch.setattr(pricing, "groups", lambda devices: {"opencl:*": both})
    members = execution.members
    monkeypatch.setattr(
        execution, "members", lambda place: (device,) * 2 if "*" in place else members(place)
    )
    used = []
    make = multigrid_device.held
    monkeypatch.setattr(
        multigrid_device, "held", lambda where, **what: used.append(where) or make(where, **what)
    )
    A = hetero.Poisson((64, 48))
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    placed = {"M": "multigrid", "rtol": 1e-9, "device": "opencl:*"}
    assert hetero.plan("cg", A, b, **placed).chosen.device == "opencl:*"
    x, info = hetero.solve_cg(A, b, **placed)
    assert info == 0
    assert [len(where) for where in used] == [2]
    assert np.linalg.norm(b - A @ x) <= 1e-9 * np.linalg.norm(b)
    monkeypatch.setattr(grids, "LEAST_SHARED", A.shape[0] + 1)
    inventory.changed()
    assert hetero.plan("cg", A, b, **placed).chosen.device == name
    np.testing.assert_allclose(hetero.solve_cg(A, b, **placed)[0], x, atol=1e-7)
    assert len(used) == 1


@pytest.mark.parametrize("n", [1024, 8192])
def test_all_gpus_are_considered_with_constants_of_their_own(monkeypatch, n):
    """Two that make an iteration twice as fast, and begin 1 ms later; without, it is one GPU's."""
    monkeypatch.setattr(grids, "LEAST_SHARED", 1 << 21)
    shipped = profile.shipped("h100x2")
    problem = operands.problem(hetero.Poisson((n, n)), hetero.spec((n * n,)), M="multigrid")
    for device in (None, "cuda:*"):
        plan = pricing.price(problem, shipped, shipped.machine(), device)
        assert plan.chosen.device == "cuda:0"
        assert plan.chosen.seconds is not None
    named = pricing.price(problem, shipped, shipped.machine(), "cuda:*", "fused").candidates[0]
    assert named.device == ("cuda:*" if n > 2000 else "cuda:0")
    data = copy.deepcopy(shipped.data)
    model = data["models"]["cuda:0|cg|fused|float64|stencil2-multigrid"]
    both = data["models"]["cuda*2|cg|fused|float64|stencil2-multigrid"] = copy.deepcopy(model)
    for part, change in (("step", lambda s: s / 2), ("setup", lambda s: s + 1e-3)):
        constants = both["constants"][part]
        constants["seconds"] = [change(s) for s in constants["seconds"]]
    calibrated = profile.parse(profile.encode(data))
    for device in (None, "cuda:*"):
        plan = pricing.price(problem, calibrated, calibrated.machine(), device)
        assert plan.chosen.device == ("cuda:*" if n > 2000 else "cuda:0")
        there = {c.device for c in plan.candidates if c.method == "fused" and c.seconds}
        assert ("cuda:*" in there) == (n > 2000)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_a_dense_matrix_on_a_device_stays_there(device):
    shipped, vector = profile.shipped("h200x2"), hetero.spec((16384,), "float32")
    problem = operands.problem(hetero.spec((16384,) * 2, "float32", on=device), vector)
    for asked in (None, "cuda:*"):
        chosen = pricing.price(problem, shipped, shipped.machine(), asked).chosen
        assert (chosen.device, chosen.method) == (device, "fused")
