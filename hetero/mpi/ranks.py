"""A communicator: what its ranks agree on, the sums that they make together, and their checkpoints.

A sum is made of the ranks' partial sums in the order of the ranks, by every rank alike. The result
therefore has the same bits on every rank and in every run, which `MPI_Allreduce` does not promise.

A checkpoint is one file with x of all ranks, from which any number of ranks goes on: NumPy's .npz,
read without pickle, with "x" (n,), and "about", JSON in UTF-8 with the number of iterations and the
problem's fingerprint. It is written under another name, flushed to the disk and renamed, so that
the last whole one survives a kill.
"""

from __future__ import annotations

import glob
import hashlib
import json
import operator
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hetero import errors, paths
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
    """The ranks of a duplicate of one communicator, for one solve, which frees it at its end.

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
        for name in facts if not wrong else ():
            ranks: dict[str, list[str]] = {}
            for number, (_, theirs) in enumerate(each):
                ranks.setdefault(theirs[name], []).append(str(number))
            if len(ranks) > 1:
                by = (f"{v} on rank{'s' * (len(n) > 1)} {', '.join(n)}" for v, n in ranks.items())
                wrong.append(f"the ranks disagree on {name}: {', '.join(by)}")
        if wrong:
            self.comm.Free()
            raise ValueError("; ".join(wrong)) from cause
        return result

    def total(self, number: Any) -> float:
        """The sum over all ranks of a number that each has some of."""
        return sum(self.gather(number).tolist())  # one rank after the other

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

    def whole(self, part: np.ndarray) -> np.ndarray:
        """A vector of which each rank has a part, on rank 0; on the others it is empty."""
        counts = np.diff(self.starts(part.size))
        whole = np.empty(0 if self.rank else counts.sum(), part.dtype)
        self.comm.Gatherv(part, [whole, counts])
        return whole


class Checkpoint:
    """The file of one solve, which rank 0 reads, and writes every ``every`` seconds of its clock.

    Where there is one, x is brought to what it has; ValueError on every rank where it is of another
    problem, or damaged. ``known`` tells the problem from others, for JSON, the same on every rank,
    and so do ``parts``, this rank's of its operands by name; of a matrix its product with the
    square roots of 1, 2, ... ``done`` counts the iterations, those of the file included.
    """

    def __init__(
        self, ranks: Ranks, goal: dict[str, Any], known: dict[str, Any], x: np.ndarray, **parts: Any
    ) -> None:
        self._ranks, self._path, self._every = ranks, Path(goal["checkpoint"]), goal["every"]
        self._saved_at = time.monotonic()
        for name, part in parts.items():
            if part.ndim > 1:
                part = part @ np.sqrt(np.arange(1.0, part.shape[1] + 1.0))
            known = known | {name: hashlib.sha256(ranks.whole(part)).hexdigest()[:16]}
        self._fingerprint = json.loads(json.dumps(known))
        counts = np.diff(ranks.starts(x.size))
        whole, done = ranks.agreed(lambda: (None, 0) if ranks.rank else self._read(counts.sum()))
        self.done = ranks.comm.bcast(done)
        if self.done:
            ranks.comm.Scatterv([whole, counts], x)

    def _read(self, n: int) -> tuple[np.ndarray | None, int]:
        """What the file has, where there is one: x, and the iterations that it took."""
        path = self._path
        try:
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise ValueError("its folder is not there, or cannot be written to")
            for left in path.parent.glob(f"{glob.escape(path.name)}.[0-9]*.part"):
                left.unlink(missing_ok=True)  # by a job that was killed while it wrote
            with paths.opened(path) as opened, np.load(opened, allow_pickle=False) as file:
                about, x = json.loads(file["about"].tobytes()), file["x"]
            ours, theirs = self._fingerprint, about["fingerprint"]
            for name in sorted({*theirs, *ours}):
                if (there := theirs.get(name)) != (here := ours.get(name)):
                    raise ValueError(
                        f"it is of another problem: {name} is {there!r} there, {here!r} here"
                    )
            done = int(about["iterations"])
            if x.shape != (n,) or x.dtype != ours["dtype"] or done < 0:
                raise ValueError(f"x is {x.dtype} {x.shape}, after {done} iterations")
            if not np.isfinite(x).all():
                raise ValueError("x is not finite")
        except FileNotFoundError:
            return None, 0
        except Exception as error:  # of a damaged file zipfile, json and NumPy raise many
            raise ValueError(f"{path} cannot be used: {error}") from error
        return x, done

    def after(self, x: Callable[[], np.ndarray]) -> None:
        """Count an iteration, and save what x gives where it is time; a collective call."""
        self.done += 1
        ranks, due = self._ranks, time.monotonic() - self._saved_at >= self._every
        if ranks.comm.bcast(due):  # by the clock of rank 0
            whole = ranks.whole(x())
            self._saved_at = time.monotonic()
            ranks.agreed(lambda: ranks.rank or self._write(whole))

    def _write(self, whole: np.ndarray) -> None:
        about = json.dumps({"iterations": self.done, "fingerprint": self._fingerprint})
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        with open(temporary, "wb") as file:
            np.savez(file, x=whole, about=np.frombuffer(about.encode(), np.uint8))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
