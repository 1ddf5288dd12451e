"""Dense products of rows that lie on the ranks: each gathers the second operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import Spec
from hetero.imports import load
from hetero.mpi import sharing
from hetero.mpi.ranks import ranks_of


def matvec(A_rows: Any, x_rows: Any, **options: Any) -> np.ndarray:
    """This rank's rows of A x, as `hetero.matvec`: `matmul` with x_rows of (own rows of x,)."""
    return matmul(A_rows, x_rows, **options)


def matmul(
    A_rows: Any, B_rows: Any, *, comm: Any = None, device: Any = None, method: Any = None
) -> np.ndarray:
    """This rank's rows of A B, as `hetero.matmul`; a collective call.

    Parameters
    ----------
    A_rows, B_rows : (own rows of A, k) and (own rows of B, n) or (own rows of B,) array
        On the host. B may be divided otherwise than A; all ranks gather the whole of it.
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``.
    device, method : str, optional
        Of `hetero.matmul`, for this rank's rows. A kind, as "cuda": the devices of the node by
        turns. Default: where this rank is fastest.

    Returns
    -------
    (own rows of A, n) or (own rows of A,) ndarray

    Raises
    ------
    ValueError
        On every rank, with the same text, where arguments of one are wrong or ranks disagree.

    Examples
    --------
    >>> C_rows = hetero.mpi.matmul(A[begin:end], B[begin:end])  # doctest: +SKIP
    """
    A, B, ranks, failed, facts = A_rows, B_rows, ranks_of(comm), None, {}
    try:
        A, B = np.asarray(A), np.asarray(B)
        name = "matvec" if B.ndim == 1 else "matmul"
        if A.ndim != 2 or B.ndim not in (1, 2) or {A.dtype.kind, B.dtype.kind} - set("biufc"):
            raise ValueError(f"matrices of numbers are needed, got shapes {A.shape} and {B.shape}")
        facts = {"columns": [A.shape[1], *B.shape[1:]], "dtypes": [A.dtype.str, B.dtype.str]}
        whole = Spec((A.shape[1], *B.shape[1:]), B.dtype)
        placed = sharing.placed(ranks, device, method, name, A, whole)
    except Exception as error:
        failed = error
    ranks.agree(failed, **facts)
    starts = ranks.starts(len(B))
    if starts[-1] != A.shape[1]:
        raise ValueError(f"A has {A.shape[1]} columns, the second operand {starts[-1]} rows")
    return getattr(load("hetero.ops.functions"), name)(A, ranks.joined(starts, B), **placed)
