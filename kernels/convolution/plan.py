"""Launch plans of two-dimensional correlation."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

from ..common import tuning as tables
from ..common.boundaries import BOUNDARIES
from ..common.launch import REAL, VECTOR_BYTES, Launch, LaunchPlan, ceil_div, check_dtype
from .correlation import (
    SHARED_BYTES,
    WARP,
    Correlation,
    correlation,
    count_blocks,
    fetch_rows,
)
from .plan_lines import separable, separable_limit

__all__ = ["BOUNDARIES", "direct", "separable", "separable_limit"]

# convolve.cu: taps of a chunk, unrolled.
_CHUNK = 8
_CHUNK_TAPS = 32
# Shapes of a tile that are weighed: threads side by side, and rows of a thread.
_LANES = (32, 16, 8, 64, 128)
_ROWS = (8, 4, 2, 1)

# convolve_small.cu: threads of a block; extents that it counts in 32 bits.
_SMALL_THREADS = 128
_SMALL_MOST = 1 << 29


def direct(
    *,
    batch: int,
    height: int,
    width: int,
    filter_height: int,
    filter_width: int,
    out_height: int,
    out_width: int,
    top: int,
    left: int,
    boundary: str,
    dtype: str,
    image_strides: tuple[int, int, int],
    out_strides: tuple[int, int, int],
    multiprocessors: int,
    alignment: int,
    cuda: bool,
    block_limit: int = 1024,
    shared_limit: int = 32768,
    tap_strides: tuple[int, int] | None = None,
    only_if: bool = False,
    tuning: tables.Table | None = None,
) -> LaunchPlan:
    """Plan out[b, i, j] = sum over u, v of taps[u, v] ext[b, i + u - top, j + v - left].

    ``ext`` is the image extended beyond its edges.

    Parameters
    ----------
    batch, height, width : int
        Of the images, each at least 1.
    filter_height, filter_width : int
        Of the taps; each at least 1, in any proportion to the image.
    out_height, out_width : int
        Of the outputs, each at least 1.
    top, left : int
        Rows and columns of the filter that lie outside of the image at the first output; at least
        0.
    boundary : {"fill", "wrap", "symm"}
        Of the extension: a constant; periodic; mirrored, with the edge repeated.
    dtype : {"float32", "float64"}
        Of all operands; sums are kept in it too.
    image_strides, out_strides : tuple of int
        (batch, row, column), in elements, of any sign; those of the image may be 0.
    multiprocessors : int
        Of the device.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.
    cuda : bool
        Whether the kernels that were made for NVIDIA's GPUs may be used.
    block_limit : int
        Most threads the device takes in a block; at least 32.
    shared_limit : int
        Bytes of shared memory that a block may have; at least 16384.
    tap_strides : tuple of int, optional
        (row, column) of the taps, in elements, of any sign. Default: contiguous.
    only_if : bool
        Do nothing unless the first number of the buffer ``"only_if"`` of ints is not 0.
    tuning : Table, optional
        The figures that tiles are chosen by. Default: `hetero.kernels.common.tuning.default`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, and the float ``"fillvalue"``.
    """
    problem = correlation(
        batch,
        (height, width),
        (filter_height, filter_width),
        (out_height, out_width),
        (top, left),
        boundary,
        dtype,
        image_strides,
        out_strides,
        tap_strides,
    )
    if block_limit < WARP:
        raise ValueError(f"block_limit must be at least {WARP}, got {block_limit}")
    found = None
    tuning = tuning or tables.default()
    if cuda and block_limit >= _SMALL_THREADS:
        found = _small(problem, multiprocessors, alignment, tuning)
    if found is None:
        found = _tiled(problem, multiprocessors, alignment, block_limit, shared_limit, tuning)
    return _on_condition(found) if only_if else found


def _on_condition(launch_plan: LaunchPlan) -> LaunchPlan:
    """The same launches, each of which looks at the flag first."""
    launches = tuple(
        launch._replace(
            defines=(*launch.defines, ("ONLY_IF", 1)), arguments=(*launch.arguments, "only_if")
        )
        for launch in launch_plan.launches
    )
    return launch_plan._replace(launches=launches)


# -- Few taps ------------------------------------------------------------------------------------


def _small(
    problem: Correlation, multiprocessors: int, alignment: int, tuning: tables.Table
) -> LaunchPlan | None:
    """The plan with convolve_small.cu, or None where another kernel is for it."""
    p = problem
    side = max(p.filter_height, p.filter_width)
    shapes = tuning["convolution.small_shapes"][p.dtype]
    if (
        side > max(map(int, shapes))
        or p.filter_height * p.filter_width > tuning["convolution.small_taps"][p.dtype]
        or min(p.out_height, p.out_width) < tuning["convolution.small_outputs"]
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
    rows, ahead, blocks = next(shape for most, shape in shapes.items() if side <= int(most))
    across = ceil_div(p.out_width, WARP * width)
    groups = _SMALL_THREADS // WARP
    while rows > 2 and across * ceil_div(p.out_height, groups * rows) * p.batch < (
        blocks * multiprocessors
    ):
        rows //= 2
    down = ceil_div(p.out_height, groups * rows)
    launch = Launch(
        source="convolve_small.cu",
        kernel="convolve_small",
        defines=(
            ("REAL", REAL[p.dtype]),
            ("WIDTH", width),
            ("FH", p.filter_height),
            ("FW", p.filter_width),
            ("SHIFT", -p.left % width),
            ("ROWS", rows),
            ("AHEAD", ahead),
            ("BLOCKS", blocks),
        ),
        grid=count_blocks(across, down, p.batch),
        block=_SMALL_THREADS,
        arguments=(
            "image",
            "taps",
            "out",
            p.height,
            p.width,
            p.out_height,
            p.out_width,
            p.top,
            p.left,
            *p.tap_strides,
            down,
            across,
            *p.image[:2],
            *p.out[:2],
            p.boundary,
            "fillvalue",
        ),
    )
    return LaunchPlan((launch,), 0, f"small{p.filter_height}x{p.filter_width}v{width}")


# -- Any taps ------------------------------------------------------------------------------------


class _Stages(NamedTuple):
    """How a filter passes: chunks, the last of each, and stages."""

    chunk_rows: int
    chunk_columns: int
    tail_rows: int
    tail_columns: int
    rows: int
    columns: int


class _Tile(NamedTuple):
    """What a block of convolve.cu makes, and how many there are of them."""

    rows: int
    lanes: int
    groups: int
    stages: _Stages
    down: int
    across: int


def _tiled(
    problem: Correlation,
    multiprocessors: int,
    alignment: int,
    block_limit: int,
    shared_limit: int,
    tuning: tables.Table,
) -> LaunchPlan:
    """The plan with convolve.cu."""
    p = problem
    width = VECTOR_BYTES // check_dtype(p.dtype)
    found = _tile(
        (p.filter_height, p.filter_width),
        (p.out_height, p.out_width),
        p.dtype,
        multiprocessors / p.batch,
        block_limit,
        min(shared_limit, SHARED_BYTES, tuning["convolution.stage_bytes"]),
        tuning,
    )
    if found is None:
        raise ValueError(f"shared_limit must be at least 16384, got {shared_limit}")
    rows, lanes, groups, stages, down, across = found
    aligned = p.vectors(p.out, p.out_height, alignment, width)
    launch = Launch(
        source="convolve.cu",
        kernel="convolve",
        defines=(
            ("REAL", REAL[p.dtype]),
            ("WIDTH", width),
            ("LANES", lanes),
            ("GROUPS", groups),
            ("ROWS", rows),
            ("CHUNK_ROWS", stages.chunk_rows),
            ("CHUNK_COLUMNS", stages.chunk_columns),
            ("TAIL_ROWS", stages.tail_rows),
            ("TAIL_COLUMNS", stages.tail_columns),
            ("STAGE_ROWS", stages.rows),
            ("STAGE_COLUMNS", stages.columns),
            ("FETCH_ROWS", fetch_rows(lanes * width + stages.columns)),
            ("ALIGNED", int(aligned)),
            ("BLOCKS", max(tuning["convolution.resident_threads"] // (lanes * groups), 1)),
        ),
        grid=count_blocks(across, down, p.batch),
        block=lanes * groups,
        arguments=(
            "image",
            "taps",
            "out",
            p.height,
            p.width,
            p.filter_height,
            p.filter_width,
            p.out_height,
            p.out_width,
            p.top,
            p.left,
            *p.tap_strides,
            down,
            across,
            *p.image,
            *p.out,
            p.boundary,
            "fillvalue",
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
    tuning: tables.Table,
) -> _Tile | None:
    """The tile that takes the least time, None if none fits; multiprocessors are those for an
    image."""
    width = VECTOR_BYTES // check_dtype(dtype)
    threads = min(tuning["convolution.tile_threads"], block_limit // WARP * WARP)
    most = tuning["convolution.stage_columns"]
    best, best_cost = None, 0.0
    for rows, lanes in itertools.product(_ROWS, _LANES):
        if threads % lanes:
            continue
        tile_rows, tile_columns = threads // lanes * rows, lanes * width
        stages = _stages(taps, dtype, tile_rows, tile_columns, shared_bytes, most)
        if stages is None:
            continue
        down, across = ceil_div(outs[0], tile_rows), ceil_div(outs[1], tile_columns)
        cost = _tile_cost(taps, stages, rows, tile_rows, tile_columns, tuning)
        cost *= max(down * across / multiprocessors, tuning["convolution.hiding_blocks"])
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
    tuning: tables.Table,
) -> float:
    """The time that a tile takes, in products."""
    chunk = stages.chunk_rows
    products = tile_rows * tile_columns * taps[0] * taps[1]
    products *= 1 + tuning["convolution.read_cost"] * (rows + chunk - 1) / (rows * chunk)
    passes = ceil_div(taps[0], stages.rows) * ceil_div(taps[1], stages.columns)
    loads = tile_rows + min(stages.rows, taps[0]) - 1
    loads *= ceil_div(tile_columns + min(stages.columns, taps[1]) - 1, WARP) * WARP
    return products + tuning["convolution.load_cost"] * passes * loads
