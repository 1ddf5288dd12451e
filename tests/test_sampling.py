"""What calibration does with its measurements: here the host's part of a call."""

from __future__ import annotations

import types

import pytest

from hetero.calibration import overheads, portions, sampling, solving
from hetero.calibration.budgets import FULL
from hetero.calibration.load import Watch
from hetero.ops.products.cases import product
from hetero.runtime import registry
from hetero.runtime.cases import Case, Place, SampleGrid, TimedSolves
from hetero.runtime.registry import lookup


class FakeBench:
    """10 us of device time for every shape; the host takes 12 us, for some shapes more.

    As a program calls it, the host takes 15 us.
    """

    queue = None

    def __init__(self, host):
        self.host = host
        self.watch = Watch()

    def seconds(self, case, problem, budget):
        return 1e-5 if max(problem.dims) < 4096 else 2e-4

    def host_seconds(self, case, problem, device_seconds, least):
        return self.host(problem.dims)


CASE = Case(
    next(i for i in lookup("matvec") if i.kind == "cuda" and i.method == "library"),
    "float32",
    "C aligned",
    SampleGrid(),
    [[4, 16, 64, 256, 1024, 4096]] * 2,
    lambda *dims: product("matvec", dims, "cuda:0"),
)


def measured(host, share=15e-6):
    return sampling.take(CASE, FakeBench(host), FULL, 10.0, share).seconds


def test_shapes_that_cost_the_host_clearly_more_keep_their_own_share():
    seconds = measured(lambda dims: 40e-6 if dims == (64, 256) else 12e-6)
    assert seconds[64, 256] == pytest.approx(53e-6)
    assert seconds[64, 64] == pytest.approx(25e-6)


def test_a_slow_spell_is_not_taken_for_more_work():
    looks = []

    def host(dims):
        looks.append(dims)
        return 40e-6 if dims == (64, 256) and looks.count(dims) < 3 else 12e-6

    assert measured(host)[64, 256] == pytest.approx(25e-6)
    assert looks.count((64, 256)) == 3


def test_noise_of_the_host_does_not_tell_shapes_apart():
    seconds = measured(lambda dims: 12e-6 + 1e-6 * (dims[0] % 3))
    short = [s for dims, s in seconds.items() if max(dims) < 4096]
    assert max(short) == pytest.approx(min(short))


def test_beside_long_device_time_the_share_is_not_looked_at():
    seconds = measured(lambda dims: 12e-6 if max(dims) < 4096 else 1.0)
    assert seconds[4096, 4096] == pytest.approx(215e-6)


def test_an_unknown_share_is_measured():
    assert measured(lambda dims: 12e-6, None)[64, 64] == pytest.approx(22e-6)


@pytest.mark.parametrize(("waited", "busy"), [(False, True), (True, False)])
def test_what_a_device_s_clock_tells_is_marked_if_the_device_had_to_wait(waited, busy):
    """Not if the host was busy, but for shapes that cost it more: those are by its own clock."""
    bench = FakeBench(lambda dims: 40e-6 if dims == (64, 256) else 12e-6)
    bench.queue = types.SimpleNamespace(waited=waited)
    bench.watch.disturbed = lambda: busy
    shapes = sampling._Shapes(CASE, bench, FULL, 15e-6, 12e-6)
    assert shapes.timed((64, 64)) == (pytest.approx(25e-6), waited)
    assert shapes.timed((64, 256)) == (pytest.approx(53e-6), busy)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_solves_of_few_steps_stand_out_from_the_set_up(kind):
    """Fewer steps of larger systems, as each takes longer; most of all on the CPU."""
    row = next(i for i in lookup("cg") if i.kind == kind and i.method in ("numba", "fused"))
    case = Case(row, "float32", "stencil2", TimedSolves(8, 40))
    found = [solving.counts(case, 4**power) for power in range(4, 13)]
    assert found[0] == (8, 59)
    more = [many - few for few, many in found]
    assert max(more) <= 512
    largest = more[more.index(max(more)) :]
    assert largest == sorted(largest, reverse=True)
    assert found[-1] == ((4, 12) if kind == "cpu" else (8, 40))


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
        for case in portions.module_of(registry.operation(name)).cases(place, FULL)
    ]
    shares = overheads.host_shares(place, found, 0.0)
    assert {("matvec", "tiled"), ("matmul", "tiled")} <= set(shares)
    assert all(seconds > 0.0 for seconds in shares.values())
    calls = 2 * len(shares) * overheads._HOST_ROUNDS * (1 + overheads._HOST_CALLS)
    assert cuda.log.count("compute") == calls
    assert set(overheads.host_shares(place, found, 10.0).values()) == {0.0}
