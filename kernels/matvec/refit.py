"""A card's figures for matrix-vector products: those by which the plans chosen are the fastest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from ..common import refit as common
from ..common.launch import ELEMENT_BYTES, LaunchPlan
from ..common.refit import Clock, Limits, RefitCase, Search, Timer
from ..common.tuning import Table, parse
from .plan import plan_matvec

__all__ = ["candidates", "refit"]

_ALWAYS = 1000.0  # faster than any piece of a column: the piece that is taken
_NEVER = 1 << 60
_ALIKE = 0.03  # speeds that differ by less are the same
_MISALIGNED = (501, 1001, 2001, 3001, 4003, 6007)
_WIDE = (16, 262144, True)
_FACTORS = (0.5, 0.7, 0.85, 1.2, 1.5, 2.0)  # times the table's value
# Speeds by pieces of columns -> the piece that they are shares of, and shapes that are timed.
_PIECES = {
    "matvec.column_speeds": ("128", tuple((n, n, True) for n in (1024, 2048, 4096, 8192, 16384))),
    "matvec.misaligned_column_speeds": ("256", tuple((n, n, True) for n in _MISALIGNED)),
}
# Figure -> values that are tried, and (rows, columns, by columns?) of what is timed by them.
_SEARCHED: dict[str, tuple[tuple[float, ...] | None, tuple[tuple[int, int, bool], ...]]] = {
    "matvec.short_row": (
        (8, 16, 32, 64, 128),
        tuple((1 << 18, k, False) for k in (16, 32, 64, 128, 256, 512)),
    ),
    "matvec.misaligned_row": (
        (128, 256, 512, 1024, 2048),
        tuple((1 << 14, k, False) for k in (129, 257, 401, 513, 769, 1025, 2049)),
    ),
    "matvec.misaligned_few_rows": (
        tuple(1 << power for power in range(20, 28)),
        tuple((m, k, False) for m in (16, 64) for k in (32769, 65537, 131073, 262145, 524289)),
    ),
    "matvec.row_blocks": (
        (1.0, 1.5, 2.0, 3.0, 4.0),
        tuple((m, k, False) for m in (16, 64, 128, 256) for k in (8192, 65536, 262144)),
    ),
    "matvec.column_blocks": (
        (0.5, 0.7, 1.0, 1.5, 2.0),
        (*((m, k, True) for m in (64, 512, 2048) for k in (2048, 16384, 65536)), _WIDE),
    ),
    "matvec.launch_bytes": (
        None,
        tuple((m, k, False) for m in (16, 64, 256, 1024) for k in (4096, 16384, 65536))
        + tuple((m, k, True) for m in (16, 64, 256, 1024) for k in (4096, 16384, 65536)),
    ),
    "matvec.misaligned_column": (
        (8, 16, 32, 64),
        tuple((m, 100_000, True) for m in (9, 17, 33, 67)),
    ),
    "matvec.half_speed_bytes": (None, tuple((n, n, True) for n in _MISALIGNED)),
    "matvec.cluster_edge": (None, tuple((n, n, True) for n in _MISALIGNED)),
    "matvec.cluster_columns": (
        (256, 384, 512, 768, 1024, 1536),
        tuple((m, k, True) for m in (501, 2001) for k in (301, 401, 601, 801, 1201)),
    ),
    "matvec.cluster_columns_a_row": (
        (2, 4, 8, 16, 32),
        tuple((501, 501 * ratio, True) for ratio in (3, 6, 12, 24)),
    ),
}  # fmt: skip


def refit(table: Table, limits: Limits, clock: Clock) -> dict[str, Any]:
    """The values of this family's figures on a device, from the nearest table's."""
    timer = Timer(clock)
    best = table
    for figure, (base, shapes) in _PIECES.items():
        cases = _cases(shapes, limits)
        tried = _replaced(best, figure, _speeds(best, figure, base, cases, timer))
        best = common.better(best, [tried], cases, timer)
    return common.refit_by_search(best, _searches(table, limits), timer, "matvec")


def candidates(table: Table, limits: Limits) -> Iterator[LaunchPlan]:
    """All launches that may be timed."""
    for figure, (_, shapes) in _PIECES.items():
        for piece in table[figure]:
            yield from common.plans(_only(table, figure, piece), _cases(shapes, limits))
    yield from common.candidates(table, _searches(table, limits))


def _searches(table: Table, limits: Limits) -> Iterator[Search]:
    """All figures but the pieces' speeds, in the order in which they are determined."""
    for figure, (values, shapes) in _SEARCHED.items():
        tried = [f * table[figure] for f in _FACTORS] if values is None else values
        yield Search(figure, tried, _cases(shapes, limits))


def _speeds(
    table: Table, figure: str, base: str, cases: list[RefitCase], timer: Timer
) -> dict[str, float]:
    """The memory's speed by the bytes of the pieces that columns are loaded in.

    As a share of that with ``base`` bytes; the table's where they are alike.
    """
    logs = {
        piece: [math.log(timer(c.plan(_only(table, figure, piece)), c.buffers)) for c in cases]
        for piece in table[figure]
    }
    alike = max(_ALIKE, 4.0 * timer.noise() / math.sqrt(len(cases)))
    speeds = {}
    for piece, own in table[figure].items():
        share = math.exp((sum(logs[base]) - sum(logs[piece])) / len(cases))
        speeds[piece] = own if abs(math.log(share / own)) < alike else round(share, 3)
    return speeds


def _only(table: Table, figure: str, piece: str) -> Table:
    """The table by which columns are loaded in one kind of piece, without clusters."""
    speeds = {**table[figure], piece: _ALWAYS}
    return _replaced(table, figure, speeds, **{"matvec.cluster_columns": _NEVER})


def _replaced(table: Table, figure: str, value: Any, **others: Any) -> Table:
    return parse(table.replaced({figure: value, **others}), table.name)


def _cases(shapes: Iterable[tuple[int, int, bool]], limits: Limits) -> list[RefitCase]:
    return [
        _case(m, k, by_columns, dtype, limits)
        for (m, k, by_columns), dtype in itertools.product(shapes, ELEMENT_BYTES)
    ]


def _case(m: int, k: int, by_columns: bool, dtype: str, limits: Limits) -> RefitCase:
    """A product of a matrix with dense rows, or columns, misaligned where their extent is odd."""

    def plan(table: Table) -> Any:
        return plan_matvec(
            m=m, k=k, batch=1, dtype=dtype, a_strides=(0, 1, m) if by_columns else (0, k, 1),
            x_strides=(0, 1), y_strides=(0, 1), multiprocessors=limits.multiprocessors,
            alignment=16, block_limit=limits.block_limit, capability=limits.capability,
            tuning=table,
        )  # fmt: skip

    element = ELEMENT_BYTES[dtype]
    return RefitCase(plan, {"A": m * k * element, "x": k * element, "y": m * element})
