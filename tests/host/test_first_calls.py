"""First and last calls of a process: by several threads, beside a fork, at the end."""

from __future__ import annotations

import processes
import pytest

CALLS = """
import os, sys, threading, traceback
import numpy as np
import hetero

A, b = np.random.default_rng(0).random((40, 40)), np.ones(100)


def solved_cg():
    S = hetero.Poisson((10, 10)).tocsr()
    x, info = hetero.solve_cg(S, b, rtol=1e-10)
    return info == 0 and np.allclose(S @ x, b)


def solved_poisson(method):
    u = hetero.solve_poisson(A, method=method)
    return np.allclose(hetero.Poisson(A.shape) @ u.ravel(), A.ravel(), atol=1e-5)


def convolved():
    found = hetero.convolve2d(A, A[:3, :3], "valid")[0, 0]
    return np.allclose(found, (A[:3, :3] * A[2::-1, 2::-1]).sum())


def filtered(n, taps, **method):
    found = hetero.convolve2d(np.ones((n, n)), np.ones((taps, taps)), "valid", **method)
    return np.allclose(found, taps**2)


def multiplied_elsewhere():
    try:
        return np.allclose(hetero.matmul(A, A, device="opencl:0"), A @ A)
    except hetero.errors.DeviceNotAvailable:
        return True


def calibrated():
    path = os.environ["HERE"] + "/profile.json"
    return hetero.calibrate(True, only="matvec", path=path).name == "measured"


X, rows = np.arange(300.0).reshape(100, 3), np.random.default_rng(0).random((3000, 40))
PRODUCTS = {"device": "cpu", "method": "products"}  # of several threads
OPERATIONS = {
    "convolve2d": convolved,
    "solve_cg": solved_cg,
    "multigrid": lambda: solved_poisson("multigrid"),
    "dst": lambda: solved_poisson("dst"),
    "kmeans": lambda: {*hetero.kmeans(X, 3, random_state=0, max_iter=5)[1]} == {0, 1, 2},
    "KMeans": lambda: len(hetero.KMeans(2, random_state=0, n_init=1).fit(A).labels_) == 40,
    "machine": lambda: str(hetero.machine()),
    "plan": lambda: str(hetero.plan("convolve2d", A, A)),
    "matvec": lambda: np.allclose(hetero.matvec(A, A[0]), A @ A[0]),
    "matmul": lambda: np.allclose(hetero.matmul(A, A), A @ A),
    "opencl": multiplied_elsewhere,
    "fft": lambda: filtered(700, 41, method="fft"),
    "larger image": lambda: filtered(500, 3),
    "products": lambda: hetero.kmeans(rows, 40, init=rows[:40], **PRODUCTS)[2]["inertia"] > 0,
    "calibrate": calibrated,
}
"""


@pytest.fixture
def run(tmp_path):
    def process(script, *arguments, **environment):
        return processes.python("-c", CALLS + script, *arguments, HERE=tmp_path, **environment)

    return process


AT_ONCE = """
together, failed = threading.Barrier(len(OPERATIONS)), []


def call(name):
    together.wait()
    try:
        assert OPERATIONS[name](), name
    except BaseException:
        failed.append(name)
        traceback.print_exc()


threads = [threading.Thread(target=call, args=(name,)) for name in OPERATIONS]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert all([one() for one in OPERATIONS.values()])
sys.exit(1 if failed else 0)
"""


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_threads_make_the_first_calls_at_once(cold, run, tmp_path):
    run(AT_ONCE, **({"XDG_CACHE_HOME": str(tmp_path / "cache")} if cold else {}))


FORKS = """
import faulthandler, signal, time
import scipy.sparse  # what the program itself imports is its own affair

started = threading.Event()


def first():
    started.set()
    OPERATIONS[sys.argv[1]]()


thread = threading.Thread(target=first)
thread.start()
started.wait()
children = []
for _ in range(4):
    time.sleep(float(sys.argv[2]))
    child = os.fork()
    if child == 0:
        faulthandler.register(signal.SIGALRM, chain=True)  # says where it waits, and ends
        signal.alarm(60)
        for name in ("matmul", sys.argv[1]):
            assert OPERATIONS[name](), name
        os._exit(0)
    children.append(child)
thread.join()
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.exit(f"children ended with {codes}" if any(codes) else 0)
"""


@pytest.mark.parametrize(("name", "milliseconds"), [("convolve2d", 60), ("KMeans", 5)])
def test_a_fork_beside_the_first_call_of_another_thread(name, milliseconds, run):
    run(FORKS, name, str(milliseconds / 1000))


AT_EXIT = """
import atexit, time
import concurrent.futures.thread  # which SciPy 1.18 imports, and which cannot be imported later


def call(where):
    for name, made in OPERATIONS.items():
        if name not in ("multigrid", "dst", "machine", "opencl", "calibrate"):
            assert made(), (where, name)
    print(where)


def late():
    time.sleep(0.3)
    call("thread")


class Last:
    def __del__(self):
        try:
            assert np.array_equal(hetero.matmul(A, A), A @ A)
        except ImportError:  # so near the end nothing can be imported any more
            pass


if sys.argv[1] == "used before":
    call("main")
atexit.register(call, "exit")
threading.Thread(target=late).start()
last = Last()
"""


@pytest.mark.parametrize("before", ["used before", "not used before"])
def test_calls_at_the_interpreters_end(before, run):
    assert run(AT_EXIT, before).stdout.split()[-2:] == ["thread", "exit"]


SMALL = {
    "cg": """
A, b = sp.csr_array(sp.diags_array([4.0] * 9)), np.ones(9)
solve = lambda: hetero.solve_cg(A, b)[1]
""",
    "poisson": """
f = np.ones((9, 9))
solve = lambda: int((hetero.solve_poisson(f, device="cpu", method="dst") <= 0).sum())
""",
}


@pytest.mark.parametrize("solve", SMALL.values(), ids=SMALL)
def test_many_small_solves_import_numba_in_the_end(solve):
    """Not the first one; and the later ones are planned anew."""
    done = processes.python(
        "-c",
        f"""
import sys, numpy as np, scipy.sparse as sp, hetero
from hetero.ops.solvers import systems
{solve}
def found():
    return solve(), "numba" in sys.modules
print(found(), found())
systems._IMPORT = 0.0
print(found(), found())
""",
    )
    assert done.stdout.splitlines() == ["(0, False) (0, False)", "(0, True) (0, True)"]
