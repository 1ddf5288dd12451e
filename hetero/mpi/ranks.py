"""A communicator: what its ranks agree on, and the sums that they make together.

A sum is made of the ranks' partial sums in the order of the ranks, by every rank alike. The result
therefore has the same bits on every rank and in every run, which `MPI_Allreduce` does not promise.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero import errors
from hetero.imports import INSTALL, load


def comm_of(comm: Any = None) -> Any:
    """A communicator, by default of all ranks; PackageMissing without mpi4py."""
    try:
        MPI = load("mpi4py.MPI")
    except ImportError as error:
        raise errors.PackageMissing(
            f"hetero.mpi needs mpi4py ({error}); `{INSTALL['mpi']}` brings it"
        ) from error
    return MPI.COMM_WORLD if comm is None else comm


def rows(n: int, comm: Any = None) -> tuple[int, int]:
    """The rows of n that this rank takes, where all take as many, or one more.

    Parameters
    ----------
    n : int
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``.

    Returns
    -------
    begin, end : int
        First row, and the one after the last.

    Raises
    ------
    ValueError
        Where n is negative.

    Examples
    --------
    >>> begin, end = hetero.mpi.rows(1000)  # doctest: +SKIP
    """
    if (n := operator.index(n)) < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    comm = comm_of(comm)
    return n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size


class Ranks:
    """The ranks of a duplicate of one communicator, for the length of a ``with`` block.

    What a caller gives goes through `agreed`, and collective calls are made outside of it: so a
    rank that fails there does not leave the others waiting. ``node_rank`` is among the ranks of the
    same node.
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm_of(comm).Dup()  # its messages never meet the caller's
        self.rank, self.size = self.comm.rank, self.comm.size
        node = self.comm.Split_type(load("mpi4py.MPI").COMM_TYPE_SHARED)
        self.node_rank = node.rank
        node.Free()
        self._said = ""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None or self._said:  # a collective call
            self.comm.Free()

    def agreed(self, work: Callable[..., Any], *arguments: Any, alike: bool = False) -> Any:
        """What this rank's own work gives, in which there is no collective call.

        A collective call. Where the work raises on one rank, or the last of its results is a dict
        that has to be ``alike`` and is not, all raise a ValueError with the same text, which names
        ranks and values.
        """
        result, cause, facts = None, None, {"version of hetero": sys.modules["hetero"].__version__}
        try:
            result = work(*arguments)
            facts |= result[-1] if alike else {}
        except Exception as error:
            cause = error
        said = cause and f"{type(cause).__name__}: {cause}"
        each = self.comm.allgather((said, {name: repr(value) for name, value in facts.items()}))
        wrong = [f"rank {number} raised {said}" for number, (said, _) in enumerate(each) if said]
        if not wrong:
            wrong = [
                f"the ranks disagree on {name}: {_by_rank(values)}"
                for name in facts
                if len(set(values := [theirs[name] for _, theirs in each])) > 1
            ]
        if wrong:
            self._said = "; ".join(wrong)
            raise ValueError(self._said) from cause
        return result

    def total(self, number: Any) -> float:
        """The sum over all ranks of a number that each has some of."""
        with np.errstate(all="ignore"):
            return float(np.add.accumulate(self.gather(number))[-1])  # one rank after the other

    def most(self, number: Any) -> float:
        """The largest number that a rank has; NaN where one has that."""
        return float(self.gather(number).max())

    def gather(self, number: Any) -> np.ndarray:
        """(size,) float64: each rank's number."""
        every = np.empty(self.size)
        self.comm.Allgather(np.array([number], np.float64), every)
        return every

    def starts(self, rows: int) -> np.ndarray:
        """(size + 1,) int64: the first row of each rank, and the number of all."""
        return np.cumsum([0, *self.gather(rows)]).astype(np.int64)


def _by_rank(values: Sequence[str]) -> str:
    """Which ranks have which value."""
    ranks = {one: [str(n) for n, other in enumerate(values) if other == one] for one in values}
    return ", ".join(f"{v} on rank{'s' * (len(of) > 1)} {', '.join(of)}" for v, of in ranks.items())
