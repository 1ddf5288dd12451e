"""Launch plans of C = A B: tiles are chosen by White's execution metrics.

Speeds were measured on NVIDIA's H100 and H200 (sm_90). On other devices their proportions decide.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

from ..common.launch import (
    ELEMENT_BYTES,
    FLOAT64_TENSOR_CORES,
    VECTOR_BYTES,
    Launch,
    LaunchPlan,
    Target,
    by_vectors,
    ceil_div,
    launch,
    with_sums,
)

_LEAST_CHUNK = 64  # of k, in a part
_CHUNK_MULTIPLE = 32  # and of the tile's own depth
_ASYNCHRONOUS = (8, 0)  # the least compute capability with copies that need no registers
_BY_TILED = 2  # as in tensor_pieces.cu

# -- The tiles -------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A way to cut C: a kernel, and the sizes it is compiled with."""

    source: str
    m: int  # extents of a block's tile
    n: int
    depth: int  # of k in a step
    threads: int
    defines: tuple[tuple[str, int], ...]
    # Bytes of dynamic shared memory by whether A's and B's fast dimension is k.
    shared: tuple[tuple[int, int], tuple[int, int]]
    start: float  # seconds that a wave of blocks takes in addition to its products
    stored: float  # bytes per second that one multiprocessor stores of a tile
    # FLOP/s of one multiprocessor with 1, 2, ... blocks, up to as many as it has registers for.
    rates: tuple[float, ...]


def _tile(
    source: str,
    each: tuple[int, int],
    warps: tuple[int, int],
    depth: int,
    start: float,
    stored: float,
    rates: tuple[int, ...],
    stages: int = 0,
    slices: int = 0,
) -> Tile:
    """Warps of 8 x 4 threads, each of which has ``each`` results; on tensor cores each warp has
    them. Both, and the depth, are powers of two. ``stored`` and ``rates`` are in GB/s and GFLOP/s.

    ``start``, ``stored`` and ``rates`` are fitted to products of one wave, with 1, 2, ... blocks on
    each multiprocessor and several depths k; there are as many rates as blocks that its registers
    hold. A new row may begin with those of the one most like it: calibration measures how far off
    the estimate is.

    ``stages``: of tiles that are copied asynchronously. ``slices``: groups of warps on tensor
    cores, which share the steps of k.
    """
    tensor = slices > 0
    kind, (down, across) = ("WARP", (1, 1)) if tensor else ("THREAD", (8, 4))
    m, n = down * each[0] * warps[0], across * each[1] * warps[1]
    sizes = {f"{kind}_M": each[0], f"{kind}_N": each[1], "WARPS_M": warps[0], "WARPS_N": warps[1]}
    sizes |= {"SLICES": slices} if tensor else {"TILE_K": depth}
    sizes |= {"STAGES": stages} if stages else {}
    line = stages * depth * ELEMENT_BYTES["float64" if tensor else "float32"]
    # On tensor cores a row of the tile is 4 elements longer where k is slow, elsewhere always.
    longer = [line * (m + n + 8 - 4 * tensor * fast) for fast in range(3)]
    shared = (longer[0], longer[1]), (longer[1], longer[2])
    threads, speeds = 32 * warps[0] * warps[1] * max(slices, 1), tuple(1e9 * r for r in rates)
    defines = tuple(sizes.items())
    return Tile(source, m, n, depth, threads, defines, shared, start, 1e9 * stored, speeds)


_PLAIN, _ASYNC, _CORES = "matmul.cu", "matmul_pipelined.cu", "matmul_tensor.cu"
_VARIANTS = {_PLAIN: "tile", _ASYNC: "pipelined", _CORES: "tensor"}
_PORTABLE = {
    "float32": (
        _tile(_PLAIN, (8, 16), (2, 2), 8, 8.6e-7, 129, (253, 380)),
        _tile(_PLAIN, (4, 8), (2, 2), 32, 5e-7, 60, (260, 306, 320)),
        _tile(_PLAIN, (4, 4), (1, 2), 32, 5e-7, 60, (126, 207, 201, 226, 216, 232, 214, 227)),
    ),
    "float64": (
        _tile(_PLAIN, (8, 8), (2, 4), 8, 1e-6, 120, (185,)),
        _tile(_PLAIN, (4, 8), (2, 2), 16, 5e-7, 60, (130, 142)),
        _tile(_PLAIN, (4, 4), (1, 2), 32, 5e-7, 60, (61, 112, 112, 129)),
    ),
}
_GUARDED = _tile(_ASYNC, (8, 8), (2, 2), 16, 1.04e-6, 72, (313, 329, 365), 3)  # see `guarded`
_PIPELINED = (
    _tile(_ASYNC, (8, 8), (1, 4), 16, 9.9e-7, 88, (334, 356, 380), 3),
    _GUARDED,
    _tile(_ASYNC, (4, 8), (2, 2), 16, 3.0e-7, 87, (278, 298, 323, 341), 3),
    _tile(_ASYNC, (4, 8), (1, 2), 32, 3.1e-7, 85, (162, 279, 238, 280, 279), 3),
    _tile(_ASYNC, (4, 4), (1, 2), 32, 1.3e-7, 50, (145, 237, 192, 247, 229, 263, 252), 3),
)
_TENSOR = (
    _tile(_CORES, (64, 32), (2, 4), 16, 8.5e-7, 61, (482,), 4, 1),
    _tile(_CORES, (32, 32), (2, 2), 16, 3.7e-7, 139, (315, 446, 451), 3, 1),
    _tile(_CORES, (32, 16), (2, 2), 16, 2.8e-7, 126, (266, 371, 387, 370), 4, 1),
    _tile(_CORES, (16, 16), (2, 2), 32, 3.5e-7, 23, (281, 285), 5, 2),
    _tile(_CORES, (16, 16), (1, 2), 64, 1.9e-7, 8, (165, 215), 4, 4),
)


class _Speeds(NamedTuple):
    """Of a device, for products of a dtype."""

    launch: float  # seconds that a product takes however small it is
    second_launch: float  # that a second launch adds
    read: float  # bytes per second of operands
    written: float  # of results
    summed: float  # of the partial results of a split k


_SPEEDS = {
    "float32": _Speeds(3.4e-6, 2.3e-6, 7.5e12, 2.0e12, 1.2e12),
    "float64": _Speeds(3.0e-6, 2.7e-6, 5.0e12, 3.4e12, 2.5e12),
}


@cache
def tiles(dtype: str, capability: tuple[int, int] | None) -> tuple[Tile, ...]:
    """The tiles there are for a dtype, on CUDA devices of a compute capability; None: others."""
    if dtype == "float64" and capability in FLOAT64_TENSOR_CORES:
        return _TENSOR
    if dtype == "float32" and capability is not None and capability >= _ASYNCHRONOUS:
        return _PORTABLE[dtype][:1] + _PIPELINED
    return _PORTABLE[dtype]


# -- The launches ----------------------------------------------------------------------------------


def plan_matmul(*, target: Target, **product: Any) -> LaunchPlan:
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
    form = oriented(**product)
    timed = [
        (*_seconds(form, tile, wanted, target), tile)
        for tile in tiles(form.dtype, target.capability)
        if tile.threads <= target.block_limit and form.shared(tile) <= target.shared_limit
        for wanted in _splits(form, tile, target)
    ]
    if not timed:
        raise ValueError(f"block_limit must be at least 64, got {target.block_limit}")
    split_k, seconds, tile = min(timed, key=lambda one: one[1])
    first = _launch(form, tile, split_k)
    variant = f"{_VARIANTS[tile.source]}{tile.m}x{tile.n}" + ("" if form.loads else "s")
    if split_k == 1:
        return LaunchPlan((first,), 0, variant, seconds)
    extents = form.batch, form.m, form.n
    return with_sums(first, variant, split_k, extents, "C", form.c_strides, target, seconds)


class Orientation(NamedTuple):
    """A product, transposed where that makes the rows of C contiguous, and how its operands lie."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    a_strides: tuple[int, int, int]
    b_strides: tuple[int, int, int]
    c_strides: tuple[int, int, int]
    names: tuple[str, str] = ("A", "B")  # of the buffers, of the first operand first
    a_k: bool = False  # whether k is the fast dimension
    b_k: bool = False
    aligned: bool = False  # whether vectors can begin at every operand's address
    loads: bool = False  # whether both operands can be loaded by vectors

    def shared(self, tile: Tile) -> int:
        """Bytes of shared memory that a block takes."""
        return tile.shared[self.a_k][self.b_k]


def oriented(alignment: int, **product: Any) -> Orientation:
    """A product as kernels take it; parameters as of `plan_matmul`."""
    form = Orientation(**product)
    m, n, k, batch, dtype, a, b, c, *_ = form
    width, aligned = VECTOR_BYTES // ELEMENT_BYTES[dtype], alignment >= VECTOR_BYTES
    if abs(c[2]) != 1 and abs(c[1]) == 1:
        # C^T = B^T A^T has rows that are contiguous.
        m, n, a, b, c = n, m, *map(_transposed, (b, a, c))
        turned = {"a_strides": a, "b_strides": b, "c_strides": c, "names": ("B", "A")}
        form = form._replace(m=m, n=n, **turned)
    a_k, b_k = _k_is_fast(a[2], a[1], m, k), _k_is_fast(b[1], b[2], n, k)
    loads = (
        aligned
        and _loads_aligned(a if a_k else _transposed(a), m, k, a_k, batch, width)
        and _loads_aligned(_transposed(b) if b_k else b, n, k, b_k, batch, width)
    )
    return form._replace(a_k=a_k, b_k=b_k, aligned=aligned, loads=loads)


def guarded(form: Orientation) -> Launch:
    """The product by one launch, which does nothing unless ``"partial"`` begins with GUARD."""
    made = _launch(form, _GUARDED, 1)
    names, numbers = made.arguments[:3], made.arguments[3:]
    return made._replace(
        defines=(*made.defines, ("GUARD", _BY_TILED)), arguments=(*names, "partial", *numbers)
    )


def _launch(form: Orientation, tile: Tile, split_k: int) -> Launch:
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
    layout = {"A_K": int(form.a_k), "B_K": int(form.b_k), "ALIGNED": int(form.loads)}
    macros = {"WIDTH": width, **dict(tile.defines), "RESIDENT": resident, **layout}
    grid = ceil_div(m, tile.m) * ceil_div(n, tile.n) * split_k * batch
    arguments = *form.names, to, m, n, k, split_k, _chunk(tile, k, split_k), *strides, int(stores)
    made = launch(tile.source, "matmul", form.dtype, grid, tile.threads, arguments, **macros)
    return made._replace(shared_bytes=form.shared(tile))


def _transposed(strides: tuple[int, int, int]) -> tuple[int, int, int]:
    return strides[0], strides[2], strides[1]


def _k_is_fast(k_stride: int, outer_stride: int, outer: int, k: int) -> bool:
    """Tell whether neighbours in memory are neighbours along k."""
    is_nearer = outer == 1 or outer_stride == 0 or abs(k_stride) <= abs(outer_stride)
    return k > 1 and k_stride != 0 and is_nearer


def _loads_aligned(
    strides: tuple[int, int, int], outer: int, k: int, k_fast: bool, batch: int, width: int
) -> bool:
    """Tell whether an operand can be loaded by vectors along its fast dimension, the last."""
    fast, slow = (k, outer) if k_fast else (outer, k)
    return fast % width == 0 and by_vectors(batch, slow, strides, width)


# -- The choice ------------------------------------------------------------------------------------


def _chunk(tile: Tile, k: int, split_k: int) -> int:
    """How much of k a part has, of about ``split_k`` parts: whole steps of the tile."""
    multiple = max(_CHUNK_MULTIPLE, tile.depth)
    return ceil_div(k, split_k * multiple) * multiple


def _resident(form: Orientation, tile: Tile, target: Target) -> int:
    """Blocks that a multiprocessor holds."""
    # A block that fits alone leaves 1 KB of a multiprocessor.
    return min(len(tile.rates), (target.shared_limit + 1024) // (form.shared(tile) + 1024))


def _splits(form: Orientation, tile: Tile, target: Target) -> set[int]:
    """The numbers of parts of k that are weighed: 1, and what fills the device."""
    count = ceil_div(form.m, tile.m) * ceil_div(form.n, tile.n) * form.batch
    active = _resident(form, tile, target) * target.multiprocessors
    choices = {1}
    if count <= active // 2 and form.k >= 2 * _LEAST_CHUNK:
        most = form.k // _LEAST_CHUNK
        for blocks in (active, 2 * target.multiprocessors, target.multiprocessors):
            choices.add(max(min(blocks // count, most), 1))
    return choices


def _seconds(form: Orientation, tile: Tile, wanted: int, target: Target) -> tuple[int, float]:
    """Return how many parts of k there are if about ``wanted`` are, and the predicted time.

    As White's execution metrics have it: blocks run in waves of as many as the device holds, and
    the last wave is a fragment, in which a multiprocessor has fewer blocks than it could.
    """
    m, n, k, batch = form.m, form.n, form.k, form.batch
    speeds, element = _SPEEDS[form.dtype], ELEMENT_BYTES[form.dtype]
    outputs_bytes = m * n * batch * element
    chunk = _chunk(tile, k, wanted)
    split_k = ceil_div(k, chunk)
    blocks = ceil_div(m, tile.m) * ceil_div(n, tile.n) * batch * split_k
    stored = tile.m * tile.n * element / tile.stored
    flops = 2.0 * tile.m * tile.n * tile.depth * ceil_div(min(chunk, k), tile.depth)
    most = _resident(form, tile, target)
    waves, rest = divmod(blocks, most * target.multiprocessors)
    computing = waves * (tile.start + most * (stored + flops / tile.rates[most - 1]))
    if rest:
        held = ceil_div(rest, target.multiprocessors)
        computing += tile.start + held * (stored + flops / tile.rates[held - 1])
    moving = (m + n) * k * batch * element / speeds.read
    if split_k == 1:
        moving += outputs_bytes / speeds.written
    total = speeds.launch + math.hypot(computing, moving)
    if split_k > 1:
        total += speeds.second_launch + (split_k + 1) * outputs_bytes / speeds.summed
    return split_k, total
