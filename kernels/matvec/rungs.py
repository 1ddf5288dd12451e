"""Launch plans of the steps of the way to this family's best kernels: naive to tuned."""

from __future__ import annotations

from functools import lru_cache, partial

from ..common.launch import LaunchPlan, ceil_div, check_dtype
from ..common.rungs import CONSTANT_BYTES, HeldPlan, Ladder, Piece, Rung, pack_vectors, text
from ..procedure import derive, reckon
from ..procedure.card import Card
from ..procedure.derive import Shape

__all__ = ["CPU_RUNGS", "RUNGS", "HeldPlan", "Shape", "plan_rung"]

_MOST_ROWS = 32  # of a thread


def _rows(card: Card, dtype: str, elements: int) -> list[Shape]:
    """Blocks of threads that have a row each."""
    powers = [1 << i for i in range(card.block_threads.bit_length())]
    return [Shape(x, 1) for x in powers if x >= card.warp]


def _rows_each(card: Card, dtype: str, elements: int) -> list[Shape]:
    """With 2 rows and more for each thread: what White's figure 4.6 goes through."""
    each = [1 << i for i in range(1, _MOST_ROWS.bit_length())]
    return [Shape(x, 1, rows) for x, _, _ in _rows(card, dtype, 1) for rows in each]


def _squares(card: Card, dtype: str, elements: int) -> list[Shape]:
    return list(derive.shapes_matvec(card, dtype))


# Threads of a block along a row of the square, as many as it has rows, and those that share a row.
_rung = partial(
    Rung, tile=lambda x, y, elements: (1, x * elements), names=("THREADS",), legal=_rows
)
_several = partial(
    _rung,
    instead_of="naive",
    kernel="matvec_naive",
    shape=Shape(128, 1, 4),
    names=("THREADS", "", "ROWS"),
    legal=_rows_each,
)
_square = partial(_rung, shape=Shape(32, 8), names=("SIDE", "PARTS"), legal=_squares)
RUNGS = Ladder(
    "matvec",
    {
        "naive": _rung(
            "a thread for each row of A",
            "all multiprocessors work, if rows are enough",
            "White 2013, listing 4.2",
            shape=Shape(128, 1),
        ),
        "grouped": _several(
            "rejected: a thread has several rows, neighbours",
            "it loses: fewer threads have fewer loads in flight",
            "White 2013, figure 4.5a",
        ),
        "spread": _several(
            "rejected: a thread has several rows, as far apart as there are threads",
            "as grouped: whether neighbouring threads read one row apart or several, none coalesce",
            "White 2013, figures 4.5b and 4.6",
            macros=(("SPREAD", 1),),
        ),
        "constant": _rung(
            "x in constant memory, by pieces of 64 KiB",
            "half of the loads no longer go through the L1",
            "White 2013, listing 4.4",
            shape=Shape(128, 1),
        ),
        "shared": _square(
            "a square of A goes to shared memory by whole lines",
            "each sector of A is asked for once, not once for each of its elements",
            "White 2013, listing 4.6",
            shape=Shape(32, 1),
            legal=lambda *given: [shape for shape in _squares(*given) if shape.y == 1],
        ),
        "split": _square(
            "several threads share a row",
            "as many times the loads in flight",
            "White 2013, listing 4.9",
        ),
        "padded": _square(
            "lines of the square take one element more; blocks start at different columns",
            "no two threads of a warp meet in a bank of shared memory",
            "White 2013, listing 4.11",
        ),
        "unrolled": _square(
            "fine-tuned: loops unrolled, pointers instead of products of indices",
            "nothing is issued but loads and sums",
            "White 2013, listing 4.16",
            source="matvec_tuned.cu",
            kernel="matvec_tuned",
        ),
        "tuned": _square(
            "the block's shape derived from the device and the sizes",
            "enough loads in flight for each multiprocessor",
            "White 2013, section 4.5",
            source="matvec_tuned.cu",
            reckon=reckon.matvec,
        ),
    },
)
CPU_RUNGS = Ladder(
    "matvec",
    {
        "sequential": Rung("a column of A at a time", "nothing: each element from another line"),
        "reordered": Rung("a row of A at a time", "A is read along its lines, in vectors"),
        "parallel": Rung(
            "a range of rows for each thread", "up to the memory's bandwidth", threads=True
        ),
    },
)
_FROM_MEMORY = ("naive", "grouped", "spread")  # x too


@lru_cache(maxsize=1024)
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
        of `Ladder.shapes`. Default: the rung's own.

    Returns
    -------
    LaunchPlan or HeldPlan
        The latter for all that have x in constant memory.
    """
    shape = RUNGS.chosen(rung, dtype, (batch * m, k), card, shape)
    variant = f"{rung}{text(shape)}"
    tiles = ceil_div(m, shape.x * shape.elements)
    if rung in _FROM_MEMORY:
        arguments = ("A", "x", "y", m, k, tiles, *a_strides, *x_strides, *y_strides)
        launch = RUNGS.launch(rung, shape, dtype, (batch, m, 1), arguments)
        return LaunchPlan((launch,), 0, variant)

    most = CONSTANT_BYTES // check_dtype(dtype)
    at_once, length = (most // k, k) if k <= most else (1, most)
    pieces = []
    for first in range(0, batch, at_once):
        vectors = min(at_once, batch - first)
        for begin in range(0, k, length):
            count = min(length, k - begin)
            a_start = first * a_strides[0] + begin * a_strides[2]
            arguments = (
                *("A", "held", "y", m, count, int(begin > 0), tiles),
                *(a_start, *a_strides, first * y_strides[0], *y_strides),
            )
            launch = RUNGS.launch(rung, shape, dtype, (vectors, m, 1), arguments)
            pieces.append(Piece(first * k + begin, vectors * count, launch))
    pack = pack_vectors(batch, k, dtype, x_strides, card.block_threads)
    return HeldPlan(pack, 0 if pack is None else batch * k, tuple(pieces), variant)
