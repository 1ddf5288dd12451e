"""How many threads a method of the CPU gets: measured in noise, kept in a table, chosen by work."""

import dataclasses
import itertools
import random
import types

import numba
import pytest

from hetero.calibration import request
from hetero.calibration.environment import thread_counts as measuring
from hetero.calibration.measure.loop import Measured
from hetero.calibration.measure.workbench import Samples
from hetero.ops.cases import Place
from hetero.ops.cg import cases as cg_cases
from hetero.registry import thread_counts
from hetero.registry.models import Work


class Clock:
    """Seconds that calls spend, and how often other load took a processor away."""

    def __init__(self):
        self.now, self.switched = 0.0, 0

    def __call__(self):
        self.now += 2e-6
        return self.now

    def call(self, seconds, switches=0):
        def run():
            self.now += seconds() if callable(seconds) else seconds
            self.switched += switches

        return run

    def fastest(self, seconds, **options):
        """Of calls that take so long, by number of threads."""
        calls = {n: self.call(each) for n, each in seconds.items()}
        return measuring.fastest(calls, max(calls), self, lambda: self.switched, **options)


@pytest.mark.parametrize(
    ("seconds", "number"),
    [
        ({1: 1e-3, 4: 3e-4, 8: 2e-4, 16: 1e-4}, 16),
        ({1: 1e-4, 4: 2e-4, 8: 4e-4, 16: 6e-4}, 1),
        ({1: 4e-4, 4: 2e-4, 8: 4e-4, 16: 6e-4}, 4),
        ({1: 9e-5, 4: 9e-5, 8: 9e-5, 16: 1e-4}, 16),
        ({1: 8.2e-5, 4: 9e-5, 8: 9e-5, 16: 1e-4}, 16),
    ],
)
def test_the_fastest_number_is_found(seconds, number):
    found, ratio = Clock().fastest(seconds)
    assert found == number
    assert ratio == pytest.approx(seconds[number] / seconds[16], rel=0.1)


def test_all_threads_stay_where_other_load_disturbs_them():
    clock = Clock()
    calls = {1: clock.call(1e-4), 2: clock.call(2e-2, switches=3)}
    assert measuring.fastest(calls, 2, clock, lambda: clock.switched) == (2, 1.0)


def test_what_takes_many_times_as_long_is_called_once():
    clock, called = Clock(), []

    def slow():
        called.append(clock.now)
        clock.now += 2e-2

    calls = {1: slow, 16: clock.call(1e-3)}
    assert measuring.fastest(calls, 16, clock, lambda: clock.switched) == (16, 1.0)
    assert len(called) == 1


def test_all_threads_stay_when_time_is_up():
    quick, clock = {1: 1e-5, 2: 1e-4}, Clock()
    assert clock.fastest(quick)[0] == 1
    needed = clock.now
    for share in (0.1, 0.5, 0.9):
        assert Clock().fastest(quick, end=share * needed) == (2, 1.0)


def _steady(draw, sigma):
    return lambda seconds: lambda: seconds * draw.lognormvariate(0.0, sigma)


def _spiked(draw):
    """400 times as long, three times of ten."""
    return lambda seconds: lambda: seconds * (400.0 if draw.random() < 0.3 else 1.0)


def _in_bursts(draw, clock):
    """Three times as long, for some milliseconds at a time."""
    phase = draw.random()

    def noisy(seconds):
        def now():
            burst = int(clock.now / 3e-3 + phase)
            slow = random.Random(burst).random() < 0.4
            return seconds * (3.0 if slow else 1.0) * draw.lognormvariate(0.0, 0.1)

        return now

    return noisy


def _all_threads_suffer(draw):
    """A core is busy half of the time, which only calls on all cores notice."""

    def noisy(seconds):
        if seconds < 1.0001e-4:
            return lambda: seconds * draw.lognormvariate(0.0, 0.1)
        return lambda: seconds * draw.choice((1.0, 1.6)) * draw.lognormvariate(0.0, 0.1)

    return noisy


NOISE = {
    "10 %": lambda draw, clock: _steady(draw, 0.1),
    "30 %": lambda draw, clock: _steady(draw, 0.3),
    "60 %": lambda draw, clock: _steady(draw, 0.6),
    "spikes": lambda draw, clock: _spiked(draw),
    "bursts": _in_bursts,
    "a busy core": lambda draw, clock: _all_threads_suffer(draw),
}
DRAWS = 1000


def _limits(noise, seconds, draws=DRAWS):
    """In which share of the draws fewer threads are taken."""
    found = 0
    for seed in range(draws):
        clock = Clock()
        noisy = NOISE[noise](random.Random(seed), clock)
        found += clock.fastest({n: noisy(each) for n, each in seconds.items()})[0] < 16
    return found / draws


@pytest.mark.parametrize("noise", NOISE)
def test_noise_sets_no_limits(noise):
    """All numbers are as fast as each other: whichever looks faster does so by chance."""
    assert _limits(noise, {1: 1e-4, 4: 1e-4, 8: 1e-4, 16: 1.001e-4}) < 0.01


@pytest.mark.parametrize("pace", [0.98, 1.02])
def test_a_machine_that_changes_its_pace_sets_no_limits(pace):
    """Whatever is called last is fastest, or slowest."""
    calls = itertools.count()

    def seconds():
        return pace ** next(calls)

    assert Clock().fastest({1: seconds, 2: seconds}) == (2, 1.0)


def test_less_than_a_fifth_sets_no_limits():
    """Not even where one was a fifth faster at first, and wins each duel."""
    few = itertools.chain([0.7e-4] * 12, itertools.repeat(0.85e-4))
    assert Clock().fastest({1: lambda: next(few), 2: 1e-4}) == (2, 1.0)


@pytest.mark.parametrize(
    ("noise", "least"), [("10 %", 0.99), ("30 %", 0.5), ("bursts", 0.5), ("spikes", 0.7)]
)
def test_what_is_twice_as_fast_is_found_in_noise(noise, least):
    assert _limits(noise, {1: 3e-4, 4: 1e-4, 8: 1.5e-4, 16: 2e-4}, 100) >= least


# -- Solves ----------------------------------------------------------------------------------------

MOST = numba.config.NUMBA_NUM_THREADS


@pytest.fixture
def solve(monkeypatch):
    """``solve(seconds)``: a case of solves whose steps take ``seconds(n, threads)`` by a clock."""
    clock = Clock()
    given = measuring.fastest

    def by_the_clock(calls, most, end):
        return given(calls, most, clock, lambda: 0, end)

    def case(seconds):
        def run(devices, problem, arguments):
            threads = numba.get_num_threads()
            clock.now += arguments.options.maxiter * seconds(problem.dims[0], threads)

        place = Place("cpu", {"kind": "cpu"})
        found = cg_cases.cases(place, request.FULL)
        one = next(c for c in found if (c.layout, c.dtype) == ("stencil2", "float32"))
        return dataclasses.replace(
            one, implementation=dataclasses.replace(one.implementation, run=run)
        )

    monkeypatch.setattr(measuring, "fastest", by_the_clock)
    monkeypatch.setattr(measuring, "time", types.SimpleNamespace(perf_counter=clock))
    case.clock = clock
    return case


@pytest.mark.skipif(MOST < 2, reason="there is one thread")
def test_little_solves_take_one_thread_where_that_is_faster(solve):
    def seconds(n, threads):
        return 2e-5 if threads == 1 else 4e-5 if n < 1e4 else 1.5e-5

    case = solve(seconds)
    samples = {(n,): seconds(n, MOST) for n in (256, 1024, 4096, 16384, 65536)}
    table = measuring.table(case, samples)
    thread_counts.check(table)
    assert table["threads"] == [1, MOST, MOST]
    assert table["ratio"][0] == pytest.approx(0.5, rel=0.1)
    for steps in (1, 1000):  # it is one step that counts
        few, many = (Work((n,), 20.0 * n, 1.0, steps) for n in (1000, 65536))
        assert thread_counts.choose(table, few).number == 1
        assert thread_counts.choose(table, many).number == MOST


@pytest.mark.skipif(MOST < 2, reason="there is one thread")
def test_beyond_what_was_measured_all_threads_stay(solve):
    case = solve(lambda n, threads: 1e-5 * threads)
    samples = {(n,): 1e-5 * MOST for n in (1024, 4096)}
    table = measuring.table(case, samples)
    assert table["threads"] == [1, 1, MOST]
    assert thread_counts.choose(table, Work((0,), 20.0 * 4096 * 3, 1.0)).number == 1
    assert thread_counts.choose(table, Work((0,), 20.0 * 4096 * 5, 1.0)).number == MOST


@pytest.mark.skipif(MOST < 2, reason="there is one thread")
def test_all_cases_together_take_a_second(solve):
    case = solve(lambda n, threads: 1e-4)
    samples = Samples({(n,): 1e-4 for n in (1024, 4096, 16384)})
    place, failures = Place("cpu", {"kind": "cpu"}), []
    measured = [Measured(case, place, samples)] * 16
    assert measuring.tables(measured, request.FULL, failures) == {}
    assert not failures
    assert 0.9 < solve.clock.now < 1.2


def test_numbers_that_are_tried():
    assert measuring.numbers(16) == [1, 4, 8, 16]
    assert measuring.numbers(2) == [1, 2]
    assert measuring.numbers(6) == [1, 3, 4, 6]


TABLE = {"flops": [1e3, 1e5, 1e7], "threads": [1, 4, 16], "ratio": [0.2, 0.5, 1.0], "of": 16}


@pytest.mark.parametrize(
    ("flops", "number"), [(1, 1), (9e3, 1), (1.1e4, 4), (9e5, 4), (1.1e6, 16), (1e12, 16)]
)
def test_the_nearest_amount_of_work_counts(flops, number):
    assert thread_counts.choose(TABLE, Work((8,), flops, 8.0)).number == number


@pytest.mark.parametrize(
    "different",
    [
        {"flops": [1e5, 1e3, 1e7]},
        {"flops": [0.0, 1e5, 1e7]},
        {"threads": [1, 4]},
        {"threads": [1, 4, 17]},
        {"threads": [0, 4, 16]},
        {"threads": [1.5, 4, 16]},
        {"ratio": [0.2, 0.5, 1.5]},
        {"ratio": [0.0, 0.5, 1.0]},
    ],
)
def test_a_wrong_table_is_refused(different):
    thread_counts.check(TABLE)
    with pytest.raises(ValueError, match="threads: "):
        thread_counts.check({**TABLE, **different})
