"""Ways to cut C = A B into tiles, and White's execution metrics to choose among them.

Speeds were measured on NVIDIA's H100 and H200 (sm_90). On other devices their proportions decide.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES

__all__ = ["Product", "Tile", "choose", "chunk_of", "seconds", "splits", "tiles"]

_LEAST_CHUNK = 64  # of k, in a part
_CHUNK_MULTIPLE = 32  # and of the tile's own depth

_ASYNCHRONOUS = (8, 0)  # the least compute capability with copies that need no registers
_FLOAT64_TENSOR_CORES = ((8, 0), (9, 0), (10, 0))
_TENSOR_K = 16


class Tile(NamedTuple):
    """A way to cut C: a kernel, and the sizes it is compiled with.

    Attributes
    ----------
    source : str
    m, n, depth : int
        Extents of a block's tile, and of k in a step.
    threads : int
    defines : tuple of (str, int)
    shared : tuple of tuple of int
        Bytes of dynamic shared memory by whether A's and B's fast dimension is k.
    start : float
        Seconds that a wave of blocks takes in addition to its products.
    stored : float
        Bytes per second that one multiprocessor stores of a tile.
    rates : tuple of float
        FLOP/s of one multiprocessor with 1, 2, ... blocks, up to as many as it has registers for.
    """

    source: str
    m: int
    n: int
    depth: int
    threads: int
    defines: tuple[tuple[str, int], ...]
    shared: tuple[tuple[int, int], tuple[int, int]]
    start: float
    stored: float
    rates: tuple[float, ...]

    @property
    def resident(self) -> int:
        """Blocks for which a multiprocessor has the registers."""
        return len(self.rates)


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
    per_thread: tuple[int, int],
    warps: tuple[int, int],
    depth: int,
    start: float,
    stored: float,
    rates: tuple[int, ...],
    stages: int = 0,
) -> Tile:
    """Warps of 8 x 4 threads, each with ``per_thread`` results; with ``stages`` of tiles that are
    copied asynchronously. ``stored`` and ``rates`` are in GB/s and GFLOP/s."""
    m, n = 8 * per_thread[0] * warps[0], 4 * per_thread[1] * warps[1]
    defines = (
        ("THREAD_M", per_thread[0]),
        ("THREAD_N", per_thread[1]),
        ("WARPS_M", warps[0]),
        ("WARPS_N", warps[1]),
        ("TILE_K", depth),
        *((("STAGES", stages),) if stages else ()),
    )
    shared = stages * depth * (m + n + 8) * ELEMENT_BYTES["float32"]
    return Tile(
        "matmul_pipelined.cu" if stages else "matmul.cu",
        *(m, n, depth, 32 * warps[0] * warps[1], defines),
        ((shared, shared), (shared, shared)),
        *(start, 1e9 * stored, tuple(1e9 * rate for rate in rates)),
    )


def _tensor(
    per_warp: tuple[int, int],
    warps: tuple[int, int],
    stages: int,
    start: float,
    stored: float,
    rates: tuple[int, ...],
    slices: int = 1,
) -> Tile:
    """Warps with ``per_warp`` results, multiplied on tensor cores; units as in `_plain`.

    ``slices``: groups of them, which share the steps of k.
    """
    depth = _TENSOR_K * slices
    m, n = per_warp[0] * warps[0], per_warp[1] * warps[1]
    defines = (
        ("WARP_M", per_warp[0]),
        ("WARP_N", per_warp[1]),
        ("WARPS_M", warps[0]),
        ("WARPS_N", warps[1]),
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
        "matmul_tensor.cu",
        *(m, n, depth, 32 * warps[0] * warps[1] * slices, defines, (a, b)),
        *(start, 1e9 * stored, tuple(1e9 * rate for rate in rates)),
    )


_PORTABLE = {
    "float32": (
        _plain((8, 16), (2, 2), 8, 8.6e-7, 129, (253, 380)),
        _plain((4, 8), (2, 2), 32, 5e-7, 60, (260, 306, 320)),
        _plain((4, 4), (1, 2), 32, 5e-7, 60, (126, 207, 201, 226, 216, 232, 214, 227)),
    ),
    "float64": (
        _plain((8, 8), (2, 4), 8, 1e-6, 120, (185,)),
        _plain((4, 8), (2, 2), 16, 5e-7, 60, (130, 142)),
        _plain((4, 4), (1, 2), 32, 5e-7, 60, (61, 112, 112, 129)),
    ),
}
_PIPELINED = (
    _plain((8, 8), (1, 4), 16, 9.9e-7, 88, (334, 356, 380), 3),
    _plain((8, 8), (2, 2), 16, 1.04e-6, 72, (313, 329, 365), 3),
    _plain((4, 8), (2, 2), 16, 3.0e-7, 87, (278, 298, 323, 341), 3),
    _plain((4, 8), (1, 2), 32, 3.1e-7, 85, (162, 279, 238, 280, 279), 3),
    _plain((4, 4), (1, 2), 32, 1.3e-7, 50, (145, 237, 192, 247, 229, 263, 252), 3),
)
_TENSOR = (
    _tensor((64, 32), (2, 4), 4, 8.5e-7, 61, (482,)),
    _tensor((32, 32), (2, 4), 4, 7.8e-7, 49, (472,)),
    _tensor((32, 32), (2, 2), 3, 3.7e-7, 139, (315, 446, 451)),
    _tensor((32, 16), (2, 2), 4, 2.8e-7, 126, (266, 371, 387, 370)),
    _tensor((32, 16), (2, 2), 3, 3.0e-7, 28, (322, 368), slices=2),
    _tensor((16, 16), (2, 2), 5, 3.5e-7, 23, (281, 285), slices=2),
    _tensor((16, 16), (1, 2), 4, 1.9e-7, 8, (165, 215), slices=4),
)


class _Speeds(NamedTuple):
    """Of a device, for products of a dtype.

    Attributes
    ----------
    launch, second_launch : float
        Seconds that a product takes however small it is, and that a second launch adds.
    read, written, summed : float
        Bytes per second of operands, of results, and of the partial results of a split k.
    """

    launch: float
    second_launch: float
    read: float
    written: float
    summed: float


_SPEEDS = {
    "float32": _Speeds(3.4e-6, 2.3e-6, 7.5e12, 2.0e12, 1.2e12),
    "float64": _Speeds(3.0e-6, 2.7e-6, 5.0e12, 3.4e12, 2.5e12),
}


@cache
def tiles(dtype: str, capability: tuple[int, int] | None) -> tuple[Tile, ...]:
    """The tiles there are for a dtype, on CUDA devices of a compute capability; None: others."""
    if dtype == "float64" and capability in _FLOAT64_TENSOR_CORES:
        return _TENSOR
    if dtype == "float32" and capability is not None and capability >= _ASYNCHRONOUS:
        return _PORTABLE[dtype][:1] + _PIPELINED
    return _PORTABLE[dtype]


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


def seconds(product: Product, tile: Tile, wanted: int) -> tuple[int, float]:
    """Return how many parts of k there are if about ``wanted`` are, and the predicted time.

    As White's execution metrics have it: blocks run in waves of as many as the device holds, and
    the last wave is a fragment, in which a multiprocessor has fewer blocks than it could.
    """
    m, n, k, batch, dtype, _, multiprocessors, *_ = product
    speeds, element = _SPEEDS[dtype], ELEMENT_BYTES[dtype]
    outputs_bytes = m * n * batch * element
    chunk = chunk_of(tile, k, wanted)
    split_k = -(-k // chunk)
    blocks = -(-m // tile.m) * -(-n // tile.n) * batch * split_k
    stored = tile.m * tile.n * element / tile.stored
    flops = 2.0 * tile.m * tile.n * tile.depth * -(-min(chunk, k) // tile.depth)
    most = resident(product, tile)
    waves, rest = divmod(blocks, most * multiprocessors)
    computing = waves * (tile.start + most * (stored + flops / tile.rates[most - 1]))
    if rest:
        held = -(-rest // multiprocessors)
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
        for tile in tiles(product.dtype, product.capability)
        if fits(product, tile)
        for wanted in splits(product, tile)
    ]
    if timed:
        split_k, least, tile = min(timed, key=lambda one: one[1])
        return tile, split_k, least
    if product.capability is None:
        raise ValueError(f"block_limit must be at least 64, got {product.block_limit}")
    return choose(product._replace(capability=None))
