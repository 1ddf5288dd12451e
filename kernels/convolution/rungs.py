"""Launch plans of the steps of the way to this family's best kernels: naive to tuned."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from ..common.launch import ELEMENT_BYTES, LaunchPlan, ceil_div
from ..common.rungs import CONSTANT_BYTES, HeldPlan, Ladder, Piece, Rung, pack_vectors, text
from ..procedure import derive, reckon
from ..procedure.card import Card
from ..procedure.derive import Shape
from .correlation import Correlation, TapSizes, correlation, count_blocks

__all__ = ["CPU_RUNGS", "RUNGS", "Shape", "held_taps", "plan_rung"]

_rung = partial(
    Rung,
    shape=Shape(32, 16),
    tile=lambda x, y, elements: (x, y),
    legal=lambda card, dtype, elements: derive.shapes_convolve2d(card, dtype),
)
RUNGS = Ladder(
    "convolve",
    {
        "naive": _rung(
            "a thread for each result", "all multiprocessors work", "White 2013, listing 5.1"
        ),
        "constant": _rung(
            "rejected: the filter in constant memory, which has room for 128 x 128 taps",
            "the filter's loads no longer go through the L1",
            "White 2013, section 5.1.1, footnote",
            instead_of="naive",
        ),
        "shared": _rung(
            "image and filter pass through shared memory, by columns of the filter",
            "a load of the image serves half as many products as a block has rows",
            "White 2013, listing 5.2",
            shared=lambda shape, item: (2 * shape.x * shape.y + shape.y) * item,
        ),
        "row": _rung(
            "the filter is gone through by rows",
            "a load serves more products: a block has more columns than rows",
            "White 2013, listing 5.3",
        ),
        "padded": _rung(
            "the image is extended, and the filter's rows are aligned, in a copy made before",
            "no tests of edges, so that the threads of a warp never part",
            "White 2013, listing 5.4",
        ),
        "unrolled": _rung(
            "fine-tuned: loops unrolled, pointers instead of products of indices",
            "nothing is issued but products and their loads",
            "White 2013, listing 5.5",
            source="convolve_tuned.cu",
            kernel="convolve_tuned",
        ),
        "tuned": _rung(
            "the block's shape derived from the device, the sizes and the filter",
            "a row of taps takes one piece, and blocks enough for each multiprocessor",
            "White 2013, section 5.1.5",
            source="convolve_tuned.cu",
            reckon=reckon.convolve2d,
        ),
    },
)
CPU_RUNGS = Ladder(
    "convolve2d",
    {
        "sequential": Rung("one result after another", "nothing: the definition"),
        "reordered": Rung(
            "along a row of the result for each tap", "a long inner loop, in vectors"
        ),
        "parallel": Rung("a range of rows for each thread", "as many times as cores", threads=True),
    },
)
_REGISTERS = 40  # of a thread: all that the rungs with barriers need
_COPY_THREADS = 256
_TAPS_BYTES = 256  # alignment of the rows of a padded filter
_STEP = 16  # taps that are unrolled


def held_taps(dtype: str) -> int:
    """The most taps that constant memory has room for."""
    return CONSTANT_BYTES // ELEMENT_BYTES[dtype]


def plan_rung(
    rung: str,
    *,
    card: Card,
    shape: Shape | None = None,
    **sizes: Unpack[TapSizes],
) -> LaunchPlan | HeldPlan:
    """Plan a correlation by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    card : Card
        The device; "tuned" derives its shape from it.
    shape : Shape, optional
        Threads of a block, along a row of the result and along a column; one of
        `Ladder.shapes`. Default: the rung's own.
    **sizes
        See `hetero.kernels.convolution.correlation.correlation`.

    Returns
    -------
    LaunchPlan or HeldPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, and the float ``"fillvalue"``. Of
        "constant" the latter, with the taps as ``"x"``; they must be `held_taps` at most.
    """
    problem = p = correlation(**sizes)
    sizes = p.batch * p.out_height, p.out_width, p.filter_height, p.filter_width
    shape = RUNGS.chosen(rung, p.dtype, sizes, card, shape)
    threads = min(_COPY_THREADS, card.block_threads)
    variant = f"{rung}{text(shape)}"
    if rung in ("padded", "unrolled", "tuned"):
        own = RUNGS.chosen("padded", p.dtype, sizes, card)
        return _padded(rung, problem, shape, own, threads, card)
    down, across = ceil_div(p.out_height, shape.y), ceil_div(p.out_width, shape.x)
    count_blocks(across, down, p.batch)
    held = rung == "constant"
    arguments = (
        *("image", "held" if held else "taps", "out"),
        *(p.height, p.width, p.filter_height, p.filter_width, p.out_height, p.out_width),
        *(p.top, p.left, *((p.filter_width, 1) if held else p.tap_strides), down, across),
        *(*p.image, *p.out, p.boundary, "fillvalue"),
    )
    results = p.batch, p.out_height, p.out_width
    defines = _defines(shape, threads, card)
    launch = RUNGS.launch(rung, shape, p.dtype, results, arguments, *defines)
    if not held:
        return LaunchPlan((launch,), 0, variant)
    extents, taps = (p.filter_height, p.filter_width), p.filter_height * p.filter_width
    pack = pack_vectors(*extents, p.dtype, p.tap_strides, card.block_threads)
    return HeldPlan(pack, 0 if pack is None else taps, (Piece(0, taps, launch),), variant)


def _defines(shape: Shape, threads: int, card: Card) -> list[tuple[str, int]]:
    """The macros of convolve_rungs.cu: one binary for all rungs with their own shapes."""
    x, y, _ = shape
    resident = max(1, min(card.registers // (_REGISTERS * x * y), card.blocks))
    return [("THREADS", threads), ("RESIDENT", resident)]


def _padded(
    rung: str, p: Correlation, shape: Shape, small: Shape, threads: int, card: Card
) -> LaunchPlan:
    """The copies, which cover whole blocks and whole pieces of the filter, and the sums.

    ``small``: the shape of "padded", since its binary has the copies.
    """
    x, y, _ = shape
    down, across = ceil_div(p.out_height, y), ceil_div(p.out_width, x)
    pieces = ceil_div(p.filter_width, x) * x
    line = _TAPS_BYTES // ELEMENT_BYTES[p.dtype]
    tap_pitch = ceil_div(pieces, line) * line
    pad_row = across * x + pieces
    pad_height = down * y + p.filter_height - 1
    pad_taps = ceil_div(p.batch * pad_height * pad_row, line) * line
    own = _defines(small, threads, card)
    copy = RUNGS.launch("padded", small, p.dtype, (1, 1, 1), (), *own)._replace(block=threads)
    image = copy._replace(
        kernel="pad_image",
        grid=count_blocks(ceil_div(pad_row, threads), pad_height, p.batch),
        arguments=(
            *("image", "partial", p.batch, p.height, p.width, p.top, p.left),
            *(pad_height, pad_row, *p.image, p.boundary, "fillvalue"),
        ),
    )
    taps = copy._replace(
        kernel="pad_taps",
        grid=ceil_div(p.filter_height * tap_pitch, threads),
        arguments=(
            *("taps", "partial", p.filter_height, p.filter_width, *p.tap_strides),
            *(pad_taps, tap_pitch),
        ),
    )
    defines = _defines(shape, threads, card)
    if RUNGS[rung].kernel == "convolve_tuned":
        step = min(_STEP, x)
        defines = [("STEP", step), ("TAIL", p.filter_width % step)]
    count_blocks(across, down, p.batch)
    arguments = (
        *("partial", "out", p.filter_height, p.filter_width, p.out_height, p.out_width),
        *(pad_height * pad_row, pad_row, pad_taps, tap_pitch, down, across, *p.out),
    )
    results = p.batch, p.out_height, p.out_width
    sums = RUNGS.launch(rung, shape, p.dtype, results, arguments, *defines)
    workspace = pad_taps + p.filter_height * tap_pitch
    return LaunchPlan((image, taps, sums), workspace, f"{rung}{text(shape)}")
