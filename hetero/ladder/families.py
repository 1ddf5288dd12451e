"""The families of kernels that have a ladder: their problems, operands, results by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero.errors import one_of
from hetero.imports import load
from hetero.kernels.common.ladder import Ladder
from hetero.kernels.convolution import ladder as convolution
from hetero.kernels.jacobi import ladder as jacobi
from hetero.kernels.kmeans import ladder as kmeans
from hetero.kernels.matmul import ladder as matmul
from hetero.kernels.matvec import ladder as matvec
from hetero.ops import functions

Arrays = dict[str, Any]
Dims = tuple[int, ...]
_SWEEPS = 64  # of hetero's own Jacobi that are timed


class Family(NamedTuple):
    """A family of kernels.

    ``of_size(size)``, of a convolution ``of_size(size, filter)``, gives the dimensions ``dims``;
    ``operands(random, *dims)`` the buffers by name, as the CPU's loops take them in turn, of which
    ``out`` has the result; ``expected(arrays, repeats)`` results by NumPy; ``work(*dims)`` flops,
    and elements that are moved at least. ``call(arrays, **where)`` is hetero's own function, which
    makes ``made`` results; ``methods`` are its ways on a device and what is new in them. ``what``
    is timed, in ``dtype`` by default.
    """

    ladder: Ladder
    dims: tuple[str, ...]
    of_size: Callable[..., Dims]
    operands: Callable[..., Arrays]
    out: str
    expected: Callable[[Arrays, int], Arrays]
    work: Callable[..., tuple[float, float]]
    call: Callable[..., Any]
    methods: Mapping[str, str]
    what: str = "call"
    dtype: str = "float32"
    made: int = 1

    def arrays(self, dtype: str, dims: Dims) -> Arrays:
        """The operands, random numbers around 0, and results, which are zero."""
        rng = np.random.default_rng(0)
        return self.operands(
            lambda *shape: (rng.random(shape, np.float32) - np.float32(0.5)).astype(dtype), *dims
        )


def _filtered(a: Arrays, repeats: int) -> Arrays:
    return {"out": load("scipy.signal").convolve(a["image"], a["taps"][::-1, ::-1], "same")}


def _convolved(a: Arrays, **where: Any) -> Any:
    taps = np.ascontiguousarray(a["host"]["taps"][::-1, ::-1])
    return functions.convolve2d(a["image"], taps, "same", **where)


def _swept(a: Arrays, repeats: int) -> Arrays:
    u, f = a["u"], a["f"] * a["u"].dtype.type(0.25 / (len(a["u"]) + 1) ** 2)
    for _ in range(repeats):
        around = np.pad(u, 1)
        near = around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:]
        u = u.dtype.type(0.25) * near + f
    return {"u_new" if repeats == 1 else "u": u}


def _solved(a: Arrays, **where: Any) -> Any:
    limits = {"method": "jacobi", "rtol": 0.0, "maxiter": _SWEEPS}
    return functions.solve_poisson(a["f"], **(where | limits))


def _rows(random: Any, n: int, d: int, k: int) -> Arrays:
    X = random(n, d)
    counts = {name: np.zeros(n, np.int32) for name in ("labels", "changed")}
    return {"X": X, "centroids": X[:k].copy(), "total": np.zeros(1, np.int32), **counts}


def _labelled(a: Arrays, repeats: int) -> Arrays:
    apart = [((a["X"].astype(float) - c) ** 2).sum(axis=1) for c in a["centroids"].astype(float)]
    labels = np.argmin(apart, axis=0).astype(np.int32)
    return {"labels": labels, "total": np.array([np.count_nonzero(labels)], np.int32)}


def _clustered(a: Arrays, **where: Any) -> Any:
    init = a["host"]["centroids"]
    return functions.kmeans(a["X"], len(init), init=init, max_iter=1, tol=0.0, **where)


# fmt: off
FAMILIES = {
    "matmul": Family(
        matmul.LADDER, ("M", "N", "K"), lambda size: (size, size, size),
        lambda random, m, n, k: {"A": random(m, k), "B": random(k, n), "C": 0 * random(m, n)},
        "C", lambda a, repeats: {"C": a["A"] @ a["B"]},
        lambda m, n, k: (2.0 * m * n * k, m * k + k * n + m * n),
        lambda a, **where: functions.matmul(a["A"], a["B"], out=a["C"], **where),
        {"tensor": "a block for each multiprocessor: it copies ahead while it writes a tile",
         "tiled": "tiles chosen for the sizes, from registers", "library": "cuBLAS"},
    ),
    "matvec": Family(
        matvec.LADDER, ("M", "K"), lambda size: (size, size),
        lambda random, m, k: {"A": random(m, k), "x": random(k), "y": 0 * random(m)},
        "y", lambda a, repeats: {"y": a["A"] @ a["x"]},
        lambda m, k: (2.0 * m * k, m * k + k + m),
        lambda a, **where: functions.matvec(a["A"], a["x"], out=a["y"], **where),
        {"tiled": "vectors of 16 bytes from memory to registers"},
    ),
    "convolve2d": Family(
        convolution.LADDER, ("H", "W", "FH", "FW"),
        lambda size, filter=15: (size, size, filter, filter),
        lambda random, *d: {"image": random(*d[:2]), "taps": random(*d[2:]),
                            "out": 0 * random(*d[:2])},
        "out", _filtered, lambda h, w, fh, fw: (2.0 * h * w * fh * fw, 2 * h * w + fh * fw),
        _convolved, {"direct": "many results of a thread in registers"},
    ),
    "solve_poisson": Family(
        jacobi.LADDER, ("H", "W"), lambda size: (size, size),
        lambda random, *dims: {"u": random(*dims), "f": random(*dims), "u_new": 0 * random(*dims)},
        "u_new", _swept, lambda h, w: (6.0 * h * w, 3 * h * w),
        _solved, {"jacobi": "several sweeps in one pass over the memory"},
        "sweep", "float64", _SWEEPS,
    ),
    "kmeans": Family(
        kmeans.LADDER, ("N", "D", "K"), lambda size: (size, min(64, size), min(64, size)),
        _rows, "labels", _labelled, lambda n, d, k: (3.0 * n * d * k, n * d + k * d + n),
        _clustered, {"lloyd": "a whole iteration: labels, sums of clusters, centroids"},
        "iteration",
    ),
}
# fmt: on


def family(function: str) -> Family:
    """A family by hetero's function; ValueError for what has none."""
    if function not in FAMILIES:
        raise ValueError(one_of("operation", FAMILIES, function))
    return FAMILIES[function]


def problems(
    of: Family,
    sizes: Sequence[int] | None,
    dims: Sequence[int] | None,
    filter: int | None,
    usual: Sequence[int],
) -> list[Dims]:
    """The dimensions of some sizes, by default the usual ones, or those that are given; checked."""
    for name, given in (("sizes", sizes), ("dims", dims), ("filter", filter and [filter])):
        if given is not None and min(given, default=0) < 1:
            raise ValueError(f"{name} must be 1 or more, got {', '.join(map(str, given))}")
    if filter is not None and "FH" not in of.dims:
        raise ValueError(f"--filter is of a convolution, not of {of.ladder.family}")
    if dims is None:
        return [of.of_size(n, *([filter] if filter else [])) for n in dict.fromkeys(sizes or usual)]
    if sizes or filter or len(dims) != len(of.dims):
        raise ValueError(f"--dims are {','.join(of.dims)}, alone, got {','.join(map(str, dims))}")
    return [tuple(dims)]
