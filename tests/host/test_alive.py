"""Forks, signals, interrupts and the end of the process: nothing hangs and nothing is half done.

What could hang runs in processes of its own, which an alarm ends.
"""

from __future__ import annotations

import ast
import dis
import itertools
import sys
import threading
import traceback
from pathlib import Path

import numpy as np
import processes
import pytest

import hetero
from hetero import calibration, devices, kernels, locks, profile
from hetero.calling import planner
from hetero.ops.products.public import matmul_problem


def run(code, *arguments, seconds=60):
    """Run a script in a process of its own, ended by an alarm if it hangs."""
    script = f"import signal; signal.alarm({seconds})\n{code}"
    return processes.python("-c", script, *arguments, timeout=seconds + 30).stdout


# -- Forks ---------------------------------------------------------------------------------------


def test_locks_are_made_in_one_place():
    """One made elsewhere, also inside an object, would stay taken in a forked child."""
    for package in (hetero, kernels, calibration):
        for file in sorted(Path(package.__file__).parent.rglob("*.py")):
            if file == Path(locks.__file__):
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
                # In Python 3.11 a cached property takes a lock of its class.
                assert name not in ("Lock", "RLock", "Condition", "Semaphore", "cached_property"), (
                    f"{file}:{node.lineno} has a {name}: take hetero.locks.new()"
                )


# -- Signals and interrupts ----------------------------------------------------------------------


def test_a_handler_may_call_in_the_middle_of_planning():
    """Whatever lock the interrupted thread holds: that of planning, of the profile, of devices."""
    code = """
import numpy as np, hetero
from hetero import devices, profile, tables
from hetero.calling import planner
from hetero.ops import functions
from hetero.ops.products.public import matmul_problem
A = np.ones((5, 5))
for lock in (tables._lock, profile._lock, devices.lock):
    with lock:
        profile.set_current(None)
        assert planner.plan(matmul_problem(A, A)).chosen.device == "cpu"
        assert hetero.matmul(A, A)[0, 0] == 5.0
"""
    run(code)


class _Interrupting:
    """Raises KeyboardInterrupt at the k-th line that hetero runs: a Ctrl-C at every place."""

    def __init__(self, at):
        self.left = at

    def __call__(self, frame, event, argument):
        if "hetero" not in frame.f_globals.get("__name__", ""):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0 and _leaves_a_with_block(frame):
                self.left = 1
            elif self.left == 0:
                raise KeyboardInterrupt
        return self


def _leaves_a_with_block(frame):
    """Whether the exit of a with block comes next: a line to who traces, but no signal comes there.

    What is raised there skips the exit, which a Ctrl-C cannot do.
    """
    rest = (i for i in dis.get_instructions(frame.f_code) if i.offset >= frame.f_lasti)
    return all(i.opname == "LOAD_CONST" and i.argval is None for i in itertools.islice(rest, 2))


def test_an_interrupt_leaves_planner_and_profile_whole(profile_file, warnings_of):
    """At every line of a first call; afterwards other threads can plan, and plans are right."""
    A = np.ones((6, 7))
    expected = A @ A.T
    at = interrupted = 0
    while True:
        at += 1 + at // 40  # every line at first, fewer later
        profile.set_current(None)
        before = sys.gettrace()
        sys.settrace(_Interrupting(at))
        try:
            planner.plan(matmul_problem(A, A.T))
            hetero.matmul(A, A.T)
            finished = True
        except KeyboardInterrupt:
            finished = False
        finally:
            sys.settrace(before)
        interrupted += not finished
        seen = []
        other = threading.Thread(
            target=lambda seen=seen: seen.append(
                (hetero.matmul(A, A.T), planner.plan(matmul_problem(A, A.T)).chosen.device)
            ),
            daemon=True,
        )
        other.start()
        other.join(120)
        if not seen:
            where = "".join(traceback.format_stack(sys._current_frames().get(other.ident)))
            pytest.fail(f"hangs after an interrupt at line {at}:\n{where}")
        np.testing.assert_array_equal(seen[0][0], expected)
        assert seen[0][1] == "cpu"
        if finished:
            break
    assert interrupted > 20


INTERRUPTED = """
import ctypes, sys, threading, numpy as np, hetero
how, main, sent, raised = sys.argv[1], threading.get_ident(), [], []

def interrupt(event, arguments):
    if event == "import" and arguments[0] == "numba.core.types" and not sent:
        sent.append(how)
        if how != "thread":
            return signal.raise_signal(signal.SIGTERM if how == "exit" else signal.SIGINT)
        kind = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), kind)

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
sys.addaudithook(interrupt)
for _ in range(3):
    try:
        result = hetero.convolve2d(np.ones((300, 300)), np.ones((9, 9)), method="direct")
    except (KeyboardInterrupt, SystemExit) as error:
        raised.append(type(error))
assert sent and raised == [SystemExit if how == "exit" else KeyboardInterrupt], raised
assert result[8, 8] == 81.0
"""


@pytest.mark.parametrize("how", ["signal", "exit", "thread"])
def test_an_interrupt_in_the_imports_of_a_first_call(how):
    """It is raised once, and what was being imported can be used afterwards."""
    run(INTERRUPTED, how, seconds=200)


DENIED = """
import ctypes, os, sys, unittest.mock, numpy as np, scipy.signal, hetero
if sys.argv[1] == "cores":
    os.sched_getaffinity = unittest.mock.Mock(side_effect=PermissionError)
elif ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE
    sys.exit(print("no such call"))
image, b = np.random.default_rng(0).random((300, 300)), np.ones(900)
for taps in (image[:5, :5], image[:40, :40]):
    assert np.allclose(hetero.convolve2d(image, taps), scipy.signal.convolve2d(image, taps))
A = hetero.Poisson((30, 30))
for M in (None, "multigrid"):
    x, info = hetero.solve_cg(A, b, rtol=1e-8, M=M)
    assert info == 0 and np.allclose(A @ x, b)
u = hetero.solve_poisson(image)
assert np.allclose(hetero.Poisson(image.shape) @ u.ravel(), image.ravel())
assert hetero.kmeans(image, 3, random_state=0)[2]["method"] == "products"
print(hetero.plan("solve_poisson", image), hetero.machine().brief(), sep="\\n")
"""


@pytest.mark.parametrize("what", ["code", "cores"])
def test_what_a_sandbox_denies_is_done_by_numpy_and_scipy(what):
    printed = run(DENIED, what)
    if printed == "no such call\n":
        pytest.skip("Linux before 6.3")
    why = {"code": "make memory executable", "cores": "sched_getaffinity"}[what]
    lines = [line.split() for line in printed.splitlines() if why in line]
    assert [line[0] for line in lines if "on" in line] == ["multigrid", "jacobi"]
    assert [line[:3] for line in lines if "compiled" in line] == [["compiled", "loops:", "none,"]]


# -- The end of the process ----------------------------------------------------------------------

AT_EXIT = """
import atexit, sys, threading, time, numpy as np, hetero
import concurrent.futures.thread  # which SciPy 1.18 imports, and which cannot be imported later
A = np.arange(64.0).reshape(8, 8)
rows = np.random.default_rng(0).random((3000, 40))
used = sys.argv[1] == "used before"

def call(where):
    assert np.array_equal(hetero.matmul(A, A), A @ A), where
    assert np.array_equal(hetero.matvec(A, A[0]), A @ A[0]), where
    assert hetero.plan("matmul", A, A).chosen.device == "cpu", where
    x, info = hetero.solve_cg(np.eye(8) * 2, A[0])
    assert info == 0 and np.allclose(x, A[0] / 2), where
    for n, taps, method in ((8, 1, "direct"), (9, 3, None), (500, 3, None), (700, 41, "fft")):
        filtered = hetero.convolve2d(np.ones((n, n)), np.ones((taps, taps)), "valid", method=method)
        assert np.allclose(filtered, taps**2), (where, n)
    assert hetero.KMeans(8, init=A, n_init=1).fit(A).inertia_ == 0, where
    many = {"init": rows[:40], "device": "cpu", "method": "products"}  # of several threads
    assert hetero.kmeans(rows, 40, **many)[2]["inertia"] > 0, where
    print(where)

if used:
    call("main")

def late():
    time.sleep(0.3)
    call("thread")

class Last:
    def __del__(self):
        try:
            assert np.array_equal(hetero.matmul(A, A), A @ A)
        except ImportError:  # so near the end nothing can be imported any more
            pass

atexit.register(call, "exit")
threading.Thread(target=late).start()
last = Last()
"""


@pytest.mark.parametrize("before", ["used before", "not used before"])
def test_calls_at_the_interpreters_end(before):
    assert run(AT_EXIT, before, seconds=200).split()[-2:] == ["thread", "exit"]


def test_a_call_in_the_middle_of_a_launch(opencl, monkeypatch):
    """As a signal handler's: a kernel keeps the arguments of the call that it came between."""
    A, B = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5)
    first = hetero.matmul(A, B, device=opencl)
    device = devices.get(opencl)
    enqueue, come = device.cl.enqueue_nd_range_kernel, [True]

    def disturbed(*arguments):
        if come and come.pop():
            between = hetero.matmul(-A, B, device=opencl)
            np.testing.assert_array_equal(between, -first)
        return enqueue(*arguments)

    monkeypatch.setattr(device.cl, "enqueue_nd_range_kernel", disturbed)
    np.testing.assert_array_equal(hetero.matmul(A, B, device=opencl), first)
    assert not come
    assert not devices.troubles()
