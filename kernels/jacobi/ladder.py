"""The steps of ladder.cu: a sweep of Jacobi's method from one thread to a loop on the device."""

from __future__ import annotations

from functools import partial

from ..common.ladder import SHARED_BYTES, Block, Ladder, Rung, Step, Steps
from ..common.launch import ceil_div
from ..procedure import Card

_SWEEPS = 16  # that a launch of "persistent" makes
_tile = partial(Rung, block=Block(32, 8), tile=lambda b: (b.x, b.y))


def _steps(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *grid: int) -> Steps:
    factor = 0.25 / (grid[0] + 1) ** 2
    if rung.name == "persistent":
        room = min(SHARED_BYTES, card.block_shared)
        rung = rung._replace(macros=(("SHARED_BYTES", room),))
    launch = ladder.launch(rung, block, dtype, grid, ("u", "f", "u_new", *grid, factor))
    if rung.name != "persistent":
        return Steps((Step(launch),))
    share = ceil_div(grid[0], card.at_once)
    arguments = ("u", "f", "u_new", "arrivals", *grid, share, _SWEEPS, factor)
    launch = launch._replace(grid=ceil_div(grid[0], share), arguments=arguments)
    return Steps((Step(launch, cleared="arrivals"),), (), {"arrivals": 4})


# fmt: off
_RUNGS = (
    Rung(1, "sequential", "one thread for all points", "the method is right",
         "Jensen, figure 7", "jacobi_sequential"),
    _tile(2, "naive", "a thread for each point", "all multiprocessors work",
          "Jensen, figure 8", "jacobi_naive"),
    _tile(3, "shared", "a tile and the points around it go to shared memory",
          "a point is asked for once for a tile, not for each neighbour; caches did that",
          "Jensen, 2.2.2", "jacobi_shared", shared=lambda b, item: (b.x + 2) * (b.y + 2) * item),
    _tile(4, "persistent", "loop and swap on the device, f stays in shared memory",
          "a launch makes many sweeps, and f no longer comes from memory: a third less moves",
          "Jensen, 2.2.2", "jacobi_persistent", block=Block(32, 32), repeats=_SWEEPS),
)
# fmt: on
LADDER = Ladder("jacobi", {rung.name: rung for rung in _RUNGS}, _steps)
