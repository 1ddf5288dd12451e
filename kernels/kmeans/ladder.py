"""The steps of ladder.cu: labels of k-means, and how many of them changed."""

from __future__ import annotations

from functools import partial

from ..common.ladder import Block, Ladder, Rung, Step
from ..common.launch import ELEMENT_BYTES, ceil_div
from ..procedure.card import Card

__all__ = ["LADDER"]

_MOST = 1024  # blocks whose counts are added up
_rung = partial(
    Rung,
    kernel="kmeans_nearest",
    block=Block(128),
    tile=lambda b: (1, b.x),
    legal=lambda b: b.y == 1,
)


def _steps(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int):
    n, d, k = sizes
    turned = rung.number > 1
    x, *strides = ("turned", 1, n) if turned else ("X", d, 1)
    arguments = (x, "centroids", "labels", "changed", n, d, k, *strides)
    nearest = ladder.launch(rung, block, dtype, (n, 1), arguments)
    grid = ceil_div(n * d, block.x)
    turn = nearest._replace(kernel="kmeans_turn", grid=grid, arguments=("X", "turned", n, d))
    before = (Step(turn),) if turned else ()
    scratch = {"turned": n * d * ELEMENT_BYTES[dtype], "sums": 4 * _MOST}
    if rung.number <= 2:
        count = nearest._replace(kernel="kmeans_count", grid=1, block=1)
        return (
            (Step(nearest), Step(count._replace(arguments=("changed", "total", n)))),
            before,
            scratch,
        )
    blocks = min(nearest.grid, _MOST)
    reduced = nearest._replace(kernel="kmeans_reduce", grid=blocks)
    first = reduced._replace(arguments=("changed", "sums", n, blocks))
    last = reduced._replace(grid=1, arguments=("sums", "total", blocks, 1))
    return (Step(nearest), Step(first), Step(last)), before, scratch


LADDER = Ladder(
    "kmeans",
    [
        _rung(
            *(1, "naive", "a thread for each point, its elements together"),
            *("all multiprocessors work", "18-645 report 2014, table 2 (AOS)"),
        ),
        _rung(
            *(2, "coalesced", "elements of neighbouring points lie together"),
            "a warp reads whole lines; points of few elements share lines anyway",
            "18-645 report 2014, table 2 (SOA)",
        ),
        _rung(
            *(3, "reduction", "blocks count the labels that changed, by a tree"),
            "the count no longer waits for one thread",
            "18-645 report 2014, bug fixing",
        ),
        _rung(
            *(4, "occupancy", "blocks of 512 threads"),
            "more threads fit on a multiprocessor; nothing where blocks of 128 fill it",
            "18-645 report 2014, table 1",
            block=Block(512),
        ),
    ],
    _steps,
)
