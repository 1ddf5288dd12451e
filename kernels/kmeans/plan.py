"""Launch plans of Lloyd's iteration for k-means."""

from __future__ import annotations

from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES, REAL, VECTOR_BYTES, Launch, ceil_div, check_dtype
from .shapes import Assignment, Points, choose, power_of_two, threads_of_block

__all__ = ["LloydPlan", "columns", "plan_lloyd"]

STATE = 4  # integers of the iteration's state: see kmeans_state.cu
_THREADS = 256
_INT = 4
_DOUBLE = 8
_CHUNK = 4096  # rows that a block sorts at once
_MOST_SUMS = 1 << 16  # of columns, that go to the host
_SUMS_BLOCKS = 4  # on a multiprocessor, that sum clusters by sorted labels
_LEAST_ROWS = 256  # that are worth a part of their own


class LloydPlan(NamedTuple):
    """The launches of k-means by Lloyd's iteration, on one device.

    They use the buffers ``"X"``, ``"centroids"``, ``"labels"`` and, with weights, ``"weights"``,
    and those of `scratch`. An iteration reads ``"centroids"``, ``"packed"`` and ``"norms"`` and
    writes ``"means"``, ``"packed_next"`` and ``"norms_next"``: the next one takes them the other
    way round. Iterations may be queued: once ``"state"`` says stop, launches do nothing.

    Attributes
    ----------
    pack : Launch
        ``"centroids"`` as the assignment reads them, ``"packed"`` and ``"norms"``. What it fills up
        must be in ``"packed_next"`` and ``"norms_next"`` as well.
    assign : tuple of Launch
        Labels alone. They are compared with those before.
    update : tuple of Launch
        Sums of clusters by labels, where `assign` does not make them too; before them, where that
        is asked for, how many labels changed: ``"counts"``, a double for each block.
    finish : tuple of Launch
        New centroids, and whether to go on. ``"tolerance"`` and ``"most"``, of the labels that
        change, stand for doubles.
    inertia : Launch
        ``"partial_inertia"``, a double for each block.
    distances : Launch
        ``"distances"`` of points to their centroids, squared.
    scratch : dict
        Bytes of each other buffer.
    variant : str
        Short name of what was chosen, for plans that are printed.
    """

    pack: Launch
    assign: tuple[Launch, ...]
    update: tuple[Launch, ...]
    finish: tuple[Launch, ...]
    inertia: Launch
    distances: Launch
    scratch: dict[str, int]
    variant: str


def plan_lloyd(
    *,
    n: int,
    d: int,
    k: int,
    dtype: str,
    weighted: bool,
    multiprocessors: int,
    alignment: int,
    block_limit: int = 1024,
    shared_limit: int = 48 << 10,
    capability: tuple[int, int] | None = None,
    assignment: Assignment | None = None,
    counted: bool = False,
) -> LloydPlan:
    """Plan k-means of n points.

    Parameters
    ----------
    n, d, k : int
        Points, their elements, and clusters; each at least 1.
    dtype : {"float32", "float64"}
        Of points, weights and centroids. All arrays are contiguous.
    weighted : bool
        Whether points have weights.
    multiprocessors : int
        Of the device.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides the address of X.
    block_limit : int
        Most threads the device takes in a block; at least 64.
    shared_limit : int
        Most bytes of shared memory that a block can have.
    capability : (int, int), optional
        Compute capability of a CUDA device, such as (9, 0).
    assignment : Assignment, optional
        The kernel of the assignment, instead of what is chosen.
    counted : bool
        Whether the labels that change are counted.

    Returns
    -------
    LloydPlan
    """
    size = check_dtype(dtype)
    aligned = alignment >= VECTOR_BYTES and d % (VECTOR_BYTES // size) == 0
    points = Points(
        n, d, k, dtype, weighted, aligned, multiprocessors, block_limit, shared_limit, capability
    )
    assignment = assignment or choose(points)
    assigned = () if assignment.launch is None else (assignment.launch,)
    parts, update = assignment.parts, ()
    if not assignment.sums:
        parts, launch = sum_by_label(points)
        update = (launch,)
    counting = _count_changed(points)
    update = (counting, *update) if counted else update
    tile, depth = assignment.tile, assignment.depth
    packed = ceil_div(k, tile) * tile
    scratch = {
        "means": k * d * size,
        "packed": packed * depth * size,
        "packed_next": packed * depth * size,
        "norms": packed * size,
        "norms_next": packed * size,
        "partial": parts * k * d * size,
        "partial_weights": parts * k * size,
        "sums": k * d * size,
        "totals": k * size,
        "shifts": k * _DOUBLE,
        "state": STATE * _INT,
        "counts": counting.grid * _DOUBLE,
        **({"before": n * _INT} if counted else {}),
        "partial_inertia": _inertia_blocks(points) * _DOUBLE,
    }
    return LloydPlan(
        pack=_pack(points, tile, depth, packed),
        assign=assigned,
        update=update,
        finish=_finish(points, tile, depth, parts, counting.grid * counted),
        inertia=_inertia(points),
        distances=_distances(points),
        scratch=scratch,
        variant=assignment.variant,
    )


def columns(
    n: int, d: int, dtype: str, multiprocessors: int, block_limit: int
) -> tuple[Launch, Launch]:
    """Plan the sums of columns, two doubles a column and block, and X less its means."""
    threads = threads_of_block(_THREADS, block_limit)
    lanes = min(32, power_of_two(d))
    blocks = min(ceil_div(n, threads // lanes), 4 * multiprocessors)
    blocks = max(1, min(blocks, _MOST_SUMS // d))
    defines = (("REAL", REAL[dtype]), ("THREADS", threads), ("LANES", lanes))
    source = "kmeans_columns.cu"
    return (
        Launch(source, "sum_columns", defines, blocks, threads, ("X", "columns", n, d, blocks)),
        Launch(
            *(source, "centre_columns", defines, ceil_div(n * d, threads), threads),
            ("X", "mean", "centred", n, d),
        ),
    )


def sum_by_label(points: Points) -> tuple[int, Launch]:
    """Plan the sums of clusters: how many parts of the rows there are, and the launch."""
    n, d, k, dtype = points[:4]
    width = VECTOR_BYTES // ELEMENT_BYTES[dtype] if points.aligned else 1
    threads = threads_of_block(_THREADS, points.block_limit)
    span = min(threads, max(power_of_two(k), 2))  # PoCL miscompiles the loop that 1 leaves empty
    spans = ceil_div(k, span)
    lanes = min(32, power_of_two(ceil_div(d, width)))
    # Enough blocks to fill the device, but partial sums of far fewer elements than X has.
    blocks = _SUMS_BLOCKS * points.multiprocessors
    parts = max(1, min(ceil_div(blocks, spans), n // (2 * k), ceil_div(n, _LEAST_ROWS)))
    length = ceil_div(n, parts)
    parts = ceil_div(n, length)
    chunk = max(min(_CHUNK, power_of_two(length)), threads)
    launch = Launch(
        source="kmeans_sums.cu",
        kernel="sum_by_label",
        defines=(
            ("REAL", REAL[dtype]),
            ("WIDTH", width),
            ("THREADS", threads),
            ("SPAN", span),
            ("LANES", lanes),
            ("CHUNK", chunk),
            ("WEIGHTED", int(points.weighted)),
        ),
        grid=parts * spans,
        block=threads,
        arguments=(
            *("X", points.weights, "labels", "partial", "partial_weights", "state"),
            *(n, d, k, spans, length),
        ),
    )
    return parts, launch


def _count_changed(points: Points) -> Launch:
    """How many labels changed, a part for each block."""
    threads = threads_of_block(_THREADS, points.block_limit)
    blocks = min(ceil_div(points.n, threads), 4 * points.multiprocessors)
    return Launch(
        source="kmeans_means.cu",
        kernel="count_changed",
        defines=(*_means_defines(points.dtype, threads, 1), ("LANES", 1)),
        grid=blocks,
        block=threads,
        arguments=("labels", "before", "counts", "state", points.n, blocks),
    )


def _finish(
    points: Points, tile: int, depth: int, parts: int, counts: int
) -> tuple[Launch, Launch]:
    """New centroids from the sums of all parts, and whether to go on."""
    _, d, k, dtype = points[:4]
    # Few centroids leave multiprocessors idle: then larger blocks add up the parts.
    most = 1024 if k < points.multiprocessors else _THREADS
    threads = threads_of_block(most, points.block_limit)
    defines = _means_defines(dtype, threads, tile)
    lanes = min(power_of_two(d), threads, 128)
    means = Launch(
        source="kmeans_means.cu",
        kernel="take_means",
        defines=(*defines, ("LANES", lanes)),
        grid=k,
        block=threads,
        arguments=(
            *("partial", "partial_weights", "centroids", "means", "packed_next", "norms_next"),
            *("sums", "totals", "shifts", "state", parts, d, k, depth),
        ),
    )
    end = Launch(
        source="kmeans_means.cu",
        kernel="end_iteration",
        defines=(*defines, ("LANES", lanes)),
        grid=1,
        block=threads,
        arguments=("shifts", "counts", "state", k, counts, "tolerance", "most"),
    )
    return means, end


def _pack(points: Points, tile: int, depth: int, packed: int) -> Launch:
    """Centroids as the assignment reads them."""
    threads = min(64, points.block_limit)
    return Launch(
        source="kmeans_means.cu",
        kernel="pack_centroids",
        defines=_means_defines(points.dtype, threads, tile),
        grid=packed,
        block=threads,
        arguments=("centroids", "packed", "norms", points.d, points.k, depth),
    )


def _means_defines(dtype: str, threads: int, tile: int) -> tuple[tuple[str, int | str], ...]:
    return (("REAL", REAL[dtype]), ("THREADS", threads), ("TILE_N", tile))


def _inertia_lanes(points: Points) -> int:
    return min(32, power_of_two(points.d))


def _inertia_blocks(points: Points) -> int:
    rows = _THREADS // _inertia_lanes(points)
    return max(1, min(ceil_div(points.n, rows), 8 * points.multiprocessors))


def _inertia(points: Points) -> Launch:
    """The sum of squared distances, a part for each block."""
    threads = threads_of_block(_THREADS, points.block_limit)
    lanes = _inertia_lanes(points)
    blocks = _inertia_blocks(points)
    return Launch(
        source="kmeans_distances.cu",
        kernel="inertia",
        defines=(("REAL", REAL[points.dtype]), ("THREADS", threads), ("LANES", lanes)),
        grid=blocks,
        block=threads,
        arguments=(
            *("X", points.weights, "centroids", "labels", "partial_inertia"),
            *(points.n, points.d, blocks, int(points.weighted)),
        ),
    )


def _distances(points: Points) -> Launch:
    """Squared distances of points to their own centroids."""
    threads = threads_of_block(_THREADS, points.block_limit)
    return Launch(
        source="kmeans_distances.cu",
        kernel="own_distances",
        defines=(("REAL", REAL[points.dtype]), ("THREADS", threads), ("LANES", 1)),
        grid=ceil_div(points.n, threads),
        block=threads,
        arguments=("X", "centroids", "labels", "distances", points.n, points.d),
    )
