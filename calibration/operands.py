"""The problems that calibration measures, and the operands of solves."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, dense, spec
from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.imports import load
from hetero.ops import kmeans
from hetero.ops.convolve2d.filters import Filter, FilterOptions
from hetero.ops.convolve2d.problem import SEPARABLE, described, window_of
from hetero.ops.kmeans.fit import Fit
from hetero.ops.kmeans.operands import PLUS_PLUS
from hetero.ops.solvers import poisson
from hetero.ops.solvers.cg_problem import CgOptions, system_of
from hetero.ops.solvers.systems import Solve, Stencil
from hetero.registry import Arguments, Implementation
from hetero.registry.problem import Problem

FIRST = "first"  # the layout of fits from k-means++ that end after an iteration
_PERIOD = 1_000_003  # random numbers that are repeated: making them would take longer than a call
_numbers: dict[tuple[str, int], np.ndarray] = {}


def numbers(shape: tuple[int, ...], dtype: str, number: int = 0) -> np.ndarray:
    """Random numbers between -0.5 and 0.5, to read only: for each operand of a call, by its number,
    the same memory each time.

    Fresh pages would take longer to fill than most calls take. `forget_numbers` frees it.
    """
    count, known = math.prod(shape), _numbers.get((dtype, number))
    if known is None or known.size < count:
        drawn = (np.random.default_rng(number).random(_PERIOD) - 0.5).astype(dtype)
        size = max(count, _PERIOD if known is None else known.size * 5 // 4)  # few fill it anew
        known = _numbers[dtype, number] = np.resize(drawn, size)
    return known[:count].reshape(shape)


def forget_numbers() -> None:
    """Free what `numbers` keeps."""
    _numbers.clear()


# -- Products, convolutions ------------------------------------------------------------------------


def product(operation: str, on: str, dtype: str, order: str, *dims: int) -> Problem:
    """A matvec of dimensions (m, k), or matmul of (m, n, k), with all operands in one place."""
    m, *n, k = dims
    first, second = ("C", "C") if order == "*" else (order[0], order[-1])
    operands = spec((m, k), dtype, on=on, order=first), spec((k, *n), dtype, on=on, order=second)
    return registry.operation(operation).problem(*operands)


def image(row: Implementation, dtype: str, on: str, n: int, filter_size: int) -> Problem:
    """An image of n x n, filtered to the same size; the filter of rank 1 where that is measured."""
    shapes = (n, n), (filter_size, filter_size)
    pixels, filter = (spec(shape, dtype, on=on).operand() for shape in shapes)
    found = window_of(*shapes, "same", rank=int(row.method == SEPARABLE))
    return described(pixels, filter._replace(location=HOST), np.dtype(dtype), found)


def filter_options(shape: tuple[int, int], dtype: str) -> FilterOptions:
    """A filter of rank 1, and nothing beyond the image."""
    line = 0.5 + np.random.default_rng(1).random(shape[0])
    values = np.outer(line, line) / line.sum() ** 2
    return FilterOptions(Filter(values.astype(dtype)), 0.0)


# -- Solves ----------------------------------------------------------------------------------------


def of_solve(
    operation: str, layout: str, dtype: str, direct: bool
) -> tuple[Callable[..., Problem], Callable[..., Arguments]]:
    """``problem(*dims)`` and ``arguments(*dims, devices=devices)`` of a solve; no solve ends before
    its last step."""
    if operation == "poisson":
        make = functools.partial(_poisson, int(layout[0]), dtype)
        return make, functools.partial(_poisson_arguments, int(layout[0]), dtype, direct)
    problem, arguments = (_cg, _cg_arguments) if operation == "cg" else (_fit, _fit_arguments)
    return functools.partial(problem, layout, dtype), functools.partial(arguments, layout, dtype)


def even_grid(n: int, ndim: int) -> tuple[int, ...]:
    """The most even grid of about n points; an extent is no power of two less one."""
    return (round(n ** (1.0 / ndim)),) * ndim


def _poisson(ndim: int, dtype: str, n: int) -> Problem:
    return poisson.problem(spec(even_grid(n, ndim), dtype), rtol=0.0, maxiter=1)


def _poisson_arguments(
    ndim: int, dtype: str, direct: bool, n: int, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    """A direct method's tolerance and extents are as most calls have them."""
    shape = tuple(side - direct for side in even_grid(n, ndim))
    asked = {"lenient": direct, "measured": not direct}
    solve = Solve(Stencil(shape, (1.0,) * ndim), 1e-8 * direct, 0.0, 1, **asked)
    return Arguments((numbers(shape, dtype),), np.zeros(shape, dtype), solve)


def _cg(layout: str, dtype: str, n: int, row_length: int = 5) -> Problem:
    kind = layout.partition("-")[0]
    entries = {"dense": n * n, "csr": n * row_length}.get(kind, 5 * n)
    place = dense((n,), np.dtype(dtype), "host")
    matrix = (dense((n, n), np.dtype(dtype), "host"),) if kind == "dense" else ()
    inputs, options = (*matrix, place), CgOptions(0.0, 1)
    return Problem("cg", (n, entries), dtype, inputs, place, layout=layout, options=options)


def _cg_arguments(
    layout: str, dtype: str, n: int, row_length: int = 5, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    operators = load("hetero.ops.solvers.operators")
    kind, _, preconditioner = layout.partition("-")
    if kind == "dense":
        matrix = _toeplitz(n, dtype)
    elif kind == "csr":
        matrix = _banded(n, row_length, dtype)
    else:
        matrix = operators.Poisson(even_grid(n, int(kind[-1])), dtype=dtype)
    b = numbers(matrix.shape[:1], dtype)
    whole, inverse = system_of(matrix, preconditioner or None, np.dtype(dtype), devices)
    if kind == "dense" and len(devices) == 1:  # it is an operand, and moves as one
        with devices[0].active():
            there = Workspace(devices[0], "calibration")
            whole = whole._replace(array=there.upload(whole.array), owner=there)
    solve = Solve(lambda used: (whole, inverse), 0.0, 0.0, 1)
    return Arguments((b,), np.zeros(b.shape, dtype), solve)


def _toeplitz(n: int, dtype: str) -> np.ndarray:
    """A symmetric matrix with random diagonals, positive definite."""
    line = numbers((n,), dtype).copy()
    line[0] = 0.8 * math.sqrt(n * math.log(n)) + 1.0  # more than the norm of the rest
    return load("scipy.linalg").toeplitz(line)


def _banded(n: int, row_length: int, dtype: str) -> Any:
    """A diagonally dominant matrix: ``row_length`` diagonals over about sqrt(n)."""
    half = row_length // 2
    offsets = np.unique(np.linspace(1, max(math.isqrt(n), half), half).astype(int))
    offsets = np.concatenate([-offsets[::-1], [0], offsets])
    values = np.where(offsets == 0, len(offsets) - 0.99, -1.0)
    diags = load("scipy.sparse").diags_array
    return diags(values[:, None], offsets=offsets, shape=(n, n), format="csr", dtype=dtype)


def _fit(layout: str, dtype: str, n: int, d: int, k: int) -> Problem:
    if layout == FIRST:
        return kmeans.problem(spec((n, d), dtype), k, max_iter=1)
    return kmeans.problem(spec((n, d), dtype), k, init=spec((k, d), dtype))


def _fit_arguments(
    layout: str, dtype: str, n: int, d: int, k: int, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    """Random rows, and the first of them as centroids."""
    X = numbers((n, d), dtype)
    init = PLUS_PLUS if layout == FIRST else X[:k].copy()
    fit = Fit(1, -1.0, init, random=np.random.RandomState(0))
    return Arguments((X,), np.empty((k, d), dtype), fit)
