"""Whose threads run the loops."""

import functools
import json
import os
from pathlib import Path
from types import SimpleNamespace

import processes
import pytest
from numba.core import config
from numba.np.ufunc import parallel

from hetero.host import threading_layer

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


OLD = SimpleNamespace(TBB_runtime_interface_version=lambda: 12050)
NONE = {"_PACKAGE": "no-such-package", "_LIBRARY": "libnosuch.so.12"}
DAMAGED = Path(__file__)  # no library
REASONS = [
    (NONE, "TBB is not installed: pip install no-such-package"),
    ({**NONE, "_COMES_FOR": ("another", "system")}, "does not come for"),
    ({"_LIBRARY": "libnosuch.so.12", "installed": lambda: DAMAGED}, "cannot be loaded"),
    ({"_loaded": [OLD]}, "too old: its interface is 12050"),
    (
        {"_running": lambda: "omp", "installed": lambda: DAMAGED},
        "omp, because Numba's threads were started before hetero's loops",
    ),
]


@pytest.mark.parametrize(("changes", "said"), REASONS, ids=[said[:15] for _, said in REASONS])
def test_why_loops_do_not_run_on_tbb(unstarted, changes, said):
    for name, value in changes.items():
        unstarted.setattr(threading_layer, name, value)
    assert said in threading_layer.describe()


@pytest.mark.parametrize("choice", ["omp", "workqueue"])
def test_nothing_is_loaded_where_the_user_wants_another(unstarted, choice):
    unstarted.setattr(config, "THREADING_LAYER", choice)
    unstarted.setattr(threading_layer, "installed", lambda: pytest.fail("looked for TBB"))
    assert threading_layer.describe() == f"{choice}, as Numba's configuration says"


PROGRAM = """
import os
import numpy as np
from hetero.host import threading_layer
from hetero.kernels.cpu import vectors
from numba.np.ufunc import parallel

x = np.ones(1 << 20)
assert vectors.norm(x) == 1024.0
child = os.fork()
if child == 0:  # its loops run unthreaded
    os._exit(0 if vectors.norm(x) == 1024.0 else 3)
assert os.waitpid(child, 0)[1] == 0
print(parallel.threading_layer(), threading_layer.describe())
"""


@needs_tbb
def test_loops_run_on_tbb():
    unset = dict.fromkeys(key for key in os.environ if "NUMBA_THREADING" in key)
    done = processes.python("-c", PROGRAM, **unset)
    assert done.stdout == "tbb TBB\n", done.stderr
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
