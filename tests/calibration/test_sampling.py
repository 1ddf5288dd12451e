"""What calibration does with its measurements: here the host's part of a call."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest

from hetero import registry
from hetero.calibration import overheads, worklist
from hetero.calibration.measure import sampling, solving
from hetero.calibration.request import FULL
from hetero.ops.cases import Case, Passes, Place, SampleGrid, TimedSolves
from hetero.registry import lookup


class Solver:
    """A machine on which solves take a set-up and steps, and at times longer."""

    def __init__(self, monkeypatch, setup, step):
        self.now, self.setup, self.step = 0.0, setup, step
        self.slow = lambda now: 1.0
        self.counts = []
        monkeypatch.setattr(solving, "prepared", lambda *_: self.solve)
        monkeypatch.setattr(solving.time, "perf_counter", lambda: self.now)
        row = next(i for i in lookup("cg") if (i.kind, i.method) == ("cpu", "numba"))
        self.case = Case(row, "float32", "stencil2", TimedSolves(4, 12), [[2**16, 2**20]])
        self.bench = types.SimpleNamespace(device=None, devices=())

    def solve(self, count):
        self.counts.append(count)
        self.now += (self.setup + count * self.step) * self.slow(self.now)

    def taken(self):
        return sampling.take(self.case, self.bench, FULL, 10.0)


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


def test_small_solves_are_timed_though_the_largest_took_all_the_time(monkeypatch):
    """Beside other load: between the first and the last size nothing would tell what they take."""
    machine = Solver(monkeypatch, 1e-3, 1e-3)
    machine.case = replace(machine.case, axes=[[2**8, 2**14, 2**20 - 2, 2**20]])
    found = sampling.take(machine.case, machine.bench, FULL, 1e-3)
    assert set(found.seconds) == {(2**8,), (2**14,), (2**20,)}


@pytest.mark.parametrize("shape", ["grid", "passes"])
def test_what_takes_too_long_is_left_out(shape):
    row = next(i for i in lookup("convolve2d") if (i.kind, i.method) == ("cpu", "fft"))
    sizes = [2**n for n in range(10, 25)]
    knots = {(n,): (n,) for n in sizes}
    how = Passes("surface", knots, {(3000,): (3000,)}, FULL.longest, 2)
    how = SampleGrid(1) if shape == "grid" else how
    case = Case(row, "float64", "*", how, [sizes], problem=lambda n: n)
    measured = []

    class Bench:
        devices = ()

        def seconds(self, case, problem, point):
            measured.append(problem)
            return 1e-8 * problem

        def waiting(self, case, problem):
            measured.append(problem)
            return lambda: None

    found = sampling.take(case, Bench(), FULL, 10.0)
    assert len(found.held_out) == 1
    assert measured == [*(dims for (dims,) in found.seconds), *(n for (n,) in found.held_out)]
    if shape == "grid":
        assert max(measured) * 1e-8 < FULL.longest * 2.0
        assert max(found.held_out)[0] * 1e-8 <= FULL.longest / 4


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
