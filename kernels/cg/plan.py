"""Launch plans of conjugate gradients: on vectors, with a sparse matrix, and for a stencil.

Arguments that are names stand for buffers, or for numbers that change from launch to launch;
whoever runs a plan puts in what they stand for. With ``diagonal`` z = inverse * r, else z = r, and
launches have no buffer "inverse". ``aligned``: 16 divides all addresses.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES, VECTOR_BYTES, Launch, Target, ceil_div, launch

_INDEX = {"int32": "int", "int64": "index_t"}
_THREADS, _SMALLEST_BLOCK = 256, 64
_BLOCKS = 4  # most on a multiprocessor
# Entries of a sparse matrix: of the longest mean row that one thread adds up, and of a longer row
# that a thread has in flight.
_SHORT_ROW, _ROW_DEPTH = 16, 4
_SCALARS = ("partial_before", "before", "after", "blocks_before")


@lru_cache(maxsize=256)
def csr(
    rows: int, entries: int, index: str, target: Target, *, dtype: str, diagonal: bool = False
) -> tuple[Launch, Launch]:
    """Plan q = A p with the sums of a step, and q = A p alone; ``index`` is "int32" or "int64".

    Numbers: "first_block", the place of the sums, and "own", the column of the first row.
    """
    threads, inverse = _threads(target), ("inverse",) if diagonal else ()
    mean = ceil_div(entries, rows) if entries else 1
    # A row has one thread if rows have few entries: their products fit in 32 KB of shared memory.
    # Otherwise it has several, each with some of the entries in flight.
    if mean <= _SHORT_ROW:
        lanes, depth = 1, mean
    else:
        lanes, depth = 2, _ROW_DEPTH
        while lanes < 32 and lanes * depth < mean:
            lanes *= 2
    blocks = _blocks(rows * lanes, threads, target)
    macros = {"INDEX": _INDEX[index], "THREADS": threads, "LANES": lanes, "DEPTH": depth}

    def plan(step: int, diagonal: bool, *more: str) -> Launch:
        arguments = ("pointers", "indices", "values", "p", "q", *more, rows, blocks)
        kind = {"STEP": step, "DIAGONAL": int(diagonal)}
        return launch("csr.cu", "csr_product", dtype, blocks, threads, arguments, **macros, **kind)

    step = "r", "before", *inverse, "partial", "first_block", "own"
    return plan(1, diagonal, *step), plan(0, False)


def pack(count: int, target: Target, *, dtype: str) -> Launch:
    """Plan packed[i] = p[places[i]]; the places are int64."""
    _, product = csr(count, count, "int64", target, dtype=dtype)
    arguments = ("p", "places", "packed", count, product.grid)
    return product._replace(kernel="csr_pack", arguments=arguments)


@lru_cache(maxsize=256)
def vectors(
    n: int, target: Target, *, dtype: str, aligned: bool, diagonal: bool
) -> tuple[Launch, Launch, Launch]:
    """Plan r = b - q, p = r or inverse * r; the sums of a step, for products that give none; and
    the step of x, r and p.

    Numbers: "own", where the n elements of x and p begin, "first_block" and "blocks_before".
    """
    inverse = ("inverse",) if diagonal else ()
    return _over(n, target, dtype, aligned, "cg.cu", {"DIAGONAL": int(diagonal)}, {
        "cg_residual": ("b", "q", "r", "p", *inverse, "partial", "own"),
        "cg_sums": ("p", "q", "r", *inverse, "partial", "own", "first_block"),
        "cg_advance": ("x", "r", "p", "q", *inverse, *_SCALARS, "own"),
    })  # fmt: skip


@lru_cache(maxsize=256)
def textbook(n: int, target: Target, *, dtype: str, aligned: bool = False) -> dict[str, Launch]:
    """Plan the textbook's operations on vectors, by kernel (`cg_textbook.cu`).

    Those of a step with a preconditioner of its own launches, with the number "blocks_before"; and
    for solves over MPI ranks those of which the host knows the scalars, floats. "partial" has two
    doubles for each block.
    """
    plans = _over(n, target, dtype, aligned, "cg_textbook.cu", {}, {
        "cg_dots": ("a", "b", "partial"),
        "cg_direct": ("p", "z", *_SCALARS),
        "cg_correct": ("x", "r", "p", "q", *_SCALARS),
        "cg_times": ("z", "inverse", "r"),
        "ranks_reduce": ("x", "r", "p", "q", "partial", "alpha"),
        "ranks_combine": ("out", "a", "b", "of_a", "of_b"),
    })  # fmt: skip
    return {plan.kernel: plan for plan in plans}


def _vector_width(dtype: str, extent: int, aligned: bool) -> int:
    """Return the elements of a load: 16 bytes of them if ``extent`` and addresses allow it."""
    width = VECTOR_BYTES // ELEMENT_BYTES[dtype]
    return width if aligned and extent % width == 0 else 1


def _threads(target: Target) -> int:
    return _THREADS if target.block_limit >= _THREADS else _SMALLEST_BLOCK


def _blocks(work: int, threads: int, target: Target) -> int:
    """Blocks for that many threads' work, no more than a multiprocessor should have."""
    return min(ceil_div(work, threads), target.multiprocessors * _BLOCKS)


def _over(
    n: int, target: Target, dtype: str, aligned: bool, source: str, macros: dict, kernels: dict
) -> tuple[Launch, ...]:
    """Launches of kernels over the elements of vectors, by name, with the buffers of each."""
    width = _vector_width(dtype, n, aligned)
    threads = _threads(target)
    blocks = _blocks(ceil_div(n, width), threads, target)
    macros = {"WIDTH": width, "THREADS": threads, **macros}
    return tuple(
        launch(source, kernel, dtype, blocks, threads, (*buffers, n, blocks), **macros)
        for kernel, buffers in kernels.items()
    )


# -- Stencils: sweeps, and what begins and ends them -----------------------------------------------

HALO, X_HALO = 2, 1  # rows of neighbours: of p and r, and of x and of what a product reads
_SMALLEST = {2: (64, 1, 1), 3: (8, 8, 1)}
_OVERLAP = 4  # rows that a tile reads beyond its own
_LEAST_ROWS = 4  # of a tile
# Blocks of sweeps: threads along columns and lines, blocks that a multiprocessor is to hold; in the
# order of preference; in 3-D others where a load has one element.
_ROW_BLOCKS = [(128, 1, 5), (64, 1, 8), (256, 1, 2)]
_PLANE_BLOCKS = [(16, 32, 1), (16, 16, 2)]
_NARROW_PLANE_BLOCKS = [(32, 16, 1), (16, 16, 2)]
# Of a cooperative launch, with one block on each multiprocessor: points that registers suffice for.
_COOPERATIVE_THREADS = 512
_COOPERATIVE_POINTS = {"float32": 8, "float64": 6}
_STENCIL_THREADS, _STENCIL_BLOCKS = 128, 8  # of a stencil's product, most on a multiprocessor


class GridShare(NamedTuple):
    """A device's share of a grid of points, split along its first axis."""

    rows: int
    lines: int  # 1 for a grid of two axes
    columns: int
    weights: tuple[float, float, float]  # 1 / spacing**2 along rows, lines (0.0 in 2-D), columns
    low: bool = False  # whether other devices have rows before these
    high: bool = False  # and after

    @classmethod
    def of(cls, sizes: tuple, weights: tuple, begin: int = 0, end: int | None = None) -> GridShare:
        """The share of the rows from ``begin`` to ``end`` of a grid, or of all of them."""
        rows, *across = sizes
        end = rows if end is None else end
        return cls(end - begin, *across, weights, begin > 0, end < rows)

    @property
    def plane(self) -> int:
        """Points of a row."""
        return self.lines * self.columns

    @property
    def dims(self) -> int:
        """Axes, 2 or 3."""
        return 3 if self.weights[1] else 2


@lru_cache(maxsize=256)
def sweeps(
    grid: GridShare, target: Target, *, dtype: str, aligned: bool
) -> tuple[Launch, Launch, Launch]:
    """Plan the sweeps of a stencil, the first from the first row on, the second from the last; and
    their end, by which "x" gets the step it lacks.

    Where there are neighbours, `HALO` of their rows lie in "now" and "next", rows of p and of r
    in turn, and `X_HALO` in "x". ``aligned``: 16 divides all addresses. Numbers: "blocks_before",
    "first_block" (the place of the first block's sums in "partial"), "add". "even" and "odd": what
    sweeps 0, 2, ... and 1, 3, ... wrote; "record": the scalars.
    """
    width = _vector_width(dtype, grid.columns, aligned)
    columns, lines, resident, *tiles = _tiles(grid, width, target)
    macros = {"WIDTH": width, "DIMS": grid.dims, "COLUMNS": columns, "LINES": lines}
    pitch, plane, end = 2 * grid.plane, grid.plane, grid.rows - 1
    above, x_above = HALO * grid.low * pitch, X_HALO * grid.low * plane
    first, last = -HALO * grid.low, grid.rows + HALO * grid.high
    downward = above, pitch, x_above, plane, first, last
    upward = above + end * pitch, -pitch, x_above + end * plane, -plane
    buffers = "x", "now", "next", "partial_before", "partial", "before", "after", "blocks_before"
    numbers = *tiles, "first_block", "add", *grid.weights
    where = "cg_stencil.cu", "cg_sweep", dtype, tiles[-1], columns * lines
    down, up = (
        launch(*where, (*buffers, *grid[:3], *way, *numbers), **macros, RESIDENT=resident)
        for way in (downward, (*upward, grid.rows - last, grid.rows - first))
    )
    blocks = min(grid.rows, 2 * tiles[-1])
    ends = "x", "even", "odd", "record", grid.rows, plane, above, pitch, x_above, blocks
    return down, up, down._replace(kernel="cg_settle", grid=blocks, arguments=ends)


@lru_cache(maxsize=256)
def cooperative(
    grid: GridShare,
    target: Target,
    *,
    dtype: str,
    shared_limit: int,
    above: int = 0,
    devices: int = 1,
) -> Launch | None:
    """Plan many iterations on a small grid in one launch, of blocks that all run at once.

    None if the grid is too large for it. A block may have ``shared_limit`` bytes of shared memory.
    ``grid`` is the share of one of several ``devices``; ``above`` rows come before it. Numbers:
    "iterations", "stamp", "all_rows", "first_block", "blocks_before" (those of all devices), of
    several devices also "rank" and "patience".
    """
    threads = min(_COOPERATIVE_THREADS, target.block_limit)
    if threads < grid.columns <= target.block_limit:
        threads = target.block_limit
    if grid.dims != 2 or grid.columns > threads:
        return None
    strip = ceil_div(grid.rows, min(grid.rows, target.multiprocessors))
    points = ceil_div(strip + 2, threads // grid.columns)
    plane_bytes = (strip + 4) * (grid.columns + 2) * ELEMENT_BYTES[dtype]
    shared_bytes = ceil_div(2 * plane_bytes, 8) * 8 + 4 * 8 * threads
    if points > _COOPERATIVE_POINTS[dtype] or shared_bytes > shared_limit:
        return None
    arguments = (
        "x", "r", "p", "edges", "sums", "before", "after",
        *(("peers", "rank", "words", "patience") if devices > 1 else ()),
        "all_rows", grid.columns, above, above + grid.rows, strip, "first_block", "blocks_before",
        "stamp", "iterations", grid.weights[0], grid.weights[2],
    )  # fmt: skip
    where = "cg_cooperative.cu", "cg_persist", dtype, ceil_div(grid.rows, strip), threads
    planned = launch(*where, arguments, THREADS=threads, POINTS=points, PEERS=devices)
    return planned._replace(shared_bytes=shared_bytes)


@lru_cache(maxsize=256)
def stencil(
    grid: GridShare,
    target: Target,
    *,
    dtype: str,
    r_start: int = 0,
    p_start: int = 0,
    pitch: int | None = None,
    before: int | None = None,
) -> tuple[Launch, Launch]:
    """Plan r = b - A x, p = r; and q = A p, each with two sums.

    Where there are neighbours, `X_HALO` of their rows lie in "x", and in "p" of a product, or all
    that come ``before``.
    ``r_start`` and ``p_start`` are where row 0 of r and of p is in their buffers, rows are
    ``pitch`` elements apart; by default as in vectors. Number of the second: "first_block".
    """
    threads = min(_STENCIL_THREADS, target.block_limit)
    blocks = min(grid.rows * grid.lines, target.multiprocessors * _STENCIL_BLOCKS)
    pitch = grid.plane if pitch is None else pitch
    macros = {"DIMS": grid.dims, "THREADS": threads}
    before = X_HALO * grid.low if before is None else before
    sizes = (*grid[:3], before, int(grid.low), int(grid.high))
    residual = "x", "b", "r", "p", "partial", *sizes, r_start, p_start, pitch, blocks, *grid.weights
    product = "p", "q", "partial", "first_block", *sizes, blocks, *grid.weights
    return (
        launch("stencil.cu", "stencil_residual", dtype, blocks, threads, residual, **macros),
        launch("stencil.cu", "stencil_product", dtype, blocks, threads, product, **macros),
    )


def _tiles(grid: GridShare, width: int, target: Target) -> tuple[int, ...]:
    """Choose the block's shape and the rows of a tile by the rows that the slowest block walks.

    Returns threads of a block along the columns and along the lines, blocks of a multiprocessor,
    rows of a tile, tiles along the columns and along the lines, all tiles, blocks.
    """
    if grid.dims == 2:
        shapes = _ROW_BLOCKS
    else:
        shapes = _PLANE_BLOCKS if width > 1 else _NARROW_PLANE_BLOCKS
    shapes = [s for s in shapes if s[0] * s[1] <= target.block_limit] or [_SMALLEST[grid.dims]]
    edge = ceil_div(2, width)
    best, least = (), math.inf
    for columns, lines, resident in shapes:
        strips = ceil_div(grid.columns, (columns - 2 * edge) * width)
        bands = ceil_div(grid.lines, lines - 4) if grid.dims == 3 else 1
        blocks = target.multiprocessors * resident
        for rounds in range(1, 9):
            chunks = max(1, rounds * blocks // (strips * bands))
            chunk = max(ceil_div(grid.rows, chunks), min(_LEAST_ROWS, grid.rows))
            tiles = strips * bands * ceil_div(grid.rows, chunk)
            walked = ceil_div(tiles, blocks) * (chunk + _OVERLAP)
            # Threads that the multiprocessor works for, busy or not, and rows that each walks.
            cost = walked * resident * columns * lines
            if cost < 0.95 * least:
                cut = chunk, strips, bands, tiles, min(tiles, blocks)
                best, least = (columns, lines, resident, *cut), cost
    return best
