"""Launch plans of the steps of the way: naive, coalesced, shared, reduction, occupancy."""

from __future__ import annotations

from ..common.launch import ELEMENT_BYTES, REAL, Launch, ceil_div
from ..common.rungs import Rung
from .shapes import Assignment, Points, threads_of_block

__all__ = ["CPU_RUNGS", "RUNGS", "plan"]

RUNGS = {
    "naive": Rung(1, "a thread for each point", "all multiprocessors work"),
    "coalesced": Rung(
        2,
        "elements of neighbouring points lie together",
        "a warp reads whole lines: up to 8 times fewer sectors of X",
    ),
    "shared": Rung(
        3,
        "centroids come to shared memory, 4 KB at a time",
        "each is read from memory once for a block, not once for a point",
    ),
    "reduction": Rung(
        4,
        "sums of clusters by parts of the rows, which are added up afterwards",
        "as many threads as rows / 1024 times more add up",
    ),
    "occupancy": Rung(
        5,
        "blocks of 512 threads, with all the registers they want",
        "centroids are copied for four times as many points, labels read by as many at once",
    ),
}
CPU_RUNGS = {
    "sequential": Rung(1, "the distance from one centroid after another", "the method is right"),
    "expanded": Rung(
        2, "the square expanded: c.c - 2 x.c", "two flops for each element, not three"
    ),
    "parallel": Rung(3, "a range of rows for each thread", "as many times as cores", True),
}

_THREADS = 128
_MORE_THREADS = 512
_HELD_BYTES = 4096  # of centroids in shared memory: what it takes is missing in the first cache
_PART = 1024  # rows that are added up by one thread


def plan(
    points: Points, rung: str
) -> tuple[tuple[Launch, ...], tuple[Launch, ...], int, Assignment]:
    """The launches of labels and of sums, the parts of these, and what belongs to them."""
    n, d, k, dtype = points[:4]
    real = ("REAL", REAL[dtype])
    most = _MORE_THREADS if rung == "occupancy" else _THREADS
    threads = threads_of_block(most, points.block_limit)
    turned = rung != "naive"
    x, *strides = ("turned", 1, n) if turned else ("X", d, 1)
    defines = [real, ("THREADS", threads)]
    if rung != "naive" and rung != "coalesced":
        defines += [("CENTROIDS", _HELD_BYTES // ELEMENT_BYTES[dtype])]
    assign = Launch(
        source="kmeans_rungs.cu",
        kernel="assign_points" if rung in ("naive", "coalesced") else "assign_shared",
        defines=tuple(defines),
        grid=ceil_div(n, threads),
        block=threads,
        arguments=(x, "centroids", "labels", "state", n, d, k, *strides),
    )
    parts = ceil_div(n, max(_PART, 4 * k)) if rung in ("reduction", "occupancy") else 1
    length = ceil_div(n, parts)
    update = Launch(
        source="kmeans_rungs.cu",
        kernel="sum_parts",
        defines=(real, ("THREADS", threads), ("WEIGHTED", int(points.weighted))),
        grid=ceil_div(k * (d + 1), threads) * parts,
        block=threads,
        arguments=(
            *(x, points.weights, "labels", "partial", "partial_weights", "state"),
            *(n, d, k, *strides, parts, length),
        ),
    )
    prepare, scratch = (), {}
    if turned:
        scratch = {"turned": n * d * ELEMENT_BYTES[dtype]}
        prepare = (
            Launch(
                source="kmeans_rungs.cu",
                kernel="turn_points",
                defines=(real, ("THREADS", threads)),
                grid=ceil_div(n, 32) * ceil_div(d, 32),
                block=threads,
                arguments=("X", "turned", n, d),
            ),
        )
    assignment = Assignment(None, 1, d, False, parts, rung, prepare, scratch)
    return (assign,), (update,), parts, assignment
