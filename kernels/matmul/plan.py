"""Launch plans of C = A B: tiles are chosen by White's execution metrics."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from ..common.launch import (
    ELEMENT_BYTES,
    REAL,
    VECTOR_BYTES,
    Launch,
    LaunchPlan,
    Target,
    by_vectors,
    ceil_div,
    check_dtype,
)
from ..common.partial import with_sums
from .tiles import PIPELINED, PORTABLE, SPEEDS, TENSOR, Tile

_VARIANTS = {"matmul.cu": "tile", "matmul_pipelined.cu": "pipelined", "matmul_tensor.cu": "tensor"}
_LEAST_CHUNK = 64  # of k, in a part
_CHUNK_MULTIPLE = 32  # and of the tile's own depth
_ASYNCHRONOUS = (8, 0)  # the least compute capability with copies that need no registers
_FLOAT64_TENSOR_CORES = ((8, 0), (9, 0), (10, 0))
_BY_TILED = 2  # as in tensor_pieces.cu


class Product(NamedTuple):
    """What the choice depends on."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    layout: tuple[bool, bool]  # whether k is the fast dimension of A, and of B
    target: Target


def plan_matmul(
    *,
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    b_strides: tuple[int, int, int],
    c_strides: tuple[int, int, int],
    target: Target,
    alignment: int,
) -> LaunchPlan:
    """Plan C = A B for a batch of m x k and k x n matrices.

    Parameters
    ----------
    m, n, k, batch : int
        Extents, each at least 1.
    dtype : {"float32", "float64"}
        Of all operands; sums are kept in it too.
    a_strides, b_strides, c_strides : tuple of int
        (batch, row, column), in elements, of any sign; 0 repeats (not in C).
    target : Target
        From compute capability 8.0 on, tiles are copied to shared memory asynchronously; 8.0, 9.0
        and 10.0 multiply float64 on tensor cores, which round like the other units.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.

    Returns
    -------
    LaunchPlan
        The launches use the buffers ``"A"``, ``"B"``, ``"C"`` and, if split, ``"partial"``.
    """
    form = oriented(m, n, k, batch, dtype, a_strides, b_strides, c_strides, alignment)
    tile, split_k, seconds = choose(form.product(target))
    chunk = chunk_of(tile, k, split_k)
    split_k = ceil_div(k, chunk)
    first = _launch(form, tile, split_k, chunk)
    variant = f"{_VARIANTS[tile.source]}{tile.m}x{tile.n}" + ("" if form.loads else "s")
    if split_k == 1:
        return LaunchPlan((first,), 0, variant, seconds)
    extents = batch, form.m, form.n
    return with_sums(first, variant, split_k, extents, "C", form.c_strides, target, seconds)


class Orientation(NamedTuple):
    """A product, transposed where that makes the rows of C contiguous, and how its operands lie."""

    names: tuple[str, str]  # of the buffers, of the first operand first
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    a_strides: tuple[int, int, int]
    b_strides: tuple[int, int, int]
    c_strides: tuple[int, int, int]
    a_k: bool  # whether k is the fast dimension
    b_k: bool
    aligned: bool  # whether every operand's address serves vectors
    loads: bool  # whether both operands can be loaded by vectors

    def product(self, target: Target) -> Product:
        """What the choice of a tile depends on."""
        layout = self.a_k, self.b_k
        return Product(self.m, self.n, self.k, self.batch, self.dtype, layout, target)


def oriented(
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    b_strides: tuple[int, int, int],
    c_strides: tuple[int, int, int],
    alignment: int,
) -> Orientation:
    """A product as kernels take it; parameters as of `plan_matmul`."""
    width = VECTOR_BYTES // check_dtype(dtype)
    names = ("A", "B")
    if abs(c_strides[2]) != 1 and abs(c_strides[1]) == 1:
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
        and _loads_aligned(a_strides if a_k else _transposed(a_strides), m, k, a_k, batch, width)
        and _loads_aligned(_transposed(b_strides) if b_k else b_strides, n, k, b_k, batch, width)
    )
    strides = a_strides, b_strides, c_strides
    return Orientation(names, m, n, k, batch, dtype, *strides, a_k, b_k, aligned, loads)


def guarded(form: Orientation, target: Target) -> Launch:
    """The product by one launch, which does nothing unless ``"partial"`` begins with GUARD."""
    tile = PIPELINED[1]
    launch = _launch(form, tile, 1, chunk_of(tile, form.k, 1))
    names, numbers = launch.arguments[:3], launch.arguments[3:]
    return launch._replace(
        defines=(*launch.defines, ("GUARD", _BY_TILED)), arguments=(*names, "partial", *numbers)
    )


def _launch(form: Orientation, tile: Tile, split_k: int, chunk: int) -> Launch:
    """The launch that computes a product, or its parts, by a tile."""
    batch, m, n, k = form.batch, form.m, form.n, form.k
    width = VECTOR_BYTES // ELEMENT_BYTES[form.dtype]
    to, to_strides = (
        ("C", (0, *form.c_strides)) if split_k == 1 else ("partial", (batch * m * n, m * n, n, 1))
    )
    stores = (form.aligned or split_k > 1) and n % width == 0
    stores = stores and by_vectors(batch, m, to_strides[1:], width)
    strides = *form.a_strides, *form.b_strides, *to_strides
    resident = len(tile.rates)
    if not form.loads and tile.source != "matmul.cu":
        resident = max(resident - 1, 1)  # copies one by one need more registers
    return Launch(
        source=tile.source,
        kernel="matmul",
        defines=(
            ("REAL", REAL[form.dtype]),
            ("WIDTH", width),
            *tile.defines,
            ("RESIDENT", resident),
            ("A_K", int(form.a_k)),
            ("B_K", int(form.b_k)),
            ("ALIGNED", int(form.loads)),
        ),
        grid=ceil_div(m, tile.m) * ceil_div(n, tile.n) * split_k * batch,
        block=tile.threads,
        arguments=(*form.names, to, m, n, k, split_k, chunk, *strides, int(stores)),
        shared_bytes=tile.shared[form.a_k][form.b_k],
    )


def _transposed(strides: tuple[int, int, int]) -> tuple[int, int, int]:
    return strides[0], strides[2], strides[1]


def _k_is_fast(k_stride: int, outer_stride: int, outer: int, k: int) -> bool:
    """Tell whether neighbours in memory are neighbours along k."""
    if k == 1 or k_stride == 0:
        return False
    return outer == 1 or outer_stride == 0 or abs(k_stride) <= abs(outer_stride)


def _loads_aligned(
    strides: tuple[int, int, int], outer: int, k: int, k_fast: bool, batch: int, width: int
) -> bool:
    """Tell whether an operand can be loaded by vectors along its fast dimension, the last."""
    fast, slow = (k, outer) if k_fast else (outer, k)
    return fast % width == 0 and by_vectors(batch, slow, strides, width)


@cache
def tiles(dtype: str, capability: tuple[int, int] | None) -> tuple[Tile, ...]:
    """The tiles there are for a dtype, on CUDA devices of a compute capability; None: others."""
    if dtype == "float64" and capability in _FLOAT64_TENSOR_CORES:
        return TENSOR
    if dtype == "float32" and capability is not None and capability >= _ASYNCHRONOUS:
        return PORTABLE[dtype][:1] + PIPELINED
    return PORTABLE[dtype]


def chunk_of(tile: Tile, k: int, split_k: int) -> int:
    """How much of k a part has, of about ``split_k`` parts: whole steps of the tile."""
    multiple = max(_CHUNK_MULTIPLE, tile.depth)
    return -(-k // (split_k * multiple)) * multiple


def fits(product: Product, tile: Tile) -> bool:
    """Whether the device has the threads and the shared memory for a tile."""
    a_k, b_k = product.layout
    return (
        tile.threads <= product.target.block_limit
        and tile.shared[a_k][b_k] <= product.target.shared_limit
    )


def resident(product: Product, tile: Tile) -> int:
    """Blocks that a multiprocessor holds."""
    a_k, b_k = product.layout
    if own := tile.shared[a_k][b_k]:  # a block that fits alone leaves 1 KB of a multiprocessor
        return min(len(tile.rates), (product.target.shared_limit + 1024) // (own + 1024))
    return len(tile.rates)


def splits(product: Product, tile: Tile) -> set[int]:
    """The numbers of parts of k that are weighed: 1, and what fills the device."""
    count = -(-product.m // tile.m) * -(-product.n // tile.n) * product.batch
    active = resident(product, tile) * product.target.multiprocessors
    choices = {1}
    if count <= active // 2 and product.k >= 2 * _LEAST_CHUNK:
        most = product.k // _LEAST_CHUNK
        for blocks in (active, 2 * product.target.multiprocessors, product.target.multiprocessors):
            choices.add(max(min(blocks // count, most), 1))
    return choices


def seconds(product: Product, tile: Tile, wanted: int) -> tuple[int, float]:
    """Return how many parts of k there are if about ``wanted`` are, and the predicted time.

    As White's execution metrics have it: blocks run in waves of as many as the device holds, and
    the last wave is a fragment, in which a multiprocessor has fewer blocks than it could.
    """
    m, n, k, batch, dtype, _, target = product
    speeds, element = SPEEDS[dtype], ELEMENT_BYTES[dtype]
    outputs_bytes = m * n * batch * element
    chunk = chunk_of(tile, k, wanted)
    split_k = -(-k // chunk)
    blocks = -(-m // tile.m) * -(-n // tile.n) * batch * split_k
    stored = tile.m * tile.n * element / tile.stored
    flops = 2.0 * tile.m * tile.n * tile.depth * -(-min(chunk, k) // tile.depth)
    most = resident(product, tile)
    waves, rest = divmod(blocks, most * target.multiprocessors)
    computing = waves * (tile.start + most * (stored + flops / tile.rates[most - 1]))
    if rest:
        held = -(-rest // target.multiprocessors)
        computing += tile.start + held * (stored + flops / tile.rates[held - 1])
    moving = (m + n) * k * batch * element / speeds.read
    if split_k == 1:
        moving += outputs_bytes / speeds.written
    total = speeds.launch + math.hypot(computing, moving)
    if split_k > 1:
        total += speeds.second_launch + (split_k + 1) * outputs_bytes / speeds.summed
    return split_k, total


def choose(product: Product) -> tuple[Tile, int, float]:
    """Return the tile and the number of parts with the least predicted time, and that time."""
    timed = [
        (*seconds(product, tile, wanted), tile)
        for tile in tiles(product.dtype, product.target.capability)
        if fits(product, tile)
        for wanted in splits(product, tile)
    ]
    if timed:
        split_k, least, tile = min(timed, key=lambda one: one[1])
        return tile, split_k, least
    if product.target.capability is None:
        raise ValueError(f"block_limit must be at least 64, got {product.target.block_limit}")
    return choose(product._replace(target=product.target._replace(capability=None)))
