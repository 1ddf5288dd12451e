"""The slices of the system, and the loops' threads that have them: as given, or as they were."""

import ast
import os
import subprocess
import sys
import threading
import time

import numba
import numpy as np
import pytest

from hetero.host import blas_awake, layer, slices, workers
from hetero.host.compiled import parts
from hetero.host.compiled.parts import part
from hetero.host.threads import capped, task_count, threaded

has_slices = pytest.mark.skipif(slices.get() is None, reason="this system has no slices")
needs_tbb = pytest.mark.skipif(layer.installed() is None, reason="the package tbb is not here")
GIVEN = 250_000


def _in_a_thread(function):
    """What a function gives in a thread of its own, whose slice nobody else has."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@has_slices
def test_a_slice_is_what_was_given():
    def give():
        usual = slices.get()
        given = slices.put(GIVEN), slices.get(), slices.usual(), slices.get()
        return usual, given, slices.put(0), slices.get()

    usual, given, back, last = _in_a_thread(give)
    assert given == (True, GIVEN, usual, GIVEN)
    assert (back, last) == (True, usual)


@has_slices
def test_another_threads_slice_is_set_and_a_thread_that_ended_has_none():
    begun, hold = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (begun.set(), hold.wait()))
    thread.start()
    begun.wait()
    usual = slices.get()
    assert slices.put(GIVEN, thread.native_id)
    assert (slices.get(thread.native_id), slices.get()) == (GIVEN, usual)
    hold.set()
    thread.join()
    ended = 2**22 + 1  # more than the system's largest
    assert slices.get(ended) is None
    assert not slices.put(GIVEN, ended)


@has_slices
def test_what_else_holds_for_a_thread_stays():
    def give():
        os.setpriority(os.PRIO_PROCESS, 0, 3)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        done = slices.put(GIVEN), slices.get()
        return done, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)

    assert _in_a_thread(give) == ((True, GIVEN), 3, os.SCHED_BATCH)


def _refuses(number, *arguments):
    return -1


def _old(number, thread, attributes, *rest):
    """A kernel without slices: it takes the number, and tells 0."""
    attributes._obj.runtime = 0
    return 0


def _deaf(number, thread, attributes, *rest):
    """One that does not take what it is given."""
    attributes._obj.runtime = 2_800_000
    return 0


@pytest.mark.parametrize(("system", "told"), [(_refuses, None), (_old, None), (_deaf, 2_800_000)])
def test_a_system_that_refuses(system, told, monkeypatch):
    class Library:
        syscall = staticmethod(system)

    monkeypatch.setattr(slices, "_library", Library)
    assert slices.get() == told
    assert not slices.put(GIVEN)


@pytest.mark.parametrize("change", ["platform", "machine"])
def test_another_system_is_not_asked(change, monkeypatch):
    monkeypatch.setattr(slices, "_library", lambda: pytest.fail("asked"))
    if change == "platform":
        monkeypatch.setattr(slices.sys, "platform", "darwin")
    else:
        monkeypatch.setattr(slices.platform, "machine", lambda: "riscv64")
    assert slices.get() is None
    assert slices.usual() is None
    assert not slices.put(GIVEN)


# -- the loops' threads --------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
from hetero.host import layer, slices, workers
import numpy as np
from numba.np.ufunc import parallel

usual, cores = slices.get(), os.sched_getaffinity(0)
if "numba first" in sys.argv:
    import numba
    numba.get_num_threads()
from hetero.kernels.cpu import vectors
x, A = np.ones(1 << 20), np.ones((600, 600))

def loop():
    assert vectors.norm(x) == 1024.0

def found():
    A @ A  # from here on BLAS's threads spin
    loop()
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    ours = [t for t in threads if slices.get(t) == workers.MARK]
    bound = sorted(map(sorted, map(os.sched_getaffinity, ours)))
    if ours:
        for _ in range(50):  # until BLAS's sleep, and until that is seen
            time.sleep(0.1)
            loop()
            if all(os.sched_getaffinity(t) == cores for t in ours):
                break
        else:
            sys.exit("they stay bound")
    return len(ours), bound

loop()
for _ in range(2):
    print(found())
print(workers.describe())
assert slices.get() == usual, "the caller's slice is its own"
if "silent fork" in sys.argv:
    import ctypes
    A @ A
    loop()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        workers.blas_awake.spins = lambda: True
        workers._core = lambda: next(iter(workers._bound), 0)
        loop()
        os._exit(3 if workers._threads or workers._bound else 0)
    assert os.waitpid(child, 0)[1] == 0
    loop()  # Numba has ended the threads here, and that is found out
    print(found())
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        loop()
        os._exit(0 if found() == (0, []) and not workers._bound else 3)
    assert os.waitpid(child, 0)[1] == 0
    loop()
    print(found())
"""


def _run(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_tbb
@has_slices
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_tbbs_threads_have_slices_and_a_core_each_before_and_after_a_fork():
    cores = os.sched_getaffinity(0)
    *loops, told, again = _run("fork")
    for line in (*loops, again):
        number, places = ast.literal_eval(line)
        assert number == len(places) == len(cores) - 1
        assert len({core for [core] in places} & cores) == number
    assert told == "TBB's with slices of 0.5 ms, and bound to a core each while BLAS's spin"


@needs_tbb
@has_slices
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_fork_that_python_does_not_know_of():
    number, places = ast.literal_eval(_run("silent fork")[-1])
    assert number == len(places) == len(os.sched_getaffinity(0)) - 1


@needs_tbb
@has_slices
@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        ((), {workers.OPTION: "0"}, f"{workers.OPTION} says so"),
        (("numba first",), {}, "Numba's threads were started before hetero's loops"),
    ],
)
def test_threads_that_are_not_ours_to_bind_are_left_alone(arguments, environment, told):
    *loops, said = _run(*arguments, **environment)
    assert set(loops) == {"(0, [])"}
    assert said.startswith(f"where the system puts them: {told}")


def test_threads_that_cannot_be_bound_get_the_usual_slice_back(monkeypatch):
    given = []
    monkeypatch.setattr(workers, "_obstacle", lambda: None)
    monkeypatch.setattr(workers, "_ours", lambda: [11, 13])
    monkeypatch.setattr(workers, "_state", dict(workers._state))
    monkeypatch.setattr(workers, "_threads", [])
    monkeypatch.setattr(workers, "_told", [""])
    monkeypatch.setattr(
        workers.slices, "put", lambda slice, thread=0: given.append((slice, thread))
    )
    for layer_name, told in (
        ("omp", "they are not TBB's"),
        ("tbb", "there are 9, 2 of them begun"),
    ):
        monkeypatch.setattr(numba, "threading_layer", lambda name=layer_name: name)
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 9)
        workers.launch()
        assert given[-2:] == [(0, 11), (0, 13)]
        assert workers._threads == []
        assert told in workers.describe()


@pytest.mark.parametrize(
    ("running", "found", "cores", "told"),
    [
        ("tbb", 3, 4, ""),
        ("omp", 3, 4, "they are not TBB's"),
        ("tbb", 2, 4, "there are 4, 2 of them begun, for 4 cores"),
        ("tbb", 3, 8, "there are 4, 3 of them begun, for 8 cores"),
    ],
)
def test_each_is_bound_or_none(running, found, cores, told, monkeypatch):
    monkeypatch.setattr(numba, "threading_layer", lambda: running)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 4)
    assert workers._hindrance(found, cores) == told


@pytest.fixture
def bound(monkeypatch):
    """Threads 11 and 13 on cores 1 and 3, none on core 2; what the system is asked to do."""
    asked, where = [], {0: {1, 2, 3}, 11: {1}, 13: {3}}  # 0: whoever asks for itself

    def put(thread, cores):
        asked.append((thread, cores))
        where[thread] = cores

    monkeypatch.setattr(workers, "_threads", [11, 13])
    monkeypatch.setattr(workers, "_told", [""])
    monkeypatch.setattr(workers.blas_awake, "spins", lambda: True)
    monkeypatch.setattr(workers, "_bound", {1: 11, 3: 13})
    monkeypatch.setattr(workers, "_free", [2])
    monkeypatch.setattr(workers, "_usual", [{1, 2, 3}])
    monkeypatch.setattr(workers, "_hasty", lambda: None)
    monkeypatch.setattr(workers.os, "sched_getaffinity", where.__getitem__)
    monkeypatch.setattr(workers.os, "sched_setaffinity", put)
    return asked


def test_the_thread_on_the_callers_core_goes_to_the_free_one(bound, monkeypatch):
    for here, there in ((2, []), (3, [(13, {2})]), (3, []), (7, []), (1, [(11, {3})])):
        monkeypatch.setattr(workers, "_core", lambda here=here: here)
        assert workers.run(lambda *given: given, 5, 6) == (5, 6)
        assert bound == there, here
        bound.clear()
    assert (workers._bound, workers._free) == ({2: 13, 3: 11}, [1])


def test_threads_that_have_ended_are_forgotten_and_others_started(bound, monkeypatch):
    def ended(thread, cores):
        raise ProcessLookupError

    launched = []
    state = {"ours": True, "ended": False, "process": os.getpid(), "looks": 0}
    monkeypatch.setattr(workers, "_state", state)
    monkeypatch.setattr(workers, "launch", lambda: launched.append(state["ended"]))
    monkeypatch.setattr(workers.os, "sched_setaffinity", ended)
    monkeypatch.setattr(workers, "_core", lambda: 3)
    assert workers.run(int, "8") == 8
    assert (workers._bound, workers._threads, launched) == ({}, [], [True])


@pytest.fixture
def masks(bound, monkeypatch):
    """Where the system lets threads run: 0 is the caller, none of the others is bound."""
    known = {0: {4, 5, 6}, 11: {4, 5, 6}, 13: {4, 5, 6}}

    def put(thread, cores):
        bound.append((thread, cores))
        known[thread] = cores

    monkeypatch.setattr(workers, "_bound", {})
    monkeypatch.setattr(workers.os, "sched_getaffinity", known.__getitem__)
    monkeypatch.setattr(workers.os, "sched_setaffinity", put)
    monkeypatch.setattr(workers, "_core", lambda: 5)
    return known


def _loop(spins, monkeypatch):
    monkeypatch.setattr(workers.blas_awake, "spins", lambda: spins)
    workers.run(int)


def test_they_are_bound_when_blas_spins_and_loose_when_it_sleeps(masks, bound, monkeypatch):
    for spins, there in (
        (False, []),
        (True, [(11, {4}), (13, {6})]),
        (True, []),
        (False, [(11, {4, 5, 6}), (13, {4, 5, 6})]),
        (False, []),
    ):
        _loop(spins, monkeypatch)
        assert bound == there
        bound.clear()
    masks[13] = {4, 5, 6, 7}
    _loop(True, monkeypatch)
    assert (bound, workers._threads) == ([], [])
    assert "4 cores by now" in workers.describe()


def test_another_affinity_of_the_process_is_kept_from_the_next_loop_on(masks, bound, monkeypatch):
    _loop(True, monkeypatch)
    masks.update({0: {4, 5}, 11: {4, 5}, 13: {4, 5}})  # as `taskset --all-tasks` does it
    bound.clear()
    for _ in range(3):
        _loop(True, monkeypatch)
    assert (bound, masks[11], masks[13]) == ([], {4, 5}, {4, 5})
    assert workers.describe() == "where the system puts them: they may run on 2 cores by now"


def test_another_place_of_one_of_them_is_noticed_after_some_loops(masks, bound, monkeypatch):
    _loop(True, monkeypatch)
    masks[13] = {4, 5, 6, 7}
    for _ in range(3):
        _loop(True, monkeypatch)
    assert workers._threads == []
    assert (masks[11], masks[13]) == ({4, 5, 6}, {4, 5, 6, 7})


def test_a_caller_that_may_run_on_one_core_does_not_hold_them_there(masks, monkeypatch):
    masks[0] = {5}
    _loop(True, monkeypatch)
    assert (masks[11], masks[13]) == ({4}, {6})
    masks[0] = {4}
    _loop(False, monkeypatch)
    assert masks[11] == masks[13] == {4, 5, 6}


def test_a_place_that_somebody_else_gave_a_thread_is_kept(masks, monkeypatch):
    _loop(True, monkeypatch)
    masks[13] = {4, 5}
    _loop(False, monkeypatch)
    assert (masks[11], masks[13]) == ({4, 5, 6}, {4, 5})


def test_where_one_is_refused_none_stays_bound(masks, monkeypatch):
    put = workers.os.sched_setaffinity

    def refuses(thread, cores):
        if cores == {6}:
            raise OSError(22, "Invalid argument")
        put(thread, cores)

    monkeypatch.setattr(workers.os, "sched_setaffinity", refuses)
    _loop(True, monkeypatch)
    assert masks[11] == masks[13] == {4, 5, 6}
    assert (workers._bound, workers._threads) == ({}, [])
    assert "refused a place: Invalid argument" in workers.describe()


@pytest.mark.parametrize(("spins", "told"), [(True, ["begin", 8, "end"]), (False, [8])])
def test_threads_sleep_at_once_only_while_those_of_blas_spin(spins, told, bound, monkeypatch):
    done = []
    calls = lambda _: done.append("begin"), lambda _: done.append("end")
    monkeypatch.setattr(workers, "_hasty", lambda: calls)
    monkeypatch.setattr(workers, "_core", lambda: 2)
    monkeypatch.setattr(workers.blas_awake, "spins", lambda: spins)
    workers.run(done.append, 8)
    assert done == told
    if spins:
        with pytest.raises(ZeroDivisionError):
            workers.run(divmod, 1, 0)
        assert done[-2:] == ["begin", "end"]


@pytest.mark.skipif(blas_awake._path() is None, reason="NumPy's BLAS is another, or has one thread")
@pytest.mark.skipif(not os.path.exists("/proc/self/syscall"), reason="no such file here")
def test_it_is_seen_that_threads_of_blas_spin():
    A = np.ones((600, 600))
    A @ A
    time.sleep(0.3)
    found = []
    for _ in range(5):  # the first look finds the thread; one may be disturbed
        blas_awake._state["search"] = 0.0
        blas_awake.spins()
        time.sleep(2 * blas_awake._STAYS)
        asleep = blas_awake.spins()
        A @ A
        found.append((asleep, blas_awake.spins()))
        time.sleep(0.3)
    assert (False, True) in found
    assert all(is_seen for _, is_seen in found)


def test_a_thread_of_blas_that_ended_is_searched_for_anew(monkeypatch):
    state = {"clock": ~(2**22 + 1) << 3 | 6, "time": 5, "search": 9e9, "running": False}
    monkeypatch.setattr(blas_awake, "_state", state)
    assert blas_awake.spins()
    assert (state["clock"], state["search"]) == (0, 0.0)


def test_a_blas_without_threads_never_spins(monkeypatch):
    monkeypatch.setattr(blas_awake, "_path", lambda: None)
    monkeypatch.setattr(blas_awake, "_state", {"clock": 0, "search": 0.0, "running": True})
    assert not blas_awake.spins()


# -- tasks -----------------------------------------------------------------------------------------


@part
def _noted(first, last, taken):
    for k in range(first, last):
        taken[k] = first


@threaded
def _tasks(team, taken):
    _noted(team, taken.size, (taken,))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
@pytest.mark.parametrize(
    ("tasks", "count", "number"), [(1, 100, 2), (2, 100, 4), (2, 3, 3), (7, 100, 14)]
)
def test_each_thread_has_more_than_one_task(tasks, count, number, monkeypatch):
    """So those that come late, or not at all, leave the others little more to do."""
    monkeypatch.setattr(parts, "TASKS", tasks)
    taken = np.full(count, -1)
    capped(2, _tasks, taken)
    assert capped(2, task_count) == 2 * tasks
    begins = sorted(set(taken))
    assert begins == [k * count // number for k in range(number)]
    assert capped(1, task_count) == 1
    capped(1, _tasks, taken)
    assert set(taken) == {0}
