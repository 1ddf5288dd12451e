"""Which tiles of C a streamed product computes one after another, and which panels lie where.

A tile of C is the product of a panel of rows of A and a panel of columns of B, each with the whole
of k. Panels lie in slots on the device. Where there is room for all, each is moved once; else some
panels of one operand are held, and those of the other go by. A panel replaces the one that
is needed again last (Belady's rule, which moves the fewest).

Whatever is held, tiles are computed as soon as their panels are there: the first of A and B, then
the second of each with those before, and so on. So little is waited for at the begin, and what is
computed grows with the square of what was moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, prod
from typing import NamedTuple

from hetero.devices.storage import rounded

Index = tuple[int, ...]


class Grid(NamedTuple):
    """A product cut into tiles: C (batch, m, n) = A (batch, m, k) B (batch, k, n).

    Attributes
    ----------
    batch : tuple of int
        Extents of the batch axes of C.
    shape : (m, n, k)
    lengths : (items, rows, columns)
        Of a tile; items are those of the last batch axis.
    a_batch, b_batch : tuple of bool
        Whether A and B have each batch axis; they are used again along those that they lack.
    itemsize : int
    """

    batch: Index
    shape: tuple[int, int, int]
    lengths: tuple[int, int, int]
    a_batch: tuple[bool, ...]
    b_batch: tuple[bool, ...]
    itemsize: int

    @property
    def groups(self) -> list[Index]:
        """Indices of the batch, the last one in steps of a tile's items."""
        indices: list[Index] = [()]
        for axis, extent in enumerate(self.batch):
            step = self.lengths[0] if axis == len(self.batch) - 1 else 1
            indices = [(*index, i) for index in indices for i in range(0, extent, step)]
        return indices

    @property
    def rows(self) -> int:
        """Panels of A in each item."""
        return -(-self.shape[0] // self.lengths[1])

    @property
    def columns(self) -> int:
        """Panels of B in each item."""
        return -(-self.shape[1] // self.lengths[2])

    @property
    def panel_bytes(self) -> tuple[int, int, int]:
        """Of a whole panel of A, one of B, and a tile of C."""
        items, m, n = self.lengths
        k = self.shape[2]
        a = items if self.a_batch and self.a_batch[-1] else 1
        b = items if self.b_batch and self.b_batch[-1] else 1
        return tuple(self.itemsize * x for x in (a * m * k, b * k * n, items * m * n))

    def panels(self) -> tuple[int, int]:
        """How many different panels there are of A, and of B."""
        counts = []
        for has, number in ((self.a_batch, self.rows), (self.b_batch, self.columns)):
            last = len(self.batch) - 1
            each = [
                -(-extent // (self.lengths[0] if axis == last else 1)) if has[axis] else 1
                for axis, extent in enumerate(self.batch)
            ]
            counts.append(prod(each) * number)
        return counts[0], counts[1]

    def part(self, visit: Visit) -> tuple[int, int, int]:
        """Items, rows and columns of a tile, which may be less than others at the end."""
        items, rows, columns = self.lengths
        m, n, _ = self.shape
        left = self.batch[-1] - visit.group[-1] if self.batch else 1
        return (
            min(items, left),
            min(rows, m - visit.row * rows),
            min(columns, n - visit.column * columns),
        )

    @property
    def tiles(self) -> int:
        return len(self.groups) * self.rows * self.columns


class Visit(NamedTuple):
    """A tile, and where its panels and its result lie.

    Attributes
    ----------
    group : tuple of int
        First item of the batch.
    row, column : int
        Of the tile.
    a, b, c : int
        Slots.
    load_a, load_b : bool
        Whether the panel must be loaded there first.
    """

    group: Index
    row: int
    column: int
    a: int
    b: int
    c: int
    load_a: bool
    load_b: bool


class Tiling(NamedTuple):
    """A grid, and how many panels and tiles the device has room for.

    Attributes
    ----------
    grid : Grid
    slots : (a, b, c)
    by_columns : bool
        Whether panels of B are held while those of A go by, not the other way round.
    """

    grid: Grid
    slots: tuple[int, int, int]
    by_columns: bool

    @property
    def nbytes(self) -> int:
        """All slots together."""
        taken = map(rounded, self.grid.panel_bytes)
        return sum(number * size for number, size in zip(self.slots, taken, strict=True))

    def visits(self) -> list[Visit]:
        """The tiles in the order in which they are computed."""
        grid, (a, b, c) = self.grid, self.slots
        tiles = [(group, *tile) for group in grid.groups for tile in self._order()]
        first = _placed([(_masked(g, grid.a_batch), i) for g, i, _ in tiles], a)
        second = _placed([(_masked(g, grid.b_batch), j) for g, _, j in tiles], b)
        return [
            Visit(*tile, slot_a, slot_b, number % c, load_a, load_b)
            for number, (tile, (slot_a, load_a), (slot_b, load_b)) in enumerate(
                zip(tiles, first, second, strict=True)
            )
        ]

    def _order(self) -> Iterator[tuple[int, int]]:
        """(row, column) of the tiles of an item."""
        grid, (a, b, _) = self.grid, self.slots
        if self.by_columns:
            return ((i, j) for j, i in _order(grid.columns, grid.rows, b, a))
        return _order(grid.rows, grid.columns, a, b)


def _masked(index: Index, has: tuple[bool, ...]) -> Index:
    """The index with 0 along axes that an operand lacks."""
    return index and tuple(i if there else 0 for i, there in zip(index, has, strict=True))


def _order(held: int, passing: int, a: int, b: int) -> Iterator[tuple[int, int]]:
    """Tiles by numbers of a panel that is held and one that goes by, with slots for a and b.

    Each time the other way along, so that the panels which are there are used first.
    """
    together = held if a >= held else max(a - 1, 1)
    few = passing if b >= passing else max(b - 1, 1)
    there = False  # whether the first of those that go by are on the device already
    along = list(range(passing))
    for begin in range(0, held, together):
        holding = range(begin, min(begin + together, held))
        head, tail = along[:few], along[few:]
        if there:
            yield from ((h, p) for h in holding for p in head)
        else:
            yield from _growing(holding, head)
        yield from ((h, p) for p in tail for h in holding)
        there, along = True, along[::-1]


def _growing(holding: Sequence[int], head: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first of each, then the next of each with all those before."""
    for number in range(max(len(holding), len(head))):
        if number < len(holding):
            yield from ((holding[number], p) for p in head[:number])
        if number < len(head):
            yield from ((h, head[number]) for h in holding[: number + 1])


def _placed(keys: Sequence[object], slots: int) -> list[tuple[int, bool]]:
    """(slot, whether to load) of each key in turn."""
    again: list[float] = [inf] * len(keys)
    later: dict[object, int] = {}
    for at in range(len(keys) - 1, -1, -1):
        again[at] = later.get(keys[at], inf)
        later[keys[at]] = at
    where: dict[object, int] = {}
    holds: list[object] = [None] * slots
    wanted: list[tuple[float, int]] = [(inf, -1)] * slots  # when next, and minus when last
    steps = []
    for at, key in enumerate(keys):
        slot = where.get(key)
        load = slot is None
        if slot is None:
            slot = wanted.index(max(wanted, key=lambda use: (use[0], -use[1])))
            where.pop(holds[slot], None)
            holds[slot], where[key] = key, slot
        wanted[slot] = again[at], at
        steps.append((slot, load))
    return steps


def fitted(grid: Grid, room: float) -> list[Tiling]:
    """Ways to place a grid's panels in ``room`` bytes; none where not even one of each fits."""
    (all_a, all_b), (a, b, c) = grid.panels(), map(rounded, grid.panel_bytes)
    tiles = min(grid.tiles, 3)
    if all_a * a + all_b * b + tiles * c <= room:
        return [Tiling(grid, (all_a, all_b, tiles), False)]
    tilings = []
    for by_columns in (False, True):
        (most, size), (others, other) = (all_a, a), (all_b, b)
        if by_columns:
            (most, size), (others, other) = (others, other), (most, size)
        for passing in (3, 2, 1):  # with one there is no room to load ahead
            number, few = min(tiles, passing), min(others, passing)
            held = int(min(most, (room - number * c - few * other) // size))
            if held >= min(most, passing):
                few = int(min(others, (room - number * c - held * size) // other))
                held, few = (few, held) if by_columns else (held, few)
                tilings.append(Tiling(grid, (held, few, number), by_columns))
                break
    return tilings
