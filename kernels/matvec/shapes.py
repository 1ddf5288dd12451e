"""How y = A x is cut into blocks: the shape of each kernel's launch, and where it is the best.

Where one variant begins to win, and how fast each loads, was measured on NVIDIA's H100 and H200.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..common.launch import VECTOR_BYTES, ceil_div, check_dtype, power_of_two

# Rows: 128 threads, each with 8 vectors in flight, and as few threads on a row as that leaves.
# Short rows: four at once, with two vectors of each in flight.
_ROW_THREADS = 128
_ROW_DEPTH = 8
_ROW_BLOCKS = 2.0  # that keep a multiprocessor's share of the memory busy
_SHORT_ROW = 32  # vectors of the longest row that is taken four rows at a time
_SHORT_ROWS = 4
_SHORT_DEPTH = 2
# Misaligned rows: two at once with 32 threads; if few, fewer loads in flight, 4 resident blocks.
_MISALIGNED_ROWS = 2
_MISALIGNED_ROW = 512  # elements of the shortest row of float32 that is loaded by vectors
_MISALIGNED_FEW_ROWS = 16 << 20  # bytes, from which on a few rows are loaded by vectors
_MISALIGNED_ROW_LANES = 32
_MISALIGNED_ROW_DEPTH = 8
_FEW_MISALIGNED_DEPTH = 4
_FEW_MISALIGNED_BLOCKS = 4
# Columns: 128 to 512 threads. The memory's speed by the bytes of a column's piece. Of misaligned
# columns one lane per group only supplies the element that straddles two loads.
_COLUMN_THREADS = 512
_COLUMN_LEAST = 128
_COLUMN_BLOCKS = 1.0  # as `_ROW_BLOCKS`
_COLUMN_SPEEDS = {256: 1.02, 128: 1.0, 64: 0.9, 32: 0.42}
_MISALIGNED_COLUMN_SPEEDS = {512: 1.0, 256: 1.0, 128: 0.95}
MISALIGNED_COLUMN = 16  # fewest rows and columns that are loaded by vectors
LEAST_THREADS = 64
# Of a multiprocessor's share of the memory's speed, what passes while a second launch runs.
_LAUNCH_BYTES = 70_000
# Misaligned columns, shared by a cluster of blocks: lanes; loads in flight, and the blocks that a
# multiprocessor then holds; blocks in a cluster; multiprocessors that a cluster is placed among.
CLUSTERS = (9, 0)
_CLUSTER_THREADS = 256
_CLUSTER_LANES = (32, 16)
_CLUSTER_DEPTHS = ((4, 4), (8, 3))
_CLUSTER_BLOCKS = (1, 2, 4, 8)
_CLUSTER_PLACE = 16
_CLUSTER_COLUMNS = 768  # fewest that are shared, and most for each row
_CLUSTER_COLUMNS_A_ROW = 8
_CLUSTER_EDGE = 0.4  # vectors that the loads for the neighbours' sake cost, of each piece
_HALF_SPEED_BYTES = 7600  # in flight on a multiprocessor, at half of the memory's speed
_MOST_WAVES = 2  # of clusters: with more, one block for all columns does as well


class Shape(NamedTuple):
    """A launch: what the kernel is compiled with, and how k and the rows are cut."""

    lanes: int  # threads side by side
    groups: int  # how often a block has them
    tiles: int  # blocks along the rows
    split_k: int  # blocks along k
    chunk: int  # how much of k each has
    depth: int  # loads in flight of each row of a thread
    rows: int = 1  # of a thread
    cluster: int = 1  # blocks in a cluster: as many as k is split into, or 1


class Product(NamedTuple):
    """What a shape depends on: the matrix, elements of a load, the device."""

    m: int
    k: int
    batch: int
    dtype: str
    width: int
    multiprocessors: int
    block_limit: int

    @property
    def nbytes(self) -> int:
        """Of all matrices."""
        return self.m * self.k * self.batch * check_dtype(self.dtype)

    @property
    def row_threads(self) -> int:
        """Threads of a block that goes along rows."""
        return _ROW_THREADS if self.block_limit >= _ROW_THREADS else LEAST_THREADS

    def split_k(self, blocks: int, resident: float, wanted: int, most: int) -> int:
        """How many parts to split k into: 1 unless the idle rest costs more than a launch."""
        used = min(self.multiprocessors, blocks / resident)
        split_k = min(wanted * self.multiprocessors // blocks, most)
        whole = self.nbytes / self.multiprocessors
        return 1 if split_k < 2 or self.nbytes / used < whole + _LAUNCH_BYTES else split_k


def rows(p: Product) -> Shape:
    """Return the shape of matvec_rows."""
    threads = p.row_threads
    vectors = ceil_div(p.k, p.width)
    # Short rows get more threads than they need, so that a warp's loads touch fewer lines.
    lanes = power_of_two(ceil_div(vectors, _ROW_DEPTH if vectors > 32 else _ROW_DEPTH // 2))
    lanes = min(max(lanes, 2), threads)
    groups = threads // lanes
    tiles = ceil_div(p.m, groups)
    least = threads * p.width * _ROW_DEPTH
    if tiles * p.batch < p.multiprocessors and p.k >= 2 * least:
        lanes, groups, tiles = threads, 1, p.m
    split_k = p.split_k(tiles * p.batch, _ROW_BLOCKS, 4, p.k // least)
    return Shape(lanes, groups, tiles, *_chunks(p.k, split_k, least), _ROW_DEPTH)


def short_rows(p: Product) -> Shape | None:
    """Return the shape of matvec_rows with several short rows to a thread; None if too few."""
    vectors = ceil_div(p.k, p.width)
    if vectors > _SHORT_ROW:
        return None
    lanes = power_of_two(ceil_div(vectors, _SHORT_DEPTH))
    lanes = max(lanes, min(power_of_two(vectors), 8), 2)
    groups = p.row_threads // lanes
    tiles = ceil_div(p.m, groups * _SHORT_ROWS)
    if tiles * p.batch < p.multiprocessors or 4 * tiles * groups * _SHORT_ROWS > 5 * p.m:
        return None
    return Shape(lanes, groups, tiles, 1, p.k, _SHORT_DEPTH, _SHORT_ROWS)


def misaligned_rows(p: Product) -> Shape | None:
    """Return the shape of matvec_shifted_rows; None if rows are too few or too short."""
    lanes = min(_MISALIGNED_ROW_LANES, p.row_threads // p.width)
    groups = p.row_threads // lanes
    tiles = ceil_div(p.m, groups * _MISALIGNED_ROWS)
    k_loaded = p.k + p.width - 1  # a row's vectors begin up to width - 1 elements before it
    if p.m < groups:
        return None
    if p.width == 4 and p.k >= _MISALIGNED_ROW and tiles * p.batch >= p.multiprocessors:
        return Shape(lanes, groups, tiles, 1, k_loaded, _MISALIGNED_ROW_DEPTH, _MISALIGNED_ROWS)
    if p.m * p.batch >= p.multiprocessors or p.nbytes < _MISALIGNED_FEW_ROWS:
        return None
    least = lanes * p.width * _FEW_MISALIGNED_DEPTH
    split_k = min(_FEW_MISALIGNED_BLOCKS * p.multiprocessors // (tiles * p.batch), p.k // least)
    chunks = _chunks(k_loaded, split_k, least)
    return Shape(lanes, groups, tiles, *chunks, _FEW_MISALIGNED_DEPTH, _MISALIGNED_ROWS)


def columns(p: Product, misaligned: bool) -> Shape:
    """Return the shape of matvec_columns or matvec_shifted."""
    element = check_dtype(p.dtype)
    threads = _COLUMN_THREADS
    while threads > p.block_limit:
        threads //= 2
    best = None
    speeds = _MISALIGNED_COLUMN_SPEEDS if misaligned else _COLUMN_SPEEDS
    for piece, speed in speeds.items():
        lanes = piece // element // p.width
        # A pass over the columns takes 8 to a thread. With few columns, rows make up the block.
        groups = min(power_of_two(ceil_div(p.k, 8)), threads // lanes)
        if misaligned:
            groups = max(groups, p.width)
            if lanes * groups > threads:
                continue
        lanes = max(lanes, min(_COLUMN_LEAST, threads) // groups)
        tiles = ceil_div(p.m, (lanes - misaligned) * p.width)
        split_k = p.split_k(tiles * p.batch, _COLUMN_BLOCKS, 2, p.k // (groups * 8))
        used = min(p.multiprocessors, tiles * p.batch * split_k * _COLUMN_BLOCKS)
        cost = p.nbytes / (used * speed) * (tiles * lanes * p.width / p.m)
        if split_k > 1:
            cost += _LAUNCH_BYTES
        if best is None or cost < best[0]:
            best = cost, lanes, groups, tiles, split_k
    _, lanes, groups, tiles, split_k = best
    split_k, chunk = _chunks(p.k, split_k, groups)
    depth = 8 if 2 * tiles * split_k * p.batch < 3 * p.multiprocessors else 4
    return Shape(lanes, groups, tiles, split_k, chunk, depth)


def clusters(p: Product) -> Shape | None:
    """Return the shape of matvec_shifted with a cluster's blocks for the parts of k.

    Blocks run in waves (White 2013, section 3.3): what counts is how much of the last one is idle,
    and whether a wave has enough bytes in flight. None if many rows of a tile would lie outside, if
    there are too few columns to share, or enough for more blocks than a cluster has.
    """
    shared = _CLUSTER_COLUMNS <= p.k <= _CLUSTER_COLUMNS_A_ROW * p.m
    if p.block_limit < _CLUSTER_THREADS or not shared:
        return None
    best = None
    for lanes, (depth, resident), blocks in itertools.product(
        _CLUSTER_LANES, _CLUSTER_DEPTHS, _CLUSTER_BLOCKS
    ):
        rows = (lanes - 1) * p.width
        tiles = ceil_div(p.m, rows)
        if 4 * tiles * rows > 5 * p.m:
            continue
        held = resident * p.multiprocessors
        if blocks > 1:
            places = p.multiprocessors // _CLUSTER_PLACE
            held = places * (_CLUSTER_PLACE * resident // blocks) * blocks
        count = tiles * p.batch * blocks
        if held == 0 or (blocks > 1 and count > _MOST_WAVES * held):
            continue
        in_flight = min(count, held) * _CLUSTER_THREADS * depth * VECTOR_BYTES
        cost = (1 + _CLUSTER_EDGE / lanes) * (tiles * rows / p.m)
        cost *= 1 + _HALF_SPEED_BYTES * p.multiprocessors / in_flight
        if count > held:
            cost *= ceil_div(count, held) * held / count
        if best is None or cost < best[0]:
            best = cost, lanes, tiles, blocks, depth
    if best is None:
        return None
    _, lanes, tiles, blocks, depth = best
    groups = _CLUSTER_THREADS // lanes
    chunk = ceil_div(ceil_div(p.k, blocks), groups) * groups
    return Shape(lanes, groups, tiles, blocks, chunk, depth, cluster=blocks)


def _chunks(k: int, split_k: int, least: int) -> tuple[int, int]:
    """Return how many parts of k there are, none empty, and the length of each but the last."""
    if split_k == 1:
        return 1, k
    chunk = ceil_div(ceil_div(k, split_k), least) * least
    return ceil_div(k, chunk), chunk
