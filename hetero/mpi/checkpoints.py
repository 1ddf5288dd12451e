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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hetero import paths
from hetero.mpi.ranks import Ranks

_ROW, _COLUMN = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_AT_A_TIME = 1 << 20  # entries


def checksum(entries: Iterable[tuple[Any, Any, np.ndarray]]) -> int:
    """A number of 64 bits for values at (row, column), whatever their order and partition.

    The sum, modulo 2^64, of the bits of each value, row and column as SplitMix64 mixes them (G.
    Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
    """
    total = 0
    for rows, columns, values in entries:
        for first in range(0, values.size, _AT_A_TIME):
            part = slice(first, first + _AT_A_TIME)
            bits = values[part].astype(np.float64).view(np.uint64)
            bits = bits + np.asarray(rows[part], np.uint64) * _ROW
            bits += np.asarray(columns[part], np.uint64) * _COLUMN
            for shift, factor in _MIX:
                bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
            total += int(bits.sum(dtype=np.uint64))
    return total % 2**64


def of_vector(values: np.ndarray, first: int) -> int:
    """The checksum of a rank's part of a vector."""
    rows = np.arange(first, first + values.size)
    return checksum([(rows, np.zeros_like(rows), values)])


def of_matrix(matrix: Any, first: int) -> int:
    """The checksum of a rank's rows of a matrix, dense or compressed."""
    if isinstance(matrix, np.ndarray):
        columns = np.arange(matrix.shape[1])
        lines = ((np.full(columns.size, first + i), columns, row) for i, row in enumerate(matrix))
        return checksum(lines)
    rows = np.repeat(np.arange(first, first + matrix.shape[0]), np.diff(matrix.indptr))
    return checksum([(rows, matrix.indices, matrix.data)])


class Checkpoint:
    """The file of one solve, which rank 0 reads and writes.

    ``fingerprint`` is of the problem, for JSON, the same on every rank; ``every``: seconds between
    two checkpoints, by the clock of rank 0.
    """

    def __init__(
        self, ranks: Ranks, path: str, starts: np.ndarray, fingerprint: dict[str, Any], every: float
    ) -> None:
        self._ranks, self._path, self._starts = ranks, Path(path), starts
        self._fingerprint, self._every, self._saved_at = fingerprint, every, time.monotonic()

    def read(self, x: np.ndarray) -> int:
        """Bring x to what the file has, where there is one; gives the iterations it took.
        ValueError on every rank where the file is of another problem, or damaged.
        """
        whole, done = self._ranks.agreed(self._last, x.dtype)
        done, length = (int(n) for n in self._ranks.gather(done, whole.size)[0])
        if length:
            self._ranks.comm.Scatterv([whole, np.diff(self._starts)], x)
        return done

    def _last(self, dtype: np.dtype) -> tuple[np.ndarray, int]:
        """On rank 0 what the file has, where there is one."""
        if self._ranks.rank == 0:
            try:
                return self._read()
            except FileNotFoundError:
                pass
            except Exception as error:  # of a damaged file zipfile, json and NumPy raise many
                raise ValueError(f"{self._path} cannot be used: {error}") from error
        return np.zeros(0, dtype), 0

    def _read(self) -> tuple[np.ndarray, int]:
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            raise ValueError("its folder is not there, or cannot be written to")
        for left in self._path.parent.glob(f"{glob.escape(self._path.name)}.[0-9]*.part"):
            left.unlink(missing_ok=True)  # by a job that was killed while it wrote
        with paths.opened(self._path) as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            theirs, ours = about["fingerprint"], json.loads(json.dumps(self._fingerprint))
            for name in sorted({*theirs, *ours}):
                if theirs.get(name) != ours.get(name):
                    raise ValueError(
                        f"it is of another problem: {name} is {theirs.get(name)!r} there, "
                        f"{ours.get(name)!r} here"
                    )
            x, done = file["x"], int(about["iterations"])
            if x.shape != (self._starts[-1],) or x.dtype != ours["dtype"] or not 0 <= done < 2**53:
                raise ValueError(f"x is {x.dtype} {x.shape}, after {about['iterations']!s:.20}")
            if not np.isfinite(x).all():
                raise ValueError("x is not finite")
            return x, done

    def ask(self) -> None:
        """Ask the ranks to save with the next sum, where it is time; rank 0 asks."""
        if self._ranks.rank == 0 and time.monotonic() - self._saved_at >= self._every:
            self._ranks.asks = True

    def save(self, x: Callable[[], np.ndarray], iterations: int) -> None:
        """Write the file, with what x gives on each rank; a collective call."""
        ranks, counts = self._ranks, np.diff(self._starts)
        size = self._starts[-1] if ranks.rank == 0 else 0
        mine, whole = ranks.agreed(lambda: (x(), np.empty(size, self._fingerprint["dtype"])))
        ranks.comm.Gatherv(mine, [whole, counts])
        self._saved_at = time.monotonic()
        ranks.forget()
        ranks.agreed(lambda: ranks.rank or self._write(whole, iterations))

    def _write(self, whole: np.ndarray, iterations: int) -> None:
        about = json.dumps({"iterations": iterations, "fingerprint": self._fingerprint})
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        try:
            with open(temporary, "wb") as file:
                np.savez(file, x=whole, about=np.frombuffer(about.encode(), np.uint8))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        finally:
            temporary.unlink(missing_ok=True)
