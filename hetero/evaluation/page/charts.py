"""The three pictures of the page: lines with samples, rows of marks, regions of choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from hetero.evaluation.page.drawing import (
    BASELINE,
    FONT,
    WIDTH,
    Scale,
    Writer,
    coloured,
    dashes,
    decades,
    doublings,
    element,
    fitting,
    hatch,
    limits,
    marker,
    picture,
    text,
    whole,
    width,
    with_room,
    x_axis,
    y_axis,
)

_TOP, _BOTTOM = 20.0, 32.0  # above and below what is drawn
Points = Sequence[tuple[float, float]]
Cells = Sequence[Sequence[str]]


# -- Lines -----------------------------------------------------------------------------------------

_FLOOR = 232.0
_LEAD, _LEAST_RIGHT, _MOST_RIGHT = 16.0, 60.0, 150.0  # right of the lines: their names
_LEAST_GAP = FONT * 1.15


class Drawn(NamedTuple):
    """A line, and the samples that it rests on, full, or does not know, hollow."""

    name: str
    points: Points
    number: int  # of its colour, dashes and marker
    full: Points = ()
    hollow: Points = ()
    is_thick: bool = False


class Labels(NamedTuple):
    """What the axes are called, and how their values are written."""

    x: str
    y: str
    write_x: Writer
    write_y: Writer


def lines(title: str, description: str, labels: Labels, drawn: Sequence[Drawn]) -> str:
    """A picture of lines, each named at its end; both axes are logarithmic.

    Raises
    ------
    ValueError
        If there is nothing to draw.
    """
    every = [p for one in drawn for p in (*one.points, *one.full, *one.hollow)]
    if not every:
        raise ValueError("there is no line to draw")
    xs, ys = zip(*every, strict=True)
    longest = max(width(one.name) for one in drawn)
    right = min(max(longest + _LEAD, _LEAST_RIGHT), _MOST_RIGHT)
    y = Scale(*with_room(ys), _FLOOR, _TOP)
    ticks = decades(y.least, y.most)
    x = Scale(*limits(xs), max(width(labels.write_y(tick)) for tick in ticks) + 8, WIDTH - right)
    parts = x_axis(x, doublings(x.least, x.most, 5), labels.write_x, labels.x, _FLOOR, f"V{_TOP:g}")
    parts += y_axis(y, ticks, labels.write_y, labels.y, x.begin, f"H{x.end:g}")
    ends = [y.at(one.points[-1][1]) for one in drawn]
    for one, end, place in zip(drawn, ends, spread(ends, _TOP, _FLOOR), strict=True):
        path = "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in one.points)
        style = coloured(one.number, "line") + " thick" * one.is_thick
        parts.append(
            element("path", d=f"M{path}", class_=style, stroke_dasharray=dashes(one.number))
        )
        parts += [marker(one.number, x.at(a), y.at(b), "full") for a, b in one.full]
        parts += [marker(one.number, x.at(a), y.at(b), "hollow") for a, b in one.hollow]
        lead = f"M{x.at(one.points[-1][0]):.1f} {end:.1f}L{x.end + 8:.1f} {place:.1f}h3"
        parts.append(element("path", d=lead, class_=coloured(one.number, "lead")))
        parts.append(text(fitting(one.name, right - _LEAD), x.end + 13, place + BASELINE))
    return picture(title, description, _FLOOR + _BOTTOM, parts)


def spread(places: Sequence[float], least: float, most: float) -> list[float]:
    """Places for labels: as near to these as can be, in their order, none over another."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    gap = min(_LEAST_GAP, (most - least) / max(len(places) - 1, 1))
    moved = [0.0] * len(places)
    at = least - gap
    for i in order:
        at = moved[i] = max(places[i], at + gap)
    at = most + gap
    for i in reversed(order):
        at = moved[i] = min(moved[i], at - gap)
    return moved


# -- Rows ------------------------------------------------------------------------------------------

_HIGH, _GAP = 22.0, 6.0
_MOST_LEFT, _MOST_END = 140.0, 90.0


class Row(NamedTuple):
    """Marks with a name before them and a note at their end."""

    name: str
    number: int  # of its colour and marker
    full: Sequence[float]
    hollow: Sequence[float] = ()
    note: str = ""


def rows(title: str, description: str, axis: str, write: Writer, drawn: Sequence[Row]) -> str:
    """A picture of rows on one logarithmic scale, which is called ``axis``.

    Raises
    ------
    ValueError
        If there is nothing to draw.
    """
    values = [value for one in drawn for value in (*one.full, *one.hollow)]
    if not values:
        raise ValueError("there is no row to draw")
    left = min(max(width(one.name) for one in drawn) + 2 * _GAP, _MOST_LEFT)
    right = min(max(width(one.note) for one in drawn) + 2 * _GAP, _MOST_END)
    x = Scale(*with_room(values), left, WIDTH - right)
    floor = _TOP + _HIGH * len(drawn)
    parts = x_axis(x, decades(x.least, x.most, 5), write, axis, floor, f"V{_TOP:g}")
    for position, one in enumerate(drawn):
        parts += _row(one, x, _TOP + (position + 0.5) * _HIGH)
    return picture(title, description, floor + _BOTTOM, parts)


def _row(one: Row, x: Scale, y: float) -> list[str]:
    parts = [element("path", d=f"M{x.begin:g} {y:.1f}H{x.end:g}", class_="grid")]
    if one.full:
        begin, end = x.at(min(one.full)), x.at(max((*one.full, *one.hollow)))
        path = f"M{begin:.1f} {y:.1f}H{max(end, begin + 0.5):.1f}"
        parts.append(element("path", d=path, class_=coloured(one.number, "line")))
    parts += [marker(one.number, x.at(value), y, "hollow") for value in one.hollow]
    parts += [marker(one.number, x.at(value), y, "full") for value in one.full]
    left = x.begin - _GAP
    parts.append(text(fitting(one.name, left), left, y + BASELINE, text_anchor="end"))
    if one.note:
        parts.append(text(one.note, x.end + _GAP, y + BASELINE))
    return parts


# -- Regions ---------------------------------------------------------------------------------------

_SIDE, _LEFT = 300.0, 46.0
_GROUND = _TOP + _SIDE


def regions(
    title: str,
    description: str,
    axes: tuple[str, str],
    sizes: tuple[Sequence[int], Sequence[int]],
    cells: Cells,
    numbers: Mapping[str, int],
) -> str:
    """A picture of which choice is made where, each region hatched, numbered and named.

    The names of the two axes and the sizes along them, ascending, come as pairs; the choices by
    rows and columns.
    """
    xs, ys = sizes
    wide, high = _SIDE / len(xs), _SIDE / len(ys)
    parts, names = [], []
    for name, number in numbers.items():
        runs = [*_runs(cells, name)]
        path = "".join(
            f"M{_LEFT + a * wide:.1f} {_GROUND - (row + 1) * high:.1f}"
            f"h{(b - a) * wide:.2f}v{high + 0.3:.2f}h{(a - b) * wide:.2f}z"
            for row, a, b in runs
        )
        if path:
            parts.append(element("path", d=path, fill=hatch(number), class_="region"))
        for row, a, b in _places_of_names(cells, name, runs, wide, high):
            x, y = _LEFT + (a + b) / 2 * wide, _GROUND - (row + 0.5) * high + BASELINE
            label = f"{number + 1} {name}"
            label = label if width(label) < (b - a) * wide - 4 else str(number + 1)
            names.append(text(label, x, y, text_anchor="middle", class_="on"))
    parts.append(element("path", d=_borders(cells, wide, high), class_="border"))
    # The middle of the first and of the last cell are at the least and at the most size.
    x = Scale(xs[0], xs[-1], _LEFT + wide / 2, _LEFT + _SIDE - wide / 2)
    y = Scale(ys[0], ys[-1], _GROUND - high / 2, _TOP + high / 2)
    parts += x_axis(x, doublings(xs[0], xs[-1]), whole, axes[0], _GROUND, "v3")
    parts += y_axis(y, doublings(ys[0], ys[-1]), whole, axes[1], _LEFT, "h-3")
    return picture(title, description, _GROUND + _BOTTOM, parts + names)


Run = tuple[int, int, int]  # row, first column and the one after the last


def _runs(cells: Cells, name: str) -> Iterator[Run]:
    """The runs of a choice along the rows."""
    for row, line in enumerate(cells):
        begin = 0
        for choice, group in groupby(line):
            end = begin + len(list(group))
            if choice == name:
                yield row, begin, end
            begin = end


def _places_of_names(
    cells: Cells, name: str, runs: Sequence[Run], wide: float, high: float
) -> Iterator[Run]:
    """Where a choice is named: in each of its regions that has the room, at its widest row."""
    from scipy import ndimage

    is_chosen = [[choice == name for choice in line] for line in cells]
    connected, number = ndimage.label(is_chosen)
    tall = max(1, round(FONT * 1.3 / high))  # rows that the name is high
    for region in range(1, number + 1):
        own = [run for run in runs if connected[run[0], run[1]] == region]
        room = {run: _room(run, own, tall) for run in own}
        best = max(own, key=lambda run: (room[run], -abs(run[0] - len(cells) / 2)))
        if room[best] * wide >= FONT * 0.9:
            yield best


def _room(run: Run, own: Sequence[Run], tall: int) -> int:
    """Columns that a run and its neighbours above and below have in common."""
    row, a, b = run
    common = [
        min(b, d) - max(a, c)
        for other, c, d in own
        if abs(other - row) <= tall // 2 and min(b, d) > max(a, c)
    ]
    return min(common) if len(common) >= tall else 0


def _borders(cells: Cells, wide: float, high: float) -> str:
    """Lines between cells of different choices, and around all."""
    parts = [f"M{_LEFT:g} {_TOP:g}h{_SIDE:g}v{_SIDE:g}h{-_SIDE:g}z"]
    for row, line in enumerate(cells):
        for column, choice in enumerate(line):
            x, y = _LEFT + column * wide, _GROUND - row * high
            if column and line[column - 1] != choice:
                parts.append(f"M{x:.1f} {y:.1f}v{-high:.2f}")
            if row and cells[row - 1][column] != choice:
                parts.append(f"M{x:.1f} {y:.1f}h{wide:.2f}")
    return "".join(parts)
