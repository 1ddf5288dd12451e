"""Launch plans of two-dimensional correlation: with any taps, with few, and with low rank."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any, NamedTuple

from ..common.boundaries import BOUNDARIES
from ..common.launch import (
    VECTOR_BYTES,
    LaunchPlan,
    Target,
    by_vectors,
    ceil_div,
    check_dtype,
    launch,
)

__all__ = ["SEPARABLE_TAPS", "direct", "separable"]

_WARP = 32
_SHARED_BYTES = 49152  # of shared memory that a kernel may declare
_RESIDENT_THREADS = 512  # of blocks with tiles there, that a multiprocessor is to hold
_MOST_BLOCKS = (1 << 31) - 1
_FETCHES = 12  # loads that a thread has in flight as a tile is filled


class _Correlation(NamedTuple):
    """A correlation, transposed if need be so that rows lie in memory."""

    batch: int  # images, at least 1, as all extents
    height: int
    width: int
    filter_height: int  # of the taps, in any proportion to the image
    filter_width: int
    out_height: int
    out_width: int
    top: int  # rows of the filter that lie outside of the image at the first output; >= 0
    left: int  # likewise columns
    boundary: int  # number in `BOUNDARIES` of a constant; periodic; mirrored, the edge repeated
    dtype: str  # of all operands; sums are kept in it too
    image: tuple[int, int, int]  # (batch, row, column) strides in elements, of any sign, or 0
    out: tuple[int, int, int]  # likewise, but not 0
    tap_strides: tuple[int, int]  # (row, column)
    transposed: bool

    @property
    def extents(self) -> tuple[tuple[int, ...], ...]:
        """Of the image and of the filter; of the output, and where it begins: top and left."""
        return self[1:3], self[3:5], self[5:9]

    def vectors(self, strides: tuple[int, int, int], rows: int, alignment: int, width: int) -> bool:
        """Whether rows can be read or written in vectors of ``width`` elements."""
        aligned = alignment >= width * check_dtype(self.dtype)
        return aligned and by_vectors(self.batch, rows, strides, width)


def _correlation(
    target: Target,
    *,
    batch: int,
    boundary: str,
    dtype: str,
    image_strides: tuple[int, int, int],
    out_strides: tuple[int, int, int],
    tap_strides: tuple[int, int] | None = None,
    **extents: int,
) -> _Correlation:
    """Check the problem of a plan, and transpose it where columns lie in memory."""
    check_dtype(dtype)
    if boundary not in BOUNDARIES:
        valid = ", ".join(BOUNDARIES)
        raise ValueError(f"boundary must be one of {valid}, got {boundary!r}")
    if target.block_limit < _WARP:
        raise ValueError(f"block_limit must be at least {_WARP}, got {target.block_limit}")
    image, out = image_strides, out_strides
    taps = tap_strides or (extents["filter_width"], 1)
    names = iter(_Correlation._fields[1:9])
    pairs = [(extents[down], extents[across]) for down, across in zip(names, names, strict=True)]
    height, width = pairs[0]
    transposed = height > 1 and (width == 1 or abs(image[1]) < abs(image[2]))
    if transposed:
        pairs = [(across, down) for down, across in pairs]
        image, out = (image[0], image[2], image[1]), (out[0], out[2], out[1])
        taps = taps[::-1]
    sides = [extent for pair in pairs for extent in pair]
    where = BOUNDARIES.index(boundary)
    strides = tuple(image), tuple(out), tuple(taps)
    return _Correlation(batch, *sides, where, dtype, *strides, transposed)


def _fetch_rows(columns: int) -> int:
    """Rows of a tile that a warp loads at once."""
    return max(1, min(4, _FETCHES // ceil_div(columns, _WARP)))


def _count_blocks(across: int, down: int, batch: int) -> int:
    """Blocks of a launch."""
    blocks = across * down * batch
    if blocks > _MOST_BLOCKS:
        raise ValueError(f"a launch must have at most {_MOST_BLOCKS} blocks, got {blocks}")
    return blocks


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
        ``batch`` images of ``height`` and ``width``; ``filter_height`` and ``filter_width`` of the
        taps; ``out_height`` and ``out_width``; ``top`` and ``left``, rows and columns of the filter
        that lie outside of the image at the first output; ``boundary``, "fill", "wrap" or "symm";
        ``dtype``; ``image_strides`` and ``out_strides``, (batch, row, column) in elements, and
        ``tap_strides``, (row, column), by default those of contiguous taps.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, the float ``"fillvalue"``, and the
        buffer of ints ``"only_if"``: where its first one is 0 nothing is done. It may be null.
    """
    problem = _correlation(target, **sizes)
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
        or max(p.height, p.width, p.out_height, p.out_width, p.top, p.left) >= _SMALL_MOST
        or p.image[2] != 1
        or p.out[2] != 1
    ):
        return None
    width = VECTOR_BYTES // check_dtype(p.dtype)
    while width > 1 and not (
        p.vectors(p.image, p.height, alignment, width)
        and p.vectors(p.out, p.out_height, alignment, width)
    ):
        width //= 2
    rows, ahead, blocks = next(shape for most, shape in shapes.items() if side <= most)
    across = ceil_div(p.out_width, _WARP * width)
    groups = _SMALL_THREADS // _WARP
    while rows > 2 and across * ceil_div(p.out_height, groups * rows) * p.batch < (
        blocks * target.multiprocessors
    ):
        rows //= 2
    down = ceil_div(p.out_height, groups * rows)
    image, (filter_height, filter_width), out = p.extents
    macros = {"WIDTH": width, "FH": filter_height, "FW": filter_width, "SHIFT": -p.left % width}
    macros |= {"ROWS": rows, "AHEAD": ahead, "BLOCKS": blocks}
    numbers = *image, *out, *p.tap_strides, down, across, *p.image[:2], *p.out[:2], p.boundary
    where = "convolve_small.cu", "convolve_small", p.dtype, _count_blocks(across, down, p.batch)
    arguments = "image", "taps", "out", *numbers, "fillvalue", "only_if"
    made = launch(*where, _SMALL_THREADS, arguments, **macros)
    return LaunchPlan((made,), 0, f"small{filter_height}x{filter_width}v{width}")


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


class _Stages(NamedTuple):
    """How a filter passes: chunks, the last of each, and stages."""

    chunk_rows: int
    chunk_columns: int
    tail_rows: int
    tail_columns: int
    stage_rows: int
    stage_columns: int


def _tiled(p: _Correlation, target: Target, alignment: int) -> LaunchPlan:
    width = VECTOR_BYTES // check_dtype(p.dtype)
    image, taps, out = p.extents
    limits = target.block_limit, min(target.shared_limit, _SHARED_BYTES, _STAGE_BYTES)
    tile = _tile(taps, out[:2], p.dtype, target.multiprocessors / p.batch, *limits)
    if tile is None:
        raise ValueError(f"shared_limit must be at least 16384, got {target.shared_limit}")
    rows, lanes, groups, stages = tile
    down, across = ceil_div(p.out_height, groups * rows), ceil_div(p.out_width, lanes * width)
    macros = {"WIDTH": width, "LANES": lanes, "GROUPS": groups, "ROWS": rows}
    macros |= {name.upper(): number for name, number in stages._asdict().items()}
    macros["FETCH_ROWS"] = _fetch_rows(lanes * width + stages.stage_columns)
    macros["ALIGNED"] = int(p.vectors(p.out, p.out_height, alignment, width))
    macros["BLOCKS"] = max(_RESIDENT_THREADS // (lanes * groups), 1)
    numbers = *image, *taps, *out, *p.tap_strides, down, across, *p.image, *p.out, p.boundary
    where = "convolve.cu", "convolve", p.dtype, _count_blocks(across, down, p.batch)
    arguments = "image", "taps", "out", *numbers, "fillvalue", "only_if"
    made = launch(*where, lanes * groups, arguments, **macros)
    return LaunchPlan((made,), 0, f"tile{groups * rows}x{lanes * width}")


def _stages(
    taps: tuple[int, int], dtype: str, tile_rows: int, tile_columns: int, shared_bytes: int
) -> _Stages | None:
    """Cut a filter so that a stage fits in shared memory; None if none does."""
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
    most = _STAGE_COLUMNS
    while most >= _CHUNK:
        columns = ceil_div(filter_width, ceil_div(filter_width, most))
        unit = width if chunk_columns == filter_width else chunk_columns
        columns = ceil_div(columns, unit) * unit
        pitch = tile_columns + columns
        room = shared_bytes // element - (tile_rows - 1) * pitch
        fit = room // ((pitch + columns) * chunk_rows)
        if fit >= 1:
            rows = ceil_div(chunks_down, ceil_div(chunks_down, fit)) * chunk_rows
            return _Stages(chunk_rows, chunk_columns, tail_rows, tail_columns, rows, columns)
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
) -> tuple[int, int, int, _Stages] | None:
    """The fastest tile: rows of a thread, lanes, groups of them, stages; None if none fits.
    ``multiprocessors`` are those for one image."""
    width = VECTOR_BYTES // check_dtype(dtype)
    threads = min(_THREADS, block_limit // _WARP * _WARP)
    best, best_cost = None, 0.0
    for rows, lanes in itertools.product(_ROWS, _LANES):
        if threads % lanes:
            continue
        tile_rows, tile_columns = threads // lanes * rows, lanes * width
        stages = _stages(taps, dtype, tile_rows, tile_columns, shared_bytes)
        if stages is None:
            continue
        # The time that a tile takes, in products.
        chunk = stages.chunk_rows
        cost = tile_rows * tile_columns * taps[0] * taps[1]
        cost *= 1 + _READ_COST * (rows + chunk - 1) / (rows * chunk)
        passes = ceil_div(taps[0], stages.stage_rows) * ceil_div(taps[1], stages.stage_columns)
        loads = tile_rows + min(stages.stage_rows, taps[0]) - 1
        loads *= ceil_div(tile_columns + min(stages.stage_columns, taps[1]) - 1, _WARP) * _WARP
        cost += _LOAD_COST * passes * loads
        tiles = ceil_div(outs[0], tile_rows) * ceil_div(outs[1], tile_columns)
        cost *= max(tiles / multiprocessors, _HIDING_BLOCKS)
        if best is None or cost < best_cost:
            best, best_cost = (rows, lanes, threads // lanes, stages), cost
    return best


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
        (rank, filter_width), and ``"out"``, and the float ``"fillvalue"``.
    """
    p = _correlation(target, **sizes)
    element, room = check_dtype(p.dtype), min(target.shared_limit, _SHARED_BYTES)
    width = VECTOR_BYTES // element
    columns = _LINES_LANES * width
    image, filter, out = p.extents
    stage_rows, stage_columns = (ceil_div(extent, _CHUNK) * _CHUNK for extent in filter)

    def needed(groups: int) -> int:
        """Shared memory of a block."""
        slab = groups * _LINES_SLAB * (columns + stage_columns)
        made = (groups * _LINES_ROWS + stage_rows - 1) * columns
        return (slab + made + stage_rows + stage_columns) * element

    if max(filter) > SEPARABLE_TAPS or needed(_LINES_GROUPS[-1]) > room:
        raise ValueError(
            f"a separable filter must have at most {SEPARABLE_TAPS} taps a side, and fit in "
            f"{room} bytes of shared memory with what it reads, got "
            f"{sizes['filter_height']} x {sizes['filter_width']}"
        )
    across = ceil_div(p.out_width, columns)
    for groups in _LINES_GROUPS:
        down = ceil_div(p.out_height, groups * _LINES_ROWS)
        if (
            groups * _LINES_LANES <= target.block_limit
            and needed(groups) <= room
            and down * across * p.batch >= target.multiprocessors
        ):
            break
    macros = {"WIDTH": width, "LANES": _LINES_LANES, "GROUPS": groups, "ROWS": _LINES_ROWS}
    macros["SLAB"] = _LINES_SLAB
    macros |= zip(
        ("TAIL_ROWS", "TAIL_COLUMNS"), ((n - 1) % _CHUNK + 1 for n in filter), strict=True
    )
    macros |= {"STAGE_ROWS": stage_rows, "STAGE_COLUMNS": stage_columns}
    macros["FETCH_ROWS"] = _fetch_rows(columns + stage_columns)
    macros["ALIGNED"] = int(p.vectors(p.out, p.out_height, alignment, width))
    macros["BLOCKS"] = _RESIDENT_THREADS // (_LINES_LANES * groups)
    taps = ("rows", "columns") if p.transposed else ("columns", "rows")
    numbers = *image, rank, *filter, *out, down, across, *p.image, *p.out, p.boundary
    where = "convolve_lines.cu", "convolve_lines", p.dtype, _count_blocks(across, down, p.batch)
    arguments = "image", *taps, "out", *numbers, "fillvalue"
    made = launch(*where, _LINES_LANES * groups, arguments, **macros)
    return LaunchPlan((made,), 0, f"lines{groups * _LINES_ROWS}x{columns}")
