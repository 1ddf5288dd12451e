"""Launch plans of the steps of the way to this family's best kernels: naive to tuned."""

from __future__ import annotations

from typing import Any

from ..common.launch import ELEMENT_BYTES, REAL, Launch, LaunchPlan, ceil_div, check_dtype
from ..common.rungs import Rung
from ..procedure import derive
from ..procedure.card import Card
from .correlation import SHARED_BYTES, WARP, Correlation, correlation, count_blocks

__all__ = ["RUNGS", "legal", "plan_rung"]

RUNGS = {
    "naive": Rung(1, "a thread for each result", "all multiprocessors work"),
    "shared": Rung(
        2,
        "image and filter pass through shared memory, by columns of the filter",
        "a load of the image serves half as many products as a block has rows",
    ),
    "row": Rung(
        3,
        "the filter is gone through by rows",
        "a load serves more products: a block has more columns than rows",
    ),
    "padded": Rung(
        4,
        "the image is extended, and the filter's rows are aligned, in a copy made before",
        "no tests of edges, so that the threads of a warp never part",
    ),
    "tuned": Rung(
        5,
        "unrolled, pointers instead of indices, and the block's shape derived from the device",
        "nothing is issued but products and their loads",
    ),
}
_BLOCKS = ((32, 16), (32, 8), (32, 4), (32, 2), (32, 1))  # the first that a device takes
_COPY_THREADS = 256
_TAPS_BYTES = 256  # at whose multiples the rows of a padded filter begin
_STEP = 16  # taps that are unrolled


def legal(
    rung: str, dtype: str, *, block_limit: int, shared_limit: int
) -> tuple[tuple[int, int], ...]:
    """Every shape of a block that a rung can be launched with, as (x, y): powers of two."""
    powers = [1 << i for i in range(block_limit.bit_length())]
    most = min(shared_limit, SHARED_BYTES) // check_dtype(dtype)
    return tuple(
        (x, y)
        for x in powers[2:]
        for y in powers
        if WARP <= x * y <= block_limit and (rung == "naive" or 2 * x * y + max(x, y) <= most)
    )


def plan_rung(
    rung: str,
    *,
    batch: int,
    height: int,
    width: int,
    filter_height: int,
    filter_width: int,
    out_height: int,
    out_width: int,
    top: int,
    left: int,
    boundary: str,
    dtype: str,
    image_strides: tuple[int, int, int],
    out_strides: tuple[int, int, int],
    tap_strides: tuple[int, int] | None = None,
    block_limit: int = 1024,
    shared_limit: int = SHARED_BYTES,
    block: tuple[int, int] | None = None,
    card: Card | None = None,
) -> LaunchPlan:
    """Plan a correlation by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    batch, height, ..., tap_strides
        As for `hetero.kernels.convolution.plan.direct`.
    block_limit, shared_limit : int
        Most threads the device takes in a block, and bytes of shared memory that one can have.
    block : (int, int), optional
        Threads of a block, along a row of the result and along a column. Default: the rung's own,
        which "tuned" derives from the card.
    card : Card, optional
        The device, as launch parameters are derived for it.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, and the float ``"fillvalue"``.
    """
    problem = correlation(
        batch,
        (height, width),
        (filter_height, filter_width),
        (out_height, out_width),
        (top, left),
        boundary,
        dtype,
        image_strides,
        out_strides,
        tap_strides,
    )
    shapes = legal(rung, dtype, block_limit=block_limit, shared_limit=shared_limit)
    own = next(shape for shape in _BLOCKS if shape in shapes)
    if block is None:
        block = _derived(problem, card) if rung == "tuned" and card is not None else own
    elif block not in shapes:
        raise ValueError(f"block must be one of {shapes}, got {block}")
    if rung in ("padded", "tuned"):
        return _padded(rung, problem, block, own, min(_COPY_THREADS, block_limit))
    p, (x, y) = problem, block
    down, across = ceil_div(p.out_height, y), ceil_div(p.out_width, x)
    launch = Launch(
        source="convolve_rungs.cu",
        kernel=f"convolve_{rung}",
        defines=_defines(dtype, block, min(_COPY_THREADS, block_limit)),
        grid=count_blocks(across, down, p.batch),
        block=x * y,
        arguments=(
            *("image", "taps", "out", p.height, p.width, p.filter_height, p.filter_width),
            *(p.out_height, p.out_width, p.top, p.left, *p.tap_strides, down, across),
            *(*p.image, *p.out, p.boundary, "fillvalue"),
        ),
    )
    return LaunchPlan((launch,), 0, f"{rung}{y}x{x}")


def _derived(p: Correlation, card: Card) -> tuple[int, int]:
    """The block that follows from the card; a static array has 48 KiB at most."""
    card = card._replace(block_shared=min(card.block_shared, SHARED_BYTES))
    taps = (p.filter_height, p.filter_width)
    shape = derive.convolve2d(card, p.dtype, p.batch * p.out_height, p.out_width, taps)
    return shape.x, shape.y


def _defines(dtype: str, block: tuple[int, int], threads: int) -> tuple[tuple[str, int | str], ...]:
    """The macros of convolve_rungs.cu: one binary for all rungs with their own blocks."""
    return (("REAL", REAL[dtype]), ("BX", block[0]), ("BY", block[1]), ("THREADS", threads))


def _padded(
    rung: str, p: Correlation, block: tuple[int, int], small: tuple[int, int], threads: int
) -> LaunchPlan:
    """The copies, which cover whole blocks and whole pieces of the filter, and the sums.

    ``small``: the block of other rungs, with which the copies' source is compiled.
    """
    x, y = block
    down, across = ceil_div(p.out_height, y), ceil_div(p.out_width, x)
    pieces = ceil_div(p.filter_width, x) * x
    line = _TAPS_BYTES // ELEMENT_BYTES[p.dtype]
    tap_pitch = ceil_div(pieces, line) * line
    pad_row = across * x + pieces
    pad_height = down * y + p.filter_height - 1
    pad_taps = ceil_div(p.batch * pad_height * pad_row, line) * line
    copies: dict[str, Any] = {
        "source": "convolve_rungs.cu",
        "defines": _defines(p.dtype, block if rung == "padded" else small, threads),
        "block": threads,
    }
    image = Launch(
        **copies,
        kernel="pad_image",
        grid=count_blocks(ceil_div(pad_row, threads), pad_height, p.batch),
        arguments=(
            *("image", "partial", p.batch, p.height, p.width, p.top, p.left),
            *(pad_height, pad_row, *p.image, p.boundary, "fillvalue"),
        ),
    )
    taps = Launch(
        **copies,
        kernel="pad_taps",
        grid=ceil_div(p.filter_height * tap_pitch, threads),
        arguments=(
            *("taps", "partial", p.filter_height, p.filter_width, *p.tap_strides),
            *(pad_taps, tap_pitch),
        ),
    )
    defines = _defines(p.dtype, block, threads)
    if rung == "tuned":
        step = min(_STEP, x)
        defines = (*defines[:3], ("STEP", step), ("TAIL", p.filter_width % step))
    sums = Launch(
        source="convolve_tuned.cu" if rung == "tuned" else "convolve_rungs.cu",
        kernel=f"convolve_{rung}",
        defines=defines,
        grid=count_blocks(across, down, p.batch),
        block=x * y,
        arguments=(
            *("partial", "out", p.filter_height, p.filter_width, p.out_height, p.out_width),
            *(pad_height * pad_row, pad_row, pad_taps, tap_pitch, down, across, *p.out),
        ),
    )
    workspace = pad_taps + p.filter_height * tap_pitch
    return LaunchPlan((image, taps, sums), workspace, f"{rung}{y}x{x}")
