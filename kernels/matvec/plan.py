"""Launch plans of y = A x."""

from __future__ import annotations

from ..common.launch import REAL, VECTOR_BYTES, Launch, LaunchPlan, Target, by_vectors, check_dtype
from ..common.partial import with_sums
from . import shapes

__all__ = ["plan_matvec"]


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
        From compute capability 9.0 on, blocks can share columns that are misaligned without a
        second launch.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.

    Returns
    -------
    LaunchPlan
        The launches use the buffers ``"A"``, ``"x"``, ``"y"`` and, if split, ``"partial"``.
    """
    width = VECTOR_BYTES // check_dtype(dtype)
    if target.block_limit < shapes.LEAST_THREADS:
        least = f"block_limit must be at least {shapes.LEAST_THREADS}"
        raise ValueError(f"{least}, got {target.block_limit}")
    a_batch, a_row, a_col = a_strides
    x_batch, x_element = x_strides
    aligned = alignment >= VECTOR_BYTES and (batch == 1 or a_batch % width == 0)
    source = "matvec.cu"

    product = shapes.Product(m, k, batch, dtype, width, *target[:2])
    shape = None
    if _along_rows(m, k, a_row, a_col):
        kernel = "matvec_rows"
        whole = aligned and k % width == 0 and by_vectors(batch, m, a_strides, width)
        whole = whole and by_vectors(batch, 1, (x_batch, 0, x_element), width)
        if whole:
            shape = shapes.short_rows(product)
        elif a_col == 1:
            shape = shapes.misaligned_rows(product)
            if shape is not None:
                kernel, source = "matvec_shifted_rows", "matvec_shifted_rows.cu"
        if shape is None:
            width = width if whole else 1
            shape = shapes.rows(product._replace(width=width))
    else:
        kernel = "matvec_columns"
        whole = aligned and m % width == 0 and (k == 1 or a_col % width == 0)
        if a_row != 1 or (not whole and min(m, k) < shapes.MISALIGNED_COLUMN):
            width = 1
        elif not whole:
            kernel, source = "matvec_shifted", "matvec_shifted.cu"
            if target.capability is not None and target.capability >= shapes.CLUSTERS:
                shape = shapes.clusters(product)
        if shape is None:
            shape = shapes.columns(product._replace(width=width), kernel == "matvec_shifted")
    split_k, cluster = shape.split_k, shape.cluster
    variant = f"{kernel.removeprefix('matvec_')}{shape.lanes}v{width}"
    if cluster > 1:
        variant += f"c{cluster}"

    to, to_strides = (
        ("y", (0, *y_strides)) if split_k == cluster else ("partial", (batch * m, m, 1))
    )
    tiles, chunk = shape.tiles, shape.chunk
    first = Launch(
        source=source,
        kernel=kernel,
        defines=(
            ("REAL", REAL[dtype]),
            ("WIDTH", width),
            ("LANES", shape.lanes),
            ("GROUPS", shape.groups),
            ("DEPTH", shape.depth),
            *((("ROWS", shape.rows),) if shape.rows > 1 else ()),
            *((("CLUSTER", cluster),) if cluster > 1 else ()),
        ),
        grid=tiles * split_k * batch,
        block=shape.lanes * shape.groups,
        arguments=("A", "x", to, m, k, tiles, split_k, chunk, *a_strides, *x_strides, *to_strides),
    )
    if split_k == cluster:
        return LaunchPlan((first,), 0, variant)
    strides = y_strides[0], 0, y_strides[1]
    return with_sums(first, variant, split_k, (batch, 1, m), "y", strides, target)


def _along_rows(m: int, k: int, a_row: int, a_col: int) -> bool:
    """Tell whether neighbours in memory are neighbours in a row, rather than in a column."""
    if k == 1 or a_col == 0:
        return m == 1 or a_row == 0
    return m == 1 or a_row == 0 or abs(a_col) <= abs(a_row)
