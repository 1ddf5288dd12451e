"""Launch plans of k-means: Lloyd's iteration, and the seeds of k-means++."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..common.launch import (
    ELEMENT_BYTES,
    VECTOR_BYTES,
    Launch,
    Target,
    ceil_div,
    power_of_two,
)
from .shapes import Points, choose, launch, threads_of_block

STATE = 4  # integers of the iteration's state: see kmeans_state.cu
_THREADS = 256
_INT = 4
_DOUBLE = 8
_MOST_SUMS = 1 << 16  # of columns, that go to the host
_CHUNK = 4096  # rows that a block sorts at once
_SUMS_BLOCKS = 4  # on a multiprocessor, that sum clusters by sorted labels
_LEAST_ROWS = 256  # that are worth a part of their own
_SEEDS_THREADS = 128
_LEAST_TILES = 4  # of as many rows as a block of k-means++ has threads, in its part


class LloydPlan(NamedTuple):
    """The launches of k-means by Lloyd's iteration, on one device.

    They use the buffers ``"X"``, ``"labels"`` and, with weights, ``"weights"``, and those of
    `scratch`. An iteration changes ``"centroids"``, and leaves them as they were in ``"previous"``.
    Iterations may be queued: once ``"state"`` says stop, launches do nothing.
    """

    pack: Launch  # ``"centroids"`` as the assignment reads them, ``"packed"`` and ``"norms"``
    prepare: tuple[Launch, ...]  # once, when ``"X"`` is there
    assign: tuple[Launch, ...]  # labels alone. They are compared with those before
    # Labels, sums of clusters, new centroids; the last launch: whether to go on. ``"tolerance"``
    # and ``"most"``, of the labels that change, stand for doubles.
    iteration: tuple[Launch, ...]
    # ``"distances"`` of points from their centroids among ``"previous"``, squared, and
    # ``"inertia"``, a double for each block.
    distances: Launch
    scratch: dict[str, int]  # bytes of each other buffer


def plan_lloyd(points: Points, counted: bool = False) -> LloydPlan:
    """Plan k-means of points; with ``counted`` the labels that change are counted."""
    n, d, k, dtype, weighted, _, (multiprocessors, block_limit, *_) = points
    size = ELEMENT_BYTES[dtype]
    assignment = choose(points)
    parts, update = assignment.parts, ()
    if not assignment.sums:
        parts, summed = sum_by_label(points)
        update = (summed,)
    tile, depth = assignment.tile, assignment.depth
    packed = ceil_div(k, tile) * tile

    threads = threads_of_block(_THREADS, block_limit)
    few = min(64, block_limit)
    pack = launch(
        *("means", "pack_centroids", dtype, packed, few),
        *("centroids", "packed", "norms", d, k, depth),
        TILE_N=tile,
        LANES=1,
    )
    # Few centroids leave multiprocessors idle: then larger blocks add up the parts.
    many = threads_of_block(1024 if k < multiprocessors else _THREADS, block_limit)
    sizes = {"TILE_N": tile, "LANES": min(power_of_two(d), many, 128)}
    means = launch(
        *("means", "take_means", dtype, k, many),
        *("partial", "partial_weights", "centroids", "previous", "packed", "norms"),
        *("sums", "totals", "shifts", "state", parts, d, k, depth),
        **sizes,
    )
    end = launch(
        *("means", "end_iteration", dtype, 1, many),
        *("shifts", "state", k, "tolerance", "most"),
        **sizes,
    )
    measured = min(ceil_div(n, threads), 8 * multiprocessors)
    distances = launch(
        *("distances", "own_distances", dtype, measured, threads),
        *("X", points.weights, "previous", "labels", "distances", "inertia"),
        *(n, d, measured, int(weighted)),
    )
    scratch = {
        "centroids": k * d * size,
        "previous": k * d * size,
        "packed": packed * depth * size,
        "norms": packed * size,
        "partial": parts * k * d * size,
        "partial_weights": parts * k * size,
        "sums": k * d * size,
        "totals": k * size,
        "shifts": k * _DOUBLE,
        "state": STATE * _INT,
        "distances": n * size,
        "inertia": measured * _DOUBLE,
        **assignment.scratch,
    }
    count = (("COUNTED", 1),) if counted else ()
    assign = tuple(one._replace(defines=one.defines + count) for one in assignment.launches)
    iteration = *assign, *update, means, end
    return LloydPlan(pack, assignment.prepare, assign, iteration, distances, scratch)


def columns(n: int, d: int, dtype: str, target: Target) -> tuple[Launch, Launch]:
    """Plan the sums of columns, two doubles a column and block, and X less its means."""
    threads = threads_of_block(_THREADS, target.block_limit)
    lanes = min(32, power_of_two(d))
    blocks = min(ceil_div(n, threads // lanes), 4 * target.multiprocessors)
    blocks = max(1, min(blocks, _MOST_SUMS // d))
    return (
        launch(
            *("columns", "sum_columns", dtype, blocks, threads),
            *("X", "columns", n, d, blocks),
            LANES=lanes,
        ),
        launch(
            *("columns", "centre_columns", dtype, ceil_div(n * d, threads), threads),
            *("X", "mean", "centred", n, d),
            LANES=lanes,
        ),
    )


def sum_by_label(points: Points) -> tuple[int, Launch]:
    """Plan the sums of clusters: how many parts of the rows there are, and the launch."""
    n, d, k, dtype = points[:4]
    width = VECTOR_BYTES // ELEMENT_BYTES[dtype] if points.aligned else 1
    threads = threads_of_block(_THREADS, points.target.block_limit)
    span = min(threads, max(power_of_two(k), 2))  # PoCL miscompiles the loop that 1 leaves empty
    spans = ceil_div(k, span)
    # Enough blocks to fill the device, but partial sums of far fewer elements than X has.
    blocks = _SUMS_BLOCKS * points.target.multiprocessors
    parts = max(1, min(ceil_div(blocks, spans), n // (2 * k), ceil_div(n, _LEAST_ROWS)))
    length = ceil_div(n, parts)
    parts = ceil_div(n, length)
    summed = launch(
        *("sums", "sum_by_label", dtype, parts * spans, threads),
        *("X", points.weights, "labels", "partial", "partial_weights", "state"),
        *(n, d, k, spans, length),
        WIDTH=width,
        SPAN=span,
        LANES=min(32, power_of_two(ceil_div(d, width))),
        CHUNK=max(min(_CHUNK, power_of_two(length)), threads),
        WEIGHTED=int(points.weighted),
    )
    return parts, summed


# -- k-means++ -------------------------------------------------------------------------------------


class SeedsPlan(NamedTuple):
    """The launches of k-means++ on one device."""

    points: Points
    trials: int  # candidates for each seed
    length: int  # rows of which a block adds up the distances
    threads: int  # of a block

    @property
    def parts(self) -> int:
        """Parts of the rows, each with sums of its own."""
        return ceil_div(self.points.n, self.length)

    def try_seeds(self, candidates: int, first: bool, gathered: bool) -> Launch:
        """The distances from the nearest seed with each candidate as one more.

        Buffers: ``"X"``, ``"weights"``, ``"candidates"``, ``"closest"``, ``"tried"`` and
        ``"sums"``: of each part those of all candidates. With ``gathered`` the candidates are rows
        of X; their numbers follow the sums.
        """
        buffers = "X", self.points.weights, "sums" if gathered else "candidates"
        sizes = *self.points[:2], self.length, self.parts * candidates
        arguments = *buffers, "closest", "tried", "sums", *sizes
        return self._launch("try_seeds", self.parts, candidates, first, gathered, arguments)

    def find_rows(self, values: int, gathered: bool) -> Launch:
        """The rows at which running sums reach what is ``"asked"``; they follow the ``"sums"``.

        Asked are pairs of doubles: a part, and the rest of the sum within it. ``gathered`` is that
        of the `try_seeds` that is compiled with it.
        """
        sizes = self.points.n, self.length, self.parts * values
        arguments = "closest", self.points.weights, "asked", "sums", *sizes
        return self._launch("find_rows", values, self.trials, False, gathered, arguments)

    def launches(self) -> tuple[Launch, ...]:
        """What finds seeds among the rows of X."""
        tries = self.try_seeds(1, True, True), self.try_seeds(self.trials, False, True)
        return *tries, self.find_rows(self.trials, True)

    def _launch(
        self, kernel: str, grid: int, candidates: int, first: bool, gathered: bool, arguments: Any
    ) -> Launch:
        macros = {"CANDIDATES": candidates, "FIRST": int(first), "GATHERED": int(gathered)}
        where = "seeds", kernel, self.points.dtype, grid, self.threads
        return launch(*where, *arguments, **macros, WEIGHTED=int(self.points.weighted))


def plan_seeds(points: Points, trials: int) -> SeedsPlan:
    """Plan k-means++ with that many candidates for each seed."""
    threads = threads_of_block(_SEEDS_THREADS, points.target.block_limit)
    most = ceil_div(points.n, threads * 8 * points.target.multiprocessors)
    return SeedsPlan(points, trials, threads * max(_LEAST_TILES, most), threads)
