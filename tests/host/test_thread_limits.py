"""A number of threads from the profile to the call: limited, priced, printed, and run so."""

import contextlib
import ctypes
import sys
import threading

import numba
import numpy as np
import pytest
import threadpoolctl

import hetero
from hetero import profile
from hetero.calling import planner
from hetero.host import limits, threads
from hetero.kernels.cpu import vectors
from hetero.ops import matmul
from hetero.ops.products import public

_now = limits.state()
needs_blas = pytest.mark.skipif(
    _now is None or _now.number < 2, reason="NumPy's BLAS has one thread, or is not OpenBLAS"
)


def _blas_threads(*_):
    return limits._blas()[0]()


@pytest.fixture
def beside():
    """``with beside(name):`` another thread of that name runs Python."""

    @contextlib.contextmanager
    def running(name="other"):
        hold = threading.Event()
        other = threading.Thread(target=hold.wait, name=name, daemon=True)
        other.start()
        try:
            yield
        finally:
            hold.set()
            other.join()

    return running


@pytest.fixture
def alone(monkeypatch):
    """As if the threads that run the tests side by side, if any, were not there."""
    there = set(threading.enumerate())

    def others():
        return [t.name for t in threading.enumerate() if t not in there and t.name[:7] != "hetero-"]

    if len(there) > 1 or len(sys._current_frames()) > 1:
        monkeypatch.setattr(limits, "_is_alone", lambda: not others())


@needs_blas
def test_blas_is_limited_for_one_call(alone):
    most = _blas_threads()
    assert limits.limited(limits.BLAS, 1, _blas_threads)() == 1
    assert _blas_threads() == most
    with pytest.raises(ZeroDivisionError):
        limits.limited(limits.BLAS, 1, lambda: 1 // 0)()
    assert _blas_threads() == most


@needs_blas
def test_blas_is_not_limited_beside_another_thread(beside):
    most = _blas_threads()
    with beside():
        assert not limits.state().alone
        assert limits.most(limits.BLAS) is None
        assert limits.limited(limits.BLAS, 1, _blas_threads)() == most


@pytest.mark.parametrize(
    ("alone", "count", "put"), [(True, 1, [1, 4]), (False, 1, []), (True, 4, []), (True, 9, [])]
)
def test_nothing_is_set_where_another_thread_may_be_in_blas(alone, count, put, monkeypatch):
    done = []
    monkeypatch.setattr(limits, "_is_alone", lambda: alone)
    assert limits._limited_blas(count, lambda: "result", lambda: 4, done.append)() == "result"
    assert done == put


@needs_blas
def test_a_thread_in_place_of_one_of_ours_is_noticed(beside):
    """Their number is the same: it is not what is asked."""
    limited = limits.limited(limits.BLAS, 1, _blas_threads)
    with beside("hetero-one"):
        limited()
    with beside("other"):
        assert limited() == _blas_threads()


@needs_blas
def test_a_thread_that_python_did_not_start_is_noticed():
    """One of a library, which calls Python: it is not counted among Python's."""
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    begun, hold, seen = threading.Event(), threading.Event(), []

    @call
    def in_python(_):
        begun.set()
        hold.wait()

    thread = ctypes.c_ulong()
    pthread = ctypes.CDLL(None)
    started = pthread.pthread_create(ctypes.byref(thread), None, in_python, None)
    assert started == 0
    begun.wait()
    try:
        seen.append(limits.limited(limits.BLAS, 1, _blas_threads)())
    finally:
        hold.set()
        pthread.pthread_join(thread, None)
    assert seen == [_blas_threads()]


@needs_blas
def test_the_users_own_limit_stays(alone):
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        assert limits.state() == (True, 1)
        assert limits.limited(limits.BLAS, 2, _blas_threads)() == 1
        assert _blas_threads() == 1


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


@needs_blas
def test_the_plan_says_how_many_threads_and_counts_them(counted, alone):
    A = np.ones((100, 100))
    plan = planner.plan(matmul.problem(A, A), "cpu")
    assert plan.chosen.threads.number == 1
    assert ", on 1 thread" in str(plan)
    assert plan.to_dict()["candidates"][0]["threads"] == 1
    without = profile.shipped("conservative")
    bare = planner.OtherMachine(without, {"cpu": {"kind": "cpu"}}).plan(plan.problem, "cpu")
    assert plan.seconds == pytest.approx(bare.seconds / 2)
    assert "thread" not in str(bare)


@pytest.fixture
def counting(counted, monkeypatch):
    """`hetero.matmul` anew, over a function that says on how many of BLAS's threads it runs."""
    seen = []

    def product(A, B, out=None):
        seen.append(_blas_threads())

    product.__name__ = "matmul"
    call = public.product(product)(lambda: None)

    def both(A):
        """The number that is printed, and the one that a call runs on."""
        plan = planner.plan(matmul.problem(A, A))
        call(A, A)
        number = plan.chosen.threads.number
        assert f", on {number} thread{'s' * (number > 1)}" in str(plan)
        return number, seen.pop()

    return both


@needs_blas
def test_what_is_printed_runs(counting, alone, beside):
    most, A = _blas_threads(), np.ones((100, 100))
    for _ in range(2):  # a call that is new, and one that is remembered
        assert counting(A) == (1, 1)
    with beside():
        assert counting(A) == (most, most)
        plan = planner.plan(matmul.problem(A, A))
        assert f"on {most} threads (not 1: other threads run Python)" in str(plan)
        assert counting(A) == (most, most)
        assert counting(np.ones((101, 101))) == (most, most)
    assert counting(A) == (1, 1)
    assert counting(np.ones((101, 101))) == (1, 1)


@needs_blas
def test_what_is_printed_runs_whatever_the_user_limits(counting, alone):
    most, few, many = _blas_threads(), np.ones((100, 100)), np.ones((2000, 2000))
    for _ in range(2):
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            assert counting(few) == (1, 1)
            assert counting(many) == (1, 1)
            assert "other threads" not in str(planner.plan(matmul.problem(few, few)))
        assert counting(few) == (1, 1)
        assert counting(many) == (most, most)


@needs_blas
def test_a_price_counts_the_threads_that_run(counted, alone, beside):
    problem = matmul.problem(np.ones((100, 100)), np.ones((100, 100)))
    limited = planner.plan(problem, "cpu").seconds
    with beside():
        assert planner.plan(problem, "cpu").seconds == pytest.approx(2 * limited)
    assert planner.plan(problem, "cpu").seconds == limited


@needs_blas
@pytest.mark.parametrize("size", [100, 2000])
def test_who_may_be_in_blas_is_asked_where_it_counts(size, counted, monkeypatch):
    """It is asked of a plan in which fewer threads are faster, and of no other."""
    asked = []
    A = np.ones((size, size))
    plan = planner.plan(matmul.problem(A, A))
    monkeypatch.setattr(limits, "_is_alone", lambda: not asked.append(1))
    assert plan.limited == (size == 100)
    plan.holds()
    assert len(asked) == (size == 100)


@needs_blas
def test_another_number_of_blass_threads_ends_a_plan(alone):
    A = np.ones((50, 60))
    plan = planner.plan(matmul.problem(A, A.T), "cpu")
    assert plan.holds()
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        assert not plan.holds()
        assert planner.plan(plan.problem, "cpu").chosen.threads.number == 1
    assert plan.holds()


def test_products_are_numpys_where_threads_are_counted(counted):
    A = np.arange(10000.0).reshape(100, 100)
    for _ in range(2):
        assert np.array_equal(hetero.matmul(A, A), A @ A)
    assert planner.only_choice("matmul") is None


# -- Loops ----------------------------------------------------------------------------------------


@pytest.fixture
def capped(monkeypatch, tmp_path):
    """``capped(operation, method)``: by the profile, it takes one thread up to 3e6 operations; the
    numbers that runs are then limited to are the result."""
    before, seen = profile.current(), []
    given = threads.capped

    def noting(most, *arguments, **options):
        seen.append(most)
        return given(most, *arguments, **options)

    def use(operation, method):
        data = dict(profile.shipped("conservative").data)
        key = f"cpu|{operation}|{method}|float32|*"
        table = {"flops": [1e4, 1e9], "threads": [1, 2], "ratio": [0.5, 1.0], "of": 2}
        models = {**data["models"], key: {**data["models"][key], "threads": table}}
        found = profile.Profile({**data, "models": models})
        found.save(tmp_path / "profile.json")
        monkeypatch.setenv("HETERO_PROFILE", str(tmp_path / "profile.json"))
        profile.set_current(found)
        monkeypatch.setattr(threads, "capped", noting)
        return seen

    yield use
    profile.set_current(before)


def test_a_remembered_convolution_runs_as_printed(capped):
    seen = capped("convolve2d", "direct")
    image, taps = np.ones((300, 300), np.float32), np.ones((3, 3), np.float32)
    with hetero.use(device="cpu"):
        plan = hetero.plan("convolve2d", image, taps)
    assert plan.chosen.method == "direct"
    assert "on at most 1 thread" in str(plan)
    for number in range(1, 4):
        hetero.convolve2d(image, taps)
        assert seen.count(1) == number


def test_a_solve_of_each_size_takes_its_own_number(capped):
    seen = capped("cg", "numba")
    for side, limited in ((40, 1), (500, 0), (40, 1)):
        del seen[:]
        stencil = hetero.Poisson((side, side), dtype=np.float32)
        hetero.solve_cg(stencil, np.ones(side * side, np.float32), maxiter=1, device="cpu")
        assert seen.count(1) == limited
