"""Launch plans of the steps of the way to this family's best kernels: naive to tuned."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Unpack

from ..common.launch import ELEMENT_BYTES, REAL, Launch, LaunchPlan, ceil_div, check_dtype
from ..common.rungs import Rung
from ..procedure import derive, reckon
from ..procedure.card import Card
from ..procedure.derive import Shape
from .correlation import SHARED_BYTES, Correlation, TapSizes, correlation, count_blocks

__all__ = ["CPU_RUNGS", "RUNGS", "Shape", "chosen", "plan_rung", "shapes"]

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
CPU_RUNGS = {
    "sequential": Rung(1, "one result after another", "nothing: the definition"),
    "reordered": Rung(2, "along a row of the result for each tap", "a long inner loop, in vectors"),
    "parallel": Rung(3, "a range of rows for each thread", "as many times as cores", True),
}
_SHAPE = Shape(32, 16)
_REGISTERS = 40  # of a thread: all that the rungs with barriers need
_COPY_THREADS = 256
_TAPS_BYTES = 256  # alignment of the rows of a padded filter
_STEP = 16  # taps that are unrolled


@lru_cache(maxsize=256)
def shapes(rung: str, dtype: str, card: Card) -> tuple[Shape, ...]:
    """Every shape of a block that a rung can be launched with; powers of two."""
    most = min(card.block_shared, SHARED_BYTES)
    some = derive.shapes_convolve2d(card._replace(block_shared=most), dtype)
    room = most // check_dtype(dtype)
    return tuple(s for s in some if rung != "shared" or 2 * s.x * s.y + s.y <= room)


@lru_cache(maxsize=4096)
def chosen(
    rung: str, dtype: str, rows: int, columns: int, taps: tuple[int, int], card: Card
) -> Shape:
    """The shape of a rung unless one is given: its own, or the next smaller that the device takes.

    Of "tuned" the one of `shapes` that the execution metrics reckon to be fastest for results of
    rows by columns.
    """
    if rung != "tuned":
        return _own(rung, dtype, card)
    sizes = check_dtype(dtype), rows, columns, *taps

    def seconds(shape: Shape) -> float:
        return reckon.convolve2d(card, sizes[0], shape, *sizes[1:])

    return min(shapes(rung, dtype, card), key=seconds)


def _own(rung: str, dtype: str, card: Card) -> Shape:
    there = shapes(rung, dtype, card)
    return max((s for s in there if s <= _SHAPE), default=there[0])


def plan_rung(
    rung: str,
    *,
    card: Card,
    shape: Shape | None = None,
    **sizes: Unpack[TapSizes],
) -> LaunchPlan:
    """Plan a correlation by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    card : Card
        The device; "tuned" derives its shape from it.
    shape : Shape, optional
        Threads of a block, along a row of the result and along a column; one of `shapes`.
        Default: the rung's own.
    **sizes
        See `hetero.kernels.convolution.correlation.correlation`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, and the float ``"fillvalue"``.
    """
    problem = p = correlation(**sizes)
    taps, dtype = (p.filter_height, p.filter_width), p.dtype
    if shape is None:
        shape = chosen(rung, dtype, p.batch * p.out_height, p.out_width, taps, card)
    elif shape not in (there := shapes(rung, dtype, card)):
        valid = ", ".join(f"{one.x}x{one.y}" for one in there)
        raise ValueError(f"shape must be one of {valid}, got {shape[0]}x{shape[1]}")
    threads = min(_COPY_THREADS, card.block_threads)
    x, y, _ = shape
    if rung in ("padded", "tuned"):
        return _padded(rung, problem, shape, _own("padded", dtype, card), threads, card)
    down, across = ceil_div(p.out_height, y), ceil_div(p.out_width, x)
    launch = Launch(
        source="convolve_rungs.cu",
        kernel=f"convolve_{rung}",
        defines=_defines(dtype, shape, threads, card),
        grid=count_blocks(across, down, p.batch),
        block=x * y,
        arguments=(
            *("image", "taps", "out", p.height, p.width, p.filter_height, p.filter_width),
            *(p.out_height, p.out_width, p.top, p.left, *p.tap_strides, down, across),
            *(*p.image, *p.out, p.boundary, "fillvalue"),
        ),
    )
    return LaunchPlan((launch,), 0, f"{rung}{x}x{y}")


def _defines(
    dtype: str, shape: Shape, threads: int, card: Card
) -> tuple[tuple[str, int | str], ...]:
    """The macros of convolve_rungs.cu: one binary for all rungs with their own shapes."""
    x, y, _ = shape
    resident = max(1, min(card.registers // (_REGISTERS * x * y), card.blocks))
    own = ("REAL", REAL[dtype]), ("BX", x), ("BY", y)
    return (*own, ("THREADS", threads), ("RESIDENT", resident))


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
    copies: dict[str, Any] = {
        "source": "convolve_rungs.cu",
        "defines": _defines(p.dtype, small, threads, card),
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
    defines = _defines(p.dtype, shape, threads, card)
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
    return LaunchPlan((image, taps, sums), workspace, f"{rung}{x}x{y}")
