"""Ways to cut C = A B into tiles, and White's execution metrics to choose among them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES
from ..common.tuning import Table

__all__ = ["SUSTAINED", "Product", "Tile", "choose", "chunk_of", "seconds", "splits", "tiles"]

SUSTAINED = 2e-3  # seconds of computing, from which on tiles have their sustained rates
_LEAST_CHUNK = 64  # of k, in a part
_CHUNK_MULTIPLE = 32  # and of the tile's own depth

_ASYNCHRONOUS = (8, 0)  # the least compute capability with copies that need no registers
_FLOAT64_TENSOR_CORES = ((8, 0), (9, 0), (10, 0))
_TENSOR_K = 16


class Tile(NamedTuple):
    """A way to cut C: a kernel, and the sizes it is compiled with.

    Attributes
    ----------
    name : str
        By which a tuning table has its figures.
    source : str
    m, n, depth : int
        Extents of a block's tile, and of k in a step.
    threads : int
    defines : tuple of (str, int)
    shared : tuple of tuple of int
        Bytes of dynamic shared memory by whether A's and B's fast dimension is k.
    bytes_in_flight : int
        Bytes that a block asks for before it needs them.
    resident : int
        Blocks for which a multiprocessor has the registers.
    """

    name: str
    source: str
    m: int
    n: int
    depth: int
    threads: int
    defines: tuple[tuple[str, int], ...]
    shared: tuple[tuple[int, int], tuple[int, int]]
    bytes_in_flight: int
    resident: int


class Product(NamedTuple):
    """What the choice depends on.

    Attributes
    ----------
    m, n, k, batch : int
    dtype : str
    layout : (bool, bool)
        Whether k is the fast dimension of A, and of B.
    multiprocessors, block_limit, shared_limit : int
        Of the device.
    capability : (int, int) or None
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    layout: tuple[bool, bool]
    multiprocessors: int
    block_limit: int
    shared_limit: int
    capability: tuple[int, int] | None


def _plain(
    thread_m: int,
    thread_n: int,
    warps_m: int,
    warps_n: int,
    depth: int,
    resident: int,
    stages: int = 0,
) -> Tile:
    """Warps of 8 x 4 threads, each with thread_m x thread_n; copied asynchronously with stages."""
    m, n = 8 * thread_m * warps_m, 4 * thread_n * warps_n
    defines = (
        ("THREAD_M", thread_m),
        ("THREAD_N", thread_n),
        ("WARPS_M", warps_m),
        ("WARPS_N", warps_n),
        ("TILE_K", depth),
        *((("STAGES", stages),) if stages else ()),
    )
    size = ELEMENT_BYTES["float32"]
    shared = stages * depth * (m + n + 8) * size
    return Tile(
        f"{'pipelined ' if stages else ''}{m}x{n}x{depth}",
        "matmul_pipelined.cu" if stages else "matmul.cu",
        *(m, n, depth, 32 * warps_m * warps_n, defines),
        ((shared, shared), (shared, shared)),
        max(stages - 1, 1) * depth * (m + n) * size,
        resident,
    )


def _tensor(
    warp_m: int,
    warp_n: int,
    warps_m: int,
    warps_n: int,
    stages: int,
    resident: int,
    slices: int = 1,
) -> Tile:
    """Warps with warp_m x warp_n each, multiplied on tensor cores.

    ``slices``: groups of them, which share the steps of k.
    """
    depth = _TENSOR_K * slices
    m, n = warp_m * warps_m, warp_n * warps_n
    defines = (
        ("WARP_M", warp_m),
        ("WARP_N", warp_n),
        ("WARPS_M", warps_m),
        ("WARPS_N", warps_n),
        ("STAGES", stages),
        ("SLICES", slices),
    )
    size = ELEMENT_BYTES["float64"]
    # Where k is slow, a row of the tile is 4 elements longer.
    a, b = (
        tuple(stages * depth * (m + n + 4 * (not a_k) + 4 * (not b_k)) * size for b_k in (0, 1))
        for a_k in (0, 1)
    )
    return Tile(
        f"tensor {m}x{n}x{depth}",
        "matmul_tensor.cu",
        *(m, n, depth, 32 * warps_m * warps_n * slices, defines, (a, b)),
        (stages - 1) * depth * (m + n) * size,
        resident,
    )


_PORTABLE = {
    "float32": (
        _plain(8, 16, 2, 2, 8, resident=2),
        _plain(8, 8, 1, 4, 16, resident=3),
        _plain(4, 8, 2, 2, 32, resident=3),
        _plain(4, 4, 1, 2, 32, resident=8),
    ),
    "float64": (
        _plain(8, 8, 2, 4, 8, resident=1),
        _plain(4, 8, 2, 2, 16, resident=2),
        _plain(4, 4, 1, 2, 32, resident=4),
    ),
}
_PIPELINED = (
    _plain(8, 8, 1, 4, 16, resident=3, stages=3),
    _plain(8, 8, 2, 2, 16, resident=3, stages=3),
    _plain(4, 8, 2, 2, 16, resident=4, stages=3),
    _plain(4, 8, 1, 2, 32, resident=5, stages=3),
    _plain(8, 4, 1, 2, 32, resident=5, stages=3),
    _plain(4, 4, 2, 2, 16, resident=6, stages=4),
    _plain(4, 4, 1, 2, 32, resident=7, stages=3),
)
_TENSOR = (
    _tensor(64, 32, 2, 4, 4, resident=1),
    _tensor(32, 32, 2, 4, 4, resident=1),
    _tensor(32, 32, 2, 2, 3, resident=3),
    _tensor(16, 32, 2, 2, 4, resident=4),
    _tensor(32, 16, 2, 2, 4, resident=4),
    _tensor(16, 16, 2, 2, 4, resident=5),
    _tensor(32, 16, 2, 2, 3, resident=2, slices=2),
    _tensor(16, 16, 2, 2, 5, resident=2, slices=2),
    _tensor(16, 16, 1, 2, 4, resident=2, slices=4),
)


@cache
def tiles(dtype: str, capability: tuple[int, int] | None) -> tuple[Tile, ...]:
    """The tiles there are for a dtype, on CUDA devices of a compute capability; None: others."""
    if dtype == "float64" and capability in _FLOAT64_TENSOR_CORES:
        return _TENSOR
    if dtype == "float32" and capability is not None and capability >= _ASYNCHRONOUS:
        return _PORTABLE[dtype][:2] + _PIPELINED
    return _PORTABLE[dtype]


class _Figures(NamedTuple):
    """A tuning table's figures for one tile; units and meanings stand in the table."""

    launch: float
    second_launch: float
    latency: float
    read: float
    written: float
    summed: float
    start: float
    stored: float
    sustained: float
    rates: tuple[float, ...]


@cache
def _figures(tuning: Table, dtype: str, tile: str) -> _Figures:
    shared = ("launch", "second_launch", "latency", "read", "written", "summed")
    return _Figures(
        *(tuning[f"matmul.{name}"][dtype] for name in shared),
        *(tuning[f"matmul.tile_{name}"][dtype][tile] for name in ("start", "stored", "sustained")),
        tuple(tuning["matmul.tile_rates"][dtype][tile]),
    )


def chunk_of(tile: Tile, k: int, split_k: int) -> int:
    """How much of k a part has, of about ``split_k`` parts: whole steps of the tile."""
    multiple = max(_CHUNK_MULTIPLE, tile.depth)
    return -(-k // (split_k * multiple)) * multiple


def fits(product: Product, tile: Tile) -> bool:
    """Whether the device has the threads and the shared memory for a tile."""
    a_k, b_k = product.layout
    return tile.threads <= product.block_limit and tile.shared[a_k][b_k] <= product.shared_limit


def resident(product: Product, tile: Tile) -> int:
    """Blocks that a multiprocessor holds."""
    a_k, b_k = product.layout
    if own := tile.shared[a_k][b_k]:  # a block that fits alone leaves 1 KB of a multiprocessor
        return min(tile.resident, (product.shared_limit + 1024) // (own + 1024))
    return tile.resident


def splits(product: Product, tile: Tile) -> set[int]:
    """The numbers of parts of k that are weighed: 1, and what fills the device."""
    count = -(-product.m // tile.m) * -(-product.n // tile.n) * product.batch
    active = resident(product, tile) * product.multiprocessors
    choices = {1}
    if count <= active // 2 and product.k >= 2 * _LEAST_CHUNK:
        most = product.k // _LEAST_CHUNK
        for blocks in (active, 2 * product.multiprocessors, product.multiprocessors):
            choices.add(max(min(blocks // count, most), 1))
    return choices


def seconds(product: Product, tile: Tile, wanted: int, tuning: Table) -> tuple[int, float]:
    """Return how many parts of k there are if about ``wanted`` are, and the predicted time.

    As White's execution metrics have it: blocks run in waves of as many as the device holds, and
    the last wave is a fragment, in which a multiprocessor has fewer blocks than it could.
    """
    m, n, k, batch, dtype, _, multiprocessors, *_ = product
    figures = _figures(tuning, dtype, tile.name)
    rates = figures.rates
    element = ELEMENT_BYTES[dtype]
    outputs_bytes = m * n * batch * element
    bytes_read = (m + n) * k * batch * element
    count = -(-m // tile.m) * -(-n // tile.n) * batch
    stored = tile.m * tile.n * element / figures.stored
    most = resident(product, tile)
    active = most * multiprocessors
    chunk = chunk_of(tile, k, wanted)
    split_k = -(-k // chunk)
    steps = -(-min(chunk, k) // tile.depth)
    flops = 2.0 * tile.m * tile.n * tile.depth * steps
    waves, rest = divmod(count * split_k, active)
    computing = waves * (figures.start + most * (stored + flops / rates[most - 1]))
    if rest:
        blocks = -(-rest // multiprocessors)
        computing += figures.start + blocks * (stored + flops / rates[blocks - 1])
    blocks = min(most, -(-count * split_k // multiprocessors))
    reading = blocks * tile.bytes_in_flight * multiprocessors / figures.latency
    moving = bytes_read / min(reading, figures.read)
    if split_k == 1:
        moving += outputs_bytes / figures.written
    if computing > SUSTAINED:
        computing /= figures.sustained
    total = figures.launch + math.hypot(computing, moving)
    if split_k > 1:
        total += figures.second_launch + (split_k + 1) * outputs_bytes / figures.summed
    return split_k, total


def candidates(product: Product) -> Iterator[tuple[Tile, int]]:
    """Every tile that fits, with every number of parts of k that is weighed."""
    for tile in tiles(product.dtype, product.capability):
        if fits(product, tile):
            for wanted in splits(product, tile):
                yield tile, wanted


def choose(product: Product, tuning: Table) -> tuple[Tile, int, float]:
    """Return the tile and the number of parts with the least predicted time, and that time."""
    best = math.inf
    chosen = None
    for tile, wanted in candidates(product):
        split_k, time = seconds(product, tile, wanted, tuning)
        if time < best:
            best = time
            chosen = tile, split_k
    if chosen is None and product.capability is not None:
        return choose(product._replace(capability=None), tuning)
    if chosen is None:
        raise ValueError(f"block_limit must be at least 64, got {product.block_limit}")
    return *chosen, best
