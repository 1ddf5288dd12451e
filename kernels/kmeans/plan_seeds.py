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
) -> Launch:
    """Plan the distances from the nearest seed with each candidate as one more.

    Buffers: ``"X"``, ``"weights"``, ``"candidates"``, ``"closest"``, ``"tried"`` and ``"sums"``.
    """
    threads = _threads(limit)
    return Launch(
        source="kmeans_seeds.cu",
        kernel="try_seeds",
        defines=_defines(dtype, threads, candidates, first, weighted),
        grid=ceil_div(n, length),
        block=threads,
        arguments=(
            *("X", "weights" if weighted else "X", "candidates", "closest", "tried", "sums"),
            *(n, d, length),
        ),
    )


def find_rows(n: int, values: int, dtype: str, weighted: bool, length: int, limit: int) -> Launch:
    """Plan the rows at which running sums reach ``"rests"`` within ``"parts"``: ``"found"``."""
    threads = _threads(limit)
    return Launch(
        source="kmeans_seeds.cu",
        kernel="find_rows",
        defines=_defines(dtype, threads, values, False, weighted),
        grid=values,
        block=threads,
        arguments=(
            *("closest", "weights" if weighted else "closest", "rests", "parts", "found"),
            *(n, length),
        ),
    )


def _threads(limit: int) -> int:
    return min(_THREADS, power_of_two(limit + 1) // 2)


def _defines(
    dtype: str, threads: int, candidates: int, first: bool, weighted: bool
) -> tuple[tuple[str, int | str], ...]:
    return (
        ("REAL", REAL[dtype]),
        ("THREADS", threads),
        ("CANDIDATES", candidates),
        ("FIRST", int(first)),
        ("WEIGHTED", int(weighted)),
    )
