"""Launch plans of y = A x."""

from __future__ import annotations

from .launch import VECTOR_BYTES, Launch, Steps, ceil_div, check_dtype
from .plan_partial import sum_partials

__all__ = ["matvec"]

_REAL = {"float32": "float", "float64": "double"}

# What follows was measured on an H200 (docs/kernels.md). Rows: 128 threads, each with 8 vectors in
# flight, and as few threads on a row as that leaves.
_ROW_THREADS = 128
_ROW_DEPTH = 8
# Rows of at most so many vectors: four at once, with two vectors of each in flight.
_SHORT_VECTORS = 32
_SHORT_ROWS = 4
_SHORT_DEPTH = 2
# Rows that begin anywhere, in float32, if they are at least so long: two at once with 32 threads.
# A few of them, if they are so many bytes. Those of float64 are as fast element by element.
_LEAST_SHIFTED_ROW = 512
_SHIFTED_ROWS = 2
_SHIFTED_ROW_LANES = 32
_FEW_SHIFTED_BYTES = 1 << 25
# Columns: 128 to 512 threads. Threads side by side that together load 128, 64 or 32 bytes of a
# column, and the share of the memory's speed that such pieces leave.
_COLUMN_THREADS = 512
_COLUMN_LEAST = 128
_COLUMN_LANES = ((16, 1.02), (8, 1.0), (4, 0.9), (2, 0.42))
_LEAST_THREADS = 64
# Columns that begin anywhere: likewise; one lane in each piece is there for its neighbours. With
# fewer rows or columns than this, they are loaded element by element.
_SHIFTED_LANES = ((32, 1.0), (16, 1.0), (8, 0.95))
_LEAST_SHIFTED = 16
# On devices with clusters of blocks: at most 8 of them share the columns, 256 to 512 threads each,
# and 768 threads on each multiprocessor in all.
_CLUSTERS = (9, 0)
_MOST_IN_CLUSTER = 8
_CLUSTER_THREADS = 256
_CLUSTERED_THREADS = 768
# Blocks of each kernel that keep one multiprocessor's share of the memory busy, and the bytes of
# that share that pass while a second launch starts and ends.
_ROW_BLOCKS = 2.0
_COLUMN_BLOCKS = 1.0
_LAUNCH_BYTES = 70_000


def matvec(
    *,
    m: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    x_strides: tuple[int, int],
    y_strides: tuple[int, int],
    multiprocessors: int,
    alignment: int,
    block_limit: int = 1024,
    capability: tuple[int, int] | None = None,
) -> Steps:
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
    multiprocessors : int
        Of the device.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.
    block_limit : int
        Most threads the device takes in a block; at least 64.
    capability : (int, int), optional
        Compute capability of a CUDA device, such as (9, 0). From there on, blocks can share columns
        that begin anywhere without a second launch.

    Returns
    -------
    Steps
        The launches use the buffers ``"A"``, ``"x"``, ``"y"`` and, if split, ``"partial"``.
    """
    width = VECTOR_BYTES // check_dtype(dtype)
    if block_limit < _LEAST_THREADS:
        raise ValueError(f"block_limit must be at least {_LEAST_THREADS}, got {block_limit}")
    a_batch, a_row, a_col = a_strides
    x_batch, x_element = x_strides
    aligned = alignment >= VECTOR_BYTES and (batch == 1 or a_batch % width == 0)
    source = "matvec.cu"

    cluster = 1
    if _along_rows(m, k, a_row, a_col):
        whole = (
            aligned
            and a_col == x_element == 1
            and k % width == 0
            and (m == 1 or a_row % width == 0)
            and (batch == 1 or x_batch % width == 0)
        )
        kernel, rows, depth = "matvec_rows", 1, _ROW_DEPTH
        shape = None
        if whole and k <= _SHORT_VECTORS * width:
            shape = _short_rows_shape(m, k, batch, width, multiprocessors, block_limit)
            if shape is not None:
                rows, depth = _SHORT_ROWS, _SHORT_DEPTH
        elif not whole and width == 4 and a_col == 1:
            shape = _shifted_rows_shape(m, k, batch, width, multiprocessors, block_limit)
            if shape is not None:
                kernel, source = "matvec_shifted_rows", "matvec_shifted_rows.cu"
                rows = _SHIFTED_ROWS
        if shape is None:
            width = width if whole else 1
            shape = _rows_shape(m, k, batch, dtype, width, multiprocessors, block_limit)
        lanes, groups, tiles, parts, chunk = shape
        layout = (("LANES", lanes), ("GROUPS", groups), ("DEPTH", depth), ("ROWS", rows))
    else:
        whole = aligned and m % width == 0 and (k == 1 or a_col % width == 0)
        kernel = "matvec_columns"
        if a_row != 1 or (not whole and (m < _LEAST_SHIFTED or k < _LEAST_SHIFTED)):
            width = 1
        elif not whole:
            kernel, source = "matvec_shifted", "matvec_shifted.cu"
        shifted = kernel == "matvec_shifted"
        shape = None
        if shifted and capability is not None and capability >= _CLUSTERS:
            shape = _cluster_shape(m, k, batch, dtype, width, multiprocessors, block_limit)
        if shape is not None:
            cluster = shape[3]
        else:
            shape = _columns_shape(m, k, batch, dtype, width, multiprocessors, block_limit, shifted)
        lanes, groups, tiles, parts, chunk = shape
        depth = 8 if 2 * tiles * parts * batch < 3 * multiprocessors else 4
        layout = (("LANES", lanes), ("GROUPS", groups), ("DEPTH", depth))
        if shifted:
            layout += (("CLUSTER", cluster),)
    variant = f"{kernel.removeprefix('matvec_')}{lanes}v{width}"
    if cluster > 1:
        variant += f"c{cluster}"

    to, to_strides = ("y", (0, *y_strides)) if parts == cluster else ("partial", (batch * m, m, 1))
    real = _REAL[dtype]
    first = Launch(
        source=source,
        kernel=kernel,
        defines=(("REAL", real), ("WIDTH", width), *layout),
        grid=tiles * parts * batch,
        block=lanes * groups,
        arguments=("A", "x", to, m, k, tiles, parts, chunk, *a_strides, *x_strides, *to_strides),
    )
    if parts == cluster:
        return Steps((first,), 0, variant)
    second = sum_partials(
        real=real,
        parts=parts,
        batch=batch,
        rows=1,
        cols=m,
        strides=(y_strides[0], 0, y_strides[1]),
        out="y",
        multiprocessors=multiprocessors,
        block_limit=block_limit,
    )
    return Steps((first, second), parts * batch * m, f"{variant}p{parts}")


def _along_rows(m: int, k: int, a_row: int, a_col: int) -> bool:
    """Tell whether neighbours in memory are neighbours in a row, rather than in a column."""
    if k == 1 or a_col == 0:
        return m == 1 or a_row == 0
    return m == 1 or a_row == 0 or abs(a_col) <= abs(a_row)


# Lanes, groups, row tiles, parts and chunk of a launch.
_Shape = tuple[int, int, int, int, int]


def _rows_shape(
    m: int, k: int, batch: int, dtype: str, width: int, multiprocessors: int, block_limit: int
) -> _Shape:
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
    return lanes, groups, tiles, *_chunks(k, parts, least)


def _short_rows_shape(
    m: int, k: int, batch: int, width: int, multiprocessors: int, block_limit: int
) -> _Shape | None:
    """Return the shape of matvec_rows with several rows to a thread; None if there are too few."""
    vectors = ceil_div(k, width)
    lanes = _power_of_two(ceil_div(vectors, _SHORT_DEPTH))
    lanes = max(lanes, min(_power_of_two(vectors), 8), 2)
    groups = _row_threads(block_limit) // lanes
    tiles = ceil_div(m, groups * _SHORT_ROWS)
    if tiles * batch < multiprocessors or 4 * tiles * groups * _SHORT_ROWS > 5 * m:
        return None
    return lanes, groups, tiles, 1, k


def _shifted_rows_shape(
    m: int, k: int, batch: int, width: int, multiprocessors: int, block_limit: int
) -> _Shape | None:
    """Return the shape of matvec_shifted_rows; None if rows are too few or too short."""
    lanes = min(_SHIFTED_ROW_LANES, _row_threads(block_limit) // width)
    groups = _row_threads(block_limit) // lanes
    tiles = ceil_div(m, groups * _SHIFTED_ROWS)
    k_shifted = k + width - 1  # a row's vectors begin up to so many elements before it
    if k < _LEAST_SHIFTED_ROW or m < groups:
        return None
    if tiles * batch >= multiprocessors:
        return lanes, groups, tiles, 1, k_shifted
    bytes_read = m * k * batch * VECTOR_BYTES // width
    if m * batch >= multiprocessors or bytes_read < _FEW_SHIFTED_BYTES:
        return None
    least = lanes * width * _ROW_DEPTH
    parts = max(min(4 * multiprocessors // (tiles * batch), k // least), 1)
    return lanes, groups, tiles, *_chunks(k_shifted, parts, least)


def _row_threads(block_limit: int) -> int:
    return _ROW_THREADS if block_limit >= _ROW_THREADS else _LEAST_THREADS


def _columns_shape(
    m: int,
    k: int,
    batch: int,
    dtype: str,
    width: int,
    multiprocessors: int,
    block_limit: int,
    shifted: bool,
) -> _Shape:
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
    return lanes, groups, tiles, *_chunks(k, parts, groups)


def _cluster_shape(
    m: int,
    k: int,
    batch: int,
    dtype: str,
    width: int,
    multiprocessors: int,
    block_limit: int,
) -> _Shape | None:
    """Return the shape of matvec_shifted with a cluster of blocks for the parts of k.

    None if there are so few rows that a cluster has too few blocks, or so many that one block for
    all columns is enough, or if the tiles would have many rows that are not there.
    """
    chosen = None
    for lanes in (32, 16, 8):
        tiles = ceil_div(m, (lanes - 1) * width)
        if 4 * tiles * lanes * width <= 5 * m:
            chosen = lanes, tiles
            if tiles * batch * _MOST_IN_CLUSTER >= multiprocessors:
                break
    if chosen is None or block_limit < _COLUMN_THREADS:
        return None
    lanes, tiles = chosen
    used = min(multiprocessors, tiles * batch * _MOST_IN_CLUSTER)
    bytes_read = m * k * batch * check_dtype(dtype)
    if bytes_read / used > bytes_read / multiprocessors + _LAUNCH_BYTES:
        return None
    wanted = max(_CLUSTERED_THREADS * multiprocessors // (tiles * batch), _CLUSTER_THREADS)
    blocks = min(_MOST_IN_CLUSTER, _power_of_two(wanted // _CLUSTER_THREADS + 1) // 2)
    threads = _CLUSTER_THREADS
    if 4 * wanted >= 3 * blocks * _COLUMN_THREADS:
        threads = _COLUMN_THREADS
    # With few columns, fewer blocks and threads.
    groups = min(threads // lanes, _power_of_two(ceil_div(k, 8 * blocks)))
    groups = max(groups, width, _COLUMN_LEAST // lanes)
    while blocks > 1 and k < 4 * groups * blocks:
        blocks //= 2
    if blocks == 1:
        return None
    return lanes, groups, tiles, blocks, ceil_div(ceil_div(k, blocks), groups) * groups


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
