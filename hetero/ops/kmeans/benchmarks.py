"""What `hetero bench`, `verify` and `demo` ask of k-means, with scikit-learn and torch as peers."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from hetero import devices
from hetero.arrays import spec
from hetero.calling import planner
from hetero.ops import benchmark, demonstration
from hetero.ops.benchmark import Benchmark, Comparison, Iterations, Line, compared, library
from hetero.ops.kmeans import OPERATION, kmeans
from hetero.registry.problem import DEVICE_DTYPES

pictured_result = demonstration.save_quantised

GROWING = (0,)  # rows
FITS = ((1000, 2, 8), (100_000, 32, 64), (1_000_000, 8, 16), (20_000, 128, 256))  # n d k
ITERATIONS = ((1_000_000, 128, 1024), (100_000, 2, 8), (1_000_000, 8, 16), (100_000, 32, 64))
# The data of the 18-645 report (docs/seeds.md) is not published: its shapes, and its rule to stop.
_CMU = (351, 34, 3), (7089, 4, 3), (191_681, 22, 3), (488_565, 8, 3)
CASES = {"cmu": benchmark.Named("float32", _CMU)}
_FEW = 0.001  # of the labels
MOVED, MOVED_BESIDE_CPU = (4_000_000, 64, 256), (20_000, 8, 16)
_ITERATIONS_OF_A_FIT = 20
_LONGEST = 20.0  # predicted seconds of a fit
_ROWS, _COLUMNS, _CLUSTERS = 1 << 18, 256, 256
_WORK = 1 << 29  # n d k at most

LINES = (
    Line("n rows of 16, 16 clusters", benchmark.Axis("n", 256, 1 << 20), lambda n: (n, 16, 16)),
    Line("n rows of 128, 128 clusters", benchmark.Axis("n", 256, 1 << 20), lambda n: (n, 128, 128)),
)


def draw(random: random.Random, on: str, largest: int) -> benchmark.Trial:
    """Random rows, few or many; some iterations from seeds by k-means++."""
    dtype = random.choice(DEVICE_DTYPES)
    most = min(_ROWS, 64 * largest), min(_COLUMNS, largest), min(_CLUSTERS, largest)
    while True:
        n, d, k = (max(1, round(extent ** random.random())) for extent in most)
        if k <= n and n * d * k <= _WORK:
            return benchmark.Trial(
                (spec((n, d), dtype, on=on), k), {"random_state": 0, "max_iter": 10}
            )


def benchmarks(dtype: str, sizes: tuple[tuple[int, ...], ...] | None = None) -> Iterator[Benchmark]:
    """Whole fits from the host, and iterations on rows that lie on a GPU where there is one; of
    ``sizes`` fits until few labels change."""
    fit = partial(Benchmark, what="fit", budget=1.0, least=3, most=9)
    for n, d, k in sizes or ():
        rule = f"until at most {_FEW:.1%} of the labels change"
        case = f"{n} x {d} synthetic, {k} clusters, {rule}, host to host, {dtype}"
        yield fit(case, partial(_until_few_change, n, d, k, dtype))
    for n, d, k in () if sizes else FITS:
        yield fit(_case(n, d, k, dtype), partial(_fits, n, d, k, dtype))
    gpu = None if sizes else benchmark.cuda_device()
    for n, d, k in ITERATIONS if gpu else ():
        case = f"{n} x {d}, {k} clusters, rows on {gpu}, {dtype}"
        yield Benchmark(case, partial(_iterations, gpu, n, d, k, dtype), "iteration")


def moved(dtype: str) -> Iterator[Benchmark]:
    """A fit of many rows on the host."""
    n, d, k = MOVED if benchmark.cuda_device() else MOVED_BESIDE_CPU
    yield benchmark.moved_call(_case(n, d, k, dtype), partial(_fits, n, d, k, dtype, False), "fit")


def demonstrated(largest: int) -> Iterator[Benchmark]:
    """The colours of a photograph, from the same initial centres."""
    X, source = demonstration.colours(min(largest // 2, 1024))
    k = demonstration.COLOURS
    size = f"{X.shape[0]}x{X.shape[1]}, {k} clusters, float32"
    case = f"kmeans {size}: colours of {source}, the same initial centres"
    yield Benchmark(case, partial(_from_the_same, X, k))


def _from_the_same(X: np.ndarray, k: int) -> Comparison:
    options = {"init": X[:: len(X) // k][:k].copy(), "tol": 0.0, "max_iter": _ITERATIONS_OF_A_FIT}
    return compared(OPERATION, (X, k), options, _scikit_learn(X, k, options), "sklearn.cluster")


def _case(n: int, d: int, k: int, dtype: str) -> str:
    return f"{n} x {d}, {k} clusters, {_ITERATIONS_OF_A_FIT} iterations, host to host, {dtype}"


def _rows(n: int, d: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(0).random((n, d), np.float32).astype(dtype)


def _fits(n: int, d: int, k: int, dtype: str, peer: bool = True) -> Comparison:
    """Seeds by k-means++ and some iterations, by every method and by scikit-learn."""
    X = _rows(n, d, dtype)
    options = {"max_iter": _ITERATIONS_OF_A_FIT, "tol": 0.0, "random_state": 0}
    peers = _scikit_learn(X, k, options) if peer else {}
    return compared(OPERATION, (X, k), options, peers, longest=_LONGEST)


def _drawn_around(n: int, d: int, k: int, dtype: str) -> np.ndarray:
    """Rows around k centres, some of them nearer to another one."""
    random = np.random.default_rng(0)
    centres = random.random((k, d))[random.integers(k, size=n)]
    return (centres + random.normal(0.0, 0.3, (n, d))).astype(dtype)


def _until_few_change(n: int, d: int, k: int, dtype: str) -> Comparison:
    """From the first rows as centroids, by every method; as many iterations by scikit-learn."""
    X = _drawn_around(n, d, k, dtype)
    options = {"init": X[:k].copy(), "tol": 0.0, "label_tol": _FEW}
    made = kmeans(X, k, **options)[2]["iterations"]
    rest = {"init": X[:k].copy(), "tol": 0.0, "max_iter": made}
    return compared(OPERATION, (X, k), options, _scikit_learn(X, k, rest), longest=_LONGEST)


def _scikit_learn(
    X: np.ndarray, k: int, options: Mapping[str, Any]
) -> dict[str, benchmark.TimedCall]:
    if (cluster := library("sklearn.cluster")) is None:
        return {}

    def run(turn: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = cluster.KMeans(k, n_init=1, **options).fit(X)
        return fitted.cluster_centers_, fitted.labels_, fitted.n_iter_

    return {"scikit-learn": run}


def _iterations(gpu: str, n: int, d: int, k: int, dtype: str) -> Comparison:
    """One iteration from given centroids, by every method of the GPU's and torch."""
    X = _rows(n, d, dtype)
    start = X[:k].copy()
    there = devices.get(gpu).array_of(X)
    many = 20 if n * d * k > 1 << 33 else 200
    options = {"init": start, "tol": 0.0}

    def by(**placed: str) -> Iterations:
        return Iterations(lambda n: kmeans(there, k, **options, **placed, max_iter=n), 2, many)

    plan = planner.plan_call(OPERATION, (there, k), options)
    calls = benchmark.of_candidates(plan, by, only=gpu)
    torch = library("torch")
    if torch is None or not torch.cuda.is_available():
        return Comparison(calls, {}, benchmark.name_of(plan.chosen))
    rows = torch.from_numpy(X).cuda()

    def by_torch(count: int) -> None:
        """A product, the nearest by argmin, and rows added up by label."""
        centroids = torch.from_numpy(start).cuda()
        ones = torch.ones(len(rows), dtype=rows.dtype, device=rows.device)
        for _ in range(count):
            norms = (centroids**2).sum(dim=1)
            labels = torch.addmm(norms, rows, centroids.T, alpha=-2.0).argmin(dim=1)
            sums = torch.zeros_like(centroids).index_add_(0, labels, rows)
            number = torch.zeros_like(norms).index_add_(0, labels, ones)
            centroids = sums / number.clamp(min=1)[:, None]
        torch.cuda.synchronize()

    return Comparison(
        calls, {"torch": Iterations(by_torch, 2, many)}, benchmark.name_of(plan.chosen)
    )
