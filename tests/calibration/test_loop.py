"""Calibration's loop: what it measures, what becomes of failures, what it makes of samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted import LINKS, calibrate, plant

import hetero
from hetero import devices, registry
from hetero.calibration import links as links_of_devices
from hetero.calibration import measure as timing
from hetero.calibration import samples, sizes
from hetero.calibration.samples import Samples
from hetero.calibration.sizes import Case, Place
from hetero.errors import DeviceError
from hetero.profile import inventory

CONVOLUTIONS = {row.method: row.run for row in registry.lookup("convolve2d") if row.kind == "cuda"}


def here():
    return Place("cpu", inventory.devices()["cpu"])


def cases(*names, place=None):
    return [case for name in names for case in sizes.cases(name, place or here(), False)]


def evenly(case, *_, **__):
    """Samples of a case, all alike."""
    knots = case.knots or sizes.grid(case.axes)
    return Samples(dict.fromkeys(knots, 1e-3), setup=dict.fromkeys(knots, 1e-4))


# -- What fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DeviceError("no memory"), KeyError("planted"), MemoryError()])
def test_what_fails_while_measured_costs_its_own_models(error, hasty, monkeypatch, warnings_of):
    take = samples.take

    def fails(case, *arguments):
        if str(case).startswith("matvec blas C float32"):
            raise error
        return take(case, *arguments)

    plant(monkeypatch, fails, only=("matvec", "matmul"))
    models = hetero.calibrate(True, devices=["cpu"]).data["models"]
    assert len(models) == 5
    assert "cpu|matvec|blas|float32|C" not in models
    (line,) = warnings_of()
    assert line.startswith("calibration leaves out matvec blas C float32 on cpu: ")


def test_a_fit_that_fails_costs_its_own_model(warnings_of):
    good, bad = cases("matmul")
    assert list(calibrate.fitted([(good, evenly(good)), (bad, Samples())], {})) == [good.key]
    assert len(warnings_of()) == 1


# -- What is measured ------------------------------------------------------------------------------

BOTH = {
    "matvec": {"blas", "tiled"},
    "matmul": {"blas", "tiled"},  # where "tensor" is as "tiled", it is not measured
    "convolve2d": {"fft", "direct", "separable"},
    "cg": {"blas", "numba", "fused", "hybrid"},
    "poisson": {"dst", "multigrid", "jacobi"},
    "kmeans": {"lloyd"},
}
CPU_ALONE, GPU_ALONE = {"blas", "numba", "fft", "dst"}, {"tiled", "fused", "hybrid"}
TOGETHER = {"cg": {"fused"}, "poisson": {"multigrid", "jacobi"}, "kmeans": {"lloyd"}}


@pytest.mark.parametrize("quick", [True, False])
def test_every_method_of_every_place_gets_a_model(quick, two, hasty, monkeypatch, warnings_of):
    """Of the CPU, two equal GPUs without libraries, and in full of both together."""
    equal, shown = two[0].describe(), []
    monkeypatch.setattr(type(two[0]), "describe", lambda device: dict(equal))
    monkeypatch.setattr(links_of_devices, "together", lambda *_: LINKS)
    plant(monkeypatch, evenly)
    names = ["cpu", "cuda:0", "cuda:1"]
    data = hetero.calibrate(quick, None, names, lambda *seen: shown.append(seen)).data
    assert not warnings_of()
    found = {}
    for place, operation, method, *_ in (key.split("|") for key in data["models"]):
        found.setdefault(place, {}).setdefault(operation, set()).add(method)
    assert found["cpu"] == {name: methods - GPU_ALONE for name, methods in BOTH.items()}
    gpu = {name: methods - CPU_ALONE for name, methods in BOTH.items()}
    assert found["cuda:0"] == found["cuda:1"] == gpu
    assert found.get("cuda*2", {}) == ({} if quick else TOGETHER)
    assert data["links"]["cuda*2"] == LINKS
    assert {"links and overheads", "matmul on cuda:0", "fitting"} <= data["stages"].keys()
    fractions = [fraction for fraction, _ in shown]
    assert fractions == sorted(fractions)
    assert shown[-1] == (1.0, "done")


def test_a_device_solves_what_it_is_given_to_measure(opencl, hasty):
    """In earnest, at the smallest sizes."""
    device = devices.get(opencl)
    place = Place(opencl, device.describe(), (device,))
    solves = [case for case in sizes.cases("cg", place, True) if case.row.method == "fused"]
    assert {case.layout for case in solves} >= {"dense", "csr", "stencil2", "stencil3"}
    for case in solves:
        case = replace(case, axes=[axis[:1] for axis in case.axes])
        with device.active():
            found = samples.take(case, samples.Bench((device,)), 1e-4)
        assert [*found.seconds] == sizes.grid(case.axes)
        assert min(found.seconds.values()) > 0.0


def test_kernels_are_compiled_before_any_is_measured(cuda, monkeypatch):
    """Those of tables by their plans; of solves by one step, where operands are small, whatever
    fails."""
    place, ahead, solved = Place(cuda.name, cuda.describe(), (cuda,)), [], []
    found = [
        replace(case, knots={k: d for k, d in case.knots.items() if max(d) <= 256})
        for case in cases("convolve2d", "poisson", place=place)
    ]
    found += [
        replace(case, row=replace(case.row, run=CONVOLUTIONS[case.row.method]))
        for case in found
        if case.row.operation == "convolve2d"  # the fake ones ask for no kernels
    ]

    def prepared(case, dims, bench):
        solved.append((case, dims))
        raise DeviceError("planted")

    monkeypatch.setattr(type(cuda), "compile_ahead", lambda device, wanted: ahead.extend(wanted))
    monkeypatch.setattr(calibrate, "prepared", prepared)
    calibrate.compile_first(found, lambda *_: None, lambda: solved.append("meanwhile"))
    assert solved.pop(0) == "meanwhile"  # a solve would disturb what a device's clock times
    assert "convolve.cu" in {file for file, _ in ahead}
    assert len(ahead) > 10
    solves = [case for case in found if case.steps]
    assert {case for case, _ in solved} == set(solves)
    every = {(case, dims) for case in solves for dims in sizes.grid(case.axes)}
    small = {one for one in every if one[0].problem(*one[1]).inputs[0].nbytes <= 1 << 22}
    assert set(solved) == small < every


def test_loops_are_compiled_where_a_method_has_some(monkeypatch):
    compiled = []
    monkeypatch.setattr(calibrate.loops, "ensure", lambda names, progress: compiled.append(names))
    for operation, each in (("matmul", []), ("kmeans", [calibrate.loops.every()])):
        calibrate.compile_first(cases(operation), lambda *_: None, lambda: None)
        assert compiled == each


# -- Samples ---------------------------------------------------------------------------------------


def test_what_takes_too_long_is_left_out(monkeypatch):
    row = next(i for i in registry.lookup("matvec") if i.kind == "cpu")
    knots = {(2**n,): (2**n,) for n in range(10, 25)}
    case = Case(here(), row, "float64", "*", [], lambda n: n, knots=knots)
    monkeypatch.setattr(samples.Bench, "seconds", lambda bench, case, n, point: 1e-8 * n)
    found = samples.take(case, samples.Bench(), 0.005)
    assert 0.5 * sizes.LONGEST < max(found.seconds.values()) <= sizes.LONGEST


@pytest.mark.parametrize("step", [1e-5, 1e-2])
def test_steps_that_hardly_take_time_are_timed_in_numbers(step, monkeypatch):
    """Else what the set-up takes by chance would count as theirs."""
    clock, counts = [0.0], []

    def solve(count):
        counts.append(count)
        clock.append(clock[-1] + 1e-3 + count * step)

    case = next(c for c in cases("cg") if c.layout == "stencil2")
    monkeypatch.setattr(samples, "prepared", lambda *_: solve)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[-1])
    found = samples.take(replace(case, axes=[[2**16, 2**20]]), None, 0.005)
    assert found.seconds[2**20,] == pytest.approx(step)
    assert found.setup[2**20,] == pytest.approx(1e-3)
    if step > 1e-3:
        assert set(counts) == {1, 4, 12}, "these take long enough"
    else:
        assert (max(counts) - 4) * step > 0.9e-3
        assert max(counts) <= case.steps[2], "or a residual gets subnormal"
