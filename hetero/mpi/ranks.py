"""A communicator: what its ranks agree on, and the sums that they make together.

A sum is made of the ranks' partial sums in the order of the ranks, by every rank alike. The result
therefore has the same bits on every rank and in every run, which `MPI_Allreduce` does not promise.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import numpy as np

from hetero import errors
from hetero.host import pages
from hetero.imports import INSTALL, load

_PINGS = 32
_REST = 2e-4  # seconds between two looks
_FLAGS = 2  # numbers that go with each sum: save, failed
_known: dict[str, int] = {}  # the key under which a communicator keeps its `Ranks`


def ranks_of(comm: Any = None) -> Ranks:
    """The `Ranks` of a communicator, which are made once; a collective call the first time.

    Raises
    ------
    PackageMissing
        Without mpi4py.
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
    return ranks


class Ranks:
    """The ranks of one communicator.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
    rank, size, node_rank : int
        The last among the ranks of the same node.
    one_node : bool
        Whether all ranks are of one node.
    save, failed : bool
        What any rank asked for with `ask`, as known since the last sum.
    """

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        node = comm.Split_type(load("mpi4py.MPI").COMM_TYPE_SHARED)
        self.node_rank, self.one_node = node.rank, node.size == comm.size
        node.Free()
        self._latency: float | None = None
        self.forget()

    def forget(self) -> None:
        """Withdraw what was asked for."""
        self._asked = [0.0] * _FLAGS
        self.save = self.failed = False

    def ask(self, *, save: bool = False, failed: bool = False) -> None:
        """Let all ranks know with the next sum that it is time to save, or that this one failed."""
        self._asked = [
            max(old, float(new)) for old, new in zip(self._asked, (save, failed), strict=True)
        ]

    def begin(self, *partial: float) -> tuple[Any, np.ndarray, np.ndarray]:
        """Start to add up numbers; for `end`. The ranks go on computing meanwhile."""
        mine = np.array([*partial, *self._asked])
        every = np.empty((self.size, mine.size))
        return self.comm.Iallgather(mine, every), mine, every

    def end(self, begun: tuple[Any, np.ndarray, np.ndarray]) -> np.ndarray:
        """The sums over all ranks."""
        request, _, every = begun
        request.Wait()
        return self._added(every)

    def total(self, *partial: float) -> np.ndarray:
        """The sums over all ranks of numbers that each has some of."""
        mine = np.array([*partial, *self._asked])
        every = np.empty((self.size, mine.size))
        self.comm.Allgather(mine, every)
        return self._added(every)

    def _added(self, every: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            sums = np.add.accumulate(every, axis=0)[-1]  # one rank after the other
        self.save, self.failed = (bool(flag) for flag in sums[-_FLAGS:])
        return sums[:-_FLAGS]

    def gather(self, *numbers: Any) -> np.ndarray:
        """(size, k) float64: each rank's numbers."""
        mine = np.array(numbers, np.float64)
        every = np.empty((self.size, mine.size))
        self.comm.Allgather(mine, every)
        return every

    def most(self, number: Any) -> float:
        """The largest number that a rank has; NaN where one has that."""
        return float(self.gather(number).max())

    def every(self, value: Any) -> list[Any]:
        """Each rank's value, of those that JSON holds."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self.gather(text.size)[:, 0].astype(int)
        whole = np.empty(sizes.sum(), np.uint8)
        self.comm.Allgatherv(text, [whole, sizes])
        ends = np.cumsum(sizes)
        return [json.loads(whole[e - s : e].tobytes()) for s, e in zip(sizes, ends, strict=True)]

    def starts(self, rows: int) -> np.ndarray:
        """(size + 1,) int64: the first row of each rank, and the number of all."""
        count = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([rows], np.int64), count)
        return np.concatenate([[0], np.cumsum(count)])

    def added(self, mine: np.ndarray) -> np.ndarray:
        """The sum over all ranks of arrays of one shape, in float64."""
        every = np.empty((self.size, *mine.shape))
        self.comm.Allgather(np.ascontiguousarray(mine, np.float64), every)
        for other in every[1:]:
            every[0] += other
        return every[0]

    def joined(self, starts: np.ndarray, mine: np.ndarray, root: int | None = None) -> np.ndarray:
        """The rows of all ranks, of which each has its own: on all ranks, or on one (else none)."""
        n = starts[-1] if root in (None, self.rank) else 0
        whole = pages.empty((n, *mine.shape[1:]), mine.dtype)
        if size := mine.itemsize * math.prod(mine.shape[1:]):
            row = load("mpi4py.MPI").BYTE.Create_contiguous(size).Commit()
            both = [np.ascontiguousarray(mine), row], [whole, np.diff(starts), row]
            self.comm.Allgatherv(*both) if root is None else self.comm.Gatherv(*both, root)
            row.Free()
        return whole

    def rest(self) -> None:
        """Wait for all ranks, and leave the cores to those that still compute."""
        everyone = self.comm.Ibarrier()
        while not everyone.Test():
            time.sleep(_REST)

    def agree(self, error: BaseException | None = None, **facts: Any) -> None:
        """Go on only where no rank has an error and all have the same facts.

        Raises
        ------
        ValueError
            On every rank, with the same text, which names ranks and values.
        """
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
            raise ValueError("; ".join(wrong)) from error

    def latency(self) -> float:
        """Seconds of a sum, measured once; a collective call."""
        if self._latency is None:
            seconds = []
            for _ in range(_PINGS):
                began = time.perf_counter()
                self.total(0.0, 0.0)
                seconds.append(time.perf_counter() - began)
            self._latency = self.most(float(np.median(seconds)))
        return self._latency


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
