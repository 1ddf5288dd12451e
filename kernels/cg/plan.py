"""Launch plans of conjugate gradients on vectors, and of a sparse matrix's products.

Arguments that are names stand for buffers, or for numbers that change from launch to launch;
whoever runs a plan puts in what they stand for. Stencils are planned in `plan_stencil`. With
``diagonal`` z = inverse * r, else z = r, and launches have no buffer "inverse". ``aligned``: 16
divides all addresses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..common.launch import VECTOR_BYTES, Launch, Target, ceil_div, check_dtype, launch

__all__ = ["Rows", "csr", "dots", "pack", "ranks", "vector_width", "vectors"]

_INDEX = {"int32": "int", "int64": "index_t"}
_THREADS, _SMALLEST_BLOCK = 256, 64
_BLOCKS = 4  # most on a multiprocessor
# Entries of a sparse matrix: of the longest mean row that one thread adds up, and of a longer row
# that a thread has in flight.
_SHORT_ROW, _ROW_DEPTH = 16, 4
_SHARED_BYTES = 49152  # that a kernel may declare
_SCALARS = ("partial_before", "before", "after", "blocks_before")


class Rows(NamedTuple):
    """A device's share of a sparse matrix: whole rows."""

    rows: int
    entries: int
    index: str  # "int32" or "int64"


@lru_cache(maxsize=256)
def csr(part: Rows, target: Target, *, dtype: str, diagonal: bool) -> tuple[Launch, Launch, Launch]:
    """Plan r = b - A x; q = A p with the sums of a step; and q = A p with p.q and p.p.

    Numbers: "first_block", and "own", the column of the first row. The first takes any "inverse"
    where it is not ``diagonal``.
    """
    threads, inverse = _threads(target), ("inverse",) if diagonal else ()
    mean = ceil_div(part.entries, part.rows) if part.entries else 1
    # A row has one thread if rows have few entries, whose products fit in shared memory; otherwise
    # several, each with some of them in flight.
    room = _SHARED_BYTES // (threads * check_dtype(dtype))
    if mean <= min(_SHORT_ROW, room):
        lanes, depth = 1, mean
    else:
        lanes, depth = 2, _ROW_DEPTH
        while lanes < 32 and lanes * depth < mean:
            lanes *= 2
    blocks = _blocks(part.rows * lanes, threads, target)
    macros = {"INDEX": _INDEX[part.index], "THREADS": threads, "LANES": lanes, "DEPTH": depth}
    plain = macros | {"SUMS": 2, "DIAGONAL": 0}
    step = macros | {"SUMS": 8 if diagonal else 4, "DIAGONAL": int(diagonal)}
    size = ("partial", part.rows, blocks)

    def plan(kernel: str, macros: dict, *arguments: str | int) -> Launch:
        arguments = ("pointers", "indices", "values", *arguments)
        return launch("csr.cu", f"csr_{kernel}", dtype, blocks, threads, arguments, **macros)

    return (
        plan("residual", plain, "x", "b", "r", "p", "inverse", *size, int(diagonal)),
        plan("product", step, "p", "q", "r", "before", *inverse, *size, "first_block", "own"),
        plan("product", plain, "p", "q", *size, "first_block", "own"),
    )


def pack(product: Launch, count: int, target: Target) -> Launch:
    """Plan packed[i] = p[places[i]], compiled as the third of `csr` was."""
    blocks = max(1, _blocks(count, product.block, target))
    arguments = ("p", "places", "packed", count, blocks)
    return product._replace(kernel="csr_pack", grid=blocks, arguments=arguments)


@lru_cache(maxsize=256)
def vectors(
    n: int, target: Target, *, dtype: str, aligned: bool, diagonal: bool
) -> tuple[Launch, Launch, Launch]:
    """Plan r = b - q, p = r or inverse * r; the sums of a step, for products that give none; and
    the step of x, r and p, with the number "blocks_before"."""
    inverse = ("inverse",) if diagonal else ()
    return _over(n, target, dtype, aligned, "cg.cu", {"DIAGONAL": int(diagonal)}, {
        "cg_residual": ("b", "q", "r", "p", *inverse, "partial"),
        "cg_sums": ("p", "q", "r", *inverse, "partial"),
        "cg_advance": ("x", "r", "p", "q", *inverse, *_SCALARS),
    })  # fmt: skip


@lru_cache(maxsize=256)
def dots(n: int, target: Target, *, dtype: str, aligned: bool) -> tuple[Launch, Launch, Launch]:
    """Plan the vectors' part of an iteration with a preconditioner of its own launches.

    a.b and b.b; p = z + beta p; x and r. Numbers: "blocks_before", and of the kernels that could
    share vectors "start", "first_block" and "halo", which are 0.
    """
    return _over(n, target, dtype, aligned, "cg_preconditioned.cu", {}, {
        "cg_dots": ("a", "b", "partial", "start", "first_block"),
        "cg_direct": ("p", "z", *_SCALARS, "start"),
        "cg_correct": ("x", "r", "p", "q", *_SCALARS, "start", "halo"),
    })  # fmt: skip


@lru_cache(maxsize=256)
def ranks(n: int, target: Target, *, dtype: str) -> dict[str, Launch]:
    """Plan what solves over MPI ranks do with vectors, by kernel (`cg_ranks.cu`); number: "scale",
    a float. "partial" has two doubles for each block."""
    plans = _over(n, target, dtype, False, "cg_ranks.cu", {}, {
        "ranks_dot": ("x", "y", "partial"),
        "ranks_reduce": ("x", "r", "p", "q", "partial", "scale"),
        "ranks_add": ("y", "x", "scale"),
        "ranks_subtract": ("y", "x", "scale"),
        "ranks_times": ("z", "m", "x"),
        "ranks_difference": ("r", "b", "q"),
    })  # fmt: skip
    return {plan.kernel: plan for plan in plans}


def vector_width(dtype: str, extent: int, aligned: bool) -> int:
    """Return the elements of a load: 16 bytes of them if ``extent`` and addresses allow it."""
    width = VECTOR_BYTES // check_dtype(dtype)
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
    width = vector_width(dtype, n, aligned)
    threads = _threads(target)
    blocks = _blocks(ceil_div(n, width), threads, target)
    macros = {"WIDTH": width, "THREADS": threads, **macros}
    return tuple(
        launch(source, kernel, dtype, blocks, threads, (*buffers, n, blocks), **macros)
        for kernel, buffers in kernels.items()
    )
