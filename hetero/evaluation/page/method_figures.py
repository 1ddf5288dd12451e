"""Figures of each method's time over one size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from hetero.evaluation.break_even import break_even
from hetero.evaluation.page.axes import seconds, whole
from hetero.evaluation.page.html import figure, folded, table
from hetero.evaluation.page.lines import Drawn, Labels, lines
from hetero.evaluation.page.marks import Numbers
from hetero.evaluation.page.methods import Curve
from hetero.evaluation.page.svg import Names
from hetero.ops.over_sizes import Axis
from hetero.pricing.plan import CPU, readable

_COLUMNS = 4  # sizes in a table
_CLEARLY = 1.05


def method_figure(
    within: str,
    title: str,
    axis: Axis,
    curves: Sequence[Curve],
    numbers: Numbers,
    names: Names,
) -> str:
    """A picture of curves, what is fastest where, and the figures as a table; markup.

    Parameters
    ----------
    within, title : str
        What the curves are of, and of which problems.
    axis : Axis
    curves : sequence of Curve
        At least one.
    numbers : Numbers
        Name of a curve -> number of its colour, dashes and marker.
    names : Names
    """
    drawn = [
        Drawn(
            one.name,
            one.points,
            numbers[one.name],
            one.fitted,
            one.held_out,
            is_thick=one.device != CPU,
        )
        for one in curves
    ]
    told = fastest(curves, axis)
    labels = Labels(axis.name, "seconds", whole, seconds)
    picture = lines(names, f"{within}: {title}", told, labels, drawn)
    return figure(picture, title, [told], folded("as a table", _table(axis, curves)))


def fastest(curves: Sequence[Curve], axis: Axis) -> str:
    """What is predicted to be fastest, from which size on: where another one is faster by more than
    a twentieth at one of the sizes, from the first whole size on from which it stays faster."""
    at: dict[float, dict[str, float]] = {}
    for one in curves:
        for size, value in one.points:
            at.setdefault(size, {})[one.name] = value
    runs: list[tuple[str, float]] = []
    for size, values in sorted(at.items()):
        name = min(values, key=lambda name: values[name])
        if not runs or values.get(runs[-1][0], inf) > _CLEARLY * values[name]:
            runs.append((name, size))
    (first, _), *others = runs
    if not others:
        return f"Fastest throughout: {first}."
    by_name, sizes = {one.name: one for one in curves}, sorted(at)
    parts = []
    for (old, begin), (new, size) in pairwise(runs):
        between = [n for n in sizes if begin <= n <= size]
        found = break_even(by_name[old].at, by_name[new].at, between).extent or size
        parts.append(f"{new} from {axis.name} = {whole(found)}")
    return f"Fastest: {first}, then {', '.join(parts)}."


def _table(axis: Axis, curves: Sequence[Curve]) -> str:
    sizes = sorted({size for one in curves for size, _ in one.points})
    step = max((len(sizes) - 1) / (_COLUMNS - 1), 1)
    shown = [sizes[round(number * step)] for number in range(min(_COLUMNS, len(sizes)))]
    head = ["", *(f"{axis.name} = {whole(size)}" for size in shown), "error of the fit"]
    rows = [
        [
            one.name,
            *("-" if (found := one.at(size)) is None else readable(found) for size in shown),
            f"{one.error['mean']:.0%}" if "mean" in one.error else "-",
        ]
        for one in curves
    ]
    return table("", head, rows)
