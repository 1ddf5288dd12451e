"""Conjugate gradients for a matrix that lies on the ranks by rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi import solving
from hetero.mpi.products import DenseRows, Rows, sparse_rows
from hetero.mpi.ranks import Ranks
from hetero.mpi.solving import checked_array, checked_vector
from hetero.ops.solvers.systems import checked_limit, checked_tolerance, real_dtype, warn


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
    with Ranks(comm) as ranks:

        def checked() -> tuple[Any, ...]:
            matrix, b, start, inverse = _given(A_rows, b_rows, x0, M)
            layout = "dense" if isinstance(matrix, np.ndarray) else "sparse"
            if layout == "dense" and device not in (None, "cpu"):
                raise ValueError(f"dense rows are multiplied on the CPU, got device={device!r}")
            until = {
                "rtol": checked_tolerance("rtol", rtol),
                "atol": checked_tolerance("atol", atol),
            }
            until["maxiter"] = checked_limit(maxiter, 10 * matrix.shape[1])
            goal = solving.checked_goal(method, device, checkpoint, every, **until)
            known = {"columns": matrix.shape[1], "layout": layout, "dtype": b.dtype.name}
            how = {"M": M if isinstance(M, str) or M is None else "vector"}
            return matrix, b, start, inverse, goal, known, known | how | goal

        matrix, b, x, inverse, goal, known, _ = ranks.agreed(checked, alike=True)
        n, starts, place = matrix.shape[1], ranks.starts(matrix.shape[0]), device
        if starts[-1] != n:
            raise ValueError(f"A must be square: it has {n} columns, the ranks {starts[-1]} rows")
        if inverse is None and M is not None:
            with np.errstate(all="ignore"):  # 1 / the whole matrix's diagonal in these rows
                diagonal = matrix.diagonal(int(starts[ranks.rank])) if len(b) else b
                inverse = np.ascontiguousarray(1.0 / diagonal, b.dtype)
        if known["layout"] == "dense":
            rows, place = DenseRows(ranks, starts, matrix), "cpu"
        else:
            rows = Rows(ranks, starts, *ranks.agreed(sparse_rows, ranks, starts, matrix))
        given = ranks, rows, b, x, goal, known, place
        outcome, how = solving.run(*given, M=inverse, callback=callback, A=matrix)
    if outcome.info < 0:
        warn("solve_cg", outcome, f"norm(b - A x) is {outcome.residual:.3g}")
    return (x, outcome.info, how) if return_info else (x, outcome.info)


def _given(A: Any, b: Any, x0: Any, M: Any) -> tuple[Any, ...]:
    """A rank's matrix, right-hand side, start and diagonal, checked, in the solve's dtype."""
    is_sparse = load("scipy.sparse").issparse(A)
    matrix = A.tocsr() if is_sparse else checked_array("A_rows", A, "a sparse matrix or an array")
    if matrix.ndim != 2:
        raise ValueError(f"A_rows must have 2 dimensions, got shape {matrix.shape}")
    shape, last = matrix.shape[:1], matrix.shape[1] - 1
    b = checked_vector("b_rows", b, shape)
    dtype = real_dtype(A_rows=matrix.dtype, b_rows=b.dtype)
    if is_sparse and matrix.nnz:
        low, high = int(matrix.indices.min()), int(matrix.indices.max())
        if low < 0 or high > last:
            raise ValueError(f"columns of A_rows must be 0 to {last}, got {low} to {high}")
    x = np.array(np.zeros(shape) if x0 is None else checked_vector("x0", x0, shape), dtype)
    inverse = None
    if isinstance(M, str) and M != "jacobi":
        raise ValueError(f"M must be 'jacobi' or a vector, got {M!r}")
    if M is not None and not isinstance(M, str):
        inverse = np.ascontiguousarray(checked_vector("M", M, shape, "'jacobi' or an array"), dtype)
    return matrix.astype(dtype, copy=False), np.ascontiguousarray(b, dtype), x, inverse
