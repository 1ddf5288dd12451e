"""Launch plans of k-means++."""

from __future__ import annotations

from typing import NamedTuple

from ..common.launch import REAL, Launch, ceil_div
from .shapes import threads_of_block

__all__ = ["SeedsPlan", "plan_seeds"]

_THREADS = 128
_LEAST_TILES = 4  # of as many rows as a block has threads, in its part


class SeedsPlan(NamedTuple):
    """The launches of k-means++ on one device.

    Attributes
    ----------
    n, d : int
        Rows of X, and their elements.
    trials : int
        Candidates for each seed.
    dtype : str
    weighted : bool
    length : int
        Rows whose distances a block adds up.
    threads : int
        Of a block.
    """

    n: int
    d: int
    trials: int
    dtype: str
    weighted: bool
    length: int
    threads: int

    @property
    def parts(self) -> int:
        """Parts of the rows, each with sums of its own."""
        return ceil_div(self.n, self.length)

    def try_seeds(self, candidates: int, first: bool, gathered: bool) -> Launch:
        """The distances from the nearest seed with each candidate as one more.

        Buffers: ``"X"``, ``"weights"``, ``"candidates"``, ``"closest"``, ``"tried"`` and
        ``"sums"``: of each part those of all candidates. With ``gathered`` the candidates are rows
        of X, whose numbers follow the sums.
        """
        return Launch(
            source="kmeans_seeds.cu",
            kernel="try_seeds",
            defines=self._defines(candidates, first, gathered),
            grid=self.parts,
            block=self.threads,
            arguments=(
                *("X", self._weights("X"), "sums" if gathered else "candidates"),
                *("closest", "tried", "sums"),
                *(self.n, self.d, self.length, self.parts * candidates),
            ),
        )

    def find_rows(self, values: int, gathered: bool) -> Launch:
        """The rows at which running sums reach what is ``"asked"``; they follow the ``"sums"``.

        Asked are pairs of doubles: a part, and the rest of the sum within it. ``gathered`` is that
        of the `try_seeds` that is compiled with it.
        """
        return Launch(
            source="kmeans_seeds.cu",
            kernel="find_rows",
            defines=self._defines(self.trials, False, gathered),
            grid=values,
            block=self.threads,
            arguments=(
                *("closest", self._weights("closest"), "asked", "sums"),
                *(self.n, self.length, self.parts * values),
            ),
        )

    def launches(self) -> tuple[Launch, ...]:
        """What finds seeds among the rows of X."""
        return (
            self.try_seeds(1, True, True),
            self.try_seeds(self.trials, False, True),
            self.find_rows(self.trials, True),
        )

    def _weights(self, without: str) -> str:
        return "weights" if self.weighted else without

    def _defines(
        self, candidates: int, first: bool, gathered: bool
    ) -> tuple[tuple[str, int | str], ...]:
        return (
            ("REAL", REAL[self.dtype]),
            ("THREADS", self.threads),
            ("CANDIDATES", candidates),
            ("FIRST", int(first)),
            ("WEIGHTED", int(self.weighted)),
            ("GATHERED", int(gathered)),
        )


def plan_seeds(
    n: int, d: int, trials: int, dtype: str, weighted: bool, multiprocessors: int, block_limit: int
) -> SeedsPlan:
    """Plan k-means++ of n rows; see `SeedsPlan` and `hetero.kernels.kmeans.plan.plan_lloyd`."""
    threads = threads_of_block(_THREADS, block_limit)
    length = threads * max(_LEAST_TILES, ceil_div(n, threads * 8 * multiprocessors))
    return SeedsPlan(n, d, trials, dtype, weighted, length, threads)
