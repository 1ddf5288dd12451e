"""What calibration does with its measurements: here the host's part of a call."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import types
from dataclasses import replace
from statistics import median

import pytest

from hetero import registry
from hetero.calibration import worklist
from hetero.calibration.environment import overheads
from hetero.calibration.measure import sampling, solving, timing, workbench
from hetero.calibration.measure.timing import Watch
from hetero.calibration.request import FULL
from hetero.ops.cases import Case, Passes, Place, SampleGrid, TimedSolves
from hetero.ops.products.cases import product
from hetero.registry import lookup


class FakeBench:
    """10 us of device time for every shape; as a program calls it, the host takes 15 us."""

    queue, devices = None, ("cuda:0",)

    def __init__(self, host):
        self.host = host
        self.watch = Watch()

    def seconds(self, case, problem, budget):
        return 1e-5 if max(problem.dims) < 4096 else 2e-4

    def host_seconds(self, case, problem, device_seconds):
        return self.host(problem.dims)


CASE = Case(
    next(i for i in lookup("matvec") if i.kind == "cuda" and i.method == "tiled"),
    "float32",
    "C aligned",
    SampleGrid(),
    [[4, 16, 64, 256, 1024, 4096]] * 2,
    lambda *dims: product("matvec", dims, "cuda:0"),
)


@pytest.mark.parametrize(("waited", "busy"), [(False, True), (True, False)])
def test_what_a_device_s_clock_tells_is_marked_if_the_device_had_to_wait(waited, busy):
    """Not if the host was busy."""
    bench = FakeBench(lambda dims: 12e-6)
    bench.queue = types.SimpleNamespace(waited=waited)
    bench.watch.disturbed = lambda: busy
    shapes = sampling._Shapes(CASE, bench, FULL, 15e-6)
    assert shapes.timed((64, 64)) == (pytest.approx(25e-6), waited)


class Solver:
    """A machine on which solves take a set-up and steps, and at times longer."""

    def __init__(self, monkeypatch, setup, step):
        self.now, self.setup, self.step = 0.0, setup, step
        self.slow = lambda now: 1.0
        self.counts = []
        monkeypatch.setattr(solving, "prepared", lambda *_: self.solve)
        monkeypatch.setattr(solving.time, "sleep", lambda _: None)
        monkeypatch.setattr(solving.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(
            solving, "in_turn", functools.partial(timing.in_turn, clock=lambda: self.now)
        )
        row = next(i for i in lookup("cg") if (i.kind, i.method) == ("cpu", "numba"))
        self.case = Case(row, "float32", "stencil2", TimedSolves(4, 12), [[2**16, 2**20]])
        self.bench = types.SimpleNamespace(device=None, devices=(), own=None, watch=Watch())

    def solve(self, count):
        self.counts.append(count)
        self.now += (self.setup + count * self.step) * self.slow(self.now)

    def taken(self, before=None):
        return sampling.take(self.case, self.bench, FULL, 10.0, before=before)


def test_steps_that_hardly_take_time_are_timed_in_numbers(monkeypatch):
    """Else what the set-up takes by chance would count as theirs."""
    machine = Solver(monkeypatch, 1e-3, 1e-5)
    found = machine.taken()
    assert found.seconds[2**20,] == pytest.approx(1e-5)
    assert found.setup[2**20,] == pytest.approx(1e-3)
    few, many = found.steps[2**20,]
    assert (many - few) * 1e-5 > 0.9e-3
    machine.step = 1e-2
    assert machine.taken().steps[2**20,] == (4.0, 12.0), "these take long enough"
    assert max(machine.counts) <= 4 + 512, "or a residual gets subnormal"


def test_small_solves_are_timed_though_the_largest_took_all_the_time(monkeypatch):
    """Beside other load: between the first and the last size nothing would tell what they take."""
    machine = Solver(monkeypatch, 1e-3, 1e-3)
    machine.case = replace(machine.case, axes=[[2**8, 2**14, 2**20 - 2, 2**20]])
    found = sampling.take(machine.case, machine.bench, FULL, 1e-3)
    assert set(found.seconds) == {(2**8,), (2**14,), (2**20,)}


@pytest.fixture
def passes(monkeypatch):
    """Seconds of a pass's samples are what a function says, by dimensions and pass."""
    row = next(i for i in lookup("convolve2d") if (i.kind, i.method) == ("cuda", "fft"))
    knots = {(800,): (16,), (182_000,): (256,), (2_750_000,): (1024,), (42_300_000,): (4096,)}
    how = Passes("surface", knots, {(1_000_000,): (600,)}, 0.08, 2)
    case = Case(row, "float64", "*", how, problem=lambda *sizes: sizes)
    bench = FakeBench(None)
    bench.waiting = lambda *_: lambda: None

    def run(seconds, number=2):
        found = None
        for turn in range(number):

            def timed(case, sizes, bench, budget, turn=turn):
                dims = next(d for d, s in {**knots, **how.held_out}.items() if s == sizes)
                return seconds(dims[0], turn)

            monkeypatch.setattr(sampling, "_timed", timed)
            found = sampling.take(case, bench, FULL, 10.0, before=found)
        return {dims[0]: taken for dims, taken in found.seconds.items()}

    return run


def transform(points):
    return 7e-5 + 1.5e-10 * points


def test_what_was_left_out_by_a_slow_first_look_is_measured_in_the_next(passes):
    def slow(n, turn):
        return 2e-3 if n == 800 and turn == 0 else transform(n)

    assert set(passes(slow, 1)) == {800}
    assert passes(slow) == pytest.approx(
        {n: transform(n) for n in (800, 182_000, 1_000_000, 2_750_000, 42_300_000)}
    )


def test_what_takes_too_long_is_left_out(passes):
    found = passes(lambda n, turn: 1e-8 * n)
    assert set(found) == {800, 182_000, 1_000_000, 2_750_000}
    assert 42_300_000 * 1e-8 > 0.08


def test_host_shares_are_of_calls_that_ran_on_the_device(cuda, monkeypatch):
    class Bench:
        def __init__(self, devices):
            assert devices == (cuda,)

        def seconds(self, case, problem, budget):
            return 1e-9

    monkeypatch.setattr(overheads, "Bench", Bench)
    place = Place(cuda.name, cuda.describe(), (cuda,))
    found = [
        case
        for name in ("matvec", "matmul")
        for case in worklist.module_of(registry.operation(name)).cases(place, FULL)
    ]
    shares = overheads.host_shares(place, found, 0.0)
    assert {("matvec", "tiled"), ("matmul", "tiled")} <= set(shares)
    assert all(seconds > 0.0 for seconds in shares.values())
    calls = 2 * len(shares) * overheads._HOST_ROUNDS * (1 + overheads._HOST_CALLS)
    assert cuda.log.count("compute") == calls
    assert set(overheads.host_shares(place, found, 10.0).values()) == {0.0}


@pytest.mark.parametrize("preempted", [True, False])
def test_a_product_takes_no_longer_than_one_thread_computes(monkeypatch, preempted):
    """A thread of BLAS that waits for a core holds up the others, also where these did not."""
    alone = []

    @contextlib.contextmanager
    def one_thread():
        alone.append(True)
        yield
        alone.clear()

    def run(*_):
        time.sleep(1e-3)
        end = time.thread_time() + 2e-4 * len(alone)
        while time.thread_time() < end:
            pass

    switches = itertools.count(step=1000 * preempted)
    measure = functools.partial(timing.measure, switches=switches.__next__)
    monkeypatch.setattr(workbench, "measure", measure)
    monkeypatch.setattr(workbench, "one_thread", one_thread)
    row = next(i for i in lookup("matvec") if i.kind == "cpu" and i.method == "blas")
    case = replace(CASE, implementation=replace(row, run=run))
    problem = product("matvec", (64, 64), "host")
    # What else runs on this machine makes single ones of these come out another way.
    seconds = median(workbench.Bench().seconds(case, problem, 0.02) for _ in range(5))
    assert (1e-4 <= seconds < 1e-3) if preempted else seconds >= 1e-3
