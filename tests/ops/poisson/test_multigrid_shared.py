"""Multigrid on several devices: the bits of one device, whatever the cut, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import runtimes

from hetero import devices
from hetero.devices import meetings
from hetero.errors import DeviceError
from hetero.ops.linear_systems.exchange import Exchange
from hetero.ops.linear_systems.solve import Solve
from hetero.ops.linear_systems.systems import CONVERGED, Stencil
from hetero.ops.multigrid import grids, multigrid_device

SHAPES = [
    ((300, 200), (1.0, 1.2)),
    ((257, 255), (1.0, 1.0)),
    ((64, 40, 50), (1.0, 1.0, 1.0)),
    ((500, 33), (1.0, 3.0)),  # rows are not coarsened at first
    ((51, 49), (1.0, 1.0)),  # of which a part has one tile
]


@pytest.fixture(autouse=True)
def from_2000_points(monkeypatch):
    """Three grids or so are divided."""
    monkeypatch.setattr(grids, "LEAST_SHARED", 2000)


@pytest.fixture(params=["opencl", pytest.param("cuda", marks=pytest.mark.gpu)])
def found(request):
    """Devices of a kind: one that comes several times, or all there are."""
    if request.param == "opencl":
        return [runtimes.opencl_device()]
    return [d for d in devices.available().values() if d.kind == "cuda"]


def alone(device, stencil, f, rtol, maxiter):
    u = np.empty_like(f)
    with device.active():
        (there, _one), (result, _two) = device.allocate(f.nbytes), device.allocate(f.nbytes)
        device.upload(f, there)
        device.fill(result, f.nbytes)
        asked = Solve(stencil, rtol, 0.0, maxiter)
        outcome = multigrid_device.solve([device], asked, there, result, f.dtype)
        device.download(result, u)
    return outcome, u


def together(found, parts, stencil, f, rtol, maxiter):
    used, u = [found[i % len(found)] for i in range(parts)], np.full_like(f, np.nan)
    asked = Solve(stencil, rtol, 0.0, maxiter, from_zero=True)
    return multigrid_device.solve(used, asked, f, u, f.dtype), u


def source(shape, dtype=np.float64):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("shape", "spacing"), SHAPES)
@pytest.mark.parametrize("parts", [2, 3])
def test_the_bits_of_one_device(found, parts, shape, spacing, dtype):
    """Three solves: the second one begins with a recorded cycle, the third from another start."""
    stencil, f = Stencil(shape, spacing), source(shape, dtype)
    limits = {"rtol": 1e-9 if dtype == np.float64 else 1e-4, "maxiter": 50}
    expected, u = alone(found[0], stencil, f, **limits)
    assert expected.status == CONVERGED
    for _ in range(2):
        outcome, v = together(found, parts, stencil, f, **limits)
        assert (outcome.status, outcome.iterations) == (CONVERGED, expected.iterations)
        assert outcome.residual == pytest.approx(expected.residual, rel=1e-6)
        np.testing.assert_array_equal(v, u)
    used = [found[i % len(found)] for i in range(parts)]
    again = multigrid_device.solve(used, Solve(stencil, 1e-3, 0.0, 5), f, v, f.dtype)
    assert again.iterations == 0
    np.testing.assert_array_equal(v, u)


@pytest.mark.parametrize("shape", [(33, 70), (40, 32, 32), (32, 6, 20)])
def test_each_of_many_devices_has_planes(found, shape):
    """More devices than a pass has tiles along the first axis, and than a grid has planes for."""
    stencil, f = Stencil(shape, (1.0,) * len(shape)), source(shape)
    limits = {"rtol": 1e-8, "maxiter": 40}
    _, u = alone(found[0], stencil, f, **limits)
    for parts in (9, 17):
        np.testing.assert_array_equal(together(found, parts, stencil, f, **limits)[1], u)


def test_zero_and_what_is_not_finite(found):
    stencil, f = Stencil((100, 90), (1.0, 1.0)), np.zeros((100, 90))
    outcome, u = together(found, 2, stencil, f, rtol=1e-8, maxiter=9)
    assert outcome.status == CONVERGED
    assert not u.any()
    f[70, 3] = np.inf
    assert together(found, 2, stencil, f, rtol=1e-8, maxiter=9)[0].status == "not finite"


def test_a_hierarchy_is_kept_until_a_device_lets_go(found, monkeypatch):
    made = []
    build = multigrid_device.DeviceHierarchy.__init__
    monkeypatch.setattr(
        multigrid_device.DeviceHierarchy,
        "__init__",
        lambda self, *a: made.append(self) or build(self, *a),
    )
    stencil, f = Stencil((120, 90), (1.0, 1.0)), source((120, 90))
    for number in (1, 1, 2):
        if number == 2:
            with found[-1].active():
                found[-1].storage().drop()
        together(found, 2, stencil, f, rtol=1e-8, maxiter=20)
        assert len(made) == number


@pytest.mark.gpu
def test_a_device_that_is_waited_for_in_vain(monkeypatch):
    """The next solve begins with a new hierarchy, and is right."""
    pair = [d for d in devices.available().values() if d.kind == "cuda"]
    pair = [pair[0], pair[-1]]
    monkeypatch.setattr(meetings, "PATIENCE", 0.3)
    stencil, f = Stencil((400, 300), (1.0, 1.0)), source((400, 300))
    _, u = together(pair, 2, stencil, f, rtol=1e-9, maxiter=50)
    run = Exchange.run

    def one_alone(exchange, launches, moves=()):
        if not moves:
            run(exchange, launches)
            return
        part = exchange.parts[0]
        with part.active():
            part.start(moves[0])

    with monkeypatch.context() as broken:
        broken.setattr(Exchange, "run", one_alone)
        for device in pair:
            with device.active():
                device.storage().drop()
        with pytest.raises(DeviceError, match="for another device, in vain"):
            together(pair, 2, stencil, f, rtol=1e-9, maxiter=50)
    outcome, v = together(pair, 2, stencil, f, rtol=1e-9, maxiter=50)
    assert outcome.status == CONVERGED
    np.testing.assert_array_equal(v, u)
