"""Images that do not fit a device's memory go through it in bands of rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal

import hetero
from hetero.ops.convolve2d import bands
from hetero.runtime import execution, inventory

rng = np.random.default_rng(31)


@pytest.fixture
def runs(monkeypatch, opencl):
    """A device with room for about a third of the images used here; the bands that were run."""
    here = {
        name: {**info, "memory_bytes": 40_000} if name == opencl else info
        for name, info in inventory.devices().items()
    }
    monkeypatch.setattr(inventory, "devices", lambda: here)
    monkeypatch.setattr(bands, "LARGE", 0)
    run, seen = execution.execute, []

    def execute(plan, call):
        seen.append((plan.chosen.device, call.arrays[0].shape))
        return run(plan, call)

    monkeypatch.setattr(execution, "execute", execute)
    inventory.changed()
    yield seen
    monkeypatch.undo()
    inventory.changed()


@pytest.mark.parametrize("boundary", ["fill", "wrap", "symm"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_bands_make_the_whole(runs, opencl, mode, boundary):
    a, b = rng.random((150, 61)), rng.random((6, 5))
    result = hetero.convolve2d(a, b, mode, boundary, 0.5, device=opencl)
    np.testing.assert_allclose(result, signal.convolve2d(a, b, mode, boundary, 0.5), rtol=1e-13)
    assert len(runs) > 3
    assert {device for device, _ in runs} == {opencl}
    assert all(shape[0] < 150 for _, shape in runs)


def test_what_fits_stays_whole(runs, opencl):
    a, b = rng.random((40, 30)), rng.random((6, 5))
    result = hetero.convolve2d(a, b, device=opencl)
    np.testing.assert_allclose(result, signal.convolve2d(a, b), rtol=1e-13)
    assert runs == [(opencl, (40, 30))]


def test_a_stack_that_does_not_fit_runs_on_the_cpu(runs, opencl):
    a, b = rng.random((3, 150, 61)), rng.random((6, 5))
    result = hetero.convolve2d(a, b, device=opencl)
    np.testing.assert_allclose(result[1], signal.convolve2d(a[1], b), rtol=1e-13)
    assert not [device for device, _ in runs if device == opencl]


def test_the_plan_has_the_bands_as_parts(runs, opencl):
    a, b = rng.random((150, 61)), rng.random((6, 5))
    plan = hetero.plan("convolve2d", a, b, device=opencl)
    assert plan.whole == f"{len(plan.parts)} bands of {plan.parts[0].problem.output.shape[0]} rows"
    assert sum(part.problem.output.shape[0] for part in plan.parts) == 155
    hetero.convolve2d(a, b, device=opencl)
    assert runs == [(opencl, part.problem.inputs[0].shape) for part in plan.parts]
    chosen = plan.chosen
    assert (chosen.device, chosen.method) == (opencl, "direct")
    assert plan.to_dict()["whole"] == plan.whole


def test_another_machine_is_explained_with_its_parts():
    from hetero.runtime import planner, profile, registry

    h200 = profile.shipped("h200")
    machine = planner.OtherMachine(h200, h200.machine())
    plan_of = registry.operation("convolve2d").plan
    large = hetero.spec((300_000, 200_000), "float32"), hetero.spec((63, 63), "float32")
    plan = plan_of(large, {"mode": "same"}, None, None, machine)
    assert "bands" in plan.whole
    assert plan.chosen.device == "cuda:0"
    assert plan.seconds == pytest.approx(sum(part.seconds for part in plan.parts))
    printed = str(plan)
    assert printed.count("times convolve2d") == 1, "equal parts are printed once"
    small = hetero.spec((500, 500), "complex64"), hetero.spec((9, 9), "complex64")
    plan = plan_of(small, {}, None, None, machine)
    assert "sum of 2 real convolutions" in str(plan)
    assert plan.chosen.method != "scipy"
