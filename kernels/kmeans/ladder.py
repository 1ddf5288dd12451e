"""The steps of ladder.cu: labels of k-means, and how many of them changed."""

from __future__ import annotations

from functools import partial

from ..common.ladder import Block, Ladder, Rung, Step, Steps
from ..common.launch import ELEMENT_BYTES, ceil_div
from ..procedure import Card

_MOST = 1024  # blocks whose counts are added up
_rung = partial(
    Rung,
    kernel="kmeans_nearest",
    block=Block(128),
    tile=lambda b: (1, b.x),
    legal=lambda b: b.y == 1,
)


def _steps(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int) -> Steps:
    n, d, _ = sizes
    turned = rung.number > 1
    x, *strides = ("turned", 1, n) if turned else ("X", d, 1)
    arguments = (x, "centroids", "labels", "changed", *sizes, *strides)
    nearest = ladder.launch(rung, block, dtype, (n, 1), arguments)

    def other(kernel: str, grid: int, *arguments: str | int, threads: int = block.x) -> Step:
        fields = {"kernel": f"kmeans_{kernel}", "grid": grid, "block": threads}
        return Step(nearest._replace(**fields, arguments=arguments))

    before = (other("turn", ceil_div(n * d, block.x), "X", "turned", n, d),) if turned else ()
    blocks = min(nearest.grid, _MOST)
    count = (other("count", 1, "changed", "total", n, threads=1),)
    if rung.number > 2:
        count = (
            other("reduce", blocks, "changed", "sums", n, blocks),
            other("reduce", 1, "sums", "total", blocks, 1),
        )
    scratch = {"turned": n * d * ELEMENT_BYTES[dtype], "sums": 4 * _MOST}
    return Steps((Step(nearest), *count), before, scratch)


# fmt: off
_RUNGS = (
    _rung(1, "naive", "a thread for each point, its elements together",
          "all multiprocessors work", "18-645, table 2 (AOS)"),
    _rung(2, "coalesced", "elements of neighbouring points lie together",
          "a warp reads whole lines; points of few elements share lines anyway",
          "18-645, table 2 (SOA)"),
    _rung(3, "reduction", "blocks count the labels that changed, by a tree",
          "the count no longer waits for one thread", "18-645, bug fixing"),
    _rung(4, "occupancy", "blocks of 512 threads",
          "more threads fit on a multiprocessor; nothing where blocks of 128 fill it",
          "18-645, table 1", block=Block(512)),
)
# fmt: on
LADDER = Ladder("kmeans", {rung.name: rung for rung in _RUNGS}, _steps)
