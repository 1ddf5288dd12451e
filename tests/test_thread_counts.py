"""How many threads a method of the CPU gets: measured, priced, printed, and run so."""

import itertools
import threading

import numba
import numpy as np
import pytest

import hetero
from hetero.calibration import thread_counts as measuring
from hetero.kernels.cpu import limits, vectors
from hetero.ops import matmul
from hetero.runtime import call_cache, planner, profile, registry, thread_counts
from hetero.runtime.models import Work


class Clock:
    """Seconds that calls spend, and how often other load took a processor away."""

    def __init__(self):
        self.now, self.switched = 0.0, 0

    def __call__(self):
        self.now += 1e-7
        return self.now

    def call(self, *seconds, switches=0):
        turn = itertools.cycle(seconds)

        def run():
            self.now += next(turn)
            self.switched += switches

        return run

    def fastest(self, calls):
        return measuring.fastest(calls, max(calls), self, lambda: self.switched)


@pytest.mark.parametrize(
    ("seconds", "number"),
    [
        ({1: 1e-3, 4: 3e-4, 8: 2e-4, 16: 1e-4}, 16),
        ({1: 1e-5, 4: 2e-5, 8: 4e-5, 16: 6e-5}, 1),
        ({1: 4e-5, 4: 2e-5, 8: 4e-5, 16: 6e-5}, 4),
        ({1: 9e-5, 4: 9e-5, 8: 9e-5, 16: 1e-4}, 16),
    ],
)
def test_the_fastest_number_is_found(seconds, number):
    clock = Clock()
    calls = {n: clock.call(each) for n, each in seconds.items()}
    found, ratio = clock.fastest(calls)
    assert found == number
    assert ratio == pytest.approx(seconds[number] / seconds[16], rel=0.02)


def test_spikes_do_not_count():
    clock = Clock()
    calls = {1: clock.call(1e-4), 2: clock.call(6e-5, 6e-5, 6e-5, 2e-2, 6e-5)}
    assert clock.fastest(calls) == (2, 1.0)


def test_all_threads_stay_where_other_load_disturbs_them():
    clock = Clock()
    calls = {1: clock.call(1e-4), 2: clock.call(2e-2, switches=3)}
    assert clock.fastest(calls) == (2, 1.0)


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


# -- Limits ----------------------------------------------------------------------------------------

needs_blas = pytest.mark.skipif(
    (limits.most(limits.BLAS) or 1) < 2, reason="NumPy's BLAS has one thread, or is not OpenBLAS"
)


def _blas_threads(*_):
    return limits._blas()[1]()


@needs_blas
def test_blas_is_limited_for_one_call():
    most = _blas_threads()
    one = limits.limited(limits.BLAS, 1, _blas_threads)
    alone = not limits.blas_timeout.others()
    assert one() == (1 if alone else most)
    assert _blas_threads() == most
    with pytest.raises(ZeroDivisionError):
        limits.limited(limits.BLAS, 1, lambda: 1 // 0)()
    assert _blas_threads() == most


@needs_blas
def test_blas_is_not_limited_beside_another_thread():
    most, hold = _blas_threads(), threading.Event()
    other = threading.Thread(target=hold.wait, name="other")
    other.start()
    try:
        assert limits.limited(limits.BLAS, 1, _blas_threads)() == most
    finally:
        hold.set()
        other.join()


def test_loops_are_limited_for_one_call():
    vectors.norm(np.ones(10))
    most = numba.get_num_threads()
    assert limits.limited(limits.LOOPS, 1, numba.get_num_threads)() == 1
    assert numba.get_num_threads() == most


# -- From the profile to the call ------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """A profile by which products of some work take one thread, and half the time."""
    data = dict(profile.shipped("conservative").data)
    key = next(k for k in data["models"] if k.startswith("cpu") and "|matmul|blas|float64" in k)
    rest = key.partition("|")[2]
    table = {"flops": [1e3, 1e12], "threads": [1, 2], "ratio": [0.5, 1.0], "of": 2}
    models = {**data["models"], f"cpu|{rest}": {**data["models"][key], "threads": table}}
    file = tmp_path / "profile.json"
    found = profile.Profile({**data, "models": models})
    found.save(file)
    monkeypatch.setenv("HETERO_PROFILE", str(file))
    before = profile.current()
    profile.set_current(found)
    yield found
    profile.set_current(before)


def test_the_plan_says_how_many_threads_and_counts_them(counted):
    A = np.ones((100, 100))
    plan = planner.plan(matmul.problem(A, A), "cpu")
    assert plan.chosen.threads.number == 1
    assert ", on 1 thread" in str(plan)
    assert plan.to_dict()["candidates"][0]["threads"] == 1
    without = profile.shipped("conservative")
    bare = planner.OtherMachine(without, {"cpu": {"kind": "cpu"}}).plan(plan.problem, "cpu")
    assert plan.seconds == pytest.approx(bare.seconds / 2)
    assert "thread" not in str(bare)


@needs_blas
def test_what_is_printed_runs(counted, monkeypatch):
    seen = []
    row = next(i for i in registry.lookup("matmul") if i.kind == "cpu")

    def run(*arguments):
        seen.append(_blas_threads())
        return row.run(*arguments)

    A = np.ones((100, 100))
    plan = planner.plan(matmul.problem(A, A), "cpu")
    limited = thread_counts.limited(row, plan.chosen.threads, run)
    arguments = registry.Arguments((A, A), np.empty((100, 100)))
    limited((), plan.problem, arguments)
    if not limits.blas_timeout.others():
        assert seen == [plan.chosen.threads.number]
    assert np.array_equal(hetero.matmul(A, A), A @ A)
    assert planner.only_choice("matmul") is None
    assert call_cache.generation()
