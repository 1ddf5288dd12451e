"""Launch plans of y = A x."""

from __future__ import annotations

from .launch import VECTOR_BYTES, Launch, Steps, ceil_div, check_dtype
from .plan_partial import sum_partials

__all__ = ["matvec"]

_REAL = {"float32": "float", "float64": "double"}
_THREADS = 256
_SMALL_THREADS = 64
_DEPTH = 4


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

    Returns
    -------
    Steps
        The launches use the buffers ``"A"``, ``"x"``, ``"y"`` and, if split, ``"partial"``.
    """
    width = VECTOR_BYTES // check_dtype(dtype)
    if block_limit < _SMALL_THREADS:
        raise ValueError(f"block_limit must be at least {_SMALL_THREADS}, got {block_limit}")
    threads = _THREADS if block_limit >= _THREADS else _SMALL_THREADS
    a_batch, a_row, a_col = a_strides
    x_batch, x_element = x_strides
    aligned = alignment >= VECTOR_BYTES and (batch == 1 or a_batch % width == 0)

    if _along_rows(m, k, a_row, a_col):
        if not (
            aligned
            and a_col == x_element == 1
            and k % width == 0
            and (m == 1 or a_row % width == 0)
            and (batch == 1 or x_batch % width == 0)
        ):
            width = 1
        lanes = 32
        rows = 1
        group_rows = threads // lanes * rows
        tiles = ceil_div(m, group_rows)
        parts, chunk = _split(k, tiles * batch, 8 * multiprocessors, lanes * width * _DEPTH)
        layout = (("LANES", lanes), ("GROUPS", threads // lanes), ("ROWS", rows))
        kernel = "matvec_rows"
        variant = f"rows{lanes}v{width}"
    else:
        if not (aligned and a_row == 1 and m % width == 0 and (k == 1 or a_col % width == 0)):
            width = 1
        lanes = 8
        tiles = ceil_div(m, lanes * width)
        groups = threads // lanes
        parts, chunk = _split(k, tiles * batch, 4 * multiprocessors, groups * _DEPTH)
        layout = (("LANES", lanes), ("GROUPS", groups))
        kernel = "matvec_columns"
        variant = f"columns{lanes}v{width}"

    to, to_strides = ("y", (0, *y_strides)) if parts == 1 else ("partial", (batch * m, m, 1))
    real = _REAL[dtype]
    first = Launch(
        source="matvec.cu",
        kernel=kernel,
        defines=(("REAL", real), ("WIDTH", width), *layout, ("DEPTH", _DEPTH)),
        grid=tiles * parts * batch,
        block=threads,
        arguments=("A", "x", to, m, k, tiles, parts, chunk, *a_strides, *x_strides, *to_strides),
    )
    if parts == 1:
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
    """Tell whether neighbours in memory are neighbours in a row; a stride of 0 or an extent of 1 aren't."""
    if k == 1 or a_col == 0:
        return m == 1 or a_row == 0
    return m == 1 or a_row == 0 or abs(a_col) <= abs(a_row)


def _split(k: int, blocks: int, wanted: int, least: int) -> tuple[int, int]:
    """Return how many parts to take k in, none empty, and the length of each but the last."""
    parts = min(wanted // blocks, k // least)
    if parts < 2:
        return 1, k
    chunk = ceil_div(ceil_div(k, parts), least) * least
    return ceil_div(k, chunk), chunk
