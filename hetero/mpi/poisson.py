"""Poisson's equation on a grid that lies on the ranks in slabs."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi import cg
from hetero.mpi.products import Rows
from hetero.mpi.ranks import Ranks
from hetero.ops.solvers.multigrid import CpuHierarchy, hierarchy
from hetero.ops.solvers.operators import Poisson
from hetero.ops.solvers.poisson import add_boundary, checked_faces
from hetero.ops.solvers.poisson_methods import RTOL, UNLIMITED
from hetero.ops.solvers.systems import (
    LIMIT,
    Stencil,
    checked_spacing,
    real_dtype,
    warn,
)

_COARSER = 2  # times by half
_ROUNDINGS = 4.0  # how often that of u may be in what is left, where no tolerance was asked for


def solve_poisson(
    f_slab: Any,
    *,
    spacing: float | tuple[float, ...] = 1.0,
    boundary: Any = 0.0,
    x0: Any = None,
    comm: Any = None,
    rtol: float | None = None,
    maxiter: int | None = None,
    M: str | None = None,
    method: str | None = None,
    device: str | None = None,
    checkpoint: Any = None,
    every: float = 60.0,
    return_info: bool = False,
) -> Any:
    """Solve -div grad u = f on a rectangle or a box that lies on the ranks in slabs.

    A collective call. A rank has some of the grid's rows (2-D) or planes (3-D), in the order of the
    ranks; it may have none. The grid and the equation are those of `hetero.solve_poisson`.

    Parameters
    ----------
    f_slab, x0 : (own rows, nx) or (own planes, ny, nx) array
        Right-hand side; start, zero by default.
    spacing : float or one per axis
        Distance of neighbouring points.
    boundary : float, or a pair per axis
        Values of u on the boundary, as in `hetero.solve_poisson`; arrays have the shape of the
        rank's part of that side. Those of the first axis count on the first and last slab alone.
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``.
    rtol : float, optional
        Done when norm(f - A u) <= rtol norm(f), f with the boundary's share. Default: 1e-8, in
        float32 1.2e-7, or what rounding leaves.
    maxiter : int, optional
        Most iterations. Default: no limit.
    M : "multigrid", optional
        Precondition by multigrid cycles: one on each slab, and one on a grid four times coarser
        that all ranks hold. All is computed on the CPU.
    method, device, checkpoint, every
        As for `hetero.mpi.solve_cg`.
    return_info : bool
        Also return how it was done.

    Returns
    -------
    u : ndarray of f_slab's shape
        float32 if f is no wider, else float64.
    how : dict, if ``return_info``
        As of `hetero.mpi.solve_cg`, and relative_residual.

    Raises
    ------
    ValueError
        As by `hetero.mpi.solve_cg`.

    Warns
    -----
    RuntimeWarning
        On every rank, where the tolerance is not met.
    """
    ranks = Ranks(comm)

    def checked() -> tuple[Any, ...]:
        f = cg.checked_array("f_slab", f_slab)
        if f.ndim not in (2, 3) or 0 in f.shape[1:]:
            raise ValueError(f"f_slab must be part of a grid in 2-D or 3-D, got {f.shape}")
        dtype, distances = real_dtype(f_slab=f.dtype), checked_spacing(spacing, f.ndim)
        x = np.zeros(f.shape) if x0 is None else cg.checked_array("x0", x0, shape=f.shape)
        with np.errstate(all="ignore"):
            weights = np.asarray(1.0 / np.square(distances), dtype)
        if not (np.isfinite(weights) & (weights > 0.0)).all():
            raise ValueError(f"spacing must have inverse squares in {dtype}, got {spacing}")
        if M is not None and not (isinstance(M, str) and M == "multigrid"):
            what = repr(M) if isinstance(M, str) else type(M).__name__
            raise ValueError(f"M must be None or 'multigrid', got {what}")
        if M and device not in (None, "cpu"):
            raise ValueError(f"M='multigrid' is computed on the CPU, got device={device!r}")
        until = RTOL[dtype.name] if rtol is None else rtol, 0.0, maxiter, UNLIMITED
        goal = cg.checked_goal(until, method, device, checkpoint, every)
        known = {"shape of a row": f.shape[1:], "spacing": distances, "dtype": dtype.name}
        faces, x = checked_faces(f.shape, boundary), x.astype(dtype).reshape(-1)
        return f, x, faces, goal, known, known | {"M": M} | goal

    f, x, faces, goal, known, _ = ranks.agreed(checked, alike=True)
    dtype, lines = x.dtype, ranks.starts(f.shape[0])
    begin, end, known["rows"] = *map(int, lines[ranks.rank :][:2]), int(lines[-1])
    A = Poisson((max(known["rows"], 1), *f.shape[1:]), known["spacing"], dtype)
    rhs, outer = np.array(f, dtype, order="C"), (begin == 0, end == known["rows"])
    if len(f):
        add_boundary(rhs, [face for face in faces if face[0] or outer[face[1]]], A.spacing)
    rows = Rows(ranks, lines * math.prod(f.shape[1:]), A)
    apply = ranks.agreed(_two_levels, rows, begin, end, A) if M else None
    given = rows, rhs.reshape(-1), x, goal, known, "cpu" if M else device
    outcome, how = cg.run(*given, M=apply)
    share = outcome.residual / (outcome.right_side or 1.0)
    if not rtol and outcome.status == LIMIT and outcome.iterations < goal["maxiter"]:
        # No tolerance was asked for, and rounding ended the solve: that of u will do.
        how["converged"] = share <= _ROUNDINGS * float(np.finfo(dtype).eps) * A.condition_number()
    how["relative_residual"] = share
    if not how["converged"]:
        left = f"norm(f - A u) is {share:.3g} of norm(f)"
        warn("solve_poisson", outcome, f"{left}, rtol is {goal['rtol']:.3g}")
    u = x.reshape(f.shape)
    return (u, how) if return_info else u


def _two_levels(
    rows: Rows, begin: int, end: int, A: Poisson
) -> Callable[[np.ndarray, np.ndarray], None]:
    """``apply(r, z)``, a collective call that writes z = M r for a rank's rows; M is symmetric
    positive definite: multigrid cycles on two levels.

    Additive Schwarz without overlap, with a coarse grid (B. Smith, P. Bjorstad, W. Gropp, "Domain
    decomposition", Cambridge University Press, 1996, chapter 2): z = sum of C_i r over the slabs,
    and P C_0 R r, where C_i is one cycle on slab i with zeros around it and C_0 one on a grid four
    times coarser. All ranks hold that whole grid and make the same cycle on it.

    The slab has the lines from ``begin`` to ``end`` of the grid; A is of the whole grid.
    """
    ranks, whole, dtype = rows.ranks, A.stencil, A.dtype
    own = CpuHierarchy(rows.own.stencil, dtype).apply if rows.own else lambda r, z: None
    shape, spacing, _ = hierarchy(whole, 1)[: _COARSER + 1][-1]
    if ranks.size == 1 or math.prod(shape) == math.prod(whole.shape):
        return own
    axes = ((n, h) for n, h in zip(shape, spacing, strict=True) if h < math.inf)
    coarse, hats = Stencil(*zip(*axes, strict=True)), []
    for n, m in zip(whole.shape, coarse.shape, strict=True):  # along lines, with zeros at both ends
        places, knots = np.arange(1, n + 1) * ((m + 1) / (n + 1)), np.arange(m + 2.0)
        hat = load("scipy.interpolate").BSpline.design_matrix(places, np.pad(knots, 1, "edge"), 1)
        hats.append(hat[:, 1:-1].astype(dtype))
    down, across = hats[0][begin:end], functools.reduce(load("scipy.sparse").kron, hats[1:])
    met = down.indices  # coarse rows that this rank's slab meets
    span = slice(met.min(), met.max() + 1) if met.size else slice(0, 0)
    of_all = CpuHierarchy(coarse, dtype).apply
    finer = map(operator.truediv, whole.spacing, coarse.spacing)
    restrict = down.T * dtype.type(math.prod(finer))

    def apply(r: np.ndarray, z: np.ndarray) -> None:
        # (1) The cycle on the slab, and its part of the residual on the coarse grid.
        own(r, z)
        mine = restrict @ (r.reshape(end - begin, across.shape[0]) @ across)
        parts = ranks.comm.allgather((span, mine[span]))
        # (2) The cycle on the coarse grid, with the residuals of all ranks.
        right, error = np.zeros((2, *mine.shape), z.dtype)
        for where, part in parts:  # in the order of ranks
            right[where] += part
        of_all(right.reshape(-1), error.reshape(-1))
        z += (down @ (error @ across.T)).reshape(-1)

    return apply
