"""Figures of an operation's methods: their time over one size, and how far predictions are off."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from statistics import median

from hetero.evaluation.break_even import break_even
from hetero.evaluation.page.charts import Drawn, Labels, Points, Row, lines, rows
from hetero.evaluation.page.compared import Along
from hetero.evaluation.page.drawing import Numbers, mean_error, seconds, whole
from hetero.evaluation.page.markup import figure, folded, paragraph, table
from hetero.evaluation.page.methods import Curve
from hetero.evaluation.report import OF_METHODS, rounded
from hetero.ops.over_sizes import Axis
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.registry import Operation
from hetero.registry.models import ModelKey
from hetero.times import readable

_COLUMNS = 4  # sizes in a table
_CLEARLY = 1.1  # times as fast, for a turn to be named
_TURNS = 3  # that are named; of more the methods are
_LEAST_ERROR = 0.001  # relative; less is drawn as that


def of_curves(
    within: str,
    title: str,
    axis: Axis,
    curves: Sequence[Curve],
    numbers: Numbers,
    others: Along | None = None,
) -> str:
    """A picture of curves, what is fastest where, and the figures as a table; markup. A single
    curve is a sentence, its picture folded.

    ``within`` and ``title`` say what the curves are of, and of which problems; ``others`` are other
    libraries' seconds, as measured.
    """
    several = len({c.device for c in curves}) > 1
    drawn = [
        Drawn(
            c.name if several else c.method,
            c.points,
            numbers[c.name],
            c.fitted,
            c.held_out,
            is_thick=c.device != CPU,
        )
        for c in curves
    ]
    text = [fastest(curves, axis)]
    for library, points in (others or {}).items():
        drawn.append(Drawn(library, points, numbers[library], points))
        text += _against(library, points, curves)
    labels = Labels(axis.name, "seconds", whole, seconds)
    picture = lines(f"{within}: {title}", " ".join(text), labels, drawn)
    as_table = _table(axis, curves)
    if len(drawn) > 1:
        return figure(picture, title, text, folded("as a table", as_table))
    (one,) = curves
    (least, first), *_, (most, last) = one.points
    ends = f"{readable(first)} at {axis.name} = {whole(least)}, {readable(last)} at {whole(most)}"
    sentence = f"{title}: {one.name} alone, {ends}."
    return figure("", sentence, (), folded("as a picture and a table", picture + as_table))


def _against(library: str, points: Points, curves: Sequence[Curve]) -> list[str]:
    """How long another library takes over the fastest curve, as a line of text."""
    best = {n: min((t for c in curves if (t := c.at(n))), default=None) for n, _ in points}
    ratios = [taken / best[n] for n, taken in points if best[n]]
    if not ratios:
        return []
    least, most = rounded(min(ratios), 2), rounded(max(ratios), 2)
    return [f"{library}, measured: {least} to {most} times as long as the fastest of these."]


def fastest(curves: Sequence[Curve], axis: Axis, short: bool = False) -> str:
    """What is predicted to be fastest, from which size on: where another one is faster by more than
    a tenth at one of the sizes, from the first whole size on from which it stays faster.

    ``short`` is for a cell of a table.
    """
    at: dict[float, dict[str, float]] = {}
    for one in curves:
        for size, value in one.points:
            at.setdefault(size, {})[one.name] = value
    runs: list[tuple[str, float]] = []
    for size, values in sorted(at.items()):
        name = min(values, key=lambda name: values[name])
        if not runs or values.get(runs[-1][0], inf) > _CLEARLY * values[name]:
            runs.append((name, size))
    by_name, sizes = {one.name: one for one in curves}, sorted(at)
    (first, _), *others = runs
    shown = {name: by_name[name].method if short else name for name, _ in runs}
    head = "" if short else "Fastest: "
    if not others:
        return shown[first] if short else f"Fastest throughout: {first}."
    if len(others) > _TURNS:
        names = " or ".join(dict.fromkeys(shown.values()))
        return names if short else f"{head}{names}; which one changes {len(others)} times."
    parts = []
    for (old, begin), (new, size) in pairwise(runs):
        between = [n for n in sizes if begin <= n <= size]
        turn = break_even(by_name[old].at, by_name[new].at, between).extent or size
        parts.append(f"{shown[new]} from {axis.name} = {whole(turn)}")
    return f"{head}{shown[first]}, then {', '.join(parts)}{'' if short else '.'}"


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
    if len(drawn) == 1:
        return [paragraph(f"{description} Acceptable: {OF_METHODS.mean:.0%} in the mean.")]
    title = f"{operation.function}: relative errors of its models"
    picture = rows(title, description, "relative error", lambda v: f"{v * 100:.3g}%", drawn)
    line = (
        "Full marks: the mean; hollow ones: the 95th percentile. There is a model for each dtype "
        "and layout; the number at the right is the median of the means. Acceptable: "
        f"{OF_METHODS.mean:.0%} in the mean."
    )
    return [figure(picture, "all models", [line])]
