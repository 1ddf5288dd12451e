"""Whose threads run the loops, and how long those of BLAS spin beside them."""

import ctypes
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from numba.core import config
from numba.np.ufunc import parallel

from hetero import registry
from hetero.host import blas, blas_probe, blas_spin, threading_layer, threads
from hetero.host.compiled import parts
from hetero.host.compiled.parts import part
from hetero.host.threads import capped, task_count, threaded
from hetero.kernels.cpu import vectors
from hetero.registry import thread_counts

needs_tbb = pytest.mark.skipif(
    threading_layer.installed() is None, reason="the package tbb is not here"
)


@pytest.fixture
def unstarted(monkeypatch):
    """As if Numba had not started threads."""
    monkeypatch.setattr(parallel, "_threading_layer", None)
    monkeypatch.setattr(config, "THREADING_LAYER", "default")
    monkeypatch.setattr(threading_layer, "_loaded", [])
    monkeypatch.setattr(threading_layer, "_is_loaded", lambda: False)
    return monkeypatch


def test_it_is_said_that_tbb_is_not_installed(unstarted):
    unstarted.setattr(threading_layer, "_PACKAGE", "no-such-package")
    unstarted.setattr(threading_layer, "_LIBRARY", "libnosuch.so.12")
    assert threading_layer.describe().endswith("TBB is not installed: pip install no-such-package")


def test_it_is_said_that_tbb_cannot_be_loaded(unstarted, tmp_path):
    damaged = tmp_path / "libtbb.so.12"
    damaged.write_bytes(b"no library")
    unstarted.setattr(threading_layer, "_LIBRARY", "libnosuch.so.12")
    unstarted.setattr(threading_layer, "installed", lambda: damaged)
    assert f"because {damaged} cannot be loaded" in threading_layer.describe()


def test_an_old_tbb_is_not_used(unstarted):
    class Old:
        @staticmethod
        def TBB_runtime_interface_version():
            return 12050

    unstarted.setattr(threading_layer, "_loaded", [Old])
    assert "too old: its interface is 12050" in threading_layer.describe()


@pytest.mark.parametrize("choice", ["omp", "workqueue"])
def test_nothing_is_loaded_where_the_user_wants_another(unstarted, choice):
    unstarted.setattr(config, "THREADING_LAYER", choice)
    unstarted.setattr(threading_layer, "installed", lambda: pytest.fail("looked for TBB"))
    assert threading_layer.describe() == f"{choice}, as Numba's configuration says"


def test_threads_that_run_already_stay(unstarted):
    unstarted.setattr(parallel, "_threading_layer", "omp")
    unstarted.setattr(threading_layer, "installed", lambda: "libtbb.so.12")
    unstarted.setattr(threading_layer.ctypes, "CDLL", lambda path: pytest.fail(f"loaded {path}"))
    assert (
        threading_layer.describe()
        == "omp, because Numba's threads were started before hetero's loops"
    )


def test_another_systems_line_says_why(unstarted):
    unstarted.setattr(threading_layer, "_LIBRARY", "libnosuch.so.12")
    unstarted.setattr(threading_layer, "_PACKAGE", "no-such-package")
    unstarted.setattr(threading_layer, "_COMES_FOR", ("another", "system"))
    assert "does not come for" in threading_layer.describe()


# -- BLAS ----------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, threading, time
import numpy as np
import hetero
assert "numba" not in sys.modules
from hetero.host import blas_spin, threading_layer
from hetero.kernels.cpu import vectors
from numba.np.ufunc import parallel

A, x = np.ones((600, 600)), np.ones(1 << 20)

def idle(between=lambda: None):
    assert (A @ A)[0, 0] == 600.0
    between()
    begin = time.process_time()
    time.sleep(0.1)
    return time.process_time() - begin

def loop():
    assert vectors.norm(x) == 1024.0

def work(seconds=0.05):  # busy cores: time slices until a thread sees that it is to sleep
    with blas_spin.asleep():
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            loop()

hold = threading.Event()
for name in sys.argv[1:]:
    threading.Thread(target=hold.wait, name=name, daemon=True).start()
loop()
times = [f(idle(x) for _ in range(5)) for f, x in ((max, loop), (min, work), (max, loop))]
child = os.fork()
if child == 0:  # BLAS's threads are started anew; its loops run unthreaded
    loop()
    os._exit(0 if max(idle() for _ in range(5)) > 0.01 else 3)
assert os.waitpid(child, 0)[1] == 0
loop()
told = threading_layer.describe(), blas_spin.describe()["numpy"]
print(*times, parallel.threading_layer(), *told, sep="|")
"""


def _run(*threads):
    """A program with other threads: seconds of BLAS's idle ones after a product, after a product
    and a loop, and after one more product; the loops' layer; and what is told of both."""
    left_out = ("TIMEOUT", "NUMBA_THREADING")
    kept = {key: x for key, x in os.environ.items() if not any(part in key for part in left_out)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *threads],
        env={**kept, "OPENBLAS_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr
    *times, running, layer_told, told = done.stdout.strip().split("|")
    return [float(one) for one in times], running, layer_told, told


def _known():
    return [x for x in blas.libraries() if blas.owner(x["filepath"]) == "numpy"]


known = pytest.mark.skipif(
    sys.platform != "linux" or any(map(blas_spin.obstacle, _known())) or not _known(),
    reason="NumPy's BLAS is not one that is known",
)


@needs_tbb
@known
@pytest.mark.parametrize("threads", [(), ("somebody",)])
def test_blas_sleeps_after_long_work_and_only_then(threads):
    (before, after, again), running, layer_told, told = _run(*threads)
    assert (running, layer_told) == ("tbb", "TBB")
    assert told == "2^10 cycles during work of 3 ms or longer"
    assert after < 0.002 < 0.01 < min(before, again)


@pytest.fixture
def unread(monkeypatch):
    """As before anything was looked for; nothing is found but what a test gives."""
    monkeypatch.setattr(blas_spin, "_status", {})
    monkeypatch.setattr(blas_spin, "_words", [])
    monkeypatch.setattr(blas_spin, "_reason", lambda: None)
    return monkeypatch


def test_in_short_work_another_thread_looks_for_the_variable_and_one_alone(unread):
    looking, lock, found = threading.Event(), threading.Lock(), []

    def find():
        with lock:
            found.append(threading.current_thread())
        looking.set()

    unread.setattr(blas_spin, "_finding", lock)
    unread.setattr(blas_spin, "find", find)
    unread.setattr(blas_spin, "is_due", lambda: True)
    with blas_spin.asleep_in_loops(0.0):
        with lock:
            blas_spin.for_loop()  # another thread is at it
        blas_spin.for_loop()
        assert looking.wait(20)
    assert len(found) == 1
    assert found[0] is not threading.main_thread()


def test_versions_of_openblas_that_were_not_tried_are_left_alone():
    ours = {
        "internal_api": "openblas",
        "threading_layer": "pthreads",
        "prefix": "libscipy_openblas",
    }
    first, last = ([*version] for version in blas_spin._TRIED)
    for version, tried in ((first, True), (last, True), ([0, 3, 26], False), ([0, 4, 0], False)):
        text = ".".join(map(str, version))
        found = blas_spin.obstacle({**ours, "version": f"{text}.dev"})
        assert (found is None) == tried
        assert tried or text in found
    for key, value in (("internal_api", "mkl"), ("threading_layer", "openmp"), ("prefix", "lib")):
        assert "as it was" in blas_spin.obstacle({**ours, "version": "0.3.30", key: value})
    assert "was not tried" in blas_spin.obstacle({**ours, "version": None})


@known
def test_the_variable_holds_what_it_held(unread):
    blas_spin.find()
    [(word, short, before)] = blas_spin._words[:1]
    assert (word[0], short) == (before, 1 << blas_spin.EXPONENT)
    with blas_spin.asleep():
        assert word[0] == short
    assert word[0] == before
    with pytest.raises(ZeroDivisionError), blas_spin.asleep():
        raise ZeroDivisionError
    assert word[0] == before >= 1 << 20


@known
@pytest.mark.parametrize("distance", [None, 0, 4, 1 << 40])
def test_nothing_is_written_where_it_is_not(distance, unread):
    """No place, the file's first bytes, and far outside of it."""
    unread.setattr(blas_spin, "_distance", lambda path: distance)
    blas_spin.find()
    assert blas_spin._words == []
    assert all(told.startswith("as it was") for told in blas_spin.describe().values())
    blas_spin.shorten_spin()
    blas_spin.restore_spin()


@known
def test_another_number_there_is_left(unread):
    path = os.path.realpath(_known()[0]["filepath"])
    distance = blas_spin._distance(path)
    begin = next(b for b, _, is_writable in blas_probe.mapped(path) if is_writable)
    base = blas_probe.mapped(path)[0][0]
    words = (ctypes.c_uint32 * 1024).from_address(begin)
    other = next(i for i, w in enumerate(words) if w not in [1 << e for e in range(32)])
    unread.setattr(blas_spin, "_distance", lambda _: begin + 4 * other - base)
    assert "is no number of cycles" in blas_spin._set_up(path)
    unread.setattr(blas_spin, "_distance", lambda _: distance)
    assert blas_spin._set_up(path) == "2^10 cycles"


def test_what_cannot_be_found_is_told(unread, tmp_path):
    broken = tmp_path / "libopenblas.so"
    broken.write_bytes(b"no library")
    assert blas_spin._set_up(str(broken)) == "as it was: it is unknown how long its threads spin"


def test_blas_is_left_alone_where_the_user_says_so(monkeypatch):
    monkeypatch.setenv("HETERO_BLAS_TIMEOUT", "0")
    assert blas_spin._reason() == "as it was: HETERO_BLAS_TIMEOUT says so"


def test_the_users_own_timeout_stays(monkeypatch):
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    assert blas_spin._reason() == "as it was: OPENBLAS_THREAD_TIMEOUT is set"


def test_our_own_threads_are_never_in_blas(monkeypatch):
    import threading

    hold = threading.Event()
    threading.Thread(target=hold.wait, name="hetero-something", daemon=True).start()
    threading.Thread(target=hold.wait, name="else", daemon=True).start()
    others = blas.others()
    hold.set()
    assert "else" in others
    assert "hetero-something" not in others


KNOWN = {
    "user_api": "blas",
    "internal_api": "openblas",
    "threading_layer": "pthreads",
    "prefix": "libscipy_openblas",
    "version": "0.3.31.188.0",
    "filepath": "/site-packages/numpy.libs/libscipy_openblas64_-1.so",
}


@pytest.mark.parametrize(
    ("different", "told"),
    [
        ({"internal_api": "mkl"}, "mkl is not OpenBLAS"),
        ({"internal_api": "blis"}, "blis is not OpenBLAS"),
        ({"threading_layer": "openmp"}, "its threads are openmp's"),
        ({"prefix": "libopenblas"}, "others than NumPy and SciPy may call it"),
        ({"version": "0.3.26"}, "OpenBLAS 0.3.26 was not tried"),
        ({"version": "0.3.35"}, "OpenBLAS 0.3.35 was not tried"),
        ({"version": "0.4.0.1"}, "OpenBLAS 0.4.0.1 was not tried"),
        ({"version": None}, "OpenBLAS None was not tried"),
    ],
)
def test_an_unknown_blas_is_left_alone(different, told, unread):
    library = {**KNOWN, **different}
    unread.setattr(blas_spin, "libraries", lambda: [library])
    unread.setattr(blas_spin, "_set_up", lambda path: pytest.fail(path))
    blas_spin.find()
    assert blas_spin.describe() == {"numpy": f"as it was: {told}"}


def test_a_library_is_looked_at_once(unread):
    looked = []
    unread.setattr(blas_spin, "libraries", lambda: [KNOWN])
    unread.setattr(blas_spin, "_set_up", lambda path: looked.append(path) or "done")
    blas_spin.find()
    blas_spin.find()
    assert looked == [KNOWN["filepath"]]


@pytest.mark.parametrize(
    ("given", "exponent"), [("", 10), ("0", 0), ("20", 20), ("3", 0), ("31", 0), ("off", 0)]
)
def test_the_timeout_is_the_users(given, exponent, monkeypatch, caplog):
    blas_spin._parsed.cache_clear()
    monkeypatch.setenv("HETERO_BLAS_TIMEOUT", given)
    assert blas_spin._exponent() == exponent
    assert ("must be 0 or from 4 to 30" in caplog.text) == (given in ("3", "31", "off"))


@pytest.mark.parametrize(
    ("uses", "seconds", "asleep"),
    [
        ((), blas_spin.LONG, True),
        ((), 0.99 * blas_spin.LONG, False),
        (("blas", "numpy"), 1.0, False),
    ],
)
def test_long_work_without_blas_is_undisturbed(uses, seconds, asleep, unread):
    word = memoryview(bytearray(4)).cast("I")
    word[0] = 1 << 28
    unread.setattr(blas_spin, "_words", [(word, 1 << 10, 1 << 28)])
    unread.setattr(blas_spin, "is_due", lambda: False)
    row = registry.Implementation("toy", "loop", "cpu", None, None, None, uses=uses)
    run = thread_counts.undisturbed(row, seconds, lambda value: (value, word[0]))
    assert run(3) == (3, 1 << 10 if asleep else 1 << 28)
    assert word[0] == 1 << 28


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
@pytest.mark.parametrize("most", [1, 2])
def test_blas_sleeps_from_the_first_loop_of_several_threads_on(most, unread):
    """A loop on the calling thread alone wants no other core, and the next product no waking."""
    word = memoryview(bytearray(4)).cast("I")
    word[0] = 1 << 28
    unread.setattr(blas_spin, "_words", [(word, 1 << 10, 1 << 28)])
    unread.setattr(blas_spin, "is_due", lambda: False)
    row = registry.Implementation("toy", "loop", "cpu", None, None, None, uses=("loops", "numba"))
    x = np.ones(1 << 19)

    def solve():
        seen = [word[0]]
        threads.capped(most, vectors.norm, x)
        return [*seen, word[0]]

    assert thread_counts.undisturbed(row, 1.0, solve)() == [1 << 28, 1 << (10 if most > 1 else 28)]
    assert word[0] == 1 << 28
    assert solve() == [1 << 28, 1 << 28]
    with pytest.raises(ZeroDivisionError):
        thread_counts.undisturbed(row, 1.0, lambda: 1 // 0)()
    assert solve() == [1 << 28, 1 << 28]


# -- forks -----------------------------------------------------------------------------------------

SILENT_FORK = """
import ctypes, os
import numpy as np
from hetero.kernels.cpu import vectors

x, A = np.ones(1 << 20), np.ones((600, 600))

def loop():
    A @ A
    assert vectors.norm(x) == 1024.0

loop()
child = ctypes.PyDLL(None).fork()
if child == 0:
    loop()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
loop()
"""


@pytest.mark.parametrize("threads_of", ["tbb", "omp"])
def test_a_fork_that_python_does_not_know_of(threads_of):
    """None of Python's functions for forks is called; the child has no threads."""
    done = subprocess.run(
        [sys.executable, "-c", SILENT_FORK],
        env={**os.environ, "NUMBA_THREADING_LAYER": threads_of},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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


INTERRUPTED = """
import os, signal, threading, time
from hetero.host import threads


class Interrupt(Exception):
    pass


inside = [False]


def interrupt(*arguments):
    if inside[0]:
        raise Interrupt


signal.signal(signal.SIGALRM, interrupt)
threads.thread_count()
number, end = 0, time.monotonic() + 1.0
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0003)
while time.monotonic() < end:
    try:
        inside[0] = True
        for _ in range(50):
            threads.thread_count()
        inside[0] = False
    except Interrupt:
        inside[0] = False
        number += 1
signal.setitimer(signal.ITIMER_REAL, 0)
counted = threading.Event()


def count():
    threads.thread_count()
    counted.set()


threading.Thread(target=count, daemon=True).start()
os._exit(0 if number > 100 and counted.wait(20) else 1)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX alone has interval timers")
def test_interrupts_leave_no_lock_that_another_thread_waits_for():
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=60)
