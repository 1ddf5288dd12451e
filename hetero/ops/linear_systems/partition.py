"""Row partitions: who owns which rows, and which bytes go from whom to whom.

A grid is cut into slabs of whole rows (2-D) or planes (3-D), one for each device. A device holds
its own rows and, on each side where another slab follows, ``depth`` rows of it: the halo.
`hetero.ops.linear_systems.exchange` does the copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

Range = tuple[int, int]


def split(rows: int, parts: int, least: int = 1) -> list[Range]:
    """Cut rows into contiguous parts whose sizes differ by at most one, the longer ones first.

    Each part is given by its first row and the row after its last. Where there are too few rows for
    ``least`` in each, there are fewer parts than wanted, at least one.

    Examples
    --------
    >>> split(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    >>> split(10, 4, least=4)
    [(0, 5), (5, 10)]
    """
    parts = max(1, min(parts, rows // least))
    size, longer = divmod(rows, parts)
    cuts = [part * size + min(part, longer) for part in range(parts + 1)]
    return list(itertools.pairwise(cuts))


class Slab(NamedTuple):
    """What one device holds of a grid: rows ``begin - above`` to ``end + below``, in this order."""

    begin: int  # its own rows, as rows of the whole grid
    end: int
    above: int  # halo rows before and after them; 0 at the ends of the grid
    below: int

    @property
    def first(self) -> int:
        """First row that it holds, as a row of the whole grid."""
        return self.begin - self.above

    @property
    def own(self) -> int:
        """Rows of its own."""
        return self.end - self.begin

    @property
    def held(self) -> int:
        """Rows with the halo: what a buffer has room for."""
        return self.above + self.own + self.below


def slabs(rows: int, parts: int, depth: int = 1) -> list[Slab]:
    """Cut a grid into slabs that hold ``depth`` rows of each neighbour.

    No part has fewer than ``depth`` rows, so that a halo comes from one neighbour alone.
    """
    return around(split(rows, parts, depth), depth)


def around(cuts: Sequence[Range], depth: int) -> list[Slab]:
    """Slabs of these rows that hold ``depth`` rows of each neighbour."""
    last = len(cuts) - 1
    return [
        Slab(begin, end, depth if part else 0, depth if part < last else 0)
        for part, (begin, end) in enumerate(cuts)
    ]


class Copy(NamedTuple):
    """Bytes that one part takes from another. Parts by number, offsets in bytes."""

    target: int
    source: int
    nbytes: int
    target_offset: int
    source_offset: int


def range_copies(
    written: Sequence[Range],
    needed: Sequence[Range],
    row_bytes: int,
    origins: Sequence[int] | None = None,
) -> list[Copy]:
    """What parts take of each other: each has written a range of rows, and needs another one.

    ``origins``: the row that a part's buffer begins with. Default: buffers have all rows.
    """
    origins = origins or [0] * len(needed)
    copies = []
    for target, (low, high) in enumerate(needed):
        for source, (begin, end) in enumerate(written):
            first, last = max(low, begin), min(high, end)
            if source != target and first < last:
                places = [(first - origins[part]) * row_bytes for part in (target, source)]
                copies.append(Copy(target, source, (last - first) * row_bytes, *places))
    return copies


def halo_copies(slabs: Sequence[Slab], row_bytes: int) -> list[Copy]:
    """What fills the halos: each part's rows next to its own, from the neighbours that own them.

    Rows (or planes) of a buffer are ``row_bytes`` apart.
    """
    own = [(slab.begin, slab.end) for slab in slabs]
    held = [(slab.first, slab.end + slab.below) for slab in slabs]
    return range_copies(own, held, row_bytes, [slab.first for slab in slabs])


def gather_copies(sizes: Sequence[int], apart: bool = False) -> list[Copy]:
    """The bytes of each part, ``sizes``, for all others: every buffer holds all, in order.

    ``apart``: out of a buffer that holds the part's own bytes alone; they are copied too.
    """
    begins = [0, *itertools.accumulate(sizes)]
    return [
        Copy(target, source, size, begins[source], 0 if apart else begins[source])
        for target in range(len(sizes))
        for source, size in enumerate(sizes)
        if apart or source != target
    ]
