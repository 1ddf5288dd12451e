"""Conjugate gradients for a matrix that lies on the ranks by rows."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.calling import planner
from hetero.devices.base import Device
from hetero.errors import MethodNotAvailable
from hetero.imports import load
from hetero.mpi.products import DeviceVectors, HostVectors, Rows
from hetero.mpi.ranks import Checkpoint, Ranks
from hetero.ops.solvers.cg_loop import Matrix, is_doubtful, solve_unscaled
from hetero.ops.solvers.systems import (
    CONVERGED,
    Outcome,
    Solve,
    checked_limit,
    checked_tolerance,
    is_safe,
    real_dtype,
    scaled,
    warn,
)
from hetero.pricing.plan import CPU
from hetero.profile import inventory


def solve_cg(
    A_rows: Any,
    b_rows: Any,
    x0: Any = None,
    *,
    comm: Any = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    method: str | None = None,
    device: str | None = None,
    checkpoint: Any = None,
    every: float = 60.0,
    return_info: bool = False,
) -> tuple[Any, ...]:
    """Solve A x = b for a symmetric positive definite A that lies on the ranks by rows.

    A collective call. The ranks' rows follow each other in the order of the ranks; a rank may have
    none. Iteration, tolerance and ``info`` are those of `hetero.solve_cg`.

    Parameters
    ----------
    A_rows : (own rows, n) sparse matrix or array, or numpy.ndarray
        This rank's rows, with the columns of the whole matrix. Symmetry is not checked.
    b_rows, x0 : (own rows,) or (own rows, 1) array
        Right-hand side; start, zero by default.
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``.
    rtol, atol, maxiter
        As for `hetero.solve_cg`, of the whole vectors; by default 10 n iterations.
    M : "jacobi" or (own rows,) array, optional
        Approximate inverse of A: the inverse of its diagonal, or a diagonal matrix.
    callback : callable, optional
        Called as ``callback(x)`` with the rank's rows of x after each iteration. Where it raises
        on one rank, all ranks raise.
    method : "cg", optional
        The only one: of Hestenes and Stiefel, two sums an iteration, three with M.
    device : str, optional
        Where this rank's rows lie: "cpu", or such as "cuda:0" or "opencl:0" for sparse rows; "cuda"
        for those that are there, by turns. Default: by the plan of the rank's own square piece.
    checkpoint : path, optional
        File to save x in, and to go on from where it is there; seen by rank 0.
    every : float
        Seconds between two checkpoints.
    return_info : bool
        Also return how it was done.

    Returns
    -------
    x : (own rows,) ndarray
        float32 if A and b are no wider, else float64; the same on all ranks.
    info : int
        0 where the true residual meets the tolerance; see `hetero.solve_cg`.
    how : dict, if ``return_info``
        device, method, ranks, iterations (with those before the checkpoint), continued_from,
        residual, converged, status.

    Raises
    ------
    ValueError
        On every rank, with the same text, where the arguments or the callback of one rank fail,
        where ranks disagree, and where the checkpoint is of another problem. What else fails on a
        rank, such as its memory or device, it raises alone: ``-m mpi4py`` ends the job.
    PackageMissing
        Without mpi4py.

    See Also
    --------
    hetero.solve_cg, hetero.mpi.rows

    References
    ----------
    M. R. Hestenes and E. Stiefel, "Methods of conjugate gradients for solving linear systems",
    J. Res. Nat. Bur. Stand. 49 (1952), 409-436.
    """
    ranks = Ranks(comm)

    def checked() -> tuple[Any, ...]:
        is_sparse, taken = load("scipy.sparse").issparse(A_rows), "a sparse matrix or an array"
        matrix = A_rows.tocsr() if is_sparse else checked_array("A_rows", A_rows, taken)
        if matrix.ndim != 2:
            raise ValueError(f"A_rows must have 2 dimensions, got shape {matrix.shape}")
        if is_sparse:
            matrix.check_format()  # its columns, which no loop tests
        elif device not in (None, "cpu"):
            raise ValueError(f"dense rows are multiplied on the CPU, got device={device!r}")
        (size, n), kind, inverse = matrix.shape, M, None
        b = checked_array("b_rows", b_rows, shape=(size,))
        dtype = real_dtype(A_rows=matrix.dtype, b_rows=b.dtype)
        start = np.zeros(size) if x0 is None else checked_array("x0", x0, shape=(size,))
        if not (M is None or (isinstance(M, str) and M == "jacobi")):
            kind, inverse = "vector", checked_array("M", M, "'jacobi' or an array", (size,))
        goal = checked_goal((rtol, atol, maxiter, 10 * n), method, device, checkpoint, every)
        known = {"columns": n, "layout": "sparse" if is_sparse else "dense", "dtype": dtype.name}
        given = matrix.astype(dtype, copy=False), b.astype(dtype), start.astype(dtype)
        return *given, inverse, goal, known, known | {"M": kind} | goal

    matrix, b, x, inverse, goal, known, _ = ranks.agreed(checked, alike=True)
    n, starts = matrix.shape[1], ranks.starts(len(b))
    if starts[-1] != n:
        raise ValueError(f"A must be square: it has {n} columns, the ranks {starts[-1]} rows")
    if isinstance(M, str):  # 1 / the whole matrix's diagonal in these rows
        with np.errstate(all="ignore"):
            inverse = 1.0 / matrix.diagonal(int(starts[ranks.rank])) if len(b) else b
    rows = Rows(ranks, starts, matrix)
    outcome, how = run(rows, b, x, goal, known, device, M=inverse, callback=callback, A=matrix)
    if outcome.info < 0:
        warn("solve_cg", outcome, f"norm(b - A x) is {outcome.residual:.3g}")
    return (x, outcome.info, how) if return_info else (x, outcome.info)


# -- A solve over the ranks, whatever the system --------------------------------------------------


def _place_of(rows: Rows, device: str | None, b: np.ndarray) -> Device | None:
    """The device for a rank's own rows, None for the CPU.

    ``device`` is "cpu", a device, or a kind of them, which ranks of a node share by turns. Default:
    that of a `use` block, else by the plan of conjugate gradients for the rank's own square piece.
    """
    device = CPU if rows.own is None else planner.placement(device, None)[0]
    if device is None and not inventory.is_host_alone(None):
        problem = load("hetero.ops.solvers.cg").problem(rows.own, b)
        device = planner.plan(problem).chosen.device.partition(":")[0]  # its kind
    if device in (None, CPU):
        return None
    available = load("hetero.devices").available()
    names = sorted(name for name in available if device in (name, name.partition(":")[0]))
    return available[names[rows.ranks.node_rank % len(names)]]


def checked_goal(
    until: tuple[Any, ...], method: str | None, device: str | None, checkpoint: Any, every: Any
) -> dict[str, Any]:
    """When a solve ends, and where it is saved; raises where something of it is no number, method,
    path or time, or the device, also that of a `use` block, is none that a rank can take.

    ``until`` is rtol, atol, maxiter, and the iterations where that is None.
    """
    if method not in (None, "cg"):
        raise MethodNotAvailable(f"method must be 'cg', got {method!r}")
    device = planner.placement(device, None)[0]
    planner.check_placement("cg", device, None)
    if device is not None and "*" in device:
        raise ValueError(f"device must be one device of this rank, got {device!r}")
    rtol, atol, *limit = until
    goal = {"rtol": checked_tolerance("rtol", rtol), "atol": checked_tolerance("atol", atol)}
    goal |= {"maxiter": checked_limit(*limit), "every": checked_tolerance("every", every)}
    return goal | {"checkpoint": None if checkpoint is None else os.fsdecode(checkpoint)}


def run(
    rows: Rows,
    b: np.ndarray,
    x: np.ndarray,
    goal: dict[str, Any],
    known: dict[str, Any],
    device: str | None,
    *,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    **matrix: Any,
) -> tuple[Outcome, dict[str, Any]]:
    """Solve A x = b from x, which is overwritten; a collective call, the last one. Gives how it was
    done, too.

    ``rows`` are this rank's of A, and b and x its parts of the vectors. ``M`` is a diagonal, or
    ``apply(r, z)`` that writes z = M r. ``known`` tells the problem from others, the same on every
    rank, for JSON; by ``A`` checkpoints tell it, too. ``device``: see `_place_of`.
    """
    ranks = rows.ranks
    place = ranks.agreed(_place_of, rows, device, b)
    with place.active() if place else contextlib.nullcontext(), np.errstate(all="ignore"):
        vectors = DeviceVectors(rows, place, b.dtype) if place else HostVectors(rows, b.dtype)
        A = Matrix(vectors.times)
        if isinstance(M, np.ndarray):
            diagonal = vectors.hold(np.ascontiguousarray(M, b.dtype))
            M = functools.partial(vectors.multiply, diagonal)
        saved, before = None, 0
        if goal["checkpoint"] is not None:
            saved = Checkpoint(ranks, goal, known, x, **matrix, b=b)
            before = saved.done
        called, n = ranks.most(callback is not None), ranks.total(b.size)

        def watch(x: Callable[[], np.ndarray]) -> None:
            """What happens after each iteration: the caller's callback, and checkpoints."""
            if called:
                ranks.agreed(lambda: callback and callback(x()))
            if saved is not None:
                saved.after(x)

        def true_residual(b: Any, x: Any, residual: float, bound: float, norm_b: float) -> float:
            """As `cg_loop.true_residual`: in float64 where rounding to float32 may decide."""
            if not is_doubtful(b.dtype, n, residual, bound, norm_b):
                return residual
            b, x = (vectors.on_host(v).astype(np.float64) for v in (b, x))
            q, precise = np.empty_like(b), HostVectors(rows, b.dtype)
            precise.times(x, q)
            return precise.norm(b - q)

        def solve(b: np.ndarray, x: np.ndarray, asked: Solve) -> Outcome:
            """Iterate; the callback gives x at the caller's scale."""
            report, rhs, u = asked.callback, vectors.hold(b), vectors.hold(x)
            watched = report and (lambda u: watch(lambda: report(vectors.on_host(u))))
            at_zero, norm_b = not ranks.most(np.any(x)), vectors.norm(rhs)
            asked = asked._replace(callback=watched, from_zero=at_zero)
            outcome = solve_unscaled(A, vectors, true_residual, M, rhs, u, asked, norm_b)
            np.copyto(x, vectors.on_host(u))
            return outcome._replace(right_side=norm_b)

        report, limit = (lambda x: x) if called or saved else None, goal["maxiter"] - before
        asked = Solve(None, goal["rtol"], goal["atol"], max(limit, 0), report)
        if is_safe(math.sqrt(ranks.total(np.vdot(b, b))), b.itemsize):
            outcome = solve(b, x, asked)
        else:
            outcome = scaled(solve, b, x, asked, ranks.most)
    ranks.comm.Free()
    outcome = outcome._replace(iterations=outcome.iterations + before)
    how = {"device": place.name if place else CPU, "method": "cg", "ranks": ranks.size}
    how |= {"continued_from": before, "iterations": outcome.iterations, "status": outcome.status}
    return outcome, how | {"residual": outcome.residual, "converged": outcome.status == CONVERGED}


def checked_array(
    name: str, given: Any, taken: str = "an array", shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """What NumPy makes an array of numbers of; ValueError for sparse matrices, operators and text,
    and where it is to be a rank's part of a vector, of this ``shape``, for what has another."""
    array = np.asarray(given)
    if array.dtype.kind in "OSU":
        raise ValueError(f"{name} must be {taken}, got {type(given).__name__}")
    if shape is None:
        return array
    if array.shape not in (shape, (*shape, 1)):
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    real_dtype(**{name: array.dtype})
    return array.reshape(shape)
