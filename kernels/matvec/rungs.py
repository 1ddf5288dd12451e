"""Launch plans of the steps of the way to this family's best kernels: naive to tuned."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from ..common.launch import REAL, Launch, LaunchPlan, ceil_div, check_dtype
from ..common.rungs import Rung
from ..procedure import derive, reckon
from ..procedure.card import Card
from ..procedure.derive import Shape

__all__ = ["CPU_RUNGS", "RUNGS", "HeldPlan", "Piece", "Shape", "chosen", "plan_rung", "shapes"]

RUNGS = {
    "naive": Rung(1, "a thread for each row of A", "all multiprocessors work, if rows are enough"),
    "constant": Rung(
        2,
        "x in constant memory, by pieces of 64 KiB",
        "half of the loads no longer go through the L1",
    ),
    "shared": Rung(
        3,
        "a square of A goes to shared memory by whole lines",
        "each sector of A is asked for once, not once for each of its elements",
    ),
    "split": Rung(4, "several threads share a row", "as many times the loads in flight"),
    "padded": Rung(
        5,
        "lines of the square take one element more; blocks start at different columns",
        "no two threads of a warp meet in a bank of shared memory",
    ),
    "tuned": Rung(
        6,
        "unrolled, pointers instead of indices, and the block's shape derived from the device",
        "nothing is issued but loads and sums; enough of them in flight",
    ),
}
CPU_RUNGS = {
    "sequential": Rung(1, "a column of A at a time", "nothing: each element from another line"),
    "reordered": Rung(2, "a row of A at a time", "A is read along its lines, in vectors"),
    "parallel": Rung(3, "a range of rows for each thread", "up to the memory's bandwidth", True),
}
CONSTANT_BYTES = 1 << 16
_STATIC_BYTES = 48 << 10  # of an array of a constant size in shared memory
# Threads of a block along a row of the square, as many as it has rows, and those that share a row.
_SHAPES = {
    "naive": Shape(128, 1),
    "constant": Shape(128, 1),
    "shared": Shape(32, 1),
    "split": Shape(32, 8),
    "padded": Shape(32, 8),
    "tuned": Shape(32, 8),
}
_ROW_ALONE = ("naive", "constant", "shared")  # one thread for each row


class Piece(NamedTuple):
    """A piece of the vectors in constant memory, and what is launched on it.

    Attributes
    ----------
    begin, count : int
        The elements that are copied there before.
    launch : Launch
        On the buffers ``"A"`` and ``"y"``, and the constant memory ``"held"``.
    """

    begin: int
    count: int
    launch: Launch


class HeldPlan(NamedTuple):
    """A plan of launches between which constant memory is filled, in this order.

    Attributes
    ----------
    pack : LaunchPlan or None
        Puts the vectors ``"x"`` one after the other into the buffer ``"packed"`` of ``packed``
        elements, which is then copied from instead of ``"x"``.
    packed : int
    pieces : tuple of Piece
        All of them by one kernel.
    variant : str
        Short name, for plans that are printed.
    """

    pack: LaunchPlan | None
    packed: int
    pieces: tuple[Piece, ...]
    variant: str


@lru_cache(maxsize=256)
def shapes(rung: str, dtype: str, card: Card) -> tuple[Shape, ...]:
    """Every shape of a block that a rung can be launched with; powers of two."""
    if rung in ("naive", "constant"):
        powers = [1 << i for i in range(card.block_threads.bit_length())]
        return tuple(Shape(x, 1) for x in powers if x >= card.warp)
    card = card._replace(block_shared=min(card.block_shared, _STATIC_BYTES))
    some = derive.shapes_matvec(card, dtype)
    return tuple(s for s in some if s.y == 1) if rung in _ROW_ALONE else some


@lru_cache(maxsize=4096)
def chosen(rung: str, dtype: str, m: int, k: int, card: Card) -> Shape:
    """The shape of a rung unless one is given: its own, or the next smaller that the device takes.

    Of "tuned" the one of `shapes` that the execution metrics reckon to be fastest.
    """
    own, there = _SHAPES[rung], shapes(rung, dtype, card)
    if rung != "tuned":
        return max((s for s in there if s <= own), default=there[0])
    return min(there, key=lambda shape: reckon.matvec(card, check_dtype(dtype), shape, m, k))


def plan_rung(
    rung: str,
    *,
    m: int,
    k: int,
    batch: int,
    dtype: str,
    a_strides: tuple[int, int, int],
    x_strides: tuple[int, int],
    y_strides: tuple[int, int],
    card: Card,
    shape: Shape | None = None,
) -> LaunchPlan | HeldPlan:
    """Plan y = A x for a batch of m x k matrices and vectors by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    m, k, batch, dtype, a_strides, x_strides, y_strides
        As for `plan_matvec`.
    card : Card
        The device; "tuned" derives its shape from it.
    shape : Shape, optional
        Threads of a block: along a row of A (as many rows it computes), and that share a row; one
        of `shapes`. Default: the rung's own.

    Returns
    -------
    LaunchPlan or HeldPlan
        The latter for all but "naive", which have x in constant memory.
    """
    if shape is None:
        shape = chosen(rung, dtype, batch * m, k, card)
    elif shape not in (there := shapes(rung, dtype, card)):
        valid = ", ".join(f"{one.x}x{one.y}" for one in there)
        raise ValueError(f"shape must be one of {valid}, got {shape[0]}x{shape[1]}")
    side, parts, _ = shape
    variant = f"{rung}{side}x{parts}"
    tiles = ceil_div(m, side)
    where: dict[str, Any] = {
        "source": "matvec_tuned.cu" if rung == "tuned" else "matvec_rungs.cu",
        "kernel": f"matvec_{rung}",
        "defines": _defines(rung, dtype, shape),
        "block": side * parts,
    }
    if rung == "naive":
        sizes = (m, k, tiles, *a_strides, *x_strides, *y_strides)
        launch = Launch(**where, grid=tiles * batch, arguments=("A", "x", "y", *sizes))
        return LaunchPlan((launch,), 0, variant)

    most = CONSTANT_BYTES // check_dtype(dtype)
    at_once, length = (most // k, k) if k <= most else (1, most)
    pieces = []
    for first in range(0, batch, at_once):
        vectors = min(at_once, batch - first)
        for begin in range(0, k, length):
            count = min(length, k - begin)
            a_start = first * a_strides[0] + begin * a_strides[2]
            launch = Launch(
                **where,
                grid=tiles * vectors,
                arguments=(
                    *("A", "held", "y", m, count, int(begin > 0), tiles),
                    *(a_start, *a_strides, first * y_strides[0], *y_strides),
                ),
            )
            pieces.append(Piece(first * k + begin, vectors * count, launch))
    packed = batch * k
    dense = (k == 1 or x_strides[1] == 1) and (batch == 1 or x_strides[0] == k)
    pack = None if dense else _pack(batch, k, dtype, x_strides, card.block_threads)
    return HeldPlan(pack, 0 if dense else packed, tuple(pieces), variant)


def _defines(rung: str, dtype: str, shape: Shape) -> tuple[tuple[str, int | str], ...]:
    """The macros of a kernel; the rungs' own shapes share one binary of matvec_rungs.cu."""
    real: tuple[tuple[str, int | str], ...] = (("REAL", REAL[dtype]),)
    if rung != "tuned" and shape == _SHAPES[rung]:
        return real
    if rung in ("naive", "constant"):
        return (*real, ("THREADS", shape[0]))
    return (*real, ("SIDE", shape[0]), ("PARTS", shape[1]))


def _pack(
    batch: int, k: int, dtype: str, x_strides: tuple[int, int], block_limit: int
) -> LaunchPlan:
    """Vectors of any strides to one place."""
    threads = min(256, block_limit)
    launch = Launch(
        source="matvec_pack.cu",
        kernel="pack_vectors",
        defines=(("REAL", REAL[dtype]), ("THREADS", threads)),
        grid=ceil_div(batch * k, threads),
        block=threads,
        arguments=("x", "packed", batch, k, *x_strides),
    )
    return LaunchPlan((launch,), 0, "pack")
