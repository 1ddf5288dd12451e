"""Launch plans of two-dimensional correlation: with any taps, with few, and with low rank."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from ..common.launch import (
    BOUNDARIES,
    ELEMENT_BYTES,
    VECTOR_BYTES,
    LaunchPlan,
    Target,
    by_vectors,
    ceil_div,
    launch,
)

_WARP = 32
_SHARED_BYTES = 49152  # of shared memory that a kernel may declare
_RESIDENT_THREADS = 512  # of blocks with tiles there, that a multiprocessor is to hold
_MOST_BLOCKS = (1 << 31) - 1
_FETCHES = 12  # loads that a thread has in flight as a tile is filled


class _Correlation(NamedTuple):
    """A correlation; see `direct`."""

    batch: int  # images, at least 1, as all extents
    height: int
    width: int
    filter_height: int  # of the taps, in any proportion to the image
    filter_width: int
    out_height: int
    out_width: int
    top: int  # rows of the filter that lie outside of the image at the first output; >= 0
    left: int  # likewise columns
    boundary: str  # in `BOUNDARIES`: a constant; periodic; mirrored, the edge repeated
    dtype: str  # of all operands; sums are kept in it too
    image_strides: tuple[int, int, int]  # (batch, row, column), in elements, of any sign, or 0
    out_strides: tuple[int, int, int]  # likewise, but not 0
    tap_strides: tuple[int, int] = (0, 0)  # (row, column)
    transposed: bool = False

    def by_rows(self) -> _Correlation:
        """Transposed where columns of the image lie in memory."""
        _, row, column = self.image_strides
        if self.height < 2 or (self.width > 1 and abs(row) >= abs(column)):
            return self
        sizes = [n for pair in zip(self[2:9:2], self[1:9:2], strict=True) for n in pair]
        strides = [(*s[:-2], s[-1], s[-2]) for s in self[11:14]]
        return _Correlation(self.batch, *sizes, *self[9:11], *strides, True)

    @property
    def vector(self) -> int:
        """Elements of 16 bytes."""
        return VECTOR_BYTES // ELEMENT_BYTES[self.dtype]

    def aligned(self, alignment: int, width: int) -> bool:
        """Whether rows of outputs can be written in vectors of ``width`` elements."""
        is_aligned = alignment >= width * ELEMENT_BYTES[self.dtype]
        return is_aligned and by_vectors(self.batch, self.out_height, self.out_strides, width)

    def plan(
        self,
        kernel: str,
        rows: int,
        columns: int,
        threads: int,
        given: tuple[str | int, ...],
        **macros: int,
    ) -> LaunchPlan:
        """The launch of blocks that make ``rows`` by ``columns`` outputs each, of a kernel that is
        ``given`` operands in addition to what all have."""
        down, across = ceil_div(self.out_height, rows), ceil_div(self.out_width, columns)
        blocks = down * across * self.batch
        if blocks > _MOST_BLOCKS:
            raise ValueError(f"a launch must have at most {_MOST_BLOCKS} blocks, got {blocks}")
        numbers = *self[1:9], down, across, *self.image_strides, *self.out_strides
        arguments = *given, *numbers, BOUNDARIES.index(self.boundary), "fillvalue", "only_if"
        made = launch(f"{kernel}.cu", kernel, self.dtype, blocks, threads, arguments, **macros)
        return LaunchPlan((made,), 0, f"{kernel} {rows}x{columns}")


def direct(*, target: Target, alignment: int, **sizes: Any) -> LaunchPlan:
    """Plan out[b, i, j] = sum over u, v of taps[u, v] ext[b, i + u - top, j + v - left].

    ``ext`` is the image extended beyond its edges.

    Parameters
    ----------
    target : Target
        With at least 16384 bytes of shared memory for a block.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.
    **sizes
        The fields of `_Correlation`, but for the last one.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, the float ``"fillvalue"``, and the
        buffer of ints ``"only_if"``: where its first one is 0 nothing is done. It may be null.
    """
    problem = _Correlation(**sizes).by_rows()
    plan = _small(problem, target, alignment) if target.warps else None
    return plan or _tiled(problem, target, alignment)


# -- Few taps: convolve_small.cu -------------------------------------------------------------------

_SMALL_THREADS = 128  # of a block
_SMALL_MOST = 1 << 29  # extents that it counts in 32 bits
# Most taps in all that are held in registers, and fewest outputs a side for which they are.
_MOST_TAPS = {"float32": 81, "float64": 25}
_LEAST_OUTPUTS = 256
# By most taps a side: rows of a thread, rows in flight, blocks that a multiprocessor is to hold.
_SHAPES = {
    "float32": {3: (4, 6, 8), 5: (8, 6, 4), 7: (8, 2, 4), 9: (8, 2, 3)},
    "float64": {3: (8, 6, 5), 5: (8, 3, 4)},
}


def _small(p: _Correlation, target: Target, alignment: int) -> LaunchPlan | None:
    """The plan with the taps in registers; None where another kernel is for it."""
    side = max(p.filter_height, p.filter_width)
    shapes = _SHAPES[p.dtype]
    if (
        target.block_limit < _SMALL_THREADS
        or side > max(shapes)
        or p.filter_height * p.filter_width > _MOST_TAPS[p.dtype]
        or min(p.out_height, p.out_width) < _LEAST_OUTPUTS
        or max(p[1:9]) >= _SMALL_MOST
        or p.image_strides[2] != 1
        or p.out_strides[2] != 1
    ):
        return None
    width = p.vector
    while width > 1 and not (
        p.aligned(alignment, width) and by_vectors(p.batch, p.height, p.image_strides, width)
    ):
        width //= 2
    rows, ahead, blocks = next(shape for most, shape in shapes.items() if side <= most)
    columns, groups = _WARP * width, _SMALL_THREADS // _WARP
    across = ceil_div(p.out_width, columns) * p.batch
    while rows > 2 and across * ceil_div(p.out_height, groups * rows) < (
        blocks * target.multiprocessors
    ):
        rows //= 2
    macros = {"WIDTH": width, "FH": p.filter_height, "FW": p.filter_width}
    macros |= {"SHIFT": -p.left % width, "ROWS": rows, "AHEAD": ahead, "BLOCKS": blocks}
    given = "image", "taps", "out", *p.tap_strides
    return p.plan("convolve_small", groups * rows, columns, _SMALL_THREADS, given, **macros)


# -- Any taps, by tiles in shared memory: convolve.cu ----------------------------------------------

# Taps of a chunk, unrolled.
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


def _tiled(p: _Correlation, target: Target, alignment: int) -> LaunchPlan:
    """The plan with the fastest tile."""
    threads = min(_THREADS, target.block_limit // _WARP * _WARP)
    room = min(target.shared_limit, _SHARED_BYTES, _STAGE_BYTES)
    tiles = [
        (rows, lanes, *tile, stages)
        for rows, lanes in itertools.product(_ROWS, _LANES)
        if threads % lanes == 0
        and (stages := _stages(p, *(tile := (threads // lanes * rows, lanes * p.vector)), room))
    ]

    def seconds(tile: tuple[int, int, int, int, dict[str, int]]) -> float:
        """The time of all tiles on a multiprocessor, in products."""
        rows, _, high, wide, stages = tile
        chunk_rows, most_down, most_across = (
            stages[name] for name in ("CHUNK_ROWS", "STAGE_ROWS", "STAGE_COLUMNS")
        )
        cost = high * wide * p.filter_height * p.filter_width
        cost *= 1 + _READ_COST * (rows + chunk_rows - 1) / (rows * chunk_rows)
        passes = ceil_div(p.filter_height, most_down) * ceil_div(p.filter_width, most_across)
        loads = high + min(most_down, p.filter_height) - 1
        across = wide + min(most_across, p.filter_width) - 1
        cost += _LOAD_COST * passes * loads * ceil_div(across, _WARP) * _WARP
        number = ceil_div(p.out_height, high) * ceil_div(p.out_width, wide) * p.batch
        return cost * max(number / target.multiprocessors, _HIDING_BLOCKS)

    rows, lanes, high, wide, stages = min(tiles, key=seconds)
    of_tile = _of_tile(p, alignment, rows, lanes, threads // lanes, stages["STAGE_COLUMNS"])
    given = "image", "taps", "out", *p.tap_strides
    return p.plan("convolve", high, wide, threads, given, **stages, **of_tile)


def _of_tile(
    p: _Correlation, alignment: int, rows: int, lanes: int, groups: int, stage_columns: int
) -> dict[str, int]:
    """The macros of a tile in shared memory."""
    fetched = ceil_div(lanes * p.vector + stage_columns, _WARP)  # by a thread, of a row
    return {
        "WIDTH": p.vector,
        "LANES": lanes,
        "GROUPS": groups,
        "ROWS": rows,
        "FETCH_ROWS": max(1, min(4, _FETCHES // fetched)),
        "ALIGNED": int(p.aligned(alignment, p.vector)),
        "BLOCKS": max(_RESIDENT_THREADS // (lanes * groups), 1),
    }


def _stages(p: _Correlation, tile_rows: int, tile_columns: int, room: int) -> dict[str, int]:
    """The macros by which a filter passes: chunks, the last of each, and stages that fit in shared
    memory; empty if none does."""
    height, width = p.filter_height, p.filter_width
    chunk_rows = ceil_div(height, ceil_div(height, _CHUNK))
    chunk_columns = min(_CHUNK, _CHUNK_TAPS // chunk_rows // 4 * 4, width)
    down = ceil_div(height, chunk_rows)
    macros = {"CHUNK_ROWS": chunk_rows, "CHUNK_COLUMNS": chunk_columns}
    macros["TAIL_ROWS"] = height - (down - 1) * chunk_rows
    macros["TAIL_COLUMNS"] = (width - 1) % chunk_columns + 1
    unit = p.vector if chunk_columns == width else chunk_columns
    for most in (_STAGE_COLUMNS, _STAGE_COLUMNS // 2, _CHUNK):
        columns = ceil_div(ceil_div(width, ceil_div(width, most)), unit) * unit
        pitch = tile_columns + columns
        free = room // ELEMENT_BYTES[p.dtype] - (tile_rows - 1) * pitch
        fit = free // ((pitch + columns) * chunk_rows)
        if fit >= 1:
            rows = ceil_div(down, ceil_div(down, fit)) * chunk_rows
            return macros | {"STAGE_ROWS": rows, "STAGE_COLUMNS": columns}
    return {}


# -- Filters of low rank: convolve_lines.cu --------------------------------------------------------

SEPARABLE_TAPS = 64  # most taps a side, for which 32 KiB of shared memory are enough
# Threads side by side, groups of them, rows of a thread, rows of a slab, taps of a chunk.
_LINES_LANES = 16
_LINES_GROUPS = (8, 4, 2)
_LINES_ROWS = 8
_LINES_SLAB = 2


def separable(*, rank: int, target: Target, alignment: int, **sizes: Any) -> LaunchPlan:
    """Plan what `direct` does for the taps sum over r of outer(columns[r], rows[r]).

    Parameters
    ----------
    rank : int
        Terms of the sum.
    target, alignment, **sizes
        As for `direct`; the filter's sides are at most `SEPARABLE_TAPS`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"columns"`` of (rank, filter_height) taps, ``"rows"`` of
        (rank, filter_width), and ``"out"``, the float ``"fillvalue"``, and ``"only_if"``, unused.
    """
    p = _Correlation(**sizes).by_rows()
    element, room = ELEMENT_BYTES[p.dtype], min(target.shared_limit, _SHARED_BYTES)
    columns = _LINES_LANES * p.vector
    filter = p.filter_height, p.filter_width
    stage_rows, stage_columns = (ceil_div(extent, _CHUNK) * _CHUNK for extent in filter)
    for groups in _LINES_GROUPS:  # the last one fits in any case
        slab = groups * _LINES_SLAB * (columns + stage_columns)
        made = (groups * _LINES_ROWS + stage_rows - 1) * columns
        needed = (slab + made + stage_rows + stage_columns) * element
        tiles = ceil_div(p.out_height, groups * _LINES_ROWS) * ceil_div(p.out_width, columns)
        fits = groups * _LINES_LANES <= target.block_limit and needed <= room
        if fits and tiles * p.batch >= target.multiprocessors:
            break
    tail_rows, tail_columns = ((extent - 1) % _CHUNK + 1 for extent in filter)
    macros = {"SLAB": _LINES_SLAB, "STAGE_ROWS": stage_rows, "STAGE_COLUMNS": stage_columns}
    macros |= {"TAIL_ROWS": tail_rows, "TAIL_COLUMNS": tail_columns}
    macros |= _of_tile(p, alignment, _LINES_ROWS, _LINES_LANES, groups, stage_columns)
    taps = ("rows", "columns") if p.transposed else ("columns", "rows")
    given = "image", *taps, "out", rank
    threads = _LINES_LANES * groups
    return p.plan("convolve_lines", groups * _LINES_ROWS, columns, threads, given, **macros)
