"""Images that do not fit a device's memory go through it in bands of rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal

import hetero
from hetero.arrays import describe
from hetero.ops.convolve2d import bands
from hetero.ops.convolve2d.filters import Filter, FilterOptions
from hetero.ops.convolve2d.operands import described
from hetero.ops.convolve2d.window import window_of
from hetero.runtime import execution, inventory, registry

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


# Bands of one row, as tall as the filter, one less and one more; filters as tall as a band and
# taller than the image.
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 12])
@pytest.mark.parametrize("boundary", ["fill", "wrap", "symm"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_a_band_reads_what_it_needs(mode, boundary, rows):
    """The sum over a band's own rows is that over the whole image."""
    for height, filter_height in ((13, 4), (13, 5), (5, 5), (4, 13), (1, 6)):
        if mode == "valid" and filter_height > height:
            continue
        image, taps = rng.random((height, 7)), rng.random((filter_height, 3))
        whole = window_of(image.shape, taps.shape, mode, boundary, True)
        expected = signal.convolve2d(image, taps, mode, boundary, 0.5)
        for begin in range(0, whole.out_height, rows):
            end = min(begin + rows, whole.out_height)
            part = bands.band_of(image, whole, begin, end)
            found = bands.band(whole, begin, end)
            assert part.shape == (found.height, 7)
            out = np.empty((end - begin, whole.out_width))
            options = FilterOptions(Filter(taps), 0.5)
            row = next(r for r in registry.lookup("convolve2d") if r.method == "direct")
            problem = described(describe(part), describe(taps), part.dtype, found)
            row.run((), problem, registry.Arguments((part,), out, options))
            np.testing.assert_allclose(out, expected[begin:end], rtol=1e-14)
