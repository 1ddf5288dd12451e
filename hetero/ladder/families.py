"""The families of kernels that have a ladder: their problems, operands, results by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import signal

import hetero
from hetero.errors import one_of
from hetero.imports import load
from hetero.kernels.convolution import ladder as convolution
from hetero.kernels.jacobi import ladder as jacobi
from hetero.kernels.kmeans import ladder as kmeans
from hetero.kernels.matmul import ladder as matmul
from hetero.kernels.matvec import ladder as matvec

Arrays = dict[str, Any]
Dims = tuple[int, ...]
_SWEEPS = 64  # of hetero's own Jacobi that are timed


class Family(NamedTuple):
    """A family of kernels.

    Attributes
    ----------
    name : str
        Folder of its kernels.
    ladder : Ladder
    dims : tuple of str
    of_size : callable
        ``of_size(size)``, of a convolution ``of_size(size, filter)``, gives the dimensions.
    operands : callable
        ``operands(rng, dtype, *dims)`` gives the buffers by name.
    expected : callable
        ``expected(arrays, repeats)`` gives the results by NumPy, by their buffers' names.
    flops, elements : callable
        Of ``*dims``: what is computed, and the elements that are moved at least.
    call : callable
        ``call(arrays, **where)`` computes it by hetero's own function.
    methods : mapping
        Methods of hetero above the rungs -> what is new in them.
    loops : callable
        The arguments of its loops on the CPU, from the operands.
    out : str
        The buffer with its result.
    what : str
        What is timed.
    """

    name: str
    ladder: Any
    dims: tuple[str, ...]
    of_size: Callable[..., Dims]
    operands: Callable[..., Arrays]
    expected: Callable[[Arrays, int], Arrays]
    flops: Callable[..., float]
    elements: Callable[..., float]
    call: Callable[..., Any]
    methods: Mapping[str, str]
    loops: Callable[[Arrays], tuple[Any, ...]]
    out: str
    what: str = "call"

    def results(self, *dims: int) -> Dims:
        """Rows and columns of results, as blocks cover them."""
        return (dims[0], dims[1]) if self.name not in ("matvec", "kmeans") else (dims[0], 1)

    def obstacle(self, name: str, dims: Dims, item: int, card: Any) -> str | None:
        """Why a rung cannot do a size; None where it can."""
        rung = self.ladder.rungs[name]
        if self.name == "matvec" and rung.kernel != "matvec_naive":
            return _too_long("x", dims[1] * item)
        if rung.kernel == "convolve_constant":
            return _too_long("the filter", dims[2] * dims[3] * item)
        if name == "persistent":
            nbytes = jacobi.held_bytes(card, item, *dims)
            return _too_long("a block's share of f", nbytes, "shared memory", 48 << 10)
        return None


def _too_long(
    what: str, nbytes: int, where: str = "constant memory", most: int = 1 << 16
) -> str | None:
    return f"{what} takes {nbytes} bytes, and {where} has {most}" if nbytes > most else None


def _random(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return (rng.random(shape, np.float32) - np.float32(0.5)).astype(dtype)


def _product(rng: Any, dtype: str, m: int, n: int, k: int) -> Arrays:
    out = np.zeros((m, n), dtype)
    return {"A": _random(rng, dtype, m, k), "B": _random(rng, dtype, k, n), "C": out}


def _vectors(rng: Any, dtype: str, m: int, k: int) -> Arrays:
    out = np.zeros(m, dtype)
    return {"A": _random(rng, dtype, m, k), "x": _random(rng, dtype, k), "y": out}


def _image(rng: Any, dtype: str, rows: int, columns: int, taps_y: int, taps_x: int) -> Arrays:
    image, taps = _random(rng, dtype, rows, columns), _random(rng, dtype, taps_y, taps_x)
    return {"image": image, "taps": taps, "out": np.zeros_like(image)}


def _filtered(a: Arrays, repeats: int) -> Arrays:
    return {"out": signal.convolve(a["image"], a["taps"][::-1, ::-1], "same")}


def _extended(a: Arrays) -> tuple[Any, ...]:
    """The image with zeros around it, for the CPU's loops."""
    high, wide = a["taps"].shape
    sides = ((high // 2, (high - 1) // 2), (wide // 2, (wide - 1) // 2))
    return np.pad(a["image"], sides), a["taps"], a["out"]


def _convolved(a: Arrays, **where: Any) -> Any:
    taps = np.ascontiguousarray(a["host"]["taps"][::-1, ::-1])
    return hetero.convolve2d(a["image"], taps, "same", **where)


def _grid(rng: Any, dtype: str, rows: int, columns: int) -> Arrays:
    u, f = (_random(rng, dtype, rows, columns) for _ in range(2))
    return {"u": u, "f": f, "u_new": np.zeros_like(u)}


def _swept(a: Arrays, repeats: int) -> Arrays:
    u, f = a["u"], a["f"] * (0.25 / (a["u"].shape[0] + 1) ** 2)
    for _ in range(repeats):
        around = np.pad(u, 1)
        near = around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:]
        u = (0.25 * near + f).astype(u.dtype)
    return {"u_new" if repeats == 1 else "u": u}


def _solved(a: Arrays, **where: Any) -> Any:
    return hetero.solve_poisson(a["f"], method="jacobi", rtol=0.0, maxiter=_SWEEPS, **where)


def _rows(rng: Any, dtype: str, n: int, d: int, k: int) -> Arrays:
    X = _random(rng, dtype, n, d)
    labels = {"labels": np.zeros(n, np.int32), "changed": np.zeros(n, np.int32)}
    return {
        "X": X,
        "centroids": X[:: max(n // k, 1)][:k].copy(),
        "total": np.zeros(1, np.int32),
    } | labels


def _labelled(a: Arrays, repeats: int) -> Arrays:
    apart = [((a["X"].astype(float) - c) ** 2).sum(axis=1) for c in a["centroids"].astype(float)]
    labels = np.argmin(apart, axis=0).astype(np.int32)
    return {"labels": labels, "total": np.array([np.count_nonzero(labels)], np.int32)}


def _clustered(a: Arrays, **where: Any) -> Any:
    init = a["host"]["centroids"]
    return hetero.kmeans(a["X"], len(init), init=init, max_iter=1, tol=0.0, **where)


FAMILIES = {
    "matmul": Family(
        "matmul",
        matmul.LADDER,
        ("M", "N", "K"),
        lambda size: (size, size, size),
        _product,
        lambda a, repeats: {"C": a["A"] @ a["B"]},
        lambda m, n, k: 2.0 * m * n * k,
        lambda m, n, k: m * k + k * n + m * n,
        lambda a, **where: hetero.matmul(a["A"], a["B"], out=a["C"], **where),
        {"tiled": "tiles chosen for the sizes, from registers", "library": "cuBLAS"},
        lambda a: (a["A"], a["B"], a["C"]),
        "C",
    ),
    "matvec": Family(
        "matvec",
        matvec.LADDER,
        ("M", "K"),
        lambda size: (size, size),
        _vectors,
        lambda a, repeats: {"y": a["A"] @ a["x"]},
        lambda m, k: 2.0 * m * k,
        lambda m, k: m * k + k + m,
        lambda a, **where: hetero.matvec(a["A"], a["x"], out=a["y"], **where),
        {"tiled": "vectors of 16 bytes from memory to registers", "library": "cuBLAS"},
        lambda a: (a["A"], a["x"], a["y"]),
        "y",
    ),
    "convolve2d": Family(
        "convolution",
        convolution.LADDER,
        ("H", "W", "FH", "FW"),
        lambda size, filter=15: (size, size, filter, filter),
        _image,
        _filtered,
        lambda h, w, fh, fw: 2.0 * h * w * fh * fw,
        lambda h, w, fh, fw: 2 * h * w + fh * fw,
        _convolved,
        {"direct": "many results of a thread in registers"},
        _extended,
        "out",
    ),
    "solve_poisson": Family(
        "jacobi",
        jacobi.LADDER,
        ("H", "W"),
        lambda size: (size, size),
        _grid,
        _swept,
        lambda h, w: 6.0 * h * w,
        lambda h, w: 3 * h * w,
        _solved,
        {"jacobi": "several sweeps in one pass over the memory"},
        lambda a: (a["u"], a["f"], a["u_new"], a["u"].dtype.type(0.25 / (len(a["u"]) + 1) ** 2)),
        "u_new",
        "sweep",
    ),
    "kmeans": Family(
        "kmeans",
        kmeans.LADDER,
        ("N", "D", "K"),
        lambda size: (size, min(64, size), min(64, size)),
        _rows,
        _labelled,
        lambda n, d, k: 3.0 * n * d * k,
        lambda n, d, k: n * d + k * d + n,
        _clustered,
        {"lloyd": "a whole iteration: labels, sums of clusters, centroids"},
        lambda a: (a["X"], a["centroids"], a["labels"]),
        "labels",
        "iteration",
    ),
}
REPEATS = {"jacobi": _SWEEPS}  # results that hetero's own call makes, one after the other


def family(function: str) -> Family:
    """A family by hetero's function.

    Raises
    ------
    ValueError
        If it has no ladder; the message names those that there are.
    """
    if function not in FAMILIES:
        raise ValueError(one_of("operation", FAMILIES, function))
    return FAMILIES[function]


def loops(of: Family) -> tuple[Any, ...]:
    """Its steps on the CPU."""
    return load("hetero.kernels.cpu.ladder").LADDERS[of.name]
