"""What verify, bench, demo, transfer and the report ask of each operation: random calls, the sizes
that are compared, their operands, and the same by other libraries.

`of` gives an operation's `Problems`. Dimensions are as the command line takes them.
"""

from __future__ import annotations

import inspect
import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from hetero import devices
from hetero.arrays import HOST, spec
from hetero.devices.base import Device
from hetero.errors import DeviceNotAvailable
from hetero.host import cpu
from hetero.imports import load
from hetero.ops.convolve2d import LARGEST_DOWNLOADED
from hetero.ops.convolve2d.problem import BOUNDARIES, MODES
from hetero.registry import DEVICE_DTYPES, Operation

Dims = tuple[int, ...]
Call = Callable[[], object]
COUNT = 200  # iterations of solve_cg that are compared
_FITTED = 20  # of kmeans
_LARGEST_DIRECT = 1e8  # products of numbers, of SciPy's direct convolution
_LARGEST_FOR_PYAMG = 1024
_LARGEST_IMAGE, _LARGEST_FILTER = 4096, 129  # that are drawn, as what follows
_SYSTEMS = {"dense": 2048, "stored": 1024, "matrix-free": 1024, "operator": 512}
_GRIDS = {2: 2048, 3: 128}  # by the number of axes
_CLUSTERED, _CLUSTERS_WORK = (1 << 18, 256, 256), 1 << 29  # rows, columns, clusters; n d k
_SPREAD = 100.0  # of dense systems, which then need more than `COUNT` iterations


class Trial(NamedTuple):
    """One call; of an operand for which any numbers will do, a `hetero.spec`."""

    operands: tuple[Any, ...]
    options: Mapping[str, Any] = {}


class Named(NamedTuple):
    """Sizes that somebody else measured."""

    dtype: str
    sizes: tuple[Dims, ...]


class Line(NamedTuple):
    """Problems over one size, which has a name: ``dims(n)`` for n from least to most."""

    text: str
    name: str
    least: int
    most: int
    dims: Callable[[int], Dims]


class Problems:
    """What is asked of an operation, and what other libraries do in its place.

    Subclasses have also ``draw(random, on, largest)``: a random `Trial`, its operands on "host" or
    a device, no extent above ``largest``; ``trial(dims, dtype)``: that of a size, with random
    operands on the host; and ``peers(trial)``: calls of the CPU's libraries by name.
    """

    sizes: tuple[Dims, ...]  # that bench compares
    shown: Callable[[int], Sequence[Dims]]  # those of demo, of an extent
    lines: tuple[Line, ...]  # that the report draws
    cases: Mapping[str, Named] = {}  # sizes of documents by name, see docs/seeds.md
    growing: tuple[int, ...] | None = None  # positions of the dimensions that grow with a call's
    # size, the one that tells it first; None: all
    dtype = "float32"
    options: tuple[str, ...] = ()  # of bench: the device and the order of the first operand
    by_cupy: Any = None  # ``by_cupy(cupy, *operands, **options)`` computes the same on a GPU
    by_torch: Any = None


def of(operation: Operation) -> Problems:
    """The problems of an operation."""
    return _PROBLEMS[operation.name]


def cuda_device() -> str | None:
    """The first device with arrays that CuPy and torch take."""
    return next((d.name for d in devices.proven().values() if d.is_cuda), None)


def device_of(name: str | None) -> Device:
    """The device that is named, or the first GPU, or the first one at all; DeviceNotAvailable says
    what is missing."""
    name = name or cuda_device() or next(iter(devices.proven()), None)
    if name is None:
        why = "; ".join(devices.missing())
        ask = "'hetero ladder --device cpu' times the CPU's loops"
        raise DeviceNotAvailable(f"no GPU and no OpenCL device is here: {why}; {ask}")
    return devices.get(name)


def library(name: str) -> Any:
    """A library to compare with; None where it is not installed, or does not work here."""
    try:
        found = load(name)
        if name == "cupy":
            found.empty(1)
    except Exception:  # whatever goes wrong there
        return None
    return found


def _random(shape: Dims, dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape).astype(dtype)


def _log_uniform(draw: random.Random, most: float) -> int:
    return max(2, round(2.0 ** draw.uniform(2, math.log2(most))))


class _Matvec(Problems):
    name, axes = "matvec", 2
    sizes = (
        *((n, n) for n in (32, 512, 1024, 2048, 4096, 8192, 16384, 1000, 3001, 6007)),
        *((64, 1_000_000), (1_000_000, 64), (16, 262144), (262144, 16)),
    )
    lines = (Line("A of n x n", "n", 16, 16384, lambda n: (n, n)),)
    shown = staticmethod(lambda n: ((64, 64), (n, n)))
    options = ("device", "order")

    def draw(self, draw: random.Random, on: str, largest: int) -> Trial:
        """Extents log-uniform, any dtype, every third matrix by columns."""
        dtype, most = draw.choice(DEVICE_DTYPES), largest // (self.axes - 1)
        m, k = _log_uniform(draw, most), _log_uniform(draw, most)
        a = spec((m, k), dtype, on=on, order=draw.choice("CCF"))
        shape = (k, *(_log_uniform(draw, most) for _ in range(self.axes - 2)))
        return Trial((a, spec(shape, dtype, on=on, order=draw.choice("CCF"))))

    def trial(self, dims: Dims, dtype: str, order: str = "C") -> Trial:
        m, *n, k = dims
        A = _random((k, m), dtype).T if order == "F" else _random((m, k), dtype)
        return Trial((A, _random((k, *n), dtype, 1)))

    def peers(self, trial: Trial) -> dict[str, Call]:
        title = f"NumPy {self.name}, BLAS threads: {cpu.describe()['blas_threads']}"
        return {title: lambda: getattr(np, self.name)(*trial.operands)}

    def by_cupy(self, cupy: Any, A: Any, B: Any) -> Any:
        return A @ B

    by_torch = by_cupy


class _Matmul(_Matvec):
    name, axes = "matmul", 3
    shown = staticmethod(lambda n: ((n, n, n),))
    sizes = (
        *((n, n, n) for n in (32, 256, 512, 1024, 2048, 4096, 8192, 16384, 1000, 3001)),
        *((8192, 64, 8192), (64, 8192, 8192), (8192, 8192, 64), (64, 64, 65536)),
        *((32, 4096, 4096), (4096, 32, 4096)),
    )
    lines = (Line("n x n by n x n", "n", 16, 8192, lambda n: (n, n, n)),)
    cases: Mapping[str, Named] = {  # "dtu": sizes that its text names
        "blog": Named("float32", ((2000, 600, 2000),)),
        "cmu": Named("float32", tuple((n, n, n) for n in (5, 8, 10, 32, 33, 1000))),
        "dtu": Named("float64", tuple((n, n, n) for n in (100, 250, 1024, 2000, 4096))),
        "strasbourg": Named("float64", ((4096, 4096, 4096),)),
        "tensor": Named(
            "float32",
            (
                *((n, n, n) for n in (2048, 4096, 8192, 16384, 8191)),
                *((8192, 8192, 1024), (65536, 512, 512)),
            ),
        ),
    }


class _Convolve2d(Problems):
    sizes = tuple(
        (n, n, f, f)
        for n, filters in ((64, (3, 15)), (1024, (3, 15, 63)), (4096, (3, 15, 63, 513)))
        for f in filters
    )
    lines = (
        Line("n x n with a filter of 3 x 3", "n", 32, 8192, lambda n: (n, n, 3, 3)),
        Line("n x n with a filter of 63 x 63", "n", 64, 8192, lambda n: (n, n, 63, 63)),
        Line("1024 x 1024 with a filter of f x f", "f", 1, 127, lambda f: (1024, 1024, f, f)),
    )
    growing = (0, 1)
    shown = staticmethod(lambda n: [(n, n, f, f) for f in (3, 15, 63) if f <= n])

    def draw(self, draw: random.Random, on: str, largest: int) -> Trial:
        """Image and filter with log-uniform extents, about as high as wide; every third filter has
        rank 1."""
        dtype = draw.choice(DEVICE_DTYPES)

        def shape(least: int, most: int) -> tuple[int, int]:
            size = least * (most / least) ** draw.random()
            skew = draw.choice((1.0, 1.0, draw.uniform(0.5, 2.0)))
            return max(round(size * skew), 1), max(round(size / skew), 1)

        image = shape(16, min(largest // 2, _LARGEST_IMAGE))
        height, width = (min(f, n) for f, n in zip(shape(1, _LARGEST_FILTER), image, strict=True))
        options = {"mode": draw.choice(MODES), "boundary": draw.choice(BOUNDARIES)}
        on_host = on == HOST or height * width <= LARGEST_DOWNLOADED
        low_rank = draw.random() < 1 / 3 and height * width > height + width and on_host
        rng, values = np.random.default_rng(3), spec((height, width), dtype, on=on)
        if low_rank:
            values = np.outer(0.1 + rng.random(height), 0.1 + rng.random(width)).astype(dtype)
        elif on_host:
            values = (rng.random((height, width)) - 0.5).astype(dtype)
        return Trial((spec(image, dtype, on=on), values), options)

    def trial(self, dims: Dims, dtype: str) -> Trial:
        image, values = _random(dims[:2], dtype) - 0.5, _random(dims[2:], dtype, 1) - 0.5
        return Trial((image.astype(dtype), values.astype(dtype)), {"mode": "same"})

    def peers(self, trial: Trial) -> dict[str, Call]:
        """Direct ones of SciPy's where they do not take long."""
        (image, values), signal = trial.operands, load("scipy.signal")
        calls: dict[str, Call] = {
            "SciPy fftconvolve": lambda: signal.fftconvolve(image, values, "same"),
            "SciPy oaconvolve": lambda: signal.oaconvolve(image, values, "same"),
        }
        if image.size * values.size < _LARGEST_DIRECT:
            ndimage = load("scipy.ndimage")
            calls["SciPy convolve2d"] = lambda: signal.convolve2d(image, values, "same")
            calls["SciPy ndimage"] = lambda: ndimage.convolve(image, values, mode="constant")
        if (cv2 := library("cv2")) is not None:
            flipped = np.ascontiguousarray(values[::-1, ::-1])
            rest = {"anchor": (values.shape[1] // 2, values.shape[0] // 2)}
            rest |= {"borderType": cv2.BORDER_CONSTANT}
            calls["OpenCV filter2D"] = lambda: cv2.filter2D(image, -1, flipped, **rest)
        return calls

    def by_cupy(self, cupy: Any, image: Any, values: Any, mode: str) -> Any:
        signal = load("cupyx.scipy.signal")
        return (signal.convolve2d if len(values) <= 3 else signal.fftconvolve)(image, values, mode)

    def by_torch(self, torch: Any, image: Any, values: Any, mode: str) -> Any:
        taps, size = values.flip(0, 1)[None, None], values.shape[0]
        return torch.nn.functional.conv2d(image[None, None], taps, padding=size // 2)


class _Cg(Problems):
    sizes = (*((n, n) for n in (512, 1024, 2048, 4096)), (512,), (2048,), (8192,))
    lines = (
        Line("five-point operator on n x n points", "n", 16, 4096, lambda n: (n, n)),
        Line("dense, of n x n", "n", 16, 8192, lambda n: (n,)),
    )
    # Smaller ones would be solved before all iterations are made.
    shown = staticmethod(lambda n: ((min(max(n // 8, 64), 512),) * 2,))
    dtype = "float64"

    def draw(self, draw: random.Random, on: str, largest: int) -> Trial:
        """The five-point operator, matrix-free, stored or as SciPy's, or a dense matrix."""
        dtype, kind = draw.choice(DEVICE_DTYPES), draw.choice(tuple(_SYSTEMS))
        n, m = (_log_uniform(draw, min(largest, _SYSTEMS[kind])) for _ in range(2))
        if kind == "dense":
            return Trial((_dense(n, dtype), spec(n, dtype, on=on)))
        A = _operator((n, m), dtype)
        if kind != "matrix-free":
            A = A.tocsr()
        if kind == "operator":
            A = load("scipy.sparse.linalg").aslinearoperator(A)
        return Trial((A, spec(n * m, dtype, on=on)))

    def trial(self, dims: Dims, dtype: str) -> Trial:
        """A dense matrix of N, the operator on NY NX; iterations that do not converge."""
        A = _dense(*dims, dtype, _SPREAD) if len(dims) == 1 else _operator(dims, dtype)
        return Trial((A, _random((math.prod(dims),), dtype)), {"rtol": 0.0, "maxiter": COUNT})

    def peers(self, trial: Trial) -> dict[str, Call]:
        """SciPy's with its BLAS's threads, which are slow to wake for each vector, and with one."""
        (A, b), linalg = trial.operands, load("scipy.sparse.linalg")
        matrix = A.tocsr() if hasattr(A, "tocsr") else A
        kind = "dense" if isinstance(matrix, np.ndarray) else "CSR"

        def solved() -> Any:
            return linalg.cg(matrix, b, **trial.options)

        return {
            f"SciPy, {kind}": solved,
            f"SciPy, {kind}, BLAS threads: 1": cpu.one_thread()(solved),
        }

    def by_cupy(self, cupy: Any, A: Any, b: Any, rtol: float, maxiter: int) -> Any:
        """With tolerances that no residual meets."""
        cg = load("cupyx.scipy.sparse.linalg").cg
        if hasattr(A, "tocsr"):
            A = load("cupyx.scipy.sparse").csr_matrix(A.tocsr())
        renamed = "rtol" if "rtol" in inspect.signature(cg).parameters else "tol"
        return cg(A, b, atol=0.0, maxiter=maxiter, **{renamed: rtol})


def _operator(shape: Dims, dtype: str) -> Any:
    return load("hetero.ops.solvers.operators").Poisson(shape, dtype=dtype)


def _dense(n: int, dtype: str, spread: float = 1.0) -> np.ndarray:
    """A random symmetric matrix that is positive definite.

    Its rows and columns are scaled by factors from 1 to 1 / spread: it has a wide spectrum then.
    """
    A = np.random.default_rng(1).random((n, n), dtype=np.float32).astype(dtype)
    A += A.T
    A[np.diag_indices(n)] += 4.0 * math.sqrt(n)
    factors = np.geomspace(1.0, 1.0 / spread, n, dtype=dtype)
    A *= factors
    A *= factors[:, None]
    return A


class _Poisson(Problems):
    sizes = tuple((n, n) for n in (128, 256, 1024, 2048, 4096))
    lines = (
        Line("n x n points", "n", 16, 4096, lambda n: (n, n)),
        Line("n x n x n points", "n", 8, 256, lambda n: (n, n, n)),
    )
    cases: Mapping[str, Named] = {
        "dtu": Named("float64", tuple((n, n) for n in (16, 32, 64, 128, 256)))
    }
    dtype = "float64"
    # Squares that sine transforms like, and ones that they do not.
    shown = staticmethod(lambda n: ((n // 4 - 1,) * 2, (n // 2,) * 2))

    def draw(self, draw: random.Random, on: str, largest: int) -> Trial:
        """A rectangle or a box, about as high as wide."""
        dtype, ndim = draw.choice(DEVICE_DTYPES), draw.choice((2, 2, 3))
        size = 4 * (min(largest, _GRIDS[ndim]) / 4) ** draw.random()
        shape = tuple(max(2, round(size * draw.uniform(0.7, 1.0))) for _ in range(ndim))
        return Trial((spec(shape, dtype, on=on),))

    def trial(self, dims: Dims, dtype: str) -> Trial:
        return Trial((_random(dims, dtype, 2),), {"rtol": 1e-8 if dtype == "float64" else 1e-4})

    def peers(self, trial: Trial) -> dict[str, Call]:
        """SciPy's sine transforms on one thread and on one for each core, and PyAMG's multigrid as
        preconditioner of conjugate gradients, without its set-up."""
        (f,), fft = trial.operands, load("scipy.fft")
        axes = [2.0 - 2.0 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1)) for n in f.shape]
        eigenvalues = reduce(np.add.outer, axes).astype(f.dtype)

        def transformed(workers: int) -> Any:
            spectrum = fft.dstn(f, type=1, workers=workers) / eigenvalues
            return fft.idstn(spectrum, type=1, workers=workers)

        calls: dict[str, Call] = {
            f"SciPy dstn, idstn, workers: {count}": partial(transformed, count)
            for count in sorted({1, cpu.describe()["cores"]})
        }
        if len(f) <= _LARGEST_FOR_PYAMG and f.dtype == float and (pyamg := library("pyamg")):
            solver = pyamg.ruge_stuben_solver(_operator(f.shape, "float64").tocsr())

            def solved() -> tuple[Any, int]:
                residuals: list[float] = []
                given = {"tol": trial.options["rtol"], "accel": "cg", "residuals": residuals}
                return solver.solve(f.ravel(), **given), len(residuals) - 1

            calls["PyAMG RS-CG, without set-up"] = solved
        return calls


class _Kmeans(Problems):
    sizes = ((1000, 2, 8), (100_000, 32, 64), (1_000_000, 8, 16), (20_000, 128, 256))
    lines = (
        Line("n rows of 16, 16 clusters", "n", 256, 1 << 20, lambda n: (n, 16, 16)),
        Line("n rows of 128, 128 clusters", "n", 256, 1 << 20, lambda n: (n, 128, 128)),
    )
    growing = (0,)
    shown = staticmethod(lambda n: ((min(n // 2, 1024) ** 2, 3, 16),))
    cases: Mapping[str, Named] = {
        "cmu": Named("float32", ((351, 34, 3), (7089, 4, 3), (191_681, 22, 3), (488_565, 8, 3)))
    }

    def draw(self, draw: random.Random, on: str, largest: int) -> Trial:
        """Random rows, few or many; some iterations from seeds by k-means++."""
        dtype, (n, d, k) = draw.choice(DEVICE_DTYPES), _CLUSTERED
        most = min(n, 64 * largest), min(d, largest), min(k, largest)
        while True:
            n, d, k = (max(1, round(extent ** draw.random())) for extent in most)
            if k <= n and n * d * k <= _CLUSTERS_WORK:
                return Trial((spec((n, d), dtype, on=on), k), {"random_state": 0, "max_iter": 10})

    def trial(self, dims: Dims, dtype: str) -> Trial:
        """Iterations that do not converge, from rows as centroids."""
        X, k = _random(dims[:2], dtype), dims[2]
        options = {"init": X[:: len(X) // k][:k].copy(), "tol": 0.0, "max_iter": _FITTED}
        return Trial((X, k), options)

    def peers(self, trial: Trial) -> dict[str, Call]:
        if (cluster := library("sklearn.cluster")) is None:
            return {}

        def run() -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                X, k = trial.operands
                fitted = cluster.KMeans(k, n_init=1, **trial.options).fit(X)
            return fitted.cluster_centers_, fitted.labels_, fitted.n_iter_

        return {"scikit-learn": run}

    def by_cupy(self, cupy: Any, X: Any, k: int, init: Any, tol: float, max_iter: int) -> Any:
        """A product, the nearest by argmin, and rows added up by label."""
        centroids = cupy.asarray(init)
        for _ in range(max_iter):
            labels = ((centroids**2).sum(axis=1) - 2.0 * (X @ centroids.T)).argmin(axis=1)
            sums = cupy.zeros_like(centroids)
            cupy.add.at(sums, labels, X)
            number = cupy.bincount(labels, minlength=k)
            centroids = sums / cupy.maximum(number, 1)[:, None].astype(sums.dtype)
        return centroids, labels, max_iter


_PROBLEMS = {
    "matvec": _Matvec(),
    "matmul": _Matmul(),
    "convolve2d": _Convolve2d(),
    "cg": _Cg(),
    "poisson": _Poisson(),
    "kmeans": _Kmeans(),
}
