"""Launch plans of the steps of the way to this family's best kernels."""

from __future__ import annotations

from functools import partial

from ..common.launch import VECTOR_BYTES, LaunchPlan, check_dtype
from ..common.rungs import Ladder, Rung, text
from ..procedure import derive, reckon
from ..procedure.card import Card
from ..procedure.derive import Shape

__all__ = ["CPU_RUNGS", "RUNGS", "Shape", "plan_rung"]

_DEPTH = 32  # columns of a tile of A in shared memory
_ROWS = 4  # elements of a column for each thread of "shared" and its branches
_SIDE = _SQUARE_DEPTH = 8  # of those with a square of elements for each thread
_PARTITIONS = 8  # of the Tesla T10's memory
_ROOMY = 256  # threads of a block that have all registers there are for one
_PATTERN_REGISTERS = 42  # of a thread of White's patterns
_SHARED_REGISTERS = 40  # of a thread of "shared": all it needs, and three blocks of 512 fit


def _least_registers(shape: Shape, item: int) -> int:
    return reckon.least_registers(item, shape.elements)


def _square_registers(shape: Shape, item: int) -> int:
    return 40 + (_SIDE + 3) * _SIDE * item // 4


def _tiles_bytes(shape: Shape, item: int) -> int:
    """Of a tile of A and of as many of B as a thread has columns."""
    x, y, elements = shape
    held_b = _DEPTH * x * elements // _ROWS * item
    return _ROWS * y * (_DEPTH * item + VECTOR_BYTES) + held_b


def _squares_bytes(pairs: int, shape: Shape, item: int) -> int:
    return pairs * _SQUARE_DEPTH * ((shape.x + shape.y) * _SIDE * item + VECTOR_BYTES)


def _columns(card: Card, dtype: str, elements: int | None = None) -> list[Shape]:
    """White's blocks, with a number of elements for each thread or any."""
    some = derive.shapes_matmul(card, dtype)
    return [shape for shape in some if elements in (None, shape.elements)]


_of_memory = partial(Rung, registers=_least_registers)
_pattern = partial(_of_memory, instead_of="naive", kernel="matmul_pattern", shape=Shape(32, 4, 4))
_tiles = partial(
    _of_memory,
    source="matmul_rungs_shared.cu",
    kernel="matmul_shared",
    tile=lambda x, y, elements: (x * elements // _ROWS, y * _ROWS),
    macros=(("ROWS", _ROWS), ("DEPTH", _DEPTH)),
    shared=_tiles_bytes,
)
_rows = partial(
    _of_memory,
    kernel="matmul_rows",
    tile=lambda x, y, elements: (x, y * elements),
    names=("BX", "BY", "ROWS"),
)
_column = partial(
    _of_memory,
    source="matmul_rungs_column.cu",
    kernel="matmul_column",
    shape=Shape(32, 8, 16),
    tile=lambda x, y, elements: (x * y, elements),
    names=("BX", "BY", "ROWS"),
    legal=_columns,
    shared=lambda shape, item: shape.elements * shape.x * item,
)
_square = partial(
    Rung,
    source="matmul_rungs_registers.cu",
    kernel="matmul_registers",
    shape=Shape(16, 16, _SIDE**2),
    tile=lambda x, y, elements: (x * _SIDE, y * _SIDE),
    macros=(("SIDE", _SIDE), ("DEPTH", _SQUARE_DEPTH)),
    shared=partial(_squares_bytes, 1),
    registers=_square_registers,
)
RUNGS = Ladder(
    "matmul",
    {
        "sequential": Rung(
            "one thread does everything", "nothing: what one lane is worth", "Jensen 2017, gpu1"
        ),
        "naive": _of_memory(
            "a thread for each element of C, neighbours along a row",
            "all multiprocessors work, and a warp reads whole lines of B",
            "White 2013, listing 4.7; Jensen 2017, gpu2",
            shape=Shape(32, 4),  # a row of a warp each: what one thread reads of A all do
            tile=lambda x, y, elements: (x, y),
        ),
        "uncoalesced": _of_memory(
            "rows and columns swapped: neighbours along a column",
            "it loses: a warp asks for 32 rows of A and of C, a sector for each thread",
            "Ehlinger and Herb 2016, section 3.1",
            instead_of="naive",
            kernel="matmul_naive",
            shape=Shape(32, 4),
            tile=lambda x, y, elements: (y, x),
            macros=(("SWAPPED", 1),),
        ),
        "grouped": _pattern(
            "rejected: 2 x 2 neighbours one after another for each thread",
            "it loses: a warp uses every other element of the lines of B that it reads",
            "White 2013, figure 4.8a",
            tile=lambda x, y, elements: (2 * x, 2 * y),
            macros=(("NX", 2), ("NY", 2), ("GROUPED", 1)),
        ),
        "row": _pattern(
            "rejected: four elements of a row, a quarter of it apart, one after another",
            "nothing but fewer threads: reads stay coalesced, none is saved",
            "White 2013, figure 4.8c",
            tile=lambda x, y, elements: (4 * x, y),
            macros=(("NX", 4), ("NY", 1)),
        ),
        "hybrid-row": _pattern(
            "rejected: 2 x 2 elements, half of C apart, along the row first",
            "as row; with partitions of memory, the idle ones are met sooner",
            "White 2013, figures 4.8d and 4.9",
            tile=lambda x, y, elements: (2 * x, 2 * y),
            macros=(("NX", 2), ("NY", 2)),
        ),
        "hybrid-column": _pattern(
            "rejected: 2 x 2 elements, half of C apart, down the column first",
            "as hybrid-row: the order counts where memory has partitions",
            "White 2013, figures 4.8d and 4.9",
            tile=lambda x, y, elements: (2 * x, 2 * y),
            macros=(("NX", 2), ("NY", 2), ("DOWN", 1)),
        ),
        "rows2": _rows(
            "a thread has two elements of a column",
            "3 loads do what took 4",
            "Jensen 2017, gpu3",
            shape=Shape(32, 4, 2),
        ),
        "rows4": _rows(
            "a thread has four elements of a column",
            "5 loads do what took 6",
            "Jensen 2017, gpu4",
            shape=Shape(32, 4, 4),
        ),
        "shared": _tiles(
            "tiles of A and B in shared memory",
            "an element is asked of memory once for 32 uses or 64; 1.25 reads of a product "
            "become 0.5",
            "White 2013, listing 4.8; Jensen 2017, gpu5",
            shape=Shape(64, 8, _ROWS),
        ),
        "tiles2": _tiles(
            "aside: two tiles of B for each tile of A",
            "an element of A serves twice as many products, from memory and from shared memory",
            "18-645 report 2014, tile buffering, TILE_SZ = 2",
            instead_of="shared",
            shape=Shape(64, 8, 2 * _ROWS),
            macros=(("ROWS", _ROWS), ("DEPTH", _DEPTH), ("TILES", 2)),
        ),
        "tiles4": _tiles(
            "aside: four tiles of B for each tile of A",
            "as tiles2, four times; shared memory and registers leave room for fewer blocks",
            "18-645 report 2014, tile buffering, TILE_SZ = 4",
            instead_of="shared",
            shape=Shape(64, 8, 4 * _ROWS),
            macros=(("ROWS", _ROWS), ("DEPTH", _DEPTH), ("TILES", 4)),
        ),
        "column": _column(
            "only A in shared memory, sixteen elements of a column in registers",
            "0.5 reads of shared memory for each product become 0.25, one of memory serves 16",
            "White 2013, listing 4.10",
        ),
        "rotated": _column(
            "blocks begin at different tiles of k",
            "partitions of memory share the load; nothing where addresses are hashed",
            "White 2013, listing 4.12",
            macros=(("ROTATED", _PARTITIONS),),
        ),
        "unrolled": _column(
            "fine-tuned: a pointer moves along instead of products of indices, loops are unrolled",
            "fewer instructions for each product; nothing where the compiler did it",
            "White 2013, listing 4.17",
            macros=(("ROTATED", _PARTITIONS), ("FINE", 1)),
        ),
        "tuned": _column(
            "the block's shape and the elements of a thread derived for the card and the sizes",
            "no wave of blocks is nearly empty, and multiprocessors are as full as can be",
            "White 2013, section 4.5",
            macros=(("FINE", 1),),
            legal=lambda card, dtype, elements: _columns(card, dtype),
            reckon=reckon.matmul,
        ),
        "registers": _square(
            "both tiles in shared memory, 8 x 8 elements of C for each thread",
            "a quarter of an element of shared memory for each product; one of memory serves 128",
        ),
        "quads": _square(
            "shared memory is read 16 bytes at a time",
            "a quarter of the reading instructions: a warp's issue slots are left for products",
        ),
        "buffered": _square(
            "the next tiles are on their way while these are multiplied",
            "no wait for memory, one barrier a step instead of two",
            shared=partial(_squares_bytes, 2),
            shape32=Shape(16, 8, _SIDE**2),  # two blocks find registers
            macros=(("SIDE", _SIDE), ("DEPTH", _SQUARE_DEPTH), ("TILES", 2)),
        ),
    },
)
CPU_RUNGS = Ladder(
    "matmul",
    {
        "sequential": Rung("i-j-k, a row of A times a column of B", "nothing: the definition"),
        "reordered": Rung("i-k-j, a row of C is a sum of rows of B", "lines of B, and vectors"),
        "unrolled": Rung("four rows of B at a time", "six accesses for four products, not twelve"),
        "blocked": Rung("tiles of B, each for all rows of A", "B comes from the core's own cache"),
        "parallel": Rung("a range of rows for each thread", "as many times as cores", threads=True),
    },
)


def plan_rung(
    rung: str,
    *,
    m: int,
    n: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    b_strides: tuple[int, int, int],
    c_strides: tuple[int, int, int],
    card: Card,
    shape: Shape | None = None,
) -> LaunchPlan:
    """Plan C = A B for a batch of m x k and k x n matrices by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    m, n, k, batch, dtype, a_strides, b_strides, c_strides
        As for `plan_matmul`.
    card : Card
        The device; "tuned" derives its shape from it.
    shape : Shape, optional
        Threads of a block, along a row of C and across, and elements of C of a thread, one of
        `Ladder.shapes`. Default: the rung's own.

    Raises
    ------
    ValueError
        For a shape that is none of those.
    """
    shape = RUNGS.chosen(rung, dtype, (m * batch, n, k), card, shape)
    strides = (*a_strides, *b_strides, *c_strides)
    arguments = ("A", "B", "C", m, n, k, *strides, *((batch,) * (rung == "sequential")))
    macros = _macros(rung, shape, dtype, card)
    launch = RUNGS.launch(rung, shape, dtype, (batch, m, n), arguments, *macros)
    return LaunchPlan((launch,), 0, f"{rung}{text(shape)}")


def _macros(rung: str, shape: Shape, dtype: str, card: Card) -> list[tuple[str, int]]:
    """What else a kernel needs to know: mostly how many blocks are to find registers."""
    (x, y, elements), kernel, item = shape, RUNGS[rung].kernel, check_dtype(dtype)
    threads = x * y
    if kernel == "matmul_registers":
        # Two blocks wait in turn; what "buffered" holds needs more registers than they leave it.
        two = dtype == "float32" and rung != "buffered" and threads == _ROOMY
        group = 1 if rung == "registers" else VECTOR_BYTES // item
        return [("GROUP", group), ("RESIDENT", 1 + two)]
    if kernel == "matmul_shared":
        # In blocks of other shapes a thread loads more of the tiles, which takes registers.
        enough = card.warp <= x <= 2 * card.warp and threads >= _ROOMY
        each = _SHARED_REGISTERS + (elements - _ROWS) * item // 2
        return [("RESIDENT", max(1, card.registers // (each * threads)) if enough else 1)]
    if kernel == "matmul_pattern":  # as many warps as "naive" has, or nearly
        resident = card.registers // (_PATTERN_REGISTERS * threads)
        return [("RESIDENT", max(1, min(resident, card.blocks)))]
    if rung in ("unrolled", "tuned") and (dtype, elements) == ("float64", 16):
        # Fewer loads at once where registers do not suffice for eight, or for a second block.
        if threads > _ROOMY:
            return [("STEP", 4)]
        if threads == _ROOMY and rung != "tuned":
            return [("STEP", 4), ("RESIDENT", 2)]
    return []
