"""Calibration's loop: what it does when a part of it fails, and what it makes of samples."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest

from hetero import registry
from hetero.calibration import fit, overheads, repeat, samples, sizes
from hetero.calibration import links as links_of_devices
from hetero.calibration.samples import Samples
from hetero.calibration.sizes import Case, Place, WorkItem
from hetero.errors import DeviceError
from hetero.profile import inventory

calibrate = importlib.import_module("hetero.calibration.calibrate")


class Silent:
    """A schedule that shows nothing."""

    def stage(self, name):
        pass

    def begin(self, seconds, text):
        pass


def here():
    return Place("cpu", inventory.devices()["cpu"])


def items(*names, place=None, quick=False):
    place = place or here()
    return [WorkItem(place, case) for name in names for case in sizes.cases(name, place, quick)]


def measured(worklist):
    return repeat.measure(worklist, 0.005, {}, Silent())


def evenly(case, *_, **__):
    """Samples of a case, all alike."""
    knots = case.knots or sizes.grid(case.axes)
    return Samples(dict.fromkeys(knots, 1e-3), setup=dict.fromkeys(knots, 1e-4))


# -- What fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DeviceError("no memory"), KeyError("planted"), MemoryError()])
def test_what_fails_while_it_is_measured_costs_its_own_models(
    error, hasty, monkeypatch, warnings_of
):
    two = {name: registry._operations[name] for name in ("matvec", "matmul")}
    monkeypatch.setattr(registry, "_operations", two)
    take = samples.take

    def fails(case, *arguments):
        if str(case) == "matvec blas C float32":
            raise error
        return take(case, *arguments)

    monkeypatch.setattr(samples, "take", fails)
    models = calibrate.measure_machine(True, ["cpu"], None)["models"]
    assert len(models) == 5
    assert "cpu|matvec|blas|float32|C" not in models
    (line,) = warnings_of()
    assert line.startswith("calibration leaves out matvec blas C float32 on cpu: ")


def test_a_fit_that_fails_costs_its_own_model(monkeypatch, warnings_of):
    good, bad = (repeat.Measured(i.case, i.place, Samples()) for i in items("matmul"))
    good = good._replace(samples=evenly(good.case))
    assert list(calibrate.fitted([good, bad], {})) == [good.key]
    assert len(warnings_of()) == 1


def test_a_device_that_is_gone_is_not_asked_again(cuda, monkeypatch, warnings_of):
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

    monkeypatch.setattr(repeat, "Bench", lambda *_: None)
    monkeypatch.setattr(samples, "take", take)
    monkeypatch.setattr(cuda, "probe", probe, raising=False)
    assert len(measured(items("matvec", "matmul", place=place))[0]) == 3
    assert len(asked) == 4
    (line,) = warnings_of()
    assert line.startswith("calibration leaves out what comes after matvec tiled ")
    assert line.endswith("on cuda:0: unspecified launch failure")


# -- What is measured ------------------------------------------------------------------------------

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
def test_every_method_of_every_place_gets_a_model(quick, two, hasty, monkeypatch, warnings_of):
    """Of the CPU, two equal GPUs without libraries, and in full of both together."""
    equal, line = two[0].describe(), fit.segments([1e3, 1e6], [1e-5, 1e-3])
    links = {way: {"pageable": line, "pinned": line} for way in ("upload", "download")}
    monkeypatch.setattr(type(two[0]), "describe", lambda device: dict(equal))
    monkeypatch.setattr(samples, "take", evenly)
    monkeypatch.setattr(calibrate, "compile_first", lambda *_: None)
    monkeypatch.setattr(links_of_devices, "links", lambda *_: links)
    monkeypatch.setattr(links_of_devices, "together", lambda *_: links)
    monkeypatch.setattr(links_of_devices, "of_others", lambda *_: [])
    monkeypatch.setattr(overheads, "dispatch", lambda *_: {"host": 1e-5})
    monkeypatch.setattr(overheads, "pack", lambda budget: line)
    inventory.changed()
    shown = []
    data = calibrate.measure_machine(
        quick, ["cpu", "cuda:0", "cuda:1"], lambda *seen: shown.append(seen)
    )
    assert not warnings_of()
    found = {}
    for place, operation, method, *_ in (key.split("|") for key in data["models"]):
        found.setdefault(place, {}).setdefault(operation, set()).add(method)
    assert found["cpu"] == {name: methods - GPU_ALONE for name, methods in BOTH.items()}
    gpu = {name: methods - CPU_ALONE for name, methods in BOTH.items()}
    assert found["cuda:0"] == found["cuda:1"] == gpu
    assert found.get("cuda*2", {}) == ({} if quick else TOGETHER)
    assert data["links"]["cuda*2"] == links
    assert {"links and overheads", "matmul on cuda:0", "fitting"} <= data["stages"].keys()
    fractions = [fraction for fraction, _ in shown]
    assert fractions == sorted(fractions)
    assert shown[-1] == (1.0, "done")


def test_kernels_of_tables_are_compiled_before_any_is_measured(cuda):
    place = Place(cuda.name, cuda.describe(), (cuda,))
    found = [item.case for item in items("convolve2d", place=place)]
    small = [
        replace(case, checks=0, knots={k: d for k, d in case.knots.items() if max(d) <= 256})
        for case in found
    ]
    wanted = [*calibrate.kernels_of(cuda, small)]
    assert "convolve.cu" in {file for file, _ in wanted}
    assert len(wanted) > 10


def test_host_shares_are_of_calls_that_ran_on_the_device(cuda, monkeypatch):
    class Bench:
        def __init__(self, devices):
            assert devices == (cuda,)

        def seconds(self, case, problem, budget):
            return 1e-9

    monkeypatch.setattr(overheads, "Bench", Bench)
    place = Place(cuda.name, cuda.describe(), (cuda,))
    found = [item.case for item in items("matvec", "matmul", place=place)]
    shares = overheads.host_shares(place, found, 0.0)
    assert {("matvec", "tiled"), ("matmul", "tiled")} <= set(shares)
    assert all(seconds > 0.0 for seconds in shares.values())
    calls = 2 * len(shares) * overheads._HOST_ROUNDS * (1 + overheads._HOST_CALLS)
    assert cuda.log.count("compute") == calls
    assert set(overheads.host_shares(place, found, 10.0).values()) == {0.0}


def test_several_together_are_measured_at_few_sizes(two):
    info, both = two[0].describe(), tuple(two)
    alone, together = (
        next(c for c in sizes.cases("poisson", place, False) if c.layout == "2d")
        for place in (Place("cuda:0", info, both[:1]), Place("cuda*2", info, both))
    )
    assert len(alone.axes[0]) > 5
    assert len(together.axes[0]) == 5
    assert set(together.axes[0]) < set(alone.axes[0])
    assert together.largest == alone.largest


# -- Samples ---------------------------------------------------------------------------------------

SIZES = [64, 256, 1024, 4096]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        pytest.param({}, {}, 0, id="quiet"),
        pytest.param({256: 40.0}, {}, 0, id="a burst"),
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

    monkeypatch.setattr(repeat, "Bench", lambda devices: Bench())
    row = next(i for i in registry.lookup("matvec") if i.kind == "cpu")
    case = Case(row, "float32", "C", [SIZES], lambda n: n, knots={(n,): (n,) for n in SIZES})
    (found,), counts = measured([WorkItem(here(), case)])
    assert asked == [*SIZES, *first]
    assert counts == (len(SIZES), len(first), left)
    for n in SIZES:
        least = min(first.get(n, 1.0), second.get(n, 1.0))
        assert found.samples.seconds[n,] == pytest.approx((3e-6 + 1e-9 * n) * least)


def test_what_takes_too_long_is_left_out():
    row = next(i for i in registry.lookup("matvec") if i.kind == "cpu")
    knots = {(2**n,): (2**n,) for n in range(10, 25)}
    between = {(3000,): (3000,), (10**7,): (10**7,)}
    case = Case(row, "float64", "*", [], lambda n: n, knots=knots, between=between, checks=2)

    class Bench:
        devices = ()

        def seconds(self, case, problem, point):
            return 1e-8 * problem

    found = samples.take(case, Bench(), 0.005)
    assert 0.5 * sizes.LONGEST < max(found.seconds.values()) <= sizes.LONGEST
    assert list(found.held_out) == [(3000,)]


class Solver:
    """A machine on which solves take a set-up and steps, and at times longer."""

    def __init__(self, monkeypatch, setup, step):
        self.now, self.setup, self.step = 0.0, setup, step
        self.slow = lambda now: 1.0
        self.counts = []
        monkeypatch.setattr(samples, "_prepared", lambda *_: self.solve)
        monkeypatch.setattr(samples.once.__globals__["time"], "perf_counter", lambda: self.now)
        case = next(c for c in sizes.cases("cg", here(), False) if c.layout == "stencil2")
        self.case = replace(case, axes=[[2**16, 2**20]])

    def solve(self, count):
        self.counts.append(count)
        self.now += (self.setup + count * self.step) * self.slow(self.now)

    def taken(self):
        return samples.take(self.case, None, 0.005)


def test_steps_that_hardly_take_time_are_timed_in_numbers(monkeypatch):
    """Else what the set-up takes by chance would count as theirs."""
    machine = Solver(monkeypatch, 1e-3, 1e-5)
    found = machine.taken()
    assert found.seconds[2**20,] == pytest.approx(1e-5)
    assert found.setup[2**20,] == pytest.approx(1e-3)
    assert (max(machine.counts) - 4) * 1e-5 > 0.9e-3
    assert max(machine.counts) <= 4 + 512, "or a residual gets subnormal"
    machine.step, machine.counts = 1e-2, []
    machine.taken()
    assert set(machine.counts) == {1, 4, 12}, "these take long enough"


def test_times_of_a_solve_that_tell_no_step_are_taken_once_more(monkeypatch):
    machine = Solver(monkeypatch, 1e-3, 1e-3)
    machine.slow = lambda now: 20.0 if machine.counts[-1] == 4 and now < 0.3 else 1.0
    found = machine.taken()
    assert found.seconds == pytest.approx({(2**16,): 1e-3, (2**20,): 1e-3})
