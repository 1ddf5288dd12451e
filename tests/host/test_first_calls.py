"""The first calls of a process: by several threads at once, and while another thread forks."""

from __future__ import annotations

import os
import random

import processes
import pytest

TIMES = int(os.environ.get("FIRST_CALLS", "2"))  # processes; 30 take a minute and a half
COLD = (1, 21)  # those of them that have nothing compiled

CALLS = """
import os, sys, threading, traceback
import numpy as np
import hetero

A, b = np.random.default_rng(0).random((40, 40)), np.ones(100)
rows = [(i, j) for i in range(100) for j in (i - 1, i, i + 1) if 0 <= j < 100]


def solved_cg():
    from scipy.sparse import csr_array
    i, j = np.transpose(rows)
    S = csr_array((np.where(i == j, 4.0, -1.0), (i, j)), shape=(100, 100))
    x, info = hetero.solve_cg(S, b, rtol=1e-10)
    assert info == 0 and np.allclose(S @ x, b)


def solved_poisson(method):
    u = hetero.solve_poisson(A, method=method)
    S = hetero.Poisson(A.shape)
    assert np.allclose(S @ u.ravel(), A.ravel(), atol=1e-5), method


def convolved():
    assert np.allclose(hetero.convolve2d(A, A[:3, :3], "valid")[0, 0],
                       (A[:3, :3] * A[2::-1, 2::-1]).sum())


def multiplied(device=None):
    assert np.allclose(hetero.matmul(A, A, device=device), A @ A)


def multiplied_elsewhere():
    try:
        multiplied("opencl:0")
    except hetero.errors.DeviceNotAvailable:
        pass


def clustered(X=np.arange(300.0).reshape(100, 3)):
    assert sorted(set(hetero.kmeans(X, 3, random_state=0, max_iter=5)[1])) == [0, 1, 2]


def fitted():
    assert hetero.KMeans(2, random_state=0, n_init=1).fit(A).labels_.shape == (40,)


def calibrated():
    hetero.calibrate(True, only="matvec", path=os.environ["HERE"] + "/profile.json")


OPERATIONS = {
    "convolve2d": convolved,
    "solve_cg": solved_cg,
    "multigrid": lambda: solved_poisson("multigrid"),
    "dst": lambda: solved_poisson("dst"),
    "kmeans": clustered,
    "KMeans": fitted,
    "machine": lambda: str(hetero.machine()),
    "plan": lambda: str(hetero.plan("convolve2d", A, A)),
    "matvec": lambda: hetero.matvec(A, A[0]),
    "matmul": multiplied,
    "opencl": multiplied_elsewhere,
    "calibrate": calibrated,
}
"""

AT_ONCE = """
names = sys.argv[1].split(",")
together, failed = threading.Barrier(len(names)), []


def call(name):
    together.wait()
    try:
        OPERATIONS[name]()
    except BaseException:
        failed.append(name)
        traceback.print_exc()


threads = [threading.Thread(target=call, args=(name,)) for name in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
[OPERATIONS[name]() for name in names]
sys.exit(1 if failed else 0)
"""


def run(script, *arguments, **environment):
    return processes.python("-c", CALLS + script, *arguments, **environment)


@pytest.mark.parametrize("time", range(TIMES))
def test_eight_threads_make_the_first_calls_at_once(time, tmp_path):
    names = ["convolve2d", "solve_cg", "multigrid", "dst", "kmeans", "KMeans", "machine"]
    names += ["plan", "matvec", "matmul", "opencl"]
    drawn = random.Random(time).sample(names, 7 if time % 10 == 0 else 8)
    drawn += ["calibrate"] * (time % 10 == 0)
    cold = {"XDG_CACHE_HOME": str(tmp_path / "cache")} if time in COLD else {}
    run(AT_ONCE, ",".join(drawn), HERE=str(tmp_path), **cold)


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
            OPERATIONS[name]()
        os._exit(0)
    children.append(child)
thread.join()
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
sys.exit(f"children ended with {codes}" if any(codes) else 0)
"""


@pytest.mark.parametrize(("name", "milliseconds"), [("convolve2d", 60), ("KMeans", 5)])
def test_a_fork_beside_the_first_call_of_another_thread(name, milliseconds):
    run(FORKS, name, str(milliseconds / 1000))


ALONE = """
def refuse(thread):
    raise RuntimeError("can't start new thread")


threading.Thread.start = refuse
for _ in range(2):
    for name in sys.argv[1].split(","):
        OPERATIONS[name]()
"""


def test_calls_of_a_process_that_may_not_start_threads(tmp_path):
    names = "matvec,convolve2d,solve_cg,multigrid,dst,kmeans,KMeans,machine,plan,matmul,opencl"
    run(ALONE, names, XDG_CACHE_HOME=str(tmp_path / "cache"))


def test_many_small_solves_import_numba_in_the_end():
    """Not the first one; and the later ones are planned anew."""
    done = processes.python(
        "-c",
        """if True:
        import sys, numpy as np, scipy.sparse as sp, hetero
        from hetero.ops.solvers import cg
        A, b = sp.csr_array(sp.diags_array([4.0] * 9)), np.ones(9)
        def methods():
            return hetero.solve_cg(A, b)[1], "numba" in sys.modules
        print(methods(), methods())
        cg._IMPORT = 0.0
        print(methods(), methods())
        """,
    )
    assert done.stdout.splitlines() == ["(0, False) (0, False)", "(0, True) (0, True)"]
