"""Calibration's loop: what it does when a part of it fails, and what it makes of samples."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from hetero import registry
from hetero.calibration import fit, machine, modelling, request, worklist
from hetero.calibration.measure import loop, sampling
from hetero.calibration.measure.workbench import Samples
from hetero.calibration.progress import left_out
from hetero.calibration.request import FULL
from hetero.calibration.worklist import WorkItem, all_cases
from hetero.errors import DeviceError
from hetero.ops.cases import Case, Passes, Place, SampleGrid, TimedSolves, grid
from hetero.profile import inventory

calibrate = importlib.import_module("hetero.calibration.calibrate")


def here():
    return Place("cpu", inventory.devices()["cpu"])


def portions(*names, budget=FULL, place=None):
    failures = []
    operations = [registry.operation(name) for name in names]
    found = all_cases(operations, [place or here()], budget, failures)
    assert failures == []
    return found


def silent(*_):
    pass


def test_a_method_that_cannot_be_measured_leaves_the_others(monkeypatch):
    def take(case, *_):
        if (case.implementation.method, case.dtype) == ("direct", "float32"):
            raise DeviceError("no memory")
        return Samples(dict.fromkeys(case.how.knots, 2e-3))

    monkeypatch.setattr(sampling, "take", take)
    failures = []
    measured, _ = loop.measure(portions("convolve2d"), FULL, {}, silent, failures)
    models = modelling.models(measured, failures)
    assert not any((key.method, key.dtype) == ("direct", "float32") for key in models)
    (key,) = (key for key in models if (key.method, key.dtype) == ("direct", "float64"))
    assert set(models[key]["constants"]["seconds"]) == {2e-3}
    (line,) = left_out(failures)
    assert line == "convolve2d direct float32 on cpu: no memory"


@pytest.mark.parametrize("error", [DeviceError("no memory"), KeyError("planted"), MemoryError()])
def test_what_fails_while_it_is_measured_costs_its_own_models(error, hasty, monkeypatch, caplog):
    two = {name: registry._operations[name] for name in ("matvec", "matmul")}
    monkeypatch.setattr(registry, "_operations", two)
    take = sampling.take

    def fails(case, *arguments):
        if case.implementation.operation == "matvec":
            raise error
        return take(case, *arguments)

    monkeypatch.setattr(sampling, "take", fails)
    models = calibrate.measure_machine(True, ["cpu"], None)["models"]
    others = {operation.name for operation in registry.operations()} - {"matvec"}
    assert {key.split("|")[1] for key in models} == others
    (line,) = (r.getMessage() for r in caplog.records if "leaves out" in r.getMessage())
    assert line.startswith("calibration leaves out matvec blas C float32 on cpu and 3 more: ")


def test_a_fit_that_fails_costs_its_own_model():
    samples = Samples({(4,): 1.0})
    items = portions("matmul", budget=request.QUICK)
    good, bad = (
        loop.Measured(item.case, item.place, found)
        for item, found in zip(items, (samples, Samples()), strict=True)
    )
    good = good._replace(case=dataclasses.replace(good.case, axes=[[4]]))
    failures = []
    assert list(modelling.models([good, bad], failures)) == [good.key]
    assert [f.what for f in failures] == [str(bad.case)]


def test_a_device_that_is_gone_is_not_asked_again(cuda, monkeypatch):
    """What was measured on it before stays; one line tells."""
    place = Place(cuda.name, cuda.describe(), (cuda,))
    asked = []

    def take(case, *_):
        asked.append(case)
        if len(asked) == 4:
            raise DeviceError("unspecified launch failure")
        return Samples({(4,): 1.0})

    def probe():
        raise DeviceError("gone")

    monkeypatch.setattr(loop, "Bench", lambda *_: None)
    monkeypatch.setattr(sampling, "take", take)
    monkeypatch.setattr(cuda, "probe", probe, raising=False)
    failures = []
    found = portions("matvec", "matmul", place=place)
    assert len(loop.measure(found, FULL, {}, silent, failures)[0]) == 3
    assert len(asked) == 4
    (line,) = left_out(failures)
    assert line.startswith("cuda:0 from matvec tiled ")
    assert line.endswith("since it no longer works: unspecified launch failure")


BOTH = {
    "matvec": {"blas", "tiled"},
    "matmul": {"blas", "tiled", "tensor"},
    "convolve2d": {"fft", "direct", "separable"},
    "cg": {"blas", "numba", "fused", "hybrid"},
    "poisson": {"dst", "multigrid", "jacobi"},
    "kmeans": {"lloyd"},
}
CPU_ALONE, GPU_ALONE = {"blas", "numba", "fft", "dst"}, {"tiled", "tensor", "fused", "hybrid"}
TOGETHER = {"cg": {"fused"}, "poisson": {"multigrid", "jacobi"}, "kmeans": {"lloyd"}}


@pytest.mark.parametrize("quick", [True, False])
def test_every_method_of_every_place_gets_a_model(quick, two, hasty, monkeypatch, caplog):
    """Of the CPU, two equal GPUs without libraries, and in full of both together."""

    def take(case, *_, **__):
        if isinstance(case.how, Passes):
            return Samples(dict.fromkeys(case.how.knots, 1e-3))
        setup = dict.fromkeys(grid(case.axes), 1e-4) if isinstance(case.how, TimedSolves) else {}
        return Samples(dict.fromkeys(grid(case.axes), 1e-3), setup=setup)

    equal, line = two[0].describe(), fit.segments([1e3, 1e6], [1e-5, 1e-3])
    links = {way: {"pageable": line, "pinned": line} for way in ("upload", "download")}
    monkeypatch.setattr(type(two[0]), "describe", lambda device: dict(equal))
    monkeypatch.setattr(sampling, "take", take)
    monkeypatch.setattr(machine, "compile_first", lambda *_: None)
    monkeypatch.setattr(machine.overheads.transfers, "links", lambda *_: links)
    monkeypatch.setattr(machine.overheads.transfers, "together", lambda *_: links)
    monkeypatch.setattr(machine.overheads, "dispatch", lambda *_: {"host": 1e-5})
    monkeypatch.setattr(machine.overheads, "pack", lambda budget: line)
    inventory.changed()
    data = calibrate.measure_machine(quick, ["cpu", "cuda:0", "cuda:1"], None)
    assert not [record for record in caplog.records if "leaves out" in record.getMessage()]
    found = {}
    for place, operation, method, *_ in (key.split("|") for key in data["models"]):
        found.setdefault(place, {}).setdefault(operation, set()).add(method)
    assert found["cpu"] == {name: methods - GPU_ALONE for name, methods in BOTH.items()}
    gpu = {name: methods - CPU_ALONE for name, methods in BOTH.items()}
    assert found["cuda:0"] == found["cuda:1"] == gpu
    assert found.get("cuda*2", {}) == ({} if quick else TOGETHER)
    assert data["links"]["cuda*2"] == links


def test_knots_that_are_no_full_grid():
    """The smallest one need not be among them: small filters count more taps on small images."""
    seconds = {(16, 10): 2e-6, (64, 10): 5e-6, (256, 6): 9e-6, (256, 10): 1.2e-5}
    model = fit.passes("surface", 1, seconds, {}, list(seconds))
    assert model["constants"]["axes"] == [[16, 64, 256], [6, 10]]
    assert model["constants"]["seconds"] == [2e-6, 2e-6, 5e-6, 5e-6, 9e-6, 1.2e-5]


SIZES = [64, 256, 1024, 4096]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        pytest.param({}, {}, 0, id="quiet"),
        pytest.param({256: 40.0}, {}, 0, id="a burst"),
        pytest.param({256: 9.0}, {256: 9.0}, 0, id="really slow"),
        pytest.param({256: 40.0}, {256: 9.0}, 1, id="busy"),
    ],
)
def test_samples_that_contradict_the_others_are_taken_once_more(first, second, left, monkeypatch):
    """More work takes no less time, and n times the work at most n times as long."""
    asked = []

    class Bench:
        devices = ()

        def seconds(self, case, problem, point):
            asked.append(problem)
            slow = first if len(asked) <= len(SIZES) else second
            return (3e-6 + 1e-9 * problem) * slow.get(problem, 1.0)

    monkeypatch.setattr(loop, "Bench", lambda devices: Bench())
    row = next(i for i in registry.lookup("matvec") if i.kind == "cpu")
    case = Case(row, "float32", "C", SampleGrid(), [SIZES], problem=lambda n: n)
    (found,), counts = loop.measure([WorkItem(here(), case)], FULL, {}, silent, [])
    assert asked == [*SIZES, *first]
    assert counts == (len(SIZES), len(first), left)
    for n in SIZES:
        least = min(first.get(n, 1.0), second.get(n, 1.0))
        assert found.samples.seconds[n,] == pytest.approx((3e-6 + 1e-9 * n) * least)


def test_several_together_are_measured_at_few_sizes(two):
    row = next(i for i in registry.lookup("matmul") if i.kind == "cuda")
    sizes = [4**n for n in range(9)]
    case = Case(row, "float32", "*", SampleGrid(), [sizes, [5, 27]], seconds=9.0)
    info, both = two[0].describe(), Place("cuda*2", two[0].describe(), tuple(two))
    assert worklist.few(case, Place("cuda:0", info, (two[0],))) is case
    together = worklist.few(case, both)
    assert together.axes == [[1, 4**4, 4**6, 4**7, 4**8], [5, 27]]
    assert together.seconds == pytest.approx(5.0)
    assert worklist.few(together, both) is together
