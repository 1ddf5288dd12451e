"""The ladders: the steps from a family's first kernel to its best, a row of a table each.

Kernels are in the family's ladder.cu, those for tensor cores in ladder_tensor.cu; no plan of a call
takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from . import procedure
from .common.launch import ELEMENT_BYTES, REAL, VECTOR_BYTES, Launch, Target, ceil_div
from .matmul.plan import oriented
from .matmul.plan_tensor import CAPABILITY, PANEL, by_pieces
from .procedure import Card

HELD_BYTES = 1 << 16  # of constant memory
SHARED_BYTES = 48 << 10  # of arrays of a constant size in shared memory
_THREADS = 1024  # of a block: OpenCL's CPUs take more, for nothing


class Block(NamedTuple):
    """Threads of a block along x and y, and the results of a thread."""

    x: int
    y: int = 1
    each: int = 1


class Rung(NamedTuple):
    """A step of a ladder, or a branch of it: another idea, which the way does not take."""

    number: int  # of the step; a branch has that of the rung ``instead_of`` which it stands
    name: str
    idea: str
    adds: str  # what it should bring over the rung before, of a branch over its rung
    seed: str  # where in which document it comes from
    kernel: str
    block: Block = Block(1)  # the usual one
    instead_of: str = ""
    macros: tuple[tuple[str, int], ...] = ()  # besides REAL, STEP, BX, BY and EACH
    # Columns and rows of results of a block; None: one block makes all.
    tile: Callable[[Block], tuple[int, int]] | None = None
    # ``shared(block, itemsize)``: bytes of shared memory.
    shared: Callable[[Block, int], int] = lambda block, item: 0
    each: tuple[int, ...] = ()  # results of a thread that a sweep tries; by default the block's
    legal: Callable[[Block], bool] = lambda block: True
    # ``derive(card, itemsize, blocks, *sizes)`` gives the block in place of ``block``.
    derive: Callable[..., Block] | None = None
    repeats: int = 1  # results of the whole problem that a launch makes, one after the other
    # The compute capability that it is for, in float32 alone; None: any device, both dtypes.
    capability: tuple[int, int] | None = None


class Step(NamedTuple):
    """A launch; ``held`` names a buffer that goes to constant memory before, ``cleared`` one that
    is set to zero, for blocks that wait for each other."""

    launch: Launch
    held: str = ""
    cleared: str = ""


class Steps(NamedTuple):
    """The launches of a rung, those that are made once before, bytes of the buffers between."""

    launches: tuple[Step, ...]
    before: tuple[Step, ...] = ()
    scratch: dict[str, int] = {}  # noqa: RUF012


class Ladder(NamedTuple):
    """A family's rungs by name, in their order, and
    ``steps(ladder, rung, block, dtype, card, *sizes)``, which gives the `Steps` of one."""

    family: str
    rungs: dict[str, Rung]
    steps: Callable[..., Steps]

    def blocks(self, name: str, dtype: str, card: Card) -> tuple[Block, ...]:
        """Every block that a rung can be launched with: powers of two, a warp at least."""
        rung, item = self.rungs[name], ELEMENT_BYTES[dtype]
        if rung.tile is None:
            return (rung.block,)
        most = min(card.block_threads, _THREADS)
        some = [1 << i for i in range(most.bit_length())]
        return tuple(
            block
            for x in some
            for y in some
            for each in rung.each or (rung.block.each,)
            if card.warp <= x * y <= most and rung.legal(block := Block(x, y, each))
            if rung.shared(block, item) <= min(card.block_shared, SHARED_BYTES)
        )

    def chosen(self, name: str, dtype: str, card: Card, sizes: Sequence[int]) -> Block:
        """The block that a rung is launched with: its own, or the next smaller that is legal."""
        rung, blocks = self.rungs[name], self.blocks(name, dtype, card)
        if rung.derive is not None:
            return rung.derive(card, ELEMENT_BYTES[dtype], blocks, *sizes)
        return max((block for block in blocks if block <= rung.block), default=blocks[0])

    def launch(
        self, rung: Rung, block: Block, dtype: str, results: Sequence[int], arguments: Any
    ) -> Launch:
        """A launch that makes rows x columns of results."""
        wide, high = results[::-1] if rung.tile is None else rung.tile(block)
        macros = {"REAL": REAL[dtype], "STEP": rung.number, "BX": block.x, "BY": block.y}
        defines = (*macros.items(), ("EACH", block.each), *rung.macros)
        grid = ceil_div(results[0], high) * ceil_div(results[1], wide)
        source = f"{self.family}/ladder.cu"
        return Launch(source, rung.kernel, defines, grid, block.x * block.y, arguments)


# A thread for each result of a tile; or for each of a line.
_each = partial(Rung, tile=lambda b: (b.x, b.y))
_line = partial(Rung, block=Block(128), tile=lambda b: (1, b.x * b.each), legal=lambda b: b.y == 1)


# -- C = A B, from one thread to White's last kernel, and on tensor cores --------------------------

_element = partial(_each, kernel="matmul_naive", block=Block(32, 4))
_ORDER = {"SWAPPED": 0, "NX": 1, "NY": 1, "GROUPED": 0, "DOWN": 0}  # where a rung has no other
_SQUARE = (("NX", 2), ("NY", 2))
_pattern = partial(_element, instead_of="naive", tile=lambda b: (2 * b.x, 2 * b.y), macros=_SQUARE)
_below = partial(_element, kernel="matmul_rows", tile=lambda b: (b.x, b.each * b.y))
_column = partial(
    Rung,
    kernel="matmul_column",
    block=Block(32, 8, 16),
    tile=lambda b: (b.x * b.y, b.each),
    shared=lambda b, item: b.each * b.x * item,
    each=(1, 2, 4, 8, 16),
)


def _shared(*row: object, rows: int = 1, tiles: int = 1, **other: object) -> Rung:
    """A thread has some rows of C, and a tile of A is used with some tiles of B."""
    return Rung(
        *row,
        kernel="matmul_shared",
        block=Block(32, 32 // rows),
        tile=lambda b: (tiles * b.x, rows * b.y),
        shared=lambda b, item: (rows * b.y + tiles * b.x) * b.x * item,
        macros=(("ROWS", rows), ("TILES", tiles)),
        **other,
    )


_pieces = partial(
    Rung,
    kernel="matmul_pieces",
    block=Block(256),
    seed="Ootomo and Yokota, IJHPCA 36 (2022)",
    capability=CAPABILITY,
)


def _matmul(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int) -> Steps:
    if rung.capability:
        return _by_pieces(rung, card, *sizes)
    rung = rung._replace(macros=(*(_ORDER | dict(rung.macros)).items(),))
    launch = ladder.launch(rung, block, dtype, sizes[:2], ("A", "B", "C", *sizes))
    return Steps((Step(launch),))


def _by_pieces(rung: Rung, card: Card, m: int, n: int, k: int) -> Steps:
    """The cuts into pieces and a kernel in place of the last one, with a block for each tile."""
    strides = {"a_strides": (m * k, k, 1), "b_strides": (k * n, n, 1), "c_strides": (m * n, n, 1)}
    form = oriented(VECTOR_BYTES, m=m, n=n, k=k, batch=1, dtype="float32", **strides)
    target = Target(card.multiprocessors, capability=CAPABILITY, warps=True)
    plan = by_pieces(form, target, VECTOR_BYTES)
    *cuts, product = plan.launches[:3]
    product = product._replace(
        source="ladder_tensor.cu",
        kernel=rung.kernel,
        defines=rung.macros or (("AHEAD", 0),),
        grid=ceil_div(m, PANEL) * ceil_div(n, PANEL),
        block=rung.block.x,
    )
    steps = tuple(map(Step, (*cuts, product)))
    return Steps(steps, (), {"partial": 4 * plan.workspace})


# fmt: off
_MATMUL = (
    Rung(1, "sequential", "one thread for everything",
         "nothing: what one lane of a multiprocessor is worth", "Jensen, gpu1",
         "matmul_sequential"),
    _element(2, "naive", "a thread for each element of C, neighbours along a row",
             "all multiprocessors work, and a warp reads whole lines of B",
             "White, listing 4.7; Jensen, gpu2; the book"),
    _element(2, "uncoalesced", "rows and columns swapped: neighbours along a column",
             "it loses: a warp asks for 32 rows of A and of C, a sector for each thread",
             "Ehlinger and Herb, 3.1",
             instead_of="naive", tile=lambda b: (b.y, b.x), macros=(("SWAPPED", 1),)),
    _pattern(2, "grouped", "rejected: 2 x 2 neighbours one after another for each thread",
             "it loses: a warp uses every other element of the lines of B that it reads",
             "White, figure 4.8a", macros=(*_SQUARE, ("GROUPED", 1))),
    _pattern(2, "row", "rejected: four elements of a row, a quarter of it apart",
             "nothing but fewer threads: reads stay coalesced, none is saved",
             "White, figure 4.8c", tile=lambda b: (4 * b.x, b.y), macros=(("NX", 4), ("NY", 1))),
    _pattern(2, "hybrid-row", "rejected: 2 x 2 elements, half of C apart, along the row first",
             "as row; with partitions of memory, the idle ones are met sooner",
             "White, figures 4.8d and 4.9"),
    _pattern(2, "hybrid-column", "rejected: 2 x 2 elements, half of C apart, columns first",
             "as hybrid-row: the order counts where memory has partitions",
             "White, figures 4.8d and 4.9", macros=(*_SQUARE, ("DOWN", 1))),
    _below(3, "rows2", "a thread has two elements of a column", "3 loads do what took 4",
           "Jensen, gpu3", block=Block(32, 4, 2)),
    _below(4, "rows4", "a thread has four elements of a column", "5 loads do what took 6",
           "Jensen, gpu4", block=Block(32, 4, 4)),
    _shared(5, "shared", "tiles of A and B in shared memory, one element of C a thread",
            "an element is asked of memory once for 32 uses",
            "White, listing 4.8; Jensen, gpu5; Ehlinger and Herb, kernel 4; the book; 18-645"),
    _shared(5, "tiles2", "aside: two tiles of B for each tile of A",
            "an element of A is used for twice as many products", "18-645, TILE_SZ = 2",
            tiles=2, instead_of="shared"),
    _shared(5, "tiles4", "aside: four tiles of B for each tile of A",
            "as tiles2, four times; shared memory has room for fewer blocks",
            "18-645, TILE_SZ = 4", tiles=4, instead_of="shared"),
    _shared(5, "shared4", "aside: four elements of a column a thread, as rows4",
            "two reads of shared memory for a product become 1.25",
            "Jensen, gpu4 and gpu5 together", rows=4, instead_of="shared"),
    _column(6, "column", "only A in shared memory, sixteen elements of a column in registers",
            "one read of memory is used for 16 products, and no thread waits for a tile of B",
            "White, listing 4.10"),
    _column(7, "rotated", "blocks begin at different tiles of k",
            "partitions of memory share the load; nothing where addresses are hashed",
            "White, listing 4.12"),
    _column(8, "unrolled", "fine-tuned: a pointer moves along B, loops are unrolled",
            "fewer instructions for each product; nothing where the compiler did it",
            "White, listing 4.17"),
    _column(9, "tuned", "the block and the elements of a thread by White's five steps",
            "multiprocessors are full, and the last wave of blocks is not nearly empty",
            "White, section 4.5", derive=procedure.matmul_block),
    _pieces(10, "wgmma", "two float16 pieces of each number, multiplied by tensor cores",
            "three products of pieces at 16 times the rate of float32's"),
    _pieces(11, "ahead", "one thread asks for bulk copies, five steps ahead of the products",
            "threads do not copy, and pieces are there when products begin",
            macros=(("AHEAD", 5),)),
    _pieces(12, "groups", "a group of warps copies, two multiply and wait for nobody",
            "no barrier of all threads; products follow each other without a gap",
            kernel="multiply_pieces", block=Block(384)),
)
# fmt: on


# -- y = A x, from a thread for each row to White's last kernel ------------------------------------

_rows = partial(_line, kernel="matvec_naive", macros=(("SPREAD", 0),))
_several = partial(_rows, instead_of="naive", block=Block(128, 1, 4), each=(2, 4, 8, 16, 32))
_square = partial(  # of BX rows; BY threads share a row
    Rung,
    kernel="matvec_squares",
    block=Block(32, 8),
    tile=lambda b: (1, b.x),
    shared=lambda b, item: b.x * (b.x + 1) * item,
    legal=lambda b: b.y <= b.x,
)


def _matvec(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int) -> Steps:
    held = "x" if rung.number > 1 else ""
    arguments = ("A", "held" if held else "x", "y", *sizes)
    return Steps((Step(ladder.launch(rung, block, dtype, (sizes[0], 1), arguments), held),))


# fmt: off
_MATVEC = (
    _rows(1, "naive", "a thread for each row of A", "all multiprocessors work, if rows are enough",
          "White, listing 4.2"),
    _several(1, "grouped", "rejected: a thread has several rows, neighbours",
             "it loses: fewer threads have fewer loads in flight", "White, figure 4.5a"),
    _several(1, "spread", "rejected: several rows, as far apart as there are threads",
             "as grouped: whether threads read one row apart or several, none coalesce",
             "White, figures 4.5b and 4.6", macros=(("SPREAD", 1),)),
    _rows(2, "constant", "x in constant memory", "half of the loads no longer go through the L1",
          "White, listing 4.4"),
    _square(3, "shared", "a square of A goes to shared memory by whole lines",
            "each sector of A is asked for once, not once for each of its elements",
            "White, listing 4.6", block=Block(32, 1), legal=lambda b: b.y == 1),
    _square(4, "split", "several threads share a row", "as many times the loads in flight",
            "White, listing 4.9"),
    _square(5, "padded", "lines of the square take one element more",
            "no two threads of a warp meet in a bank of shared memory", "White, listing 4.11"),
    _square(6, "unrolled", "fine-tuned: loops unrolled, pointers move along",
            "nothing is issued but loads and sums", "White, listing 4.16",
            kernel="matvec_unrolled"),
    _square(7, "tuned", "the block by White's five steps",
            "enough loads in flight for each multiprocessor", "White, section 4.5",
            kernel="matvec_unrolled", derive=procedure.matvec_block),
)
# fmt: on


# -- Convolution, from a thread for each result to White's last kernel -----------------------------

_TAPS_BYTES = 256  # alignment of the rows of a padded filter
_PIECE = 16  # taps that are unrolled
_pixel = partial(_each, kernel="convolve_naive", block=Block(32, 16))
_tiles = partial(_pixel, shared=lambda b, item: (2 * b.x * b.y + max(b.x, b.y)) * item)


def _filter(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int) -> Steps:
    rows, columns, taps_y, taps_x = sizes
    results, out = (rows, columns), ("out", *sizes)
    rung = rung._replace(macros=(("TAIL", taps_x % min(_PIECE, block.x)),))
    if rung.number < 4:
        return Steps((Step(ladder.launch(rung, block, dtype, results, ("image", "taps", *out))),))
    item = ELEMENT_BYTES[dtype]
    pieces, line = ceil_div(taps_x, block.x) * block.x, _TAPS_BYTES // item
    high = ceil_div(rows, block.y) * block.y + taps_y - 1
    pitch = ceil_div(columns, block.x) * block.x + pieces
    tap_pitch = ceil_div(pieces, line) * line
    arguments = ("padded", "padded_taps", *out, pitch, tap_pitch)
    main = ladder.launch(rung, block, dtype, results, arguments)

    def copy(*arguments: str | int) -> Step:
        grid = ceil_div(arguments[-2] * arguments[-1], main.block)
        return Step(main._replace(kernel="pad", grid=grid, arguments=arguments))

    image = copy("image", "padded", *results, taps_y // 2, taps_x // 2, high, pitch)
    taps = copy("taps", "padded_taps", taps_y, taps_x, 0, 0, taps_y, tap_pitch)
    scratch = {"padded": high * pitch * item, "padded_taps": taps_y * tap_pitch * item}
    return Steps((image, taps, Step(main)), (), scratch)


# fmt: off
_CONVOLUTION = (
    _pixel(1, "naive", "a thread for each result", "all multiprocessors work",
           "White, listing 5.1"),
    _tiles(2, "shared", "image and filter pass through shared memory, by the filter's columns",
           "a load of the image is used for half as many products as a block has rows",
           "White, listing 5.2", kernel="convolve_shared"),
    _tiles(3, "row", "the filter is gone through by rows",
           "a load is used for more products: a block has more columns than rows",
           "White, listing 5.3", kernel="convolve_row"),
    _tiles(4, "padded", "the image is extended, the filter's rows aligned, in a copy before",
           "no tests of edges, so that the threads of a warp never part",
           "White, listing 5.4", kernel="convolve_padded"),
    _tiles(5, "unrolled", "fine-tuned: loops unrolled, pointers move along",
           "nothing is issued but products and their loads",
           "White, listing 5.5", kernel="convolve_unrolled"),
    _tiles(6, "tuned", "the block by White's five steps",
           "a row of taps takes few pieces, and all multiprocessors are full",
           "White, section 5.1.5", kernel="convolve_unrolled", derive=procedure.convolution_block),
)
# fmt: on


# -- A sweep of Jacobi's method, from one thread to a loop on the device ---------------------------

_SWEEPS = 16  # that a launch of "persistent" makes
_point = partial(_each, block=Block(32, 8))


def _sweeps(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *grid: int) -> Steps:
    factor = 0.25 / (grid[0] + 1) ** 2
    if rung.name == "persistent":
        room = min(SHARED_BYTES, card.block_shared)
        rung = rung._replace(macros=(("SHARED_BYTES", room),))
    launch = ladder.launch(rung, block, dtype, grid, ("u", "f", "u_new", *grid, factor))
    if rung.name != "persistent":
        return Steps((Step(launch),))
    share = ceil_div(grid[0], card.at_once)
    arguments = ("u", "f", "u_new", "arrivals", *grid, share, _SWEEPS, factor)
    launch = launch._replace(grid=ceil_div(grid[0], share), arguments=arguments)
    return Steps((Step(launch, cleared="arrivals"),), (), {"arrivals": 4})


# fmt: off
_JACOBI = (
    Rung(1, "sequential", "one thread for all points", "the method is right",
         "Jensen, figure 7", "jacobi_sequential"),
    _point(2, "naive", "a thread for each point", "all multiprocessors work",
           "Jensen, figure 8", "jacobi_naive"),
    _point(3, "shared", "a tile and the points around it go to shared memory",
           "a point is asked for once for a tile, not for each neighbour; caches did that",
           "Jensen, 2.2.2", "jacobi_shared", shared=lambda b, item: (b.x + 2) * (b.y + 2) * item),
    _point(4, "persistent", "loop and swap on the device, f stays in shared memory",
           "a launch makes many sweeps, and f no longer comes from memory: a third less moves",
           "Jensen, 2.2.2", "jacobi_persistent", block=Block(32, 32), repeats=_SWEEPS),
)
# fmt: on


# -- Labels of k-means, and how many of them changed -----------------------------------------------

_COUNTED = 1024  # blocks whose counts are added up
_nearest = partial(_line, kernel="kmeans_nearest")


def _labels(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int) -> Steps:
    n, d, _ = sizes
    turned = rung.number > 1
    x, *strides = ("turned", 1, n) if turned else ("X", d, 1)
    arguments = (x, "centroids", "labels", "changed", *sizes, *strides)
    nearest = ladder.launch(rung, block, dtype, (n, 1), arguments)

    def other(kernel: str, grid: int, *arguments: str | int, threads: int = block.x) -> Step:
        fields = {"kernel": f"kmeans_{kernel}", "grid": grid, "block": threads}
        return Step(nearest._replace(**fields, arguments=arguments))

    before = (other("turn", ceil_div(n * d, block.x), "X", "turned", n, d),) if turned else ()
    blocks = min(nearest.grid, _COUNTED)
    count = (other("count", 1, "changed", "total", n, threads=1),)
    if rung.number > 2:
        count = (
            other("reduce", blocks, "changed", "sums", n, blocks),
            other("reduce", 1, "sums", "total", blocks, 1),
        )
    scratch = {"turned": n * d * ELEMENT_BYTES[dtype], "sums": 4 * _COUNTED}
    return Steps((Step(nearest), *count), before, scratch)


# fmt: off
_KMEANS = (
    _nearest(1, "naive", "a thread for each point, its elements together",
             "all multiprocessors work", "18-645, table 2 (AOS)"),
    _nearest(2, "coalesced", "elements of neighbouring points lie together",
             "a warp reads whole lines; points of few elements share lines anyway",
             "18-645, table 2 (SOA)"),
    _nearest(3, "reduction", "blocks count the labels that changed, by a tree",
             "the count no longer waits for one thread", "18-645, bug fixing"),
    _nearest(4, "occupancy", "blocks of 512 threads",
             "more threads fit on a multiprocessor; nothing where blocks of 128 fill it",
             "18-645, table 1", block=Block(512)),
)
# fmt: on

LADDERS = {
    family: Ladder(family, {rung.name: rung for rung in rungs}, steps)
    for family, rungs, steps in (
        ("matmul", _MATMUL, _matmul),
        ("matvec", _MATVEC, _matvec),
        ("convolution", _CONVOLUTION, _filter),
        ("jacobi", _JACOBI, _sweeps),
        ("kmeans", _KMEANS, _labels),
    )
}
