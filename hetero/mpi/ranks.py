"""A communicator: what its ranks agree on, and the sums that they make together.

A sum is made of the ranks' partial sums in the order of the ranks, by every rank alike. The result
therefore has the same bits on every rank and in every run, which `MPI_Allreduce` does not promise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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


class Ranks:
    """The ranks of a duplicate of one communicator, for the length of a ``with`` block.

    What a caller gives goes through `attempt` or `agreed`, and collective calls are made outside of
    these: so a rank that fails there does not leave the others waiting. ``save``: whether a rank
    asked for it with ``asks``, as known since the last sum.
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm_of(comm).Dup()  # its messages never meet the caller's
        self.rank, self.size = self.comm.rank, self.comm.size
        self.save = self.asks = False
        self._error: Exception | None = None
        self._said = ""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None or self._said:  # a collective call
            self.comm.Free()

    def attempt(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What this rank's own work gives; where it raises, None, and all raise with the next sum.

        There is no collective call in ``work``.
        """
        try:
            return work(*arguments)
        except Exception as error:
            self._error = error
            return None

    def agreed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What this rank's own work gives; where it raises on one rank, all raise.

        A collective call.
        """
        result = self.attempt(work, *arguments)
        self._of_all(0.0)
        return result

    def alike(self, work: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """As `agreed`; the last of the results, a dict, has to be the same on all ranks."""
        result = self.attempt(work)
        self._agree(**(result[-1] if result else {}))
        return result

    def total(self, number: Any) -> float:
        """The sum over all ranks of a number that each has some of."""
        with np.errstate(all="ignore"):
            return float(np.add.accumulate(self._of_all(number))[-1])  # one rank after the other

    def most(self, number: Any) -> float:
        """The largest number that a rank has; NaN where one has that."""
        return float(self._of_all(number).max())

    def _of_all(self, number: Any) -> np.ndarray:
        """Each rank's number; all raise where one failed before."""
        each = self.gather(number, self.asks, self._error is not None)
        _, self.save, failed = each.any(axis=0)
        if failed:
            self._agree()
        return each[:, 0]

    def gather(self, *numbers: Any) -> np.ndarray:
        """(size, k) float64: each rank's numbers."""
        mine = np.array(numbers, np.float64)
        every = np.empty((self.size, mine.size))
        self.comm.Allgather(mine, every)
        return every

    def starts(self, rows: int) -> np.ndarray:
        """(size + 1,) int64: the first row of each rank, and the number of all."""
        return np.cumsum([0, *self.gather(rows)[:, 0]]).astype(np.int64)

    def _agree(self, **facts: Any) -> None:
        """Go on only where nothing failed on any rank and all have the same facts; else ValueError
        on every rank, with the same text, which names ranks and values.
        """
        error, self._error = self._error, None
        said = None if error is None else f"{type(error).__name__}: {error}"
        facts = {"version of hetero": sys.modules["hetero"].__version__, **facts}
        mine = said, {name: repr(value) for name, value in facts.items()}
        each = self.comm.allgather(mine)
        wrong = [f"rank {n} raised {said}" for n, (said, _) in enumerate(each) if said]
        for name in () if wrong else facts:
            ranks: dict[str, list[int]] = {}
            for number, (_, theirs) in enumerate(each):
                ranks.setdefault(theirs.get(name, "None"), []).append(number)
            if len(ranks) > 1:
                values = ", ".join(f"{value} on {_named(of)}" for value, of in ranks.items())
                wrong.append(f"the ranks disagree on {name}: {values}")
        if wrong:
            self._said = "; ".join(wrong)
            raise ValueError(self._said) from error


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
