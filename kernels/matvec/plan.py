"""Launch plans of y = A x: which kernel, and how it is cut into blocks.

Where one variant begins to win, and how fast each loads, was measured on NVIDIA's H100 and H200.
"""

from __future__ import annotations

from typing import NamedTuple

from ..common.launch import (
    ELEMENT_BYTES,
    VECTOR_BYTES,
    LaunchPlan,
    Target,
    by_vectors,
    ceil_div,
    launch,
    power_of_two,
    with_sums,
)

_LEAST_THREADS = 64
# Rows: 128 threads, each with 8 vectors in flight, and as few threads on a row as that leaves.
# Short rows: four at once, with two vectors of each in flight.
_ROW_THREADS = 128
_ROW_DEPTH = 8
_ROW_BLOCKS = 2.0  # that keep a multiprocessor's share of the memory busy
_SHORT_ROW = 32  # vectors of the longest row that is taken four rows at a time
_SHORT_ROWS = 4
_SHORT_DEPTH = 2
# Rows that begin anywhere, of float32 elements: two at once by 32 threads, if there are many.
_MISALIGNED_ROWS = 2
_MISALIGNED_ROW = 512  # fewest elements
_MISALIGNED_ROW_LANES = 32
# Columns: 128 to 512 threads. The memory's speed by the bytes of a column's piece. Of misaligned
# columns one lane per group only supplies the element that straddles two loads.
_COLUMN_THREADS = 512
_COLUMN_LEAST = 128
_COLUMN_SPEEDS = {256: 1.02, 128: 1.0, 64: 0.9, 32: 0.42}
_MISALIGNED_COLUMN_SPEEDS = {512: 1.0, 256: 1.0, 128: 0.95}
_MISALIGNED_COLUMN = 16  # fewest rows and columns that are loaded by vectors
# Of a multiprocessor's share of the memory's speed, what passes while a second launch runs.
_LAUNCH_BYTES = 70_000


def plan_matvec(
    *,
    m: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    x_strides: tuple[int, int],
    y_strides: tuple[int, int],
    target: Target,
    alignment: int,
) -> LaunchPlan:
    """Plan y = A x for a batch of m x k matrices and vectors.

    Parameters
    ----------
    m, k, batch : int
        Extents, each at least 1.
    dtype : {"float32", "float64"}
        Of all operands; sums are kept in it too.
    a_strides : tuple of int
        (batch, row, column), in elements, of any sign; 0 repeats.
    x_strides, y_strides : tuple of int
        (batch, element), likewise.
    target : Target
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.

    Returns
    -------
    LaunchPlan
        The launches use the buffers ``"A"``, ``"x"``, ``"y"`` and, if split, ``"partial"``.
    """
    width = VECTOR_BYTES // ELEMENT_BYTES[dtype]
    if target.block_limit < _LEAST_THREADS:
        raise ValueError(f"block_limit must be at least {_LEAST_THREADS}, got {target.block_limit}")
    a_batch, a_row, a_col = a_strides
    aligned = alignment >= VECTOR_BYTES and (batch == 1 or a_batch % width == 0)
    nbytes = m * k * batch * ELEMENT_BYTES[dtype]
    product = _Product(m, k, batch, dtype, width, *target[:2], nbytes)
    in_rows = k > 1 and a_col != 0 and abs(a_col) <= abs(a_row)
    if m == 1 or a_row == 0 or in_rows:  # neighbours in memory are neighbours in a row
        whole = aligned and k % width == 0 and by_vectors(batch, m, a_strides, width)
        whole = whole and by_vectors(batch, 1, (x_strides[0], 0, x_strides[1]), width)
        shape = _misaligned_rows(product) if not whole and a_col == 1 else None
        kernel = "rows" if shape is None else "shifted_rows"
        product = product._replace(width=1 if shape is None and not whole else width)
        shape = shape or (_short_rows(product) if whole else None) or _rows(product)
    else:
        whole = aligned and m % width == 0 and (k == 1 or a_col % width == 0)
        shifted = a_row == 1 and not whole and min(m, k) >= _MISALIGNED_COLUMN
        kernel = "shifted" if shifted else "columns"
        product = product._replace(width=width if shifted or (whole and a_row == 1) else 1)
        shape = _columns(product, shifted)
    split_k = shape.split_k
    variant = f"{kernel}{shape.lanes}v{product.width}"
    to, to_strides = ("y", (0, *y_strides)) if split_k == 1 else ("partial", (batch * m, m, 1))
    sizes = m, k, shape.tiles, split_k, shape.chunk
    arguments = "A", "x", to, *sizes, *a_strides, *x_strides, *to_strides
    file = f"matvec_{kernel}.cu" if kernel.startswith("shifted") else "matvec.cu"
    grid, block = shape.tiles * split_k * batch, shape.lanes * shape.groups
    macros = {"WIDTH": product.width, "LANES": shape.lanes, "GROUPS": shape.groups}
    macros |= {"DEPTH": shape.depth, "ROWS": shape.rows}
    first = launch(file, f"matvec_{kernel}", dtype, grid, block, arguments, **macros)
    if split_k == 1:
        return LaunchPlan((first,), 0, variant)
    strides = y_strides[0], 0, y_strides[1]
    return with_sums(first, variant, split_k, (batch, 1, m), "y", strides, target)


class _Shape(NamedTuple):
    """A launch: what the kernel is compiled with, and how k and the rows are cut."""

    lanes: int  # threads side by side
    groups: int  # how often a block has them
    tiles: int  # blocks along the rows
    split_k: int  # blocks along k
    chunk: int  # how much of k each has
    depth: int  # loads in flight of each row of a thread
    rows: int = 1  # of a thread


class _Product(NamedTuple):
    """What a shape depends on: the matrix, elements of a load, the device."""

    m: int
    k: int
    batch: int
    dtype: str
    width: int
    multiprocessors: int
    block_limit: int
    nbytes: int  # of all matrices

    @property
    def row_threads(self) -> int:
        """Threads of a block that goes along rows."""
        return _ROW_THREADS if self.block_limit >= _ROW_THREADS else _LEAST_THREADS

    def split_k(self, blocks: int, resident: float, wanted: int, most: int) -> int:
        """How many parts to split k into: 1 unless the idle rest costs more than a launch."""
        used = min(self.multiprocessors, blocks / resident)
        split_k = min(wanted * self.multiprocessors // blocks, most)
        whole = self.nbytes / self.multiprocessors
        return 1 if split_k < 2 or self.nbytes / used < whole + _LAUNCH_BYTES else split_k


def _rows(p: _Product) -> _Shape:
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
    return _Shape(lanes, groups, tiles, *_chunks(p.k, split_k, least), _ROW_DEPTH)


def _short_rows(p: _Product) -> _Shape | None:
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
    return _Shape(lanes, groups, tiles, 1, p.k, _SHORT_DEPTH, _SHORT_ROWS)


def _misaligned_rows(p: _Product) -> _Shape | None:
    """Return the shape of matvec_shifted_rows; None if rows are too few or too short."""
    lanes = min(_MISALIGNED_ROW_LANES, p.row_threads // p.width)
    groups = p.row_threads // lanes
    tiles = ceil_div(p.m, groups * _MISALIGNED_ROWS)
    is_long = p.width == 4 and p.k >= _MISALIGNED_ROW
    if not is_long or p.m < groups or tiles * p.batch < p.multiprocessors:
        return None
    return _Shape(lanes, groups, tiles, 1, p.k, _ROW_DEPTH, _MISALIGNED_ROWS)


def _columns(p: _Product, misaligned: bool) -> _Shape:
    """Return the shape of matvec_columns or matvec_shifted."""
    element = ELEMENT_BYTES[p.dtype]
    threads = min(_COLUMN_THREADS, 1 << p.block_limit.bit_length() - 1)
    ways = []
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
        split_k = p.split_k(tiles * p.batch, 1.0, 2, p.k // (groups * 8))
        used = min(p.multiprocessors, tiles * p.batch * split_k)
        cost = p.nbytes / (used * speed) * (tiles * lanes * p.width / p.m)
        if split_k > 1:
            cost += _LAUNCH_BYTES
        ways.append((cost, lanes, groups, tiles, split_k))
    _, lanes, groups, tiles, split_k = min(ways, key=lambda way: way[0])
    split_k, chunk = _chunks(p.k, split_k, groups)
    depth = 8 if 2 * tiles * split_k * p.batch < 3 * p.multiprocessors else 4
    return _Shape(lanes, groups, tiles, split_k, chunk, depth)


def _chunks(k: int, split_k: int, least: int) -> tuple[int, int]:
    """Return how many parts of k there are, none empty, and the length of each but the last."""
    if split_k == 1:
        return 1, k
    chunk = ceil_div(ceil_div(k, split_k), least) * least
    return ceil_div(k, chunk), chunk
