"""What the planner chooses over two sizes, and where the choice turns."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from hetero.arrays import HOST
from hetero.calling.planner import OtherMachine
from hetero.errors import MethodNotAvailable, NotPriced
from hetero.evaluation import calls
from hetero.evaluation.page.charts import regions
from hetero.evaluation.page.drawing import Numbers, element, hatch, whole
from hetero.evaluation.page.markup import figure, folded, items, table
from hetero.ops import over_sizes
from hetero.ops.over_sizes import Plane
from hetero.pricing.plan import CPU, Candidate
from hetero.registry import Operation
from hetero.registry.problem import DEVICE_DTYPES

NONE = "no choice"  # where nothing is priced
_CLEARLY = 1.1  # times as fast as the choice at a neighbour, for another one to be drawn
_PARTS = 2  # sizes to each doubling: a plan takes up to 2 ms
_ROWS = 5  # of a table


class Choices(NamedTuple):
    """A table of choices over two sizes."""

    xs: list[int]
    ys: list[int]
    cells: list[list[str]]  # "method, device" for ys[row] and xs[column]
    gain: float  # of the choice over the CPU's best, at most; 1.0 where it is the CPU

    def counts(self) -> dict[str, int]:
        """Choice -> number of cells, the most frequent first."""
        return dict(Counter(cell for row in self.cells for cell in row).most_common())

    def turns(self, row: int) -> list[tuple[str, int]]:
        """The choices along a row, each with the first x."""
        pairs = zip(self.cells[row], self.xs, strict=True)
        groups = itertools.groupby(pairs, lambda pair: pair[0])
        return [(name, next(group)[1]) for name, group in groups]


def choices(
    operation: Operation, plane: Plane, dtype: str, machine: OtherMachine, on: str = HOST
) -> Choices:
    """Plan a call for every pair of sizes, with its operands on the host or on one device.

    A neighbour's choice stays where none is faster by more than a tenth.
    """
    xs, ys = plane.x.sizes(_PARTS), plane.y.sizes(_PARTS)
    cells: list[list[str]] = []
    gains = [1.0]
    for y in ys:
        below, row = cells[-1] if cells else [], list[str]()
        cells.append(row)
        for column, x in enumerate(xs):
            near = [*row[-1:], *below[column : column + 1]]
            name, gain = _choice(operation, plane.dims(x, y), dtype, on, machine, near)
            row.append(name)
            gains.append(gain)
    return Choices(xs, ys, cells, max(gains))


def _choice(
    operation: Operation,
    dims: tuple[int, ...],
    dtype: str,
    on: str,
    machine: OtherMachine,
    near: Sequence[str],
) -> tuple[str, float]:
    """The choice, or one of those ``near`` that is about as fast; and how many times faster than
    the CPU's best it is."""
    try:
        plan = calls.plan(operation, operation.from_dims(dims, dtype, on), machine)
        chosen = plan.chosen
    except (NotPriced, MethodNotAvailable):
        return NONE, 1.0
    if chosen.seconds is None:
        return NONE, 1.0
    priced = [c for c in plan.candidates if c.reason is None and c.seconds is not None]
    on_cpu = min((c.seconds for c in priced if c.device == CPU), default=chosen.seconds)
    alike = [_name(c) for c in priced if c.seconds <= _CLEARLY * chosen.seconds]
    return next((n for n in near if n in alike), _name(chosen)), on_cpu / chosen.seconds


def _name(candidate: Candidate) -> str:
    return f"{candidate.method}, {candidate.device}"


def maps(
    operation: Operation, machine: OtherMachine, numbers: Numbers
) -> tuple[list[str], list[str]]:
    """Figures of maps with several choices, and lines of text on those with one.

    ``numbers`` are those of the choices' colours and hatches.
    """
    drawn: list[str] = []
    always: dict[str, list[str]] = {}
    others = [n for n, i in machine.devices().items() if n != CPU and not i.get("is_host_cpu")]
    for plane in over_sizes.planes(operation):
        for on, dtype in itertools.product((HOST, *others[:1]), DEVICE_DTYPES):
            found = choices(operation, plane, dtype, machine, on)
            title = f"{plane.text}, {dtype}" + (f", operands on {on}" if others else "")
            chosen = [*found.counts()]
            if len(chosen) > 1:
                drawn.append(_figure(operation.function, title, plane, found, numbers))
            elif chosen != [NONE]:
                always.setdefault(chosen[0], []).append(title)
    return drawn, [f"Always {name}: {'; '.join(titles)}." for name, titles in always.items()]


def _figure(within: str, title: str, plane: Plane, found: Choices, numbers: Numbers) -> str:
    """A picture, its key, and some rows as a table; markup."""
    counts = found.counts()
    total = sum(counts.values())
    shares = [f"{name} in {count / total:.0%} of the map" for name, count in counts.items()]
    shown = {name: numbers[name] for name in counts}
    axes, sizes = (plane.x.name, plane.y.name), (found.xs, found.ys)
    description = "; ".join(shares) + "."
    picture = regions(f"{within}: {title}", description, axes, sizes, found.cells, shown)
    key = items((_key(name, number, counts[name] / total) for name, number in shown.items()), "key")
    lines = [f"Up to {found.gain:.3g} times as fast as the CPU."] if found.gain > 1.05 else []
    turns = folded("where the choice turns", _turns(plane, found))
    return figure(picture, title, lines, key + turns)


def _key(name: str, number: int, share: float) -> str:
    swatch = element(
        "svg",
        element("rect", width=22, height=14, fill=hatch(number), class_="swatch"),
        viewBox="0 0 22 14",
        aria_hidden="true",
    )
    return f"{swatch}{number + 1} {escape(name)}, {share:.0%}"


def _turns(plane: Plane, found: Choices) -> str:
    """The choices along some rows, as a table."""
    last, rows = len(found.ys) - 1, []
    for row in sorted({round(number * last / (_ROWS - 1)) for number in range(_ROWS)}):
        (first, _), *others = found.turns(row)
        turns = [f"{name} from {plane.x.name} = {whole(x)}" for name, x in others]
        rows.append((f"{plane.y.name} = {whole(found.ys[row])}", ", then ".join([first, *turns])))
    return table("", ("", "chosen"), rows, words=(0, 1))
