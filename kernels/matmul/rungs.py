"""Launch plans of the steps of the way to this family's best kernels."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

from ..common.launch import REAL, VECTOR_BYTES, Launch, LaunchPlan, ceil_div, check_dtype
from ..common.rungs import Rung
from ..procedure import derive, reckon
from ..procedure.card import Card
from ..procedure.derive import Shape

__all__ = ["CPU_RUNGS", "RUNGS", "Shape", "chosen", "plan_rung", "shapes"]

RUNGS = {
    "sequential": Rung(1, "one thread does everything", "nothing: what one lane is worth"),
    "naive": Rung(
        2,
        "a thread for each element of C, neighbours along a row",
        "all multiprocessors work, and a warp reads whole lines of B",
    ),
    "rows2": Rung(3, "a thread has two elements of a column", "3 loads do what took 4"),
    "rows4": Rung(4, "a thread has four elements of a column", "5 loads do what took 6"),
    "shared": Rung(
        5,
        "tiles of A and B in shared memory",
        "an element is asked of memory once for 32 uses or 64; 1.25 reads of a product become 0.5",
    ),
    "column": Rung(
        6,
        "only A in shared memory, sixteen elements of a column in registers",
        "0.5 reads of shared memory for each product become 0.25, one of memory serves 16",
    ),
    "rotated": Rung(
        7,
        "blocks begin at different tiles of k",
        "partitions of memory share the load; nothing where addresses are hashed",
    ),
    "tuned": Rung(
        8,
        "the block's shape and the elements of a thread derived for the card and the sizes",
        "no wave of blocks is nearly empty, and multiprocessors are as full as can be",
    ),
    "registers": Rung(
        9,
        "both tiles in shared memory, 8 x 8 elements of C for each thread",
        "a quarter of an element of shared memory for each product; one of memory serves 128",
    ),
    "quads": Rung(
        10,
        "shared memory is read 16 bytes at a time",
        "a quarter of the reading instructions: a warp's issue slots are left for products",
    ),
    "buffered": Rung(
        11,
        "the next tiles are on their way while these are multiplied",
        "no wait for memory, one barrier a step instead of two",
    ),
}
CPU_RUNGS = {
    "sequential": Rung(1, "i-j-k, a row of A times a column of B", "nothing: the definition"),
    "reordered": Rung(2, "i-k-j, a row of C is a sum of rows of B", "lines of B, and vectors"),
    "unrolled": Rung(3, "four rows of B at a time", "six accesses for four products, not twelve"),
    "blocked": Rung(4, "tiles of B, each for all rows of A", "B comes from the core's own cache"),
    "parallel": Rung(5, "a range of rows for each thread", "as many times as cores", True),
}
_COLUMNS = ("column", "rotated", "tuned")
_SQUARES = ("registers", "quads", "buffered")  # of elements of C for each thread
_SOURCES = {
    "shared": "matmul_rungs_shared.cu",
    **dict.fromkeys(_COLUMNS, "matmul_rungs_column.cu"),
    **dict.fromkeys(_SQUARES, "matmul_rungs_registers.cu"),
}
_KERNELS = {"rows2": "rows", "rows4": "rows", "rotated": "column", "tuned": "column"}
_KERNELS |= dict.fromkeys(_SQUARES, "registers")
_SHAPES = {
    "sequential": Shape(1, 1),
    "naive": Shape(32, 4),  # a row of a warp each: what one thread reads of A all do
    "rows2": Shape(32, 4, 2),
    "rows4": Shape(32, 4, 4),
    "shared": Shape(64, 8, 4),
    "column": Shape(32, 8, 16),
}
_SHAPES |= {"rotated": _SHAPES["column"], "tuned": _SHAPES["column"]}
_SHAPES |= dict.fromkeys(_SQUARES, Shape(16, 16, 64))
_BUFFERED_FLOAT32 = Shape(16, 8, 64)  # two blocks find registers
_DEPTH = 32  # columns of a tile of A in shared memory
_SQUARE_DEPTH = 8  # of those with a square of elements for each thread
_PARTITIONS = 8  # of the Tesla T10's memory
_THREADS = 1024  # of a block: OpenCL's CPUs take more, for nothing
_ROOMY = 256  # threads of a block that have all registers there are for one
_SHARED_REGISTERS = 40  # of a thread of "shared": all it needs, and three blocks of 512 fit
_STATIC_BYTES = 48 << 10  # of arrays of a constant size


@lru_cache(maxsize=256)
def shapes(rung: str, dtype: str, card: Card) -> tuple[Shape, ...]:
    """Every shape of a block that a rung can be launched with; powers of two."""
    item = check_dtype(dtype)
    own = _SHAPES[rung]
    if rung == "sequential":
        return (own,)
    if rung in _COLUMNS:
        some = derive.shapes_matmul(card, dtype)
        if rung != "tuned":
            some = tuple(shape for shape in some if shape.elements == own.elements)
    else:
        powers = [1 << i for i in range(min(card.block_threads, _THREADS).bit_length())]
        some = tuple(Shape(x, y, own.elements) for x in powers for y in powers)
    most = min(card.block_shared, _STATIC_BYTES)
    return tuple(
        shape
        for shape in some
        if card.warp <= shape.x * shape.y <= min(card.block_threads, _THREADS)
        and _shared_bytes(rung, shape, item) <= most
        and shape.x * shape.y * _least_registers(rung, item, shape.elements) <= card.registers
    )


def _shared_bytes(rung: str, shape: Shape, item: int) -> int:
    """Of the arrays in shared memory."""
    x, y, elements = shape
    if rung == "shared":
        return elements * y * (_DEPTH * item + VECTOR_BYTES) + _DEPTH * x * item
    if rung in _SQUARES:
        pair = _SQUARE_DEPTH * ((x + y) * isqrt(elements) * item + VECTOR_BYTES)
        return pair * (1 + (rung == "buffered"))
    return elements * x * item if rung in _COLUMNS else 0


def _least_registers(rung: str, item: int, elements: int) -> int:
    """Of a thread, so that no sum lies in memory."""
    if rung in _SQUARES:
        return 40 + (elements + 3 * isqrt(elements)) * item // 4
    return reckon.least_registers(item, elements)


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
        `shapes`. Default: the rung's own.

    Raises
    ------
    ValueError
        For a shape that is none of `shapes`.
    """
    there = shapes(rung, dtype, card)
    if shape is None:
        shape = chosen(rung, dtype, m * batch, n, k, card)
    elif shape not in there:
        raise ValueError(f"shape must be one of {', '.join(map(_text, there))}, got {_text(shape)}")
    x, y, elements = shape
    defines: list[tuple[str, int | str]] = [("REAL", REAL[dtype])]
    if rung != "sequential":
        defines += [("BX", x), ("BY", y)]
    if rung in _SQUARES:
        group = 1 if rung == "registers" else VECTOR_BYTES // check_dtype(dtype)
        tiles = 1 + (rung == "buffered")
        defines += [("SIDE", isqrt(elements)), ("DEPTH", _SQUARE_DEPTH)]
        # Two blocks wait in turn; what "buffered" holds needs more registers than they leave it.
        two = dtype == "float32" and tiles == 1 and x * y == _ROOMY
        defines += [("GROUP", group), ("TILES", tiles), ("RESIDENT", 1 + two)]
    elif elements > 1 or rung == "tuned":
        defines.append(("ROWS", elements))
    if rung == "shared":
        # In blocks of other shapes a thread loads more of the tiles, which takes registers.
        enough = card.warp <= x <= 2 * card.warp and x * y >= _ROOMY
        blocks = card.registers // (_SHARED_REGISTERS * x * y) if enough else 1
        defines += [("DEPTH", _DEPTH), ("RESIDENT", max(1, blocks))]
    if rung == "rotated":
        defines.append(("ROTATED", _PARTITIONS))
    if rung in _COLUMNS and (dtype, elements) == ("float64", 16):
        # Fewer loads at once where registers do not suffice for eight, or for a second block.
        if x * y > _ROOMY:
            defines.append(("STEP", 4))
        elif x * y == _ROOMY and rung != "tuned":
            defines += [("STEP", 4), ("RESIDENT", 2)]
    if rung in _SQUARES:
        columns, rows = x * isqrt(elements), y * isqrt(elements)
    else:
        columns, rows = (x * y, elements) if rung in _COLUMNS else (x, y * elements)
    grid = ceil_div(m, rows) * ceil_div(n, columns) * batch
    strides = (*a_strides, *b_strides, *c_strides)
    launch = Launch(
        source=_SOURCES.get(rung, "matmul_rungs.cu"),
        kernel=f"matmul_{_KERNELS.get(rung, rung)}",
        defines=tuple(defines),
        grid=1 if rung == "sequential" else grid,
        block=x * y,
        arguments=("A", "B", "C", m, n, k, *strides, *((batch,) * (rung == "sequential"))),
    )
    return LaunchPlan((launch,), 0, f"{rung}{_text(shape)}")


@lru_cache(maxsize=4096)
def chosen(rung: str, dtype: str, m: int, n: int, k: int, card: Card) -> Shape:
    """The shape of a rung unless one is given.

    Of "tuned" the one of `shapes` that the execution metrics reckon to be fastest, as in
    `hetero.kernels.procedure.derive.matmul`; so of others, where a device does not take their own.
    """
    own, there = _SHAPES[rung], shapes(rung, dtype, card)
    if (rung, dtype) == ("buffered", "float32"):
        own = _BUFFERED_FLOAT32
    if rung != "tuned" and own in there:
        return own
    if rung in _SQUARES:
        return max(there, key=lambda shape: (shape.x * shape.y, -abs(shape.x - shape.y)))
    return min(there, key=lambda shape: reckon.matmul(card, check_dtype(dtype), shape, m, n, k))


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape))
