"""Figures of an operation's methods: their time over one size, and how far predictions are off."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from statistics import median

from hetero.evaluation.break_even import break_even
from hetero.evaluation.page.charts import Drawn, Labels, Row, lines, rows
from hetero.evaluation.page.drawing import Numbers, mean_error, seconds, whole
from hetero.evaluation.page.markup import figure, folded, table
from hetero.evaluation.page.methods import Curve
from hetero.evaluation.report import OF_METHODS
from hetero.ops.over_sizes import Axis
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.registry import Operation
from hetero.registry.models import ModelKey
from hetero.times import readable

_COLUMNS = 4  # sizes in a table
_CLEARLY = 1.05
_LEAST_ERROR = 0.001  # relative; less is drawn as that


def of_curves(
    within: str, title: str, axis: Axis, curves: Sequence[Curve], numbers: Numbers
) -> str:
    """A picture of curves, what is fastest where, and the figures as a table; markup.

    ``within`` and ``title`` say what the curves are of, and of which problems.
    """
    drawn = [
        Drawn(c.name, c.points, numbers[c.name], c.fitted, c.held_out, is_thick=c.device != CPU)
        for c in curves
    ]
    description = fastest(curves, axis)
    labels = Labels(axis.name, "seconds", whole, seconds)
    picture = lines(f"{within}: {title}", description, labels, drawn)
    return figure(picture, title, [description], folded("as a table", _table(axis, curves)))


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
        turn = break_even(by_name[old].at, by_name[new].at, between).extent or size
        parts.append(f"{new} from {axis.name} = {whole(turn)}")
    return f"Fastest: {first}, then {', '.join(parts)}."


def _table(axis: Axis, curves: Sequence[Curve]) -> str:
    sizes = sorted({size for one in curves for size, _ in one.points})
    step = max((len(sizes) - 1) / (_COLUMNS - 1), 1)
    shown = [sizes[round(number * step)] for number in range(min(_COLUMNS, len(sizes)))]
    head = ["", *(f"{axis.name} = {whole(size)}" for size in shown), "error of the fit"]
    cells = []
    for one in curves:
        times = [one.at(size) for size in shown]
        written = ["-" if time is None else readable(time) for time in times]
        cells.append([one.name, *written, mean_error(one.error)])
    return table("", head, cells)


def of_errors(operation: Operation, constants: Profile, numbers: Numbers) -> list[str]:
    """A row for each method on each device, with the errors of its models, as the profile has them;
    a figure, or none where no errors are known. Markup."""
    known: dict[str, list[dict[str, float]]] = {}
    for text, error in constants.residuals().items():
        try:
            key = ModelKey.parse(text)
        except ValueError:  # of a link
            continue
        if key.operation == operation.name and "mean" in error:
            known.setdefault(f"{key.method}, {key.place}", []).append(error)
    if not known:
        return []
    drawn = [
        Row(
            name,
            numbers[name],
            [max(one["mean"], _LEAST_ERROR) for one in errors],
            [max(one["p95"], _LEAST_ERROR) for one in errors if "p95" in one],
            f"{median(one['mean'] for one in errors):.0%}",
        )
        for name, errors in known.items()
    ]
    description = "; ".join(f"{one.name}: {one.note} in the median model" for one in drawn) + "."
    title = f"{operation.function}: relative errors of its models"
    picture = rows(title, description, "relative error", lambda v: f"{v * 100:.3g}%", drawn)
    line = (
        "Full marks: the mean; hollow ones: the 95th percentile. There is a model for each dtype "
        "and layout; the number at the right is the median of the means. Acceptable: "
        f"{OF_METHODS.mean:.0%} in the mean."
    )
    return [figure(picture, "all models", [line])]
