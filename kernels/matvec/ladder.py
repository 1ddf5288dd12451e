"""The steps of ladder.cu: y = A x from a thread for each row to White's last kernel."""

from __future__ import annotations

from functools import partial

from .. import procedure
from ..common.ladder import Block, Ladder, Rung, Step, Steps
from ..procedure import Card

_rows = partial(
    Rung,
    kernel="matvec_naive",
    block=Block(128),
    tile=lambda b: (1, b.x * b.each),
    legal=lambda b: b.y == 1,
    macros=(("SPREAD", 0),),
)
_several = partial(_rows, instead_of="naive", block=Block(128, 1, 4), each=(2, 4, 8, 16, 32))
_square = partial(  # of BX rows; BY threads share a row
    Rung,
    kernel="matvec_squares",
    block=Block(32, 8),
    tile=lambda b: (1, b.x),
    shared=lambda b, item: b.x * (b.x + 1) * item,
    legal=lambda b: b.y <= b.x,
)


def _steps(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int) -> Steps:
    held = "x" if rung.number > 1 else ""
    arguments = ("A", "held" if held else "x", "y", *sizes)
    return Steps((Step(ladder.launch(rung, block, dtype, (sizes[0], 1), arguments), held),))


# fmt: off
_RUNGS = (
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
LADDER = Ladder("matvec", {rung.name: rung for rung in _RUNGS}, _steps)
