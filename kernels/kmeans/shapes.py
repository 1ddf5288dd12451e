"""Which kernel finds the nearest centroids, and how it is cut into blocks."""

from __future__ import annotations

from typing import NamedTuple

from ..common import launch as launches
from ..common.launch import ELEMENT_BYTES, VECTOR_BYTES, Launch, Target, ceil_div, power_of_two

STEP = 8  # columns of X that a tile's step takes
_TENSOR_STEP = 16
_INT = 4
_FLOAT16_TENSOR_CORES = (9, 0)  # that kmeans_pieces.cu is written for
PANEL, _PIECES_STEP = 128, 32  # rows, and columns, of a block of pieces: see tensor_pieces.cu
_PIECES_MULTIPLE = 64  # of columns
_PIECES_THREADS, _CUTTING = 384, 256
_PIECES_SHARED = 24 * 2 * PANEL * _PIECES_STEP + 1024
_LEAST_PRODUCTS = 1e9  # in 0.1 ms, less than which two more launches are not worth
_PRODUCT, _COMPARED = 0.2, 13.0  # a product, and comparing a distance, in products by tiles
_MOST_COLUMNS = 32  # of a point that a thread keeps in registers
_FEW_COLUMNS = 32  # most for a tile's first rate
_SMALL_BLOCKS = 4  # on a multiprocessor, for labels and sums together


class Points(NamedTuple):
    """What launches depend on; all arrays are contiguous."""

    n: int  # points
    d: int  # their elements
    k: int  # clusters; each of the three is at least 1
    dtype: str  # of points, weights and centroids, "float32" or "float64"
    weighted: bool  # whether points have weights
    alignment: int  # bytes; the largest power of two, up to 16, that divides the address of X
    target: Target

    @property
    def aligned(self) -> bool:
        """Whether rows of X can be read by vectors of 16 bytes."""
        width = VECTOR_BYTES // ELEMENT_BYTES[self.dtype]
        return self.alignment >= VECTOR_BYTES and self.d % width == 0

    @property
    def weights(self) -> str:
        """The buffer that stands where a kernel takes weights: it reads none without them."""
        return "weights" if self.weighted else "X"


class Tile(NamedTuple):
    """A way to cut the products: points and centroids of a block's tile."""

    m: int
    n: int
    threads: int
    rows: int  # points of a thread
    defines: tuple[tuple[str, int], ...]
    resident: int  # blocks for which a multiprocessor has the registers
    # Products a second with few columns and with more, as shares of the fastest tile's.
    rates: tuple[float, float]
    stages: int = 0  # steps with tiles held at once, where tensor cores multiply

    @property
    def tensor(self) -> bool:
        """Whether tensor cores multiply."""
        return self.stages > 0


class Assignment(NamedTuple):
    """The launches that find the labels, and what belongs to them."""

    launches: tuple[Launch, ...]
    tile: int  # centroids are packed in tiles of (depth, tile), of which each has ``tile``
    depth: int
    sums: bool  # whether it also makes the sums of clusters,
    parts: int  # in that many parts
    prepare: tuple[Launch, ...] = ()  # once, when X is there
    scratch: dict[str, int] = {}  # noqa: RUF012  bytes of buffers that these launches use alone


def launch(
    file: str, kernel: str, dtype: str, grid: int, block: int, *arguments: str | int, **defines: int
) -> Launch:
    """A launch; its macros are the element type, a block's threads and others."""
    where = f"kmeans_{file}.cu", kernel, dtype, grid, block
    return launches.launch(*where, arguments, THREADS=block, **defines)


def threads_of_block(most: int, limit: int) -> int:
    """The largest power of two that is above neither number."""
    return power_of_two(min(most, limit) + 1) // 2


def _tile(
    each: tuple[int, int],
    warps: tuple[int, int],
    resident: int,
    rates: tuple[float, float],
    stages: int = 0,
) -> Tile:
    """Warps of 8 x 4 threads, each of which has ``each`` products; with ``stages`` each warp has
    these, on tensor cores."""
    kind, (down, across) = ("WARP", (1, 1)) if stages else ("THREAD", (8, 4))
    names = f"{kind}_M", f"{kind}_N", "WARPS_M", "WARPS_N"
    defines = *zip(names, each + warps, strict=True), *((("STAGES", stages),) if stages else ())
    m, n = down * each[0] * warps[0], across * each[1] * warps[1]
    threads, rows = 32 * warps[0] * warps[1], down * each[0] // 8
    return Tile(m, n, threads, rows, defines, resident, rates, stages)


_TILES = {
    "float32": (
        _tile((8, 8), (2, 1), 6, (1.0, 0.85)),
        _tile((8, 8), (2, 2), 3, (0.95, 0.95)),
        _tile((8, 16), (2, 2), 2, (0.8, 1.0)),
    ),
    "float64": (_tile((4, 8), (2, 1), 4, (1.0, 0.9)), _tile((4, 8), (2, 2), 2, (1.0, 1.0))),
}
_TENSOR = (
    _tile((32, 16), (2, 2), 4, (1.0, 0.85), 4),
    _tile((32, 32), (2, 2), 3, (0.95, 0.95), 3),
    _tile((32, 32), (2, 4), 1, (0.8, 1.0), 4),
)

# For the few rows that kmeans_pieces.cu is not sure of.
_AGAIN = _tile((8, 8), (1, 4), 3, (1.0, 1.0))


def tiles(dtype: str, capability: tuple[int, int] | None = None) -> tuple[Tile, ...]:
    """The tiles there are, from few centroids to many."""
    if dtype == "float64" and capability in launches.FLOAT64_TENSOR_CORES:
        return _TENSOR
    return _TILES[dtype]


def choose(points: Points) -> Assignment:
    """The kernel that is expected to be the fastest."""
    if (found := small(points)) is not None:
        return found
    known = [
        tile
        for tile in tiles(points.dtype, points.target.capability)
        if tile.threads <= points.target.block_limit
        and (not tile.tensor or _shared(tile) <= points.target.shared_limit)
    ]
    many = points.d > _FEW_COLUMNS

    def cost(tile: Tile) -> float:
        return ceil_div(points.k, tile.n) * tile.n / tile.rates[many]

    tile = min(known, key=cost)
    return pieces(points, cost(tile)) or tiled(points, tile)


def small(points: Points) -> Assignment | None:
    """A point to a thread, all centroids in shared memory; None where they have no room, or there
    are more sums than threads."""
    n, d, k, dtype = points[:4]
    if d > _MOST_COLUMNS:
        return None
    size = ELEMENT_BYTES[dtype]
    width = VECTOR_BYTES // size
    whole = ceil_div(d, width) * width
    centroids = max(power_of_two(k * whole), 64)
    threads = threads_of_block(256 if d <= 16 else 128, points.target.block_limit)
    shared = (centroids + centroids // whole + 1 + threads * ((d + 1) | 1)) * size + 4 * threads
    sums = power_of_two(k * (d + 1))
    if shared > min(points.target.shared_limit, 48 << 10) or sums > threads:
        return None
    blocks = min(ceil_div(n, threads), _SMALL_BLOCKS * points.target.multiprocessors)
    macros = {"WIDTH": width, "D": d, "CENTROIDS": centroids, "WEIGHTED": int(points.weighted)}
    assign = launch(
        *("small", "assign_small", dtype, blocks, threads),
        *("X", points.weights, "centroids", "labels", "partial", "partial_weights", "state"),
        *(n, k, blocks),
        **macros,
        GROUPS=threads // max(sums, 4),
    )
    return Assignment((assign,), 1, d, True, blocks)


def _shared(tile: Tile) -> int:
    """Bytes of shared memory of a block that copies asynchronously."""
    size = ELEMENT_BYTES["float64"]
    elements = tile.stages * _TENSOR_STEP * (tile.m + tile.n + 4)
    return elements * size + tile.rows * tile.threads * (size + _INT)


def tiled(points: Points, tile: Tile) -> Assignment:
    """A product by tiles that keeps the least distances."""
    n, d, k, dtype = points[:4]
    name = "tensor" if tile.tensor else "tiles"
    macros = {**dict(tile.defines), "RESIDENT": tile.resident, "ALIGNED": int(points.aligned)}
    if not tile.tensor:
        macros["WIDTH"] = VECTOR_BYTES // ELEMENT_BYTES[dtype]
    where = f"kmeans_{name}.cu", f"assign_{name}", dtype, ceil_div(n, tile.m), tile.threads
    arguments = "X", "packed", "norms", "labels", "state", n, d, ceil_div(k, tile.n)
    assign = launches.launch(*where, arguments, **macros)
    assign = assign._replace(shared_bytes=_shared(tile) if tile.tensor else 0)
    step = _TENSOR_STEP if tile.tensor else STEP
    depth = ceil_div(d, step) * step
    return Assignment((assign,), tile.n, depth, False, 0)


def pieces(points: Points, plain: float) -> Assignment | None:
    """float32 by two pieces of float16, on tensor cores; None where that is not faster.

    A row takes as long as its products with ``plain`` centroids by the best tile.
    """
    n, d, k, dtype = points[:4]
    panels, tiles = ceil_div(n, PANEL), ceil_div(k, PANEL)
    steps = ceil_div(d, _PIECES_MULTIPLE) * (_PIECES_MULTIPLE // _PIECES_STEP)
    if (
        dtype != "float32"
        or points.target.capability != _FLOAT16_TENSOR_CORES
        or points.target.block_limit < _PIECES_THREADS
        or points.target.shared_limit < _PIECES_SHARED
        or n * plain * d < _LEAST_PRODUCTS
        or tiles * PANEL * (_PRODUCT * steps * _PIECES_STEP + _COMPARED) > plain * d
    ):
        return None
    again = tiled(points, _AGAIN)
    listed = again.launches[0]._replace(
        defines=(*again.launches[0].defines, ("LISTED", 1)),
        arguments=(*again.launches[0].arguments, "unsure"),
    )

    def cut(rows: str, here: int, of: str, are_centroids: int) -> Launch:
        blocks = ceil_div(here, PANEL) * (PANEL * 32 // _CUTTING)
        buffers = rows, "norms" if are_centroids else rows, f"{of}_pieces", f"{of}_facts"
        sizes = here, d, steps, int(points.aligned), are_centroids
        arguments = (*buffers, "unsure", "state", *sizes)
        return Launch("kmeans_cut.cu", "cut_rows", (), blocks, _CUTTING, arguments)

    blocks = min(panels, points.target.multiprocessors)
    buffers = "x_pieces", "x_facts", "c_pieces", "c_facts", "labels", "unsure", "state"
    where = "kmeans_pieces.cu", "assign_pieces", (), blocks, _PIECES_THREADS
    assign = Launch(*where, (*buffers, n, d, steps, tiles), _PIECES_SHARED)
    row = 2 * 2 * steps * _PIECES_STEP  # bytes of its pieces
    scratch = {"unsure": (n + 1) * _INT}
    for of, rows in (("x", panels * PANEL), ("c", tiles * PANEL)):
        scratch |= {f"{of}_pieces": rows * row, f"{of}_facts": rows * 8}
    return again._replace(
        launches=(cut("centroids", k, "c", 1), assign, listed),
        prepare=(cut("X", n, "x", 0),),
        scratch=scratch,
    )
