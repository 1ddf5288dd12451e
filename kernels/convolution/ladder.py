"""The steps of ladder.cu: convolution from a thread for each result to White's last kernel."""

from __future__ import annotations

from functools import partial

from .. import procedure
from ..common.ladder import Block, Ladder, Rung, Step, Steps
from ..common.launch import ELEMENT_BYTES, ceil_div
from ..procedure import Card

_TAPS_BYTES = 256  # alignment of the rows of a padded filter
_PIECE = 16  # taps that are unrolled
_memory = partial(Rung, kernel="convolve_naive", block=Block(32, 16), tile=lambda b: (b.x, b.y))
_tiles = partial(_memory, shared=lambda b, item: (2 * b.x * b.y + max(b.x, b.y)) * item)


def _steps(ladder: Ladder, rung: Rung, block: Block, dtype: str, card: Card, *sizes: int) -> Steps:
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
_RUNGS = (
    _memory(1, "naive", "a thread for each result", "all multiprocessors work",
            "White, listing 5.1"),
    _tiles(2, "shared", "image and filter pass through shared memory, by the filter's columns",
           "a load of the image serves half as many products as a block has rows",
           "White, listing 5.2", kernel="convolve_shared"),
    _tiles(3, "row", "the filter is gone through by rows",
           "a load serves more products: a block has more columns than rows",
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
LADDER = Ladder("convolution", {rung.name: rung for rung in _RUNGS}, _steps)
