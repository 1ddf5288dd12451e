"""Launch plans of C = A B."""

from __future__ import annotations

from typing import NamedTuple

from .launch import VECTOR_BYTES, Launch, Steps, ceil_div, check_dtype
from .plan_partial import sum_partials

__all__ = ["matmul"]

_REAL = {"float32": "float", "float64": "double"}


class Tile(NamedTuple):
    """A way to cut C: sizes that matmul.cu is compiled with, and how fast it then is."""

    thread_m: int
    thread_n: int
    warps_m: int
    warps_n: int
    depth: int
    resident: dict[str, int]  # blocks per multiprocessor, by dtype
    flops: dict[str, float]  # per cycle and multiprocessor, when full
    alone: dict[str, float]  # ... when one block has the multiprocessor to itself

    @property
    def m(self) -> int:
        return 8 * self.thread_m * self.warps_m

    @property
    def n(self) -> int:
        return 4 * self.thread_n * self.warps_n

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n


_TILES = (
    Tile(8, 8, 2, 4, 8, {"float32": 1, "float64": 1}, {"float32": 180.0, "float64": 100.0}, {"float32": 160.0, "float64": 100.0}),
    Tile(4, 8, 2, 2, 16, {"float32": 4, "float64": 2}, {"float32": 150.0, "float64": 90.0}, {"float32": 60.0, "float64": 60.0}),
    Tile(4, 4, 1, 2, 16, {"float32": 8, "float64": 6}, {"float32": 100.0, "float64": 60.0}, {"float32": 20.0, "float64": 20.0}),
)


def matmul(
    *,
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    b_strides: tuple[int, int, int],
    c_strides: tuple[int, int, int],
    multiprocessors: int,
    alignment: int,
    block_limit: int = 1024,
) -> Steps:
    """Plan C = A B for a batch of m x k and k x n matrices.

    Parameters
    ----------
    m, n, k, batch : int
        Extents, each at least 1.
    dtype : {"float32", "float64"}
        Of all operands; sums are kept in it too.
    a_strides, b_strides, c_strides : tuple of int
        (batch, row, column), in elements, of any sign; 0 repeats (not in C).
    multiprocessors : int
        Of the device.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.
    block_limit : int
        Most threads the device takes in a block; at least 64.

    Returns
    -------
    Steps
        The launches use the buffers ``"A"``, ``"B"``, ``"C"`` and, if split, ``"partial"``.
    """
    width = VECTOR_BYTES // check_dtype(dtype)
    names = ("A", "B")
    if abs(c_strides[2]) != 1 and (abs(c_strides[1]) == 1 or n == 1) and m > 1:
        # C^T = B^T A^T has rows that are contiguous.
        m, n = n, m
        a_strides, b_strides = _transposed(b_strides), _transposed(a_strides)
        c_strides = _transposed(c_strides)
        names = ("B", "A")

    a_k = _k_is_fast(a_strides[2], a_strides[1], m, k)
    b_k = _k_is_fast(b_strides[1], b_strides[2], n, k)
    aligned = alignment >= VECTOR_BYTES
    loads = (
        aligned
        and _loads_aligned(a_strides[0], a_strides[2], a_strides[1], k, m, a_k, batch, width)
        and _loads_aligned(b_strides[0], b_strides[1], b_strides[2], k, n, b_k, batch, width)
    )
    tile, parts = _TILES[0], 1
    tile, parts = _choose(m, n, k, batch, dtype, multiprocessors, block_limit)
    chunk = ceil_div(ceil_div(k, parts), tile.depth) * tile.depth
    parts = ceil_div(k, chunk)
    to, to_strides = ("C", (0, *c_strides)) if parts == 1 else ("partial", (batch * m * n, m * n, n, 1))
    stores = (
        (aligned or parts > 1)
        and n % width == 0
        and to_strides[3] == 1
        and (m == 1 or to_strides[2] % width == 0)
        and (batch == 1 or to_strides[1] % width == 0)
    )
    real = _REAL[dtype]
    variant = f"tile{tile.m}x{tile.n}" + ("" if loads else "s")
    first = Launch(
        source="matmul.cu",
        kernel="matmul",
        defines=(
            ("REAL", real),
            ("WIDTH", width),
            ("THREAD_M", tile.thread_m),
            ("THREAD_N", tile.thread_n),
            ("WARPS_M", tile.warps_m),
            ("WARPS_N", tile.warps_n),
            ("TILE_K", tile.depth),
            ("RESIDENT", 1),
            ("A_K", int(a_k)),
            ("B_K", int(b_k)),
            ("ALIGNED", int(loads)),
        ),
        grid=ceil_div(m, tile.m) * ceil_div(n, tile.n) * parts * batch,
        block=tile.threads,
        arguments=(*names, to, m, n, k, parts, chunk, *a_strides, *b_strides, *to_strides, int(stores)),
    )
    if parts == 1:
        return Steps((first,), 0, variant)
    second = sum_partials(
        real=real,
        parts=parts,
        batch=batch,
        rows=m,
        cols=n,
        strides=c_strides,
        out="C",
        multiprocessors=multiprocessors,
        block_limit=block_limit,
    )
    return Steps((first, second), parts * batch * m * n, f"{variant}p{parts}")


def _transposed(strides: tuple[int, int, int]) -> tuple[int, int, int]:
    return strides[0], strides[2], strides[1]


def _k_is_fast(k_stride: int, outer_stride: int, outer: int, k: int) -> bool:
    """Tell whether neighbours in memory are neighbours along k."""
    if k == 1 or k_stride == 0:
        return False
    return outer == 1 or outer_stride == 0 or abs(k_stride) <= abs(outer_stride)


def _loads_aligned(
    batch_stride: int, k_stride: int, outer_stride: int, k: int, outer: int, k_fast: bool, batch: int, width: int
) -> bool:
    """Tell whether an operand can be loaded by vectors along its fast dimension."""
    if k_fast:
        fast, fast_extent, slow, slow_extent = k_stride, k, outer_stride, outer
    else:
        fast, fast_extent, slow, slow_extent = outer_stride, outer, k_stride, k
    return (
        fast == 1
        and fast_extent % width == 0
        and (slow_extent == 1 or slow % width == 0)
        and (batch == 1 or batch_stride % width == 0)
    )


def _choose(m: int, n: int, k: int, batch: int, dtype: str, multiprocessors: int, block_limit: int) -> tuple[Tile, int]:
    """Return the tile and the number of parts with the least predicted time."""
    best = None
    for tile in _TILES:
        if tile.threads > block_limit:
            continue
        tiles = ceil_div(m, tile.m) * ceil_div(n, tile.n) * batch
        active = tile.resident[dtype] * multiprocessors
        most = max(1, min(active // tiles, k // 256))
        for parts in {1, most}:
            full, rest = divmod(tiles * parts, active)
            step = 2.0 * tile.m * tile.n * ceil_div(k, parts)
            time = full * tile.resident[dtype] * step / tile.flops[dtype]
            if rest:
                blocks = ceil_div(rest, multiprocessors)
                time += blocks * step / min(tile.flops[dtype], tile.alone[dtype] * blocks)
            if parts > 1:
                time += 3000 + m * n * batch * parts * 8 / 1000 / multiprocessors
            if best is None or time < best[0]:
                best = time, tile, parts
    if best is None:
        raise ValueError(f"block_limit must be at least 64, got {block_limit}")
    return best[1], best[2]
