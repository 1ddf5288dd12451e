"""Whose threads run the loops."""

import functools
import json
import os

import processes
import pytest

from hetero.host import threads

PROGRAM = """
import os
import numpy as np
import numba
from hetero.host import threads
from hetero.kernels.cpu import vectors

x = np.ones(1 << 20)
assert vectors.norm(x) == 1024.0
child = os.fork()
if child == 0:  # its loops run unthreaded
    os._exit(0 if vectors.norm(x) == 1024.0 else 3)
assert os.waitpid(child, 0)[1] == 0
print(numba.threading_layer(), threads.describe())
"""


@pytest.mark.skipif(not threads._has_tbb(), reason="the package tbb is not here")
@pytest.mark.parametrize("chosen", [None, "omp"])
def test_whose_threads_run_the_loops(chosen):
    """TBB's, where pip installed it and the user chose no others."""
    unset = dict.fromkeys(key for key in os.environ if "NUMBA_THREADING" in key)
    done = processes.python("-c", PROGRAM, **unset | {"NUMBA_THREADING_LAYER": chosen})
    assert done.stdout == ("omp OpenMP\n" if chosen else "tbb TBB\n"), done.stderr
    assert "fork" not in done.stderr


# -- one thread and several ------------------------------------------------------------------------

FAMILIES = {
    "conjugate gradients, grid": """
P = hetero.Poisson((300, 301), dtype=dtype)
b = draw(P.shape[0])
found = [P @ b] + [hetero.solve_cg(P, b, M=M, maxiter=15, **on)[0] for M in (None, "jacobi")]
""",
    "conjugate gradients, rows": """
A = hetero.Poisson((31, 40, 50), dtype=dtype).tocsr()
b = draw(A.shape[0])
found = [hetero.solve_cg(A, b, M=M, maxiter=15, **on)[0] for M in (None, "jacobi")]
""",
    "conjugate gradients, dense": """
A, b = np.eye(300, dtype=dtype) * 300 + draw(300, 300) * 0.1, draw(1 << 18)
found = [hetero.solve_cg(A + A.T, b[:300], maxiter=9, **on)[0]]
x, r, p, q = (b * k for k in (1, 2, 3, 4))
found += [vectors.step(x, r, p, q, 0.3), vectors.dot(x, r), x, r]
""",
    "multigrid": """
found = [hetero.solve_poisson(draw(*n), method="multigrid", **on) for n in SHAPES]
""",
    "jacobi": """
found = []
for shape in SHAPES:
    u, info = hetero.solve_poisson(draw(*shape), method="jacobi", rtol=0.5, return_info=True, **on)
    found += [u, info["relative_residual"]]
""",
    "k-means": """
X, found = draw(20_001, 17), []
for k in (9, 100):  # the second one with bounds
    centroids, labels, info = hetero.kmeans(X, k, random_state=0, max_iter=8, method="lloyd", **on)
    found += [centroids, labels, info["inertia"]]
""",
    "convolution": """
image, taps = draw(400, 501), draw(7, 9)
found = [hetero.convolve2d(image, taps, boundary=b, method="direct", **on) for b in EDGES]
found += ranges.block_sums(image[None], 32, 32)
""",
}
BITS = """
import hashlib, json, sys
import numba, numpy as np
import hetero
from hetero.kernels.cpu import ranges, vectors

EDGES, SHAPES, on = ("fill", "wrap", "symm"), ((200, 301), (31, 40, 50)), {"device": "cpu"}
for threads in map(int, sys.argv[1].split(",")):
    numba.set_num_threads(threads)
    for family, code in json.loads(sys.argv[2]).items():
        for dtype in ("float32", "float64"):
            draw = lambda *n: np.random.default_rng(0).standard_normal(n).astype(dtype)
            exec(code)
            digest = hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in found))
            print(family, dtype, digest.hexdigest(), sep=":")
"""


@functools.cache
def bits():
    """What each family's loops gave, on one thread and on several, and on several and on one."""
    given = ["-W", "ignore", "-c", BITS]
    orders = "1", "4,1", "1,4"  # the first process may have to compile, which is not looked at
    done = [
        processes.python(*given, order, json.dumps(FAMILIES), NUMBA_NUM_THREADS="4")
        for order in orders
    ]
    return [line.split(":") for process in done[1:] for line in process.stdout.splitlines()]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_thread_and_several_give_the_same_bits(family):
    """Whichever of them a process used first."""
    found = [(dtype, digest) for name, dtype, digest in bits() if name == family]
    assert len(found) == 8
    assert len(set(found)) == 2, found


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
    processes.python("-c", SILENT_FORK, timeout=120, NUMBA_THREADING_LAYER=threads_of)
