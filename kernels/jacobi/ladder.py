"""The steps of ladder.cu: a sweep of Jacobi's method from one thread to a loop on the device."""

from __future__ import annotations

from functools import partial

from ..common.ladder import Block, Ladder, Rung, Step
from ..common.launch import ceil_div
from ..procedure.card import Card

__all__ = ["LADDER", "SWEEPS", "held_bytes"]

SWEEPS = 16  # that a launch of "persistent" makes
_tile = partial(Rung, block=Block(32, 8), tile=lambda b: (b.x, b.y))


def _steps(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *grid: int):
    rows, columns = grid
    factor = 0.25 / (rows + 1) ** 2
    arguments = ("u", "f", "u_new", rows, columns, factor)
    if rung.name != "persistent":
        return (Step(ladder.launch(rung, block, dtype, grid, arguments)),), (), {}
    share = ceil_div(rows, card.at_once)
    arguments = ("u", "f", "u_new", "arrivals", rows, columns, share, SWEEPS, factor)
    launch = ladder.launch(rung, block, dtype, grid, arguments)
    launch = launch._replace(grid=ceil_div(rows, share))
    return (Step(launch, cleared="arrivals"),), (), {"arrivals": 4}


def held_bytes(card: Card, item: int, rows: int, columns: int) -> int:
    """Bytes of f that a block of "persistent" has in shared memory."""
    return ceil_div(rows, card.at_once) * columns * item


LADDER = Ladder(
    "jacobi",
    [
        Rung(
            *(1, "sequential", "one thread for all points", "the method is right"),
            *("Jensen 2017, figure 7", "jacobi_sequential"),
        ),
        _tile(
            *(2, "naive", "a thread for each point", "all multiprocessors work"),
            *("Jensen 2017, figure 8", "jacobi_naive"),
        ),
        _tile(
            *(3, "shared", "a tile and the points around it go to shared memory"),
            "a point is asked for once for a tile, not for each neighbour; caches did that",
            *("Jensen 2017, 2.2.2", "jacobi_shared"),
            shared=lambda b, item: (b.x + 2) * (b.y + 2) * item,
        ),
        _tile(
            *(4, "persistent", "loop and swap on the device, f stays in shared memory"),
            "a launch makes many sweeps, and f no longer comes from memory: a third less moves",
            *("Jensen 2017, 2.2.2", "jacobi_persistent"),
            block=Block(32, 32),
            repeats=SWEEPS,
        ),
    ],
    _steps,
)
