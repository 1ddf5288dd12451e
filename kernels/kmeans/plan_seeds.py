"""Launch plans of k-means++."""

from __future__ import annotations

from ..common.launch import REAL, Launch, ceil_div
from .shapes import power_of_two

__all__ = ["find_rows", "part_of", "try_seeds"]

_THREADS = 128
_LEAST_TILES = 4  # of as many rows as a block has threads, in its part


def part_of(n: int, multiprocessors: int, block_limit: int) -> int:
    """Rows whose distances a block adds up."""
    threads = _threads(block_limit)
    return threads * max(_LEAST_TILES, ceil_div(n, threads * 8 * multiprocessors))


def try_seeds(
    n: int,
    d: int,
    candidates: int,
    dtype: str,
    weighted: bool,
    length: int,
    first: bool,
    limit: int,
    gathered: bool = False,
) -> Launch:
    """Plan the distances from the nearest seed with each candidate as one more.

    Buffers: ``"X"``, ``"weights"``, ``"candidates"``, ``"closest"``, ``"tried"`` and ``"sums"``: of
    each part those of all candidates. With ``gathered`` the candidates are rows of X, whose numbers
    follow the sums.
    """
    threads, parts = _threads(limit), ceil_div(n, length)
    return Launch(
        source="kmeans_seeds.cu",
        kernel="try_seeds",
        defines=_defines(dtype, threads, candidates, first, weighted, gathered),
        grid=parts,
        block=threads,
        arguments=(
            *("X", "weights" if weighted else "X", "sums" if gathered else "candidates"),
            *("closest", "tried", "sums", n, d, length, parts * candidates),
        ),
    )


def find_rows(
    n: int,
    values: int,
    dtype: str,
    weighted: bool,
    length: int,
    limit: int,
    candidates: int,
    gathered: bool,
) -> Launch:
    """Plan the rows at which running sums reach what is ``"asked"``; they follow the ``"sums"``.

    Asked are pairs of doubles: a part, and the rest of the sum within it. ``candidates`` and
    ``gathered`` are those of the `try_seeds` that is compiled with it.
    """
    threads, parts = _threads(limit), ceil_div(n, length)
    return Launch(
        source="kmeans_seeds.cu",
        kernel="find_rows",
        defines=_defines(dtype, threads, candidates, False, weighted, gathered),
        grid=values,
        block=threads,
        arguments=(
            *("closest", "weights" if weighted else "closest", "asked", "sums"),
            *(n, length, parts * values),
        ),
    )


def _threads(limit: int) -> int:
    return min(_THREADS, power_of_two(limit + 1) // 2)


def _defines(
    dtype: str, threads: int, candidates: int, first: bool, weighted: bool, gathered: bool
) -> tuple[tuple[str, int | str], ...]:
    return (
        ("REAL", REAL[dtype]),
        ("THREADS", threads),
        ("CANDIDATES", candidates),
        ("FIRST", int(first)),
        ("WEIGHTED", int(weighted)),
        ("GATHERED", int(gathered)),
    )
