"""Launch plans of float32 products on tensor cores: operands are cut into 16-bit pieces first."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..common.launch import Launch, LaunchPlan, Target, ceil_div
from .plan import Orientation, guarded, oriented, plan_matmul

CAPABILITY = (9, 0)
LEAST_DEPTH = 128  # of k: what pieces round is small in sums of many terms
PANEL, _STEP = 128, 32  # rows, and elements of k, of a block of pieces
_PIECE_BYTES = 2 * PANEL * _STEP
_MOST_PIECES = 3
_MULTIPLE = 64  # of k
_SPLIT_THREADS, _THREADS = 512, 384
_SPLIT_RESIDENT = 2  # blocks of a multiprocessor
# Elements of the rows of a thread block that cuts operands: what all blocks read at a time should
# fit in the L2. Rows at most where k is fast, and where it is slow, for short and for long k.
_ELEMENTS, _ROWS, _LONG = 1 << 15, ((8, 8), (4, 16)), 4096
_SHARED_BYTES = 24 * _PIECE_BYTES + 1024
_LINE = 128  # bytes to which parts of the workspace are aligned


# Of NVIDIA's H100: seconds of the four launches; bytes a second while operands are cut; float32
# FLOP/s of one multiprocessor; seconds of a tile in addition to its products.
_LAUNCHES, _MOVED, _RATE, _START = 1.1e-5, 2.2e12, 1.68e12, 1.5e-6


class _Side(NamedTuple):
    """An operand: its rows are those of A, or the columns of B."""

    panels: int  # of a matrix
    matrices: int  # that differ
    rows_at_once: int

    @property
    def rows(self) -> int:
        return self.panels * PANEL * self.matrices

    @property
    def blocks(self) -> int:
        """Thread blocks that cut it."""
        return self.rows // self.rows_at_once

    def nbytes(self, steps: int) -> int:
        """Of its pieces, at most."""
        return self.panels * self.matrices * steps * _MOST_PIECES * _PIECE_BYTES


def plan_tensor(*, target: Target, **product: Any) -> LaunchPlan:
    """Plan C = A B by 16-bit pieces of float32; parameters as of `plan_matmul`. Its plan is
    given in float64, on other devices, and for k below `LEAST_DEPTH`.

    Four launches follow each other without the host: both operands are cut into two pieces of
    float16, and looked at; into three of bfloat16 where two are not as accurate; the pieces are
    multiplied; and where neither serves, `plan_matmul`'s kernel multiplies the operands. Those that
    have nothing to do end at once.

    Returns
    -------
    LaunchPlan
        The launches use the buffers ``"A"``, ``"B"``, ``"C"`` and ``"partial"``.
    """
    is_long = product["dtype"] == "float32" and product["k"] >= LEAST_DEPTH
    if not is_long or target.capability != CAPABILITY:
        return plan_matmul(target=target, **product)
    return by_pieces(oriented(**product), target, product["alignment"])


def by_pieces(form: Orientation, target: Target, alignment: int) -> LaunchPlan:
    """`plan_tensor`'s four launches, for any k."""
    k, batch = form.k, form.batch
    steps = ceil_div(k, _MULTIPLE) * (_MULTIPLE // _STEP)
    fast_rows, slow_rows = _ROWS[k >= _LONG]
    while fast_rows > 1 and fast_rows * k > _ELEMENTS:
        fast_rows //= 2
    a, b = (
        _Side(ceil_div(rows, PANEL), batch if apart else 1, fast_rows if is_fast else slow_rows)
        for rows, (apart, *_), is_fast in (
            (form.m, form.a_strides, form.a_k),
            (form.n, form.b_strides, form.b_k),
        )
    )
    places = [0]  # of the findings, both operands' exponents, their pieces, and the end
    for nbytes in (_LINE, 8 * (a.blocks + b.blocks), 4 * a.rows, 4 * b.rows):
        places.append(places[-1] + ceil_div(nbytes, _LINE) * _LINE)
    for side in (a, b):
        places.append(places[-1] + side.nbytes(steps))
    _, findings, *rest, end = places
    blocks = a.blocks, b.blocks, a.rows_at_once, b.rows_at_once
    layout = int(form.a_k), int(form.b_k), int(form.loads)
    numbers = form.m, form.n, k, *form.a_strides, *form.b_strides, *blocks, *layout
    grid = min(a.blocks + b.blocks, _SPLIT_RESIDENT * target.multiprocessors)
    arguments: tuple[Any, ...] = *form.names, "partial", *numbers, findings, *rest
    cuts = [
        Launch("tensor_split.cu", "split", (("PIECES", n),), grid, _SPLIT_THREADS, arguments)
        for n in (2, _MOST_PIECES)
    ]
    tiles = a.panels * b.panels * batch
    between, row, column = form.c_strides  # neighbours in a row are written as vectors of two
    in_pairs = column == 1 and alignment >= 8 and row % 2 == 0 and between % 2 == 0
    betweens = (side.panels if side.matrices > 1 else 0 for side in (a, b))
    arguments = "C", "partial", form.m, form.n, steps, batch, *betweens, *rest, *form.c_strides
    arguments = *arguments, int(in_pairs)
    grid, kernel = min(tiles, target.multiprocessors), "multiply_pieces"
    product = Launch("tensor_product.cu", kernel, (), grid, _THREADS, arguments, _SHARED_BYTES)
    waves = ceil_div(tiles, target.multiprocessors)
    each = 2.0 * PANEL * PANEL * steps * _STEP / _RATE + _START
    cut = 12.0 * (a.rows + b.rows) * k / _MOVED
    seconds = _LAUNCHES + cut + waves * each
    return LaunchPlan((*cuts, product, guarded(form)), end // 4, "tensor128x128", seconds)
