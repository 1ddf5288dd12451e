"""What solvers are given and what they give back."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

CONVERGED = "converged"
LIMIT = "iteration limit"
ROUNDING = "rounding"  # it keeps the residual above the tolerance
INDEFINITE = "not positive definite"
NOT_FINITE = "not finite"


class Stencil(NamedTuple):
    """-div grad on a box of interior points, Dirichlet: 5 points in 2-D, 7 in 3-D.

    (A u)_i = sum over axes of (2 u_i - u_before - u_after) / spacing**2, with zero outside. Arrays
    are C-contiguous.
    """

    shape: tuple[int, ...]  # points of each axis, (ny, nx) or (nz, ny, nx)
    spacing: tuple[float, ...]  # distance of neighbours, per axis

    @property
    def box(self) -> tuple[tuple[int, int, int], tuple[float, float, float]]:
        """Extents and 1 / spacing^2 of rows, lines and columns; 2-D has one line, of weight 0."""
        weights = [1.0 / h**2 for h in self.spacing]
        flat = 3 - len(weights)
        return (
            (self.shape[0], *(1,) * flat, *self.shape[1:]),
            (weights[0], *(0.0,) * flat, *weights[1:]),
        )


def checked_spacing(spacing: Any, ndim: int) -> tuple[float, ...]:
    """Distances of neighbouring points, one per axis; ValueError where they are none."""
    if isinstance(spacing, float):
        distances = (float(spacing),) * ndim
    else:
        try:
            numbers = np.asarray(spacing, float)
        except (TypeError, ValueError):
            numbers = None
        if numbers is None or numbers.shape not in ((), (ndim,)):
            raise ValueError(f"spacing must be one number or {ndim}, got {spacing!r}")
        distances = tuple(map(float, np.broadcast_to(numbers, (ndim,))))
    if not all(0.0 < h < math.inf for h in distances):
        raise ValueError(f"spacing must be positive, got {spacing!r}")
    return distances


class Csr(NamedTuple):
    """A square sparse matrix in compressed rows; index arrays are int32, or int64 if they must."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray


class Dense(NamedTuple):
    """A dense n x n matrix."""

    array: Any  # numpy.ndarray or device buffer
    n: int
    strides: tuple[int, int]  # of rows and of columns, in elements
    owner: Any = None  # of a buffer that lives no longer than this


def unknowns(system: Stencil | Csr | Dense) -> int:
    """How many unknowns a system has."""
    if isinstance(system, Stencil):
        return math.prod(system.shape)
    return system.n if isinstance(system, Dense) else len(system.indptr) - 1


class Outcome(NamedTuple):
    """How a solve ended."""

    status: str  # CONVERGED, LIMIT, ROUNDING, INDEFINITE or NOT_FINITE
    iterations: int  # iterations, sweeps or cycles done
    residual: float  # 2-norm of the true residual b - A x of the x that is returned
    right_side: float | None = None  # 2-norm of b; None from a solver that did not need it


def least_tolerance(dtype: Any) -> float:
    """What stands for a relative tolerance of 0: a thousandth of rounding."""
    return float(np.finfo(dtype).eps) / 1024.0
