"""The CPU's loops: no index beyond an array's end, the same bits on any number of threads, whose
threads these are, and what a fork's child does without them."""

import os
import signal
import threading
import time
from pathlib import Path

import numba
import numpy as np
import processes
import pytest

import hetero
from hetero.host import threads

IN_BOUNDS = """
import warnings
import numpy as np
import hetero
from hetero.ops.kmeans import compiled_cpu
warnings.simplefilter("ignore")
for shape in (40, 40), (33, 30), (1, 50), (50, 2), (6, 9, 11), (9, 1, 8), (20, 21, 18):
    A, b = hetero.Poisson(shape), np.ones(np.prod(shape))
    for matrix in (A, A.tocsr()):
        for M in (None, "jacobi"):
            hetero.solve_cg(matrix, b, M=M, method="numba", device="cpu", maxiter=5)
    hetero.solve_poisson(np.ones(shape), method="jacobi", device="cpu", maxiter=9)
    hetero.solve_poisson(np.ones(shape), method="multigrid", device="cpu")
compiled_cpu.compile_clusters(np.dtype("float64"))
compiled_cpu.compile_bounds(np.dtype("float64"))
X = np.random.default_rng(0).random((777, 5))
for k in (1, 7, 65):
    for least in (1 << 20, 0):
        compiled_cpu._LEAST = compiled_cpu._COSTLY = least
        hetero.kmeans(X, k, n_init=1, max_iter=4, method="lloyd", device="cpu", random_state=0)
"""


def test_no_loop_leaves_its_arrays():
    """An index beyond an end is an error here."""
    cache = Path(os.environ["NUMBA_CACHE_DIR"]) / "in-bounds"  # Numba's key does not tell them
    environment = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    processes.python("-c", IN_BOUNDS, **environment)


rng = np.random.default_rng(7)
GRID = hetero.Poisson((320, 325))  # enough unknowns to be shared
B = rng.standard_normal(GRID.shape[0])
IMAGE = rng.standard_normal((2, 301, 700))
ROWS = rng.standard_normal((30_000, 8)).astype("f4")
FILTERS = [rng.random((m, 1)) * rng.random(n) for m, n in ((3, 3), (15, 14), (2, 1), (1, 31))]


def convolved(method):
    filters = FILTERS if method == "direct" else FILTERS[:2]
    options = {"mode": "same", "boundary": "wrap", "method": method}
    return [hetero.convolve2d(IMAGE, taps, **options) for taps in filters]


def fitted():
    centroids, labels, info = hetero.kmeans(ROWS, 16, random_state=0, max_iter=20, method="lloyd")
    return centroids, labels, info["inertia"]


CALLS = {
    "cg, grid": lambda: hetero.solve_cg(GRID, B, maxiter=15, method="numba"),
    "cg, sparse": lambda: hetero.solve_cg(GRID.tocsr(), B, maxiter=15, method="numba"),
    "direct": lambda: convolved("direct"),
    "separable": lambda: convolved("separable"),
    "kmeans": fitted,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits_whatever_the_number_of_threads(name):
    most, found = numba.get_num_threads(), []
    try:
        for number in (most, most, 1):
            numba.set_num_threads(number)
            with hetero.use(device="cpu"):
                found.append([np.asarray(result).tobytes() for result in CALLS[name]()])
            assert numba.get_num_threads() == number
    finally:
        numba.set_num_threads(most)
    assert found[0] == found[1] == found[2]


LAYERS = """
import ctypes, os
import numba, numpy as np
from hetero.host import threads
from hetero.kernels.cpu import vectors

x, A = np.ones(1 << 20), np.ones((600, 600))

def loop():
    A @ A
    assert vectors.norm(x) == 1024.0

loop()
for fork in os.fork, ctypes.PyDLL(None).fork:  # Python does not know of the second one
    child = fork()
    if child == 0:
        loop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    loop()
print(numba.threading_layer(), threads.describe())
"""


@pytest.mark.skipif(not threads._has_tbb(), reason="the package tbb is not here")
@pytest.mark.parametrize("chosen", [None, "omp"])
def test_loops_run_on_tbb_unless_another_layer_is_chosen(chosen):
    unset = dict.fromkeys(key for key in os.environ if "NUMBA_THREADING" in key)
    unset["PYTHONWARNINGS"] = "ignore::DeprecationWarning"  # which says "fork" from Python 3.12 on
    done = processes.python("-c", LAYERS, timeout=120, **unset | {"NUMBA_THREADING_LAYER": chosen})
    assert done.stdout == ("omp OpenMP\n" if chosen else "tbb TBB\n"), done.stderr
    assert "fork" not in done.stderr


def test_a_fork_waits_while_another_thread_compiles():
    lines = "\n".join(f"    x = x * {k}.5 + (x if x > {k} else {k} - x)" for k in range(80))
    space = {}
    exec(f"def slow(x):\n{lines}\n    return x", space)
    thread = threading.Thread(target=lambda: numba.njit(space["slow"])(1.0))
    thread.start()
    time.sleep(0.1)
    assert thread.is_alive()

    def compiles():
        signal.alarm(20)  # ends who waits for ever
        return numba.njit(lambda x: x + 1)(1) == 2

    assert processes.forked(compiles)
    thread.join()
