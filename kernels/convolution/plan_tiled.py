"""Launch plans of two-dimensional correlation with any taps, by tiles in shared memory."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

from ..common.launch import REAL, VECTOR_BYTES, Launch, LaunchPlan, Target, ceil_div, check_dtype
from .correlation import (
    RESIDENT_THREADS,
    SHARED_BYTES,
    WARP,
    Correlation,
    count_blocks,
    fetch_rows,
)

__all__ = ["tiled"]

# convolve.cu: taps of a chunk, unrolled.
_CHUNK = 8
_CHUNK_TAPS = 32
# Shapes of a tile that are weighed: threads side by side, and rows of a thread.
_LANES = (32, 16, 8, 64, 128)
_ROWS = (8, 4, 2, 1)
_THREADS = 128
_STAGE_BYTES = 32 << 10  # most shared memory of a block, so that several fit on a multiprocessor
_STAGE_COLUMNS = 32  # most taps of a filter's row that are in shared memory at a time
# What a load into the tile takes, and a thread's reads of shared memory for a row, in products.
_LOAD_COST, _READ_COST = 8.0, 2.2
_HIDING_BLOCKS = 2.0  # on a multiprocessor, that hide each other's latency


class _Stages(NamedTuple):
    """How a filter passes: chunks, the last of each, and stages."""

    chunk_rows: int
    chunk_columns: int
    tail_rows: int
    tail_columns: int
    stage_rows: int
    stage_columns: int


class _Tile(NamedTuple):
    """What a block of convolve.cu makes, and how many there are of them."""

    rows: int
    lanes: int
    groups: int
    stages: _Stages
    down: int
    across: int


def tiled(p: Correlation, target: Target, alignment: int) -> LaunchPlan:
    """The plan with convolve.cu."""
    width = VECTOR_BYTES // check_dtype(p.dtype)
    tile = _tile(
        (p.filter_height, p.filter_width),
        (p.out_height, p.out_width),
        p.dtype,
        target.multiprocessors / p.batch,
        target.block_limit,
        min(target.shared_limit, SHARED_BYTES, _STAGE_BYTES),
    )
    if tile is None:
        raise ValueError(f"shared_limit must be at least 16384, got {target.shared_limit}")
    rows, lanes, groups, stages, down, across = tile
    aligned = p.vectors(p.out, p.out_height, alignment, width)
    image, filter, out = p.extents
    launch = Launch(
        source="convolve.cu",
        kernel="convolve",
        defines=(
            ("REAL", REAL[p.dtype]),
            ("WIDTH", width),
            ("LANES", lanes),
            ("GROUPS", groups),
            ("ROWS", rows),
            *((name.upper(), number) for name, number in stages._asdict().items()),
            ("FETCH_ROWS", fetch_rows(lanes * width + stages.stage_columns)),
            ("ALIGNED", int(aligned)),
            ("BLOCKS", max(RESIDENT_THREADS // (lanes * groups), 1)),
        ),
        grid=count_blocks(across, down, p.batch),
        block=lanes * groups,
        arguments=(
            *("image", "taps", "out", *image, *filter, *out),
            *(*p.tap_strides, down, across, *p.image, *p.out, p.boundary, "fillvalue", "only_if"),
        ),
    )
    return LaunchPlan((launch,), 0, f"tile{groups * rows}x{lanes * width}")


def _stages(
    taps: tuple[int, int],
    dtype: str,
    tile_rows: int,
    tile_columns: int,
    shared_bytes: int,
    most: int,
) -> _Stages | None:
    """Cut a filter so that a stage of ``most`` columns fits in shared memory; None if none does."""
    filter_height, filter_width = taps
    element = check_dtype(dtype)
    width = VECTOR_BYTES // element
    chunk_rows = ceil_div(filter_height, ceil_div(filter_height, _CHUNK))
    chunk_columns = min(_CHUNK, _CHUNK_TAPS // chunk_rows // 4 * 4)
    if filter_width <= chunk_columns:
        chunk_columns = filter_width
    chunks_down = ceil_div(filter_height, chunk_rows)
    tail_rows = filter_height - (chunks_down - 1) * chunk_rows
    tail_columns = (filter_width - 1) % chunk_columns + 1
    while most >= _CHUNK:
        columns = ceil_div(filter_width, ceil_div(filter_width, most))
        unit = width if chunk_columns == filter_width else chunk_columns
        columns = ceil_div(columns, unit) * unit
        pitch = tile_columns + columns
        room = shared_bytes // element - (tile_rows - 1) * pitch
        fit = room // ((pitch + columns) * chunk_rows)
        if fit >= 1:
            each = ceil_div(chunks_down, ceil_div(chunks_down, fit))
            return _Stages(
                chunk_rows, chunk_columns, tail_rows, tail_columns, each * chunk_rows, columns
            )
        most //= 2
    return None


@lru_cache(maxsize=1024)
def _tile(
    taps: tuple[int, int],
    outs: tuple[int, int],
    dtype: str,
    multiprocessors: float,
    block_limit: int,
    shared_bytes: int,
) -> _Tile | None:
    """The fastest tile, None if none fits; ``multiprocessors`` are those for one image."""
    width = VECTOR_BYTES // check_dtype(dtype)
    threads = min(_THREADS, block_limit // WARP * WARP)
    best, best_cost = None, 0.0
    for rows, lanes in itertools.product(_ROWS, _LANES):
        if threads % lanes:
            continue
        tile_rows, tile_columns = threads // lanes * rows, lanes * width
        stages = _stages(taps, dtype, tile_rows, tile_columns, shared_bytes, _STAGE_COLUMNS)
        if stages is None:
            continue
        down, across = ceil_div(outs[0], tile_rows), ceil_div(outs[1], tile_columns)
        cost = _tile_cost(taps, stages, rows, tile_rows, tile_columns)
        cost *= max(down * across / multiprocessors, _HIDING_BLOCKS)
        if best is None or cost < best_cost:
            best = _Tile(rows, lanes, threads // lanes, stages, down, across)
            best_cost = cost
    return best


def _tile_cost(
    taps: tuple[int, int],
    stages: _Stages,
    rows: int,
    tile_rows: int,
    tile_columns: int,
) -> float:
    """The time that a tile takes, in products."""
    chunk = stages.chunk_rows
    products = tile_rows * tile_columns * taps[0] * taps[1]
    products *= 1 + _READ_COST * (rows + chunk - 1) / (rows * chunk)
    passes = ceil_div(taps[0], stages.stage_rows) * ceil_div(taps[1], stages.stage_columns)
    loads = tile_rows + min(stages.stage_rows, taps[0]) - 1
    loads *= ceil_div(tile_columns + min(stages.stage_columns, taps[1]) - 1, WARP) * WARP
    return products + _LOAD_COST * passes * loads
