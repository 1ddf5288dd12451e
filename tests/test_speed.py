"""What hetero itself may cost: the best of several rounds, as other work may share the machine."""

from __future__ import annotations

import functools
from statistics import median
from time import perf_counter, sleep

import numpy as np
import processes
import pytest

import hetero
from hetero import tables
from hetero.calling import planner
from hetero.ops.products.public import matmul_problem
from hetero.profile import inventory

pytestmark = [pytest.mark.timing, pytest.mark.optimised]
ROUNDS = 25


def best_round(measure, good_enough):
    """The smallest of several measurements, in seconds; no more of them than it takes."""
    found = []
    for _ in range(ROUNDS):
        found.append(measure())
        if found[-1] <= good_enough:
            break
        sleep(0.1)  # a machine's noise lasts longer than one measurement
    return min(found)


def seconds(function):
    """How long a call takes."""
    start = perf_counter()
    function()
    return perf_counter() - start


def longer(ours, theirs, calls, share=1.0):
    """By how many seconds one function takes longer than ``share`` times another, in the median.

    In turn, so that a slower spell of the machine hits both alike.
    """
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(calls)]
    return median(one for one, _ in pairs) - share * median(other for _, other in pairs)


@pytest.mark.parametrize(
    ("name", "m", "k", "dtype", "share"),
    [("matmul", 32, 32, "f4", 1.0)]
    + [("matvec", m, k, "f8", 1.05) for m, k in ((64, 64), (2000, 16), (300, 300))],
)
def test_a_product_costs_two_microseconds_more_than_numpys(name, m, k, dtype, share):
    """And 5 % of a matvec, on a machine without a GPU."""
    A = np.ones((m, k), dtype)
    x = A if name == "matmul" else A[0]
    ours, numpys = (functools.partial(getattr(of, name), A, x) for of in (hetero, np))
    ours()
    more = functools.partial(longer, ours, numpys, 200, share)
    assert best_round(more, 2e-6) <= 2e-6


@pytest.mark.parametrize("name", ["matmul", "matvec"])
def test_a_small_product_of_any_shape_costs_little_more_than_numpys(name):
    """Where the CPU is the only place: new shapes, and the same ones again."""
    ours, numpys = getattr(hetero, name), getattr(np, name)
    if not inventory.is_host_alone(None):
        pytest.skip("prices decide between the CPU and a GPU here")
    shapes = [(m, k, n) for m in range(2, 12) for k in range(2, 12) for n in range(2, 12)]
    operands = [(np.ones((m, k)), np.ones((k, n) if name == "matmul" else k)) for m, k, n in shapes]
    operands = operands if name == "matmul" else operands[::10]

    def products(function):
        for A, B in operands:
            function(A, B)

    def excess():
        tables.forget()
        ours(np.ones((99, 3)), np.ones((3, 3) if name == "matmul" else 3))
        each = [functools.partial(products, function) for function in (numpys, ours, ours)]
        numpy, new, again = (seconds(one) / len(operands) for one in each)
        return max((new - 1.3 * numpy) / 15e-6, (again - 1.3 * numpy) / 3e-6)

    assert best_round(excess, 1.0) <= 1.0


def test_a_new_shape_is_planned_in_a_hundred_microseconds(cuda):
    """With three devices: the CPU, a GPU with two methods, and OpenCL where it is here.

    On a processor that runs Python slowly, in as long as it takes for 3600 steps of a generator.
    """
    shapes = iter(range(100, 10**6))

    steps = [seconds(lambda: sum(i * i for i in range(3600))) for _ in range(50)]
    bar = max(1e-4, min(steps))

    def planned(A, B):
        return seconds(lambda: planner.plan(matmul_problem(A, B)))

    def planning():
        of = [np.empty((next(shapes), 3), np.float32) for _ in range(100)]
        return median(planned(A, np.empty(A.shape[::-1], np.float32)) for A in of)

    assert best_round(planning, bar) <= bar


IMPORT = """
import numpy
from time import perf_counter
start = perf_counter()
import hetero
print(perf_counter() - start)
"""


def test_import_takes_fifty_milliseconds():
    def importing():
        return float(processes.python("-c", IMPORT).stdout)

    assert best_round(importing, 0.05) <= 0.05


def _systems(n, dtype):
    """A dense, a sparse and a hidden matrix of a small system, and its right-hand side."""
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import aslinearoperator

    A = (2.5 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)).astype(dtype)
    b = np.random.default_rng(0).random(n).astype(dtype)
    return {"dense": A, "csr": csr_array(A), "operator": aslinearoperator(A)}, b


@pytest.mark.parametrize("kind", ["dense", "csr", "operator"])
def test_a_small_solve_costs_no_more_than_scipys(kind):
    """At most 1.3 times SciPy's and 1.5 us, both with the true residual, as ours computes it."""
    from scipy.sparse.linalg import cg

    for n, dtype in ((2, "f8"), (3, "f4"), (20, "f8"), (200, "f4")):
        systems, b = _systems(n, dtype)
        A = systems[kind]
        ours = functools.partial(hetero.solve_cg, A, b)
        theirs = lambda A=A, b=b: np.linalg.norm(b - A @ cg(A, b)[0])  # noqa: E731
        ours()
        more = functools.partial(longer, ours, theirs, 40, 1.3)
        assert best_round(more, 1.5e-6) <= 1.5e-6, (n, dtype)


@pytest.mark.parametrize("kind", ["dense", "csr", "operator"])
def test_a_solve_of_a_new_size_costs_little_more(kind):
    """At most 1.3 times SciPy's and 15 us: what cannot be remembered is looked at."""
    from scipy.sparse.linalg import cg

    sizes = iter(range(3, 10**6))
    hetero.solve_cg(*[s[kind] if isinstance(s, dict) else s for s in _systems(2, "f8")])

    def slower():
        ours, theirs = [], []
        for _ in range(20):
            systems, b = _systems(next(sizes), "f8")
            A = systems[kind]
            cg(A, b)
            ours.append(seconds(functools.partial(hetero.solve_cg, A, b)))
            theirs.append(seconds(functools.partial(cg, A, b)))
        return median(ours) - 1.3 * median(theirs)

    assert best_round(slower, 15e-6) <= 15e-6


def in_turn(ours, theirs, is_long):
    """Seconds of two functions: the least of 9 or 99 calls of each, which noise lengthens least.

    Threads of the one's library spin for some 10 ms after a call, on cores that the other wants.
    """
    times = {ours: [], theirs: []}
    turns, calls = (3, 3) if is_long else (11, 9)
    for _ in range(turns):
        for function in (ours, theirs):
            sleep(0.02)
            times[function] += [seconds(function) for _ in range(calls)]
    return min(times[ours]), min(times[theirs])


SHAPES = [(15, 15, 15), (31, 31, 31), (2000, 1), (31, 31), (512, 512), (1023, 1023)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_poisson_by_sines_costs_little_more_than_scipys_transforms(shape, dtype):
    """At most a tenth more, of small grids three tenths and 45 us."""
    from scipy.fft import dstn, idstn

    f = np.random.default_rng(0).random(shape).astype(dtype)
    lines = [4 * np.sin(np.pi * np.arange(1, n + 1) / (2 * (n + 1))) ** 2 for n in shape]
    eigenvalues = functools.reduce(np.add.outer, lines).astype(dtype)
    is_long = f.size > 1e5
    more, extra = (1.1, 0.0) if is_long else (1.3, 45e-6)

    def slower():
        ours, scipys = in_turn(
            lambda: hetero.solve_poisson(f, device="cpu", method="dst"),
            lambda: idstn(dstn(f, type=1) / eigenvalues, type=1),
            is_long,
        )
        return (ours - extra) / scipys

    assert best_round(slower, more) <= more


LABELLED = [
    *[("predict", 5000, 512, 5), ("predict", 50000, 64, 5), ("predict", 1, 10, 8)],
    *[("predict", 1000, 10, 8), ("score", 5000, 512, 5), ("predict", 2000, 128, 1000)],
    *[("transform", 2000, 128, 1000), ("transform", 10000, 784, 256), ("fit_predict", 30, 3, 3)],
]
LABELLED = [(*one, dtype) for one in LABELLED for dtype in ("float32", "float64")]


@pytest.mark.parametrize(("what", "n", "d", "k", "dtype"), LABELLED)
def test_kmeans_costs_no_more_than_scikit_learns(what, n, d, k, dtype):
    """At most a tenth more, where rows get labels or distances, and of a tiny fit."""
    cluster = pytest.importorskip("sklearn.cluster")
    rows = np.random.default_rng(0).random((max(n, k), d)).astype(dtype)
    kinds = hetero.KMeans, cluster.KMeans
    fitted = [kind(k, init=rows[:k], n_init=1, max_iter=1).fit(rows) for kind in kinds]
    ours, theirs = (getattr(one, what) for one in fitted)

    def ratio():
        pair = in_turn(lambda: ours(rows[:n]), lambda: theirs(rows[:n]), n * d > 1e5)
        return pair[0] / pair[1]

    assert best_round(ratio, 1.1) <= 1.1
