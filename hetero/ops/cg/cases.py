"""What calibration measures of conjugate gradients: set-up and one step over the unknowns."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero.arrays import dense
from hetero.devices.base import Device
from hetero.devices.workspace import Workspace
from hetero.imports import load
from hetero.ops.cases import Budget, Case, Place, TimedSolves, numbers
from hetero.ops.cg.methods import ADAPTIVE
from hetero.ops.cg.operands import CgOptions, System
from hetero.ops.linear_systems.cases import SECONDS, even_grid, rows, timed, unknowns
from hetero.ops.linear_systems.solve import Solve
from hetero.registry import Arguments
from hetero.registry.models import ModelKey, Work, bind
from hetero.registry.problem import DEVICE_DTYPES, Problem

_OPERATION = "cg"
_LAYOUTS = ("dense", "csr", "stencil2", "stencil3", "stencil2-multigrid")
_LARGEST_CSR = {"cpu": 2**18, "opencl": 2**14}, 2**20
_LARGEST_DENSE = {"cpu": 2**11, "opencl": 2**9}, 2**12
_SMALLEST_DENSE = 2**4  # an iteration of the smallest costs a tenth of what it costs at 2**8
_ROW_LENGTHS = [5, 27]
_FINER = 3.0  # a cache holds the matrix, or not
_DENSE = TimedSolves(2, 18)  # few: each reads all of the matrix
_MATVEC = (("blas", "C"), ("tiled", "C aligned"))
_LONGER = (4096, 8192, 16384, 32768)


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation on every kind of matrix that it takes."""
    measured = [row for row in rows(_OPERATION, place) if row.method != ADAPTIVE]
    for row, dtype, layout in itertools.product(measured, DEVICE_DTYPES, _LAYOUTS):
        if row.price is not None and layout != "dense":
            continue  # 'hybrid' moves the vectors, which are most of the work there
        cycles = layout.endswith("multigrid")
        axes, how = [unknowns(place, budget, cycles)], timed(cycles)
        if layout == "dense":
            sizes = unknowns(place, budget, limits=_LARGEST_DENSE, ratio=2, finer=_FINER)
            axes, how = [[_SMALLEST_DENSE, *sizes]], _DENSE
        elif layout == "csr":
            axes = [unknowns(place, budget, limits=_LARGEST_CSR), _ROW_LENGTHS]
        make = (functools.partial(of, layout, dtype) for of in (_problem, _arguments))
        case = Case(row, dtype, layout, how, axes, *make, seconds=SECONDS)
        if row.obstacle(case.problem(*case.smallest), place.info) is None:
            yield case


def derived(models: dict[ModelKey, dict]) -> dict[ModelKey, dict]:
    """Dense matrices too large to measure, at the pace of the matrix-vector product.

    Matrices that no longer fit a cache would take long to fill, and matvec knows them.
    """
    found = {}
    for key, model in models.items():
        if (key.operation, key.layout) == (_OPERATION, "dense"):
            kind, several, members = key.place.partition("*")  # such as "cuda*2"
            one = key._replace(operation="matvec", place=f"{kind}:0" if several else kind)
            keys = (one._replace(method=m, layout=at) for m, at in _MATVEC)
            matvec = next((models[k] for k in keys if k in models), None)
            if matvec is not None:
                found[key] = _longer(model, matvec, int(members or 1))
    return found


def _longer(model: dict[str, Any], matvec: dict[str, Any], members: int) -> dict[str, Any]:
    """The model with larger matrices: longer by a product of each device's share of rows."""
    model, cost = copy.deepcopy(model), bind(matvec)

    def product(n: int) -> float:
        return sum(cost(Work((n // members, n), 0.0, 0.0)))

    for part in ("setup", "step"):
        (sizes,), seconds = (model["constants"][part][name] for name in ("axes", "seconds"))
        last, base = product(sizes[-1]), seconds[-1]
        for n in [n for n in _LONGER if n > sizes[-1]]:
            sizes.append(n)
            seconds.append(float(f"{base + max(product(n) - last, 0.0):.5g}"))
    return model


def _problem(layout: str, dtype: str, n: int, row_length: int = 5) -> Problem:
    kind = layout.partition("-")[0]
    entries = {"dense": n * n, "csr": n * row_length}.get(kind, 5 * n)
    place = dense((n,), np.dtype(dtype), "host")
    matrix = (dense((n, n), np.dtype(dtype), "host"),) if kind == "dense" else ()
    options = CgOptions(0.0, 1)
    return Problem(
        _OPERATION, (n, entries), dtype, (*matrix, place), place, layout=layout, options=options
    )


def _arguments(
    layout: str, dtype: str, n: int, row_length: int = 5, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    operators = load("hetero.ops.linear_systems.operators")
    kind, _, preconditioner = layout.partition("-")
    if kind == "dense":
        matrix = _toeplitz(n, dtype)
    elif kind == "csr":
        matrix = _banded(n, row_length, dtype)
    else:
        matrix = operators.Poisson(even_grid(n, int(kind[-1])), dtype=dtype)
    b = numbers(matrix.shape[:1], dtype)  # no solve ends before its last step
    whole, inverse = System(matrix, np.dtype(dtype), preconditioner or None).on(devices)
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
