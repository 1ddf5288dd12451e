"""In which order tiles of two kinds of panels are computed, and in which slots panels lie."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

Index = tuple[int, ...]


def order(held: int, passing: int, a: int, b: int) -> list[tuple[int, int]]:
    """Tiles by numbers of a panel that is held and one that goes by, with slots for a and b.

    As soon as panels are there all their tiles are computed: what is computed grows with the square
    of what was moved. Each time the other way along, so that panels which are there come first.
    """
    together = held if a >= held else max(a - 1, 1)
    few = passing if b >= passing else max(b - 1, 1)
    tiles: list[tuple[int, int]] = []
    along = list(range(passing))
    for begin in range(0, held, together):
        holding = range(begin, min(begin + together, held))
        head, tail = along[:few], along[few:]
        if tiles:  # the first of those that go by are on the device already
            tiles += [(h, p) for h in holding for p in head]
        else:
            for n in range(max(len(holding), len(head))):
                tiles += [(h, p) for h in holding[n : n + 1] for p in head[:n]]
                tiles += [(h, p) for p in head[n : n + 1] for h in holding[: n + 1]]
        tiles += [(h, p) for p in tail for h in holding]
        along = along[::-1]
    return tiles


def placed(keys: Sequence[Index], slots: int) -> list[tuple[int, bool]]:
    """(slot, whether to load) of each key in turn."""
    again: list[float] = [inf] * len(keys)
    later: dict[Index, int] = {}
    for at in range(len(keys) - 1, -1, -1):
        again[at] = later.get(keys[at], inf)
        later[keys[at]] = at
    where: dict[Index, int] = {}
    holds: list[Any] = [None] * slots
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
