"""Checkpoints of a solve: one file with x of all ranks, from which any number of ranks goes on.

The file is NumPy's .npz, read without pickle: "x" (n,), and "about", JSON in UTF-8 with the number
of iterations and the problem's fingerprint. It is written under another name, flushed to the disk
and renamed, so that the last whole one survives a kill.
"""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hetero import paths
from hetero.mpi.ranks import Ranks

_PLACE = np.uint64(0x9E3779B97F4A7C15)


def checksum(values: Any, first: int) -> int:
    """Of a rank's part of a vector; their sum modulo 2^64 is that of the whole.

    The sum of each value's bits, the upper ones mixed with the lower, times an odd number, which
    its place gives. Of a rank's rows of a matrix it is that of the product with the square roots of
    1, 2, ...
    """
    if values.ndim > 1:
        values = values @ np.sqrt(np.arange(1.0, values.shape[1] + 1.0))
    places = np.arange(first, first + values.size, dtype=np.uint64) * _PLACE | np.uint64(1)
    bits = values.astype(np.float64).view(np.uint64)
    return int(((bits ^ (bits >> np.uint64(33))) * places).sum(dtype=np.uint64))


class Checkpoint:
    """The file of one solve, which rank 0 reads, and writes every ``every`` seconds of its clock.

    ``known`` tells the problem from others, for JSON, the same on every rank, ``parts`` are this
    rank's of its operands, by name. ``done`` counts the iterations, those of the file included.
    """

    def __init__(
        self, ranks: Ranks, path: str, every: float, known: dict[str, Any], parts: dict[str, Any]
    ) -> None:
        self._ranks, self._path, self._every, self.done = ranks, Path(path), every, 0
        self._starts, self._saved_at = ranks.starts(parts["b"].size), time.monotonic()
        first = int(self._starts[ranks.rank])
        sums = ranks.agreed(lambda: {name: checksum(part, first) for name, part in parts.items()})
        each = ranks.comm.allgather(sums)
        whole = {name: f"{sum(one[name] for one in each) % 2**64:016x}" for name in parts}
        self._fingerprint = json.loads(json.dumps(known | whole))

    def read(self, x: np.ndarray) -> None:
        """Bring x to what the file has, where there is one. ValueError on every rank where it is of
        another problem, or damaged.
        """
        ranks = self._ranks
        whole, done = ranks.agreed(lambda: (None, 0) if ranks.rank else self._read())
        self.done = ranks.comm.bcast(done)
        if self.done:
            ranks.comm.Scatterv([whole, np.diff(self._starts)], x)

    def _read(self) -> tuple[np.ndarray | None, int]:
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
            if x.shape != (self._starts[-1],) or x.dtype != ours["dtype"] or done < 0:
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
            mine = x()
            whole = np.empty(0 if ranks.rank else self._starts[-1], mine.dtype)
            ranks.comm.Gatherv(mine, [whole, np.diff(self._starts)])
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
