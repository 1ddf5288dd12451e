"""Launch plan of the second step of a product split over k: adding up the partial results."""

from __future__ import annotations

from .launch import Launch, ceil_div

__all__ = ["sum_partials"]

# Threads along the parts of k, for each output: few outputs with many parts need more.
_GROUPS = (1, 8)
_THREADS = 256
_SMALL_THREADS = 64


def sum_partials(
    *,
    real: str,
    split_k: int,
    batch: int,
    rows: int,
    cols: int,
    strides: tuple[int, int, int],
    out: str,
    multiprocessors: int,
    block_limit: int,
) -> Launch:
    """Plan the sum over parts of the scratch buffer, (split_k, batch, rows, cols), into ``out``.

    Parameters
    ----------
    real : str
        C name of the element type.
    split_k, batch, rows, cols : int
        Extents of the scratch buffer.
    strides : tuple of int
        Of the output, in elements: (batch, row, column).
    out : str
        Name of the output buffer.
    multiprocessors, block_limit : int
        Of the device.

    Returns
    -------
    Launch
    """
    outputs = batch * rows * cols
    threads = _THREADS if block_limit >= _THREADS else _SMALL_THREADS
    groups = _GROUPS[split_k > 8 and outputs < 2 * threads * multiprocessors]
    lanes = threads // groups
    return Launch(
        source="partial.cu",
        kernel="sum_partials",
        defines=(("REAL", real), ("LANES", lanes), ("GROUPS", groups)),
        grid=ceil_div(outputs, lanes),
        block=threads,
        arguments=("partial", out, split_k, batch, rows, cols, *strides),
    )
