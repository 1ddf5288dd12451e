"""A communicator: what its ranks agree on, and the sums that they make together.

A sum is made of the ranks' partial sums in the order of the ranks, by every rank alike. The result
therefore has the same bits on every rank and in every run, which `MPI_Allreduce` does not promise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import errors
from hetero.imports import INSTALL, load

_known: dict[str, int] = {}  # the key under which a communicator keeps its `Ranks`


def ranks_of(comm: Any = None) -> Ranks:
    """The `Ranks` of a communicator, which are made once; a collective call the first time.
    PackageMissing without mpi4py.
    """
    try:
        MPI = load("mpi4py.MPI")
    except ImportError as error:
        raise errors.PackageMissing(
            f"hetero.mpi needs mpi4py ({error}); `{INSTALL['mpi']}` brings it"
        ) from error
    comm = MPI.COMM_WORLD if comm is None else comm
    if not _known:
        free = lambda comm, key, ranks: ranks.comm.Free()  # noqa: E731
        _known["key"] = MPI.Comm.Create_keyval(delete_fn=free)
    key = _known["key"]
    ranks = comm.Get_attr(key)
    if ranks is None:
        ranks = Ranks(comm.Dup())  # its messages never meet the caller's
        comm.Set_attr(key, ranks)
    ranks.forget()
    return ranks


class Ranks:
    """The ranks of one communicator; ``node_rank`` is among those of the same node.

    What a rank does alone goes through `attempt` or `agreed`, and collective calls are made outside
    of these: so a rank that fails never leaves the others waiting. ``save``: whether a rank asked
    for it with ``asks``, as known since the last sum.
    """

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        node = comm.Split_type(load("mpi4py.MPI").COMM_TYPE_SHARED)
        self.node_rank = node.rank
        node.Free()
        self.forget()

    def forget(self) -> None:
        """Withdraw what was asked for, and what failed."""
        self.save = self.asks = False
        self._error: Exception | None = None
        self._said = ""

    def attempt(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What this rank's own work gives.

        Where it raises, None: the rank goes on without working, and all ranks raise with the next
        sum.
        """
        if self._error is not None:
            return None
        try:
            return work(*arguments)
        except Exception as error:
            if self._said and str(error) == self._said:  # all ranks raise it
                raise
            self._error = error
            return None

    def agreed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What this rank's own work gives; where it raises on one rank, all raise.

        A collective call. In ``work`` no collective call but `total` and `most` may follow on what
        can raise.
        """
        result = self.attempt(work, *arguments)
        self._of_all(0.0)
        return result

    def alike(self, work: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """As `agreed`; the last of the results, a dict, has to be the same on all ranks."""
        result = self.attempt(work)
        self.agree(**(result[-1] if result else {}))
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
            self.agree()
        return each[:, 0]

    def gather(self, *numbers: Any) -> np.ndarray:
        """(size, k) float64: each rank's numbers."""
        mine = np.array(numbers, np.float64)
        every = np.empty((self.size, mine.size))
        self.comm.Allgather(mine, every)
        return every

    def every(self, value: Any) -> list[Any]:
        """Each rank's value, of those that JSON holds."""
        text = np.frombuffer(json.dumps(value, default=repr).encode(), np.uint8)
        sizes = self.gather(text.size)[:, 0].astype(int)
        whole = np.empty(sizes.sum(), np.uint8)
        self.comm.Allgatherv(text, [whole, sizes])
        ends = np.cumsum(sizes)
        return [json.loads(whole[e - s : e].tobytes()) for s, e in zip(sizes, ends, strict=True)]

    def starts(self, rows: int) -> np.ndarray:
        """(size + 1,) int64: the first row of each rank, and the number of all."""
        return np.cumsum([0, *self.gather(rows)[:, 0]]).astype(np.int64)

    def agree(self, **facts: Any) -> None:
        """Go on only where nothing failed on any rank and all have the same facts; else ValueError
        on every rank, with the same text, which names ranks and values.
        """
        error, self._error = self._error, None
        said = None if error is None else f"{type(error).__name__}: {error}"
        facts = {"version of hetero": sys.modules["hetero"].__version__, **facts}
        each = self.every([said, facts])
        wrong = [f"rank {n} raised {said}" for n, (said, _) in enumerate(each) if said]
        if not wrong:
            for name in facts:
                ranks: dict[str, list[int]] = {}
                for number, (_, theirs) in enumerate(each):
                    ranks.setdefault(repr(theirs.get(name)), []).append(number)
                if len(ranks) > 1:
                    values = ", ".join(f"{value} on {_named(of)}" for value, of in ranks.items())
                    wrong.append(f"the ranks disagree on {name}: {values}")
        if wrong:
            self._said = "; ".join(wrong)
            raise ValueError(self._said) from error


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
