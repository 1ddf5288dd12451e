"""The steps of ladder.cu, C = A B from one thread to White's last kernel, and of ladder_tensor.cu,
from a first product on tensor cores to that of `plan_tensor`."""

from __future__ import annotations

from functools import partial

from .. import procedure
from ..common.ladder import Block, Ladder, Rung, Step, Steps
from ..common.launch import VECTOR_BYTES, Target, ceil_div
from ..procedure import Card
from .plan import oriented
from .plan_tensor import CAPABILITY, PANEL, by_pieces

_memory = partial(Rung, kernel="matmul_naive", block=Block(32, 4), tile=lambda b: (b.x, b.y))
_ORDER = {"SWAPPED": 0, "NX": 1, "NY": 1, "GROUPED": 0, "DOWN": 0}  # where a rung has no other
_SQUARE = (("NX", 2), ("NY", 2))
_pattern = partial(_memory, instead_of="naive", tile=lambda b: (2 * b.x, 2 * b.y), macros=_SQUARE)
_rows = partial(_memory, kernel="matmul_rows", tile=lambda b: (b.x, b.each * b.y))
_column = partial(
    Rung,
    kernel="matmul_column",
    block=Block(32, 8, 16),
    tile=lambda b: (b.x * b.y, b.each),
    shared=lambda b, item: b.each * b.x * item,
    each=(1, 2, 4, 8, 16),
)


def _shared(*row: object, rows: int = 1, tiles: int = 1, **other: object) -> Rung:
    """A thread has some rows of C, and a tile of A serves some tiles of B."""
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


def _steps(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int) -> Steps:
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
    return Steps(
        tuple(Step(launch) for launch in (*cuts, product)), (), {"partial": 4 * plan.workspace}
    )


# fmt: off
_RUNGS = (
    Rung(1, "sequential", "one thread for everything",
         "nothing: what one lane of a multiprocessor is worth", "Jensen, gpu1",
         "matmul_sequential"),
    _memory(2, "naive", "a thread for each element of C, neighbours along a row",
            "all multiprocessors work, and a warp reads whole lines of B",
            "White, listing 4.7; Jensen, gpu2; the book"),
    _memory(2, "uncoalesced", "rows and columns swapped: neighbours along a column",
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
    _rows(3, "rows2", "a thread has two elements of a column", "3 loads do what took 4",
          "Jensen, gpu3", block=Block(32, 4, 2)),
    _rows(4, "rows4", "a thread has four elements of a column", "5 loads do what took 6",
          "Jensen, gpu4", block=Block(32, 4, 4)),
    _shared(5, "shared", "tiles of A and B in shared memory, one element of C a thread",
            "an element is asked of memory once for 32 uses",
            "White, listing 4.8; Jensen, gpu5; Ehlinger and Herb, kernel 4; the book; 18-645"),
    _shared(5, "tiles2", "aside: two tiles of B for each tile of A",
            "an element of A serves twice as many products", "18-645, TILE_SZ = 2",
            tiles=2, instead_of="shared"),
    _shared(5, "tiles4", "aside: four tiles of B for each tile of A",
            "as tiles2, four times; shared memory has room for fewer blocks",
            "18-645, TILE_SZ = 4", tiles=4, instead_of="shared"),
    _shared(5, "shared4", "aside: four elements of a column a thread, as rows4",
            "two reads of shared memory for a product become 1.25",
            "Jensen, gpu4 and gpu5 together", rows=4, instead_of="shared"),
    _column(6, "column", "only A in shared memory, sixteen elements of a column in registers",
            "one read of memory serves 16 products, and no thread waits for a tile of B",
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
LADDER = Ladder("matmul", {rung.name: rung for rung in _RUNGS}, _steps)
