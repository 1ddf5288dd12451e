"""Transactions with memory: what reads cost, by which addresses a group asks for at once.

White counts them for each kernel in a formula of its own (2013, equations 3.2 to 3.6, 4.4 to 4.10,
5.1 to 5.11). Here a kernel says which elements neighbouring threads read, and one function counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from .card import Card
from .metrics import Launch, blocks

__all__ = ["APART", "Access", "bytes_moved", "reads", "wavefronts"]

APART = 1 << 16  # elements: in another row, so that nothing is shared
_BANKS, _BANK_BYTES, _WARP = 32, 4, 32  # of shared memory, since compute capability 2.0


class Access(NamedTuple):
    """A read that the threads of a block do together.

    Attributes
    ----------
    along_x, along_y : int
        Elements from what one thread reads to what its neighbour along x, or y, reads: 0 the same,
        1 the next one, `APART` in another row.
    times : float
        How often each thread does it; a mean where not all do it as often.
    only : {"", "x", "y"}
        Only threads with index 0 along that axis read.
    """

    along_x: int
    along_y: int
    times: float
    only: str = ""


def reads(
    card: Card, launch: Launch, accesses: Iterable[Access], itemsize: int = 4
) -> dict[int, float]:
    """Transactions of a launch, by their size in bytes.

    The addresses that a group asks for at once are covered by pieces of the largest transaction,
    and each piece by the smallest transaction that holds what is wanted of it. Rows are taken to
    begin where a transaction does.
    """
    total: Counter[int] = Counter()
    for access in accesses:
        for size, count in _of_block(card, launch.x, launch.y, access[:2], access.only, itemsize):
            total[size] += count * access.times * blocks(launch)
    return dict(total)


def bytes_moved(transactions: dict[int, float]) -> float:
    """Bytes of all transactions, given their number by size."""
    return sum(size * count for size, count in transactions.items())


@lru_cache(maxsize=4096)
def _of_block(
    card: Card, x: int, y: int, steps: tuple[int, int], only: str, itemsize: int
) -> tuple[tuple[int, int], ...]:
    """(size, count) of the transactions when each thread of a block reads once."""
    counts: Counter[int] = Counter()
    for first in range(0, x * y, card.group):
        group = range(first, min(first + card.group, x * y))
        places = [(thread % x, thread // x) for thread in group]
        asked = {
            (at_x * steps[0] + at_y * steps[1]) * itemsize
            for at_x, at_y in places
            if not ((only == "x" and at_x) or (only == "y" and at_y))
        }
        counts.update(_covering(card, asked, itemsize))
    return tuple(counts.items())


def _covering(card: Card, asked: set[int], itemsize: int) -> list[int]:
    """The sizes of the transactions for elements at these addresses."""
    largest = card.transactions[-1]
    pieces: dict[int, list[int]] = {}
    for address in asked:
        pieces.setdefault(address // largest, []).append(address)
    return [
        next(
            size
            for size in card.transactions
            if min(piece) // size == (max(piece) + itemsize - 1) // size
        )
        for piece in pieces.values()
    ]


@lru_cache(maxsize=1024)
def wavefronts(itemsize: int, x: int, along_y: int) -> int:
    """Number of accesses to shared memory when a warp's threads read neighbouring elements.

    A warp has threads of several rows if x < 32. Words of 8 bytes go in two halves of a warp.

    Parameters
    ----------
    itemsize : int
    x : int
        Threads of a block along x.
    along_y : int
        Elements from one row of threads to the next.
    """
    total, size = 0, _WARP * _BANK_BYTES // itemsize
    for first in range(0, _WARP, size):
        words: dict[int, set[int]] = {}
        for thread in range(first, first + size):
            address = (thread // x * along_y + thread % x) * itemsize
            for word in range(address // _BANK_BYTES, (address + itemsize) // _BANK_BYTES):
                words.setdefault(word % _BANKS, set()).add(word)
        total += max(len(different) for different in words.values())
    return total
