"""How y = A x is cut into blocks: the shape of each kernel's launch, and where it is the best."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..common.launch import VECTOR_BYTES, ceil_div, check_dtype

# What follows was measured on an H200 (docs/kernels.md). Rows: 128 threads, each with 8 vectors in
# flight, and as few threads on a row as that leaves.
_ROW_THREADS = 128
_ROW_DEPTH = 8
# Rows of at most so many vectors: four at once, with two vectors of each in flight.
_SHORT_VECTORS = 32
_SHORT_ROWS = 4
_SHORT_DEPTH = 2
# Rows that begin anywhere, two at once with 32 threads: in float32 if they are at least so long, in
# both dtypes where a few of them are so many bytes. Other ones are as fast element by element.
_LEAST_SHIFTED_ROW = 512
_SHIFTED_ROWS = 2
_SHIFTED_ROW_LANES = 32
_SHIFTED_ROW_DEPTH = 8
_FEW_SHIFTED_BYTES = 1 << 24
_FEW_SHIFTED_DEPTH = 4
_FEW_SHIFTED_BLOCKS = 4
# Columns: 128 to 512 threads. Threads side by side that together load 256, 128, 64 or 32 bytes of a
# column, and the memory's speed with such pieces, as a share of that with 128.
_COLUMN_THREADS = 512
_COLUMN_LEAST = 128
_COLUMN_LANES = ((16, 1.02), (8, 1.0), (4, 0.9), (2, 0.42))
LEAST_THREADS = 64
# Columns that begin anywhere: likewise; one lane in each piece is there for its neighbours. With
# fewer rows or columns than this, they are loaded element by element.
_SHIFTED_LANES = ((32, 1.0), (16, 1.0), (8, 0.95))
LEAST_SHIFTED = 16
# On devices with clusters of blocks these share the columns, if there are so many, and no more than
# so many times the rows. What their choice is priced by: lanes; loads in flight and how many blocks
# of so many threads a multiprocessor then holds; blocks in a cluster; multiprocessors among which a
# cluster is placed; bytes in flight on each at which half of the memory's speed is seen; and the
# share of a line's vectors that are there for the neighbours' sake.
CLUSTERS = (9, 0)
_LEAST_CLUSTERED = 768
_MOST_COLUMNS_A_ROW = 8
_CLUSTER_THREADS = 256
_CLUSTER_LANES = (32, 16)
_CLUSTER_DEPTHS = ((4, 4), (8, 3))
_CLUSTER_BLOCKS = (1, 2, 4, 8)
_CLUSTER_PLACE = 16
_MOST_WAVES = 2  # of clusters: with more, one block for all columns does as well
_HALF_SPEED_BYTES = 7600
_EDGE = 0.4
# Blocks of each kernel that keep one multiprocessor's share of the memory busy, and the bytes of
# that share that pass while a second launch starts and ends.
_ROW_BLOCKS = 2.0
_COLUMN_BLOCKS = 1.0
_LAUNCH_BYTES = 70_000


class Shape(NamedTuple):
    """A launch: what the kernel is compiled with, and how k and the rows are cut.

    Attributes
    ----------
    lanes, groups : int
        Threads side by side, and how often a block has them.
    tiles, parts, chunk : int
        Blocks along the rows, blocks along k, and how much of k each has.
    depth, rows : int
        Loads in flight of each of so many rows of a thread.
    cluster : int
        Blocks in a cluster: the parts, or 1.
    """

    lanes: int
    groups: int
    tiles: int
    parts: int
    chunk: int
    depth: int
    rows: int = 1
    cluster: int = 1


def rows(
    m: int, k: int, batch: int, dtype: str, width: int, multiprocessors: int, block_limit: int
) -> Shape:
    """Return the shape of matvec_rows."""
    threads = _row_threads(block_limit)
    vectors = ceil_div(k, width)
    # Short rows get more threads than they need, so that a warp's loads touch fewer lines.
    lanes = _power_of_two(ceil_div(vectors, _ROW_DEPTH if vectors > 32 else _ROW_DEPTH // 2))
    lanes = min(max(lanes, 2), threads)
    groups = threads // lanes
    tiles = ceil_div(m, groups)
    least = threads * width * _ROW_DEPTH
    if tiles * batch < multiprocessors and k >= 2 * least:
        lanes, groups, tiles = threads, 1, m
    bytes_read = m * k * batch * check_dtype(dtype)
    parts = _parts(bytes_read, tiles * batch, multiprocessors, _ROW_BLOCKS, 4, k // least)
    return Shape(lanes, groups, tiles, *_chunks(k, parts, least), _ROW_DEPTH)


def short_rows(
    m: int, k: int, batch: int, width: int, multiprocessors: int, block_limit: int
) -> Shape | None:
    """Return the shape of matvec_rows with several short rows to a thread; None if too few."""
    vectors = ceil_div(k, width)
    if vectors > _SHORT_VECTORS:
        return None
    lanes = _power_of_two(ceil_div(vectors, _SHORT_DEPTH))
    lanes = max(lanes, min(_power_of_two(vectors), 8), 2)
    groups = _row_threads(block_limit) // lanes
    tiles = ceil_div(m, groups * _SHORT_ROWS)
    if tiles * batch < multiprocessors or 4 * tiles * groups * _SHORT_ROWS > 5 * m:
        return None
    return Shape(lanes, groups, tiles, 1, k, _SHORT_DEPTH, _SHORT_ROWS)


def shifted_rows(
    m: int, k: int, batch: int, width: int, multiprocessors: int, block_limit: int
) -> Shape | None:
    """Return the shape of matvec_shifted_rows; None if rows are too few or too short."""
    lanes = min(_SHIFTED_ROW_LANES, _row_threads(block_limit) // width)
    groups = _row_threads(block_limit) // lanes
    tiles = ceil_div(m, groups * _SHIFTED_ROWS)
    k_shifted = k + width - 1  # a row's vectors begin up to so many elements before it
    if m < groups:
        return None
    if width == 4 and k >= _LEAST_SHIFTED_ROW and tiles * batch >= multiprocessors:
        return Shape(lanes, groups, tiles, 1, k_shifted, _SHIFTED_ROW_DEPTH, _SHIFTED_ROWS)
    bytes_read = m * k * batch * VECTOR_BYTES // width
    if m * batch >= multiprocessors or bytes_read < _FEW_SHIFTED_BYTES:
        return None
    least = lanes * width * _FEW_SHIFTED_DEPTH
    parts = min(_FEW_SHIFTED_BLOCKS * multiprocessors // (tiles * batch), k // least)
    chunks = _chunks(k_shifted, parts, least)
    return Shape(lanes, groups, tiles, *chunks, _FEW_SHIFTED_DEPTH, _SHIFTED_ROWS)


def _row_threads(block_limit: int) -> int:
    return _ROW_THREADS if block_limit >= _ROW_THREADS else LEAST_THREADS


def columns(
    m: int,
    k: int,
    batch: int,
    dtype: str,
    width: int,
    multiprocessors: int,
    block_limit: int,
    shifted: bool,
) -> Shape:
    """Return the shape of matvec_columns or matvec_shifted."""
    element = check_dtype(dtype)
    bytes_read = m * k * batch * element
    threads = _COLUMN_THREADS
    while threads > block_limit:
        threads //= 2
    best = None
    for lanes, speed in _SHIFTED_LANES if shifted else _COLUMN_LANES:
        lanes *= VECTOR_BYTES // element // width
        # A pass over the columns takes 8 to a thread. With few columns, rows make up the block.
        groups = min(_power_of_two(ceil_div(k, 8)), threads // lanes)
        if shifted:
            groups = max(groups, width)
            if lanes * groups > threads:
                continue
        lanes = max(lanes, min(_COLUMN_LEAST, threads) // groups)
        tiles = ceil_div(m, (lanes - shifted) * width)
        parts = _parts(
            bytes_read, tiles * batch, multiprocessors, _COLUMN_BLOCKS, 2, k // (groups * 8)
        )
        used = min(multiprocessors, tiles * batch * parts * _COLUMN_BLOCKS)
        cost = bytes_read / (used * speed) * (tiles * lanes * width / m)
        if parts > 1:
            cost += _LAUNCH_BYTES
        if best is None or cost < best[0]:
            best = cost, lanes, groups, tiles, parts
    _, lanes, groups, tiles, parts = best
    parts, chunk = _chunks(k, parts, groups)
    depth = 8 if 2 * tiles * parts * batch < 3 * multiprocessors else 4
    return Shape(lanes, groups, tiles, parts, chunk, depth)


def clusters(
    m: int, k: int, batch: int, width: int, multiprocessors: int, block_limit: int
) -> Shape | None:
    """Return the shape of matvec_shifted with a cluster's blocks for the parts of k.

    Blocks run in waves (White 2013, section 3.3): what counts is how much of the last one is idle,
    and whether a wave has enough bytes in flight. None if tiles would have many rows that are not
    there, if there are too few columns to share, or so many that more blocks than a cluster has
    should share them.
    """
    if block_limit < _CLUSTER_THREADS or not _LEAST_CLUSTERED <= k <= _MOST_COLUMNS_A_ROW * m:
        return None
    best = None
    for lanes, (depth, resident), blocks in itertools.product(
        _CLUSTER_LANES, _CLUSTER_DEPTHS, _CLUSTER_BLOCKS
    ):
        rows = (lanes - 1) * width
        tiles = ceil_div(m, rows)
        if 4 * tiles * rows > 5 * m:
            continue
        held = resident * multiprocessors
        if blocks > 1:
            places = multiprocessors // _CLUSTER_PLACE
            held = places * (_CLUSTER_PLACE * resident // blocks) * blocks
        count = tiles * batch * blocks
        if held == 0 or (blocks > 1 and count > _MOST_WAVES * held):
            continue
        in_flight = min(count, held) * _CLUSTER_THREADS * depth * VECTOR_BYTES
        cost = (1 + _EDGE / lanes) * (tiles * rows / m)
        cost *= 1 + _HALF_SPEED_BYTES * multiprocessors / in_flight
        if count > held:
            cost *= ceil_div(count, held) * held / count
        if best is None or cost < best[0]:
            best = cost, lanes, tiles, blocks, depth
    if best is None:
        return None
    _, lanes, tiles, blocks, depth = best
    groups = _CLUSTER_THREADS // lanes
    chunk = ceil_div(ceil_div(k, blocks), groups) * groups
    return Shape(lanes, groups, tiles, blocks, chunk, depth, cluster=blocks)


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()


def _parts(
    bytes_read: int, blocks: int, multiprocessors: int, enough: float, wanted: int, most: int
) -> int:
    """Return how many parts to take k in: 1 unless that leaves more idle than a launch costs."""
    used = min(multiprocessors, blocks / enough)
    parts = min(wanted * multiprocessors // blocks, most)
    if parts < 2 or bytes_read / used < bytes_read / multiprocessors + _LAUNCH_BYTES:
        return 1
    return parts


def _chunks(k: int, parts: int, least: int) -> tuple[int, int]:
    """Return how many parts of k there are, none empty, and the length of each but the last."""
    if parts == 1:
        return 1, k
    chunk = ceil_div(ceil_div(k, parts), least) * least
    return ceil_div(k, chunk), chunk
