"""Launch plans of the steps of the way: naive, coalesced, shared, reduction, occupancy."""

from __future__ import annotations

from functools import partial

from ..common.launch import ELEMENT_BYTES, REAL, Launch, ceil_div
from ..common.rungs import Ladder, Rung
from ..procedure.derive import Shape
from .shapes import Assignment, Points, threads_of_block

__all__ = ["CPU_RUNGS", "RUNGS", "plan"]

_rung = partial(Rung, shape=Shape(128, 1), tile=lambda x, y, elements: (1, x))
_shared = partial(_rung, kernel="assign_shared")
RUNGS = Ladder(
    "kmeans",
    {
        "naive": _rung(
            "a thread for each point",
            "all multiprocessors work",
            "18-645 report 2014, k-means",
            kernel="assign_points",
        ),
        "coalesced": _rung(
            "elements of neighbouring points lie together",
            "a warp reads whole lines: up to 8 times fewer sectors of X",
            "18-645 report 2014, k-means",
            kernel="assign_points",
        ),
        "shared": _shared(
            "centroids come to shared memory, 4 KB at a time",
            "each is read from memory once for a block, not once for a point",
        ),
        "reduction": _shared(
            "sums of clusters by parts of the rows, which are added up afterwards",
            "as many threads as rows / 1024 times more add up",
            "18-645 report 2014, k-means",
        ),
        "occupancy": _shared(
            "blocks of 512 threads, with all the registers they want",
            "centroids are copied for four times as many points, labels read by as many at once",
            "18-645 report 2014, k-means",
            shape=Shape(512, 1),
        ),
    },
)
CPU_RUNGS = Ladder(
    "kmeans",
    {
        "sequential": Rung("the distance from one centroid after another", "the method is right"),
        "expanded": Rung(
            "the square expanded: c.c - 2 x.c", "two flops for each element, not three"
        ),
        "parallel": Rung("a range of rows for each thread", "as many times as cores", threads=True),
    },
)
_HELD_BYTES = 4096  # of centroids in shared memory: what it takes is missing in the first cache
_PART = 1024  # rows that are added up by one thread


def plan(
    points: Points, rung: str
) -> tuple[tuple[Launch, ...], tuple[Launch, ...], int, Assignment]:
    """The launches of labels and of sums, the parts of these, and what belongs to them."""
    n, d, k, dtype = points[:4]
    real = ("REAL", REAL[dtype])
    threads = threads_of_block(RUNGS[rung].shape.x, points.block_limit)
    turned = rung != "naive"
    x, *strides = ("turned", 1, n) if turned else ("X", d, 1)
    defines = [("THREADS", threads)]
    if RUNGS[rung].kernel == "assign_shared":
        defines += [("CENTROIDS", _HELD_BYTES // ELEMENT_BYTES[dtype])]
    arguments = (x, "centroids", "labels", "state", n, d, k, *strides)
    assign = RUNGS.launch(rung, Shape(threads, 1), dtype, (1, n, 1), arguments, *defines)
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
