"""A picture of lines with samples, each line named at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hetero.evaluation.page import marks
from hetero.evaluation.page.axes import Scale, Writer, decades, doublings, with_room
from hetero.evaluation.page.svg import FONT, WIDTH, Names, element, fitting, picture, text, width

_HEIGHT, _TOP, _BOTTOM = 264.0, 20.0, 32.0
_LEAD, _LEAST_RIGHT, _MOST_RIGHT = 16.0, 60.0, 150.0  # right of the lines: their names
_LEAST_GAP = FONT * 1.15
Points = Sequence[tuple[float, float]]


class Drawn(NamedTuple):
    """A line.

    Attributes
    ----------
    name : str
    points : sequence of (x, y)
    number : int
        Of its colour, dashes and marker.
    full, hollow : sequence of (x, y)
        Samples.
    is_thick : bool
    """

    name: str
    points: Points
    number: int
    full: Points = ()
    hollow: Points = ()
    is_thick: bool = False


class Labels(NamedTuple):
    """What the axes are called, and how their values are written."""

    x: str
    y: str
    write_x: Writer
    write_y: Writer


def lines(names: Names, title: str, told: str, labels: Labels, drawn: Sequence[Drawn]) -> str:
    """The picture; both axes are logarithmic.

    Raises
    ------
    ValueError
        If there is nothing to draw.
    """
    every = [p for one in drawn for p in (*one.points, *one.full, *one.hollow)]
    if not every:
        raise ValueError("there is no line to draw")
    (least_x, most_x), (least_y, most_y) = (_limits(values) for values in zip(*every, strict=True))
    longest = max(width(one.name) for one in drawn)
    right = min(max(longest + _LEAD, _LEAST_RIGHT), _MOST_RIGHT)
    y = Scale(*with_room((least_y, most_y)), _HEIGHT - _BOTTOM, _TOP)
    left = max(width(labels.write_y(tick)) for tick in decades(y.least, y.most)) + 8
    x = Scale(least_x, most_x, left, WIDTH - right)
    parts = [*_grid(x, y, labels)]
    for one in drawn:
        parts.append(_line(one, x, y))
        for points, hollow in ((one.full, False), (one.hollow, True)):
            parts += [marks.marker(one.number, x.at(a), y.at(b), hollow) for a, b in points]
    ends = [y.at(one.points[-1][1]) for one in drawn]
    for one, end, place in zip(drawn, ends, spread(ends, _TOP, _HEIGHT - _BOTTOM), strict=True):
        from_x = x.at(one.points[-1][0])
        parts.append(
            element(
                "path",
                d=f"M{from_x:.1f} {end:.1f}L{x.end + 8:.1f} {place:.1f}h3",
                class_=f"c{one.number % marks.NUMBER} lead",
            )
        )
        label = fitting(one.name, right - _LEAD)
        parts.append(text(label, x.end + 13, place + FONT * 0.35))
    return picture(names, title, told, _HEIGHT, parts)


def spread(places: Sequence[float], least: float, most: float) -> list[float]:
    """Places for labels: as near to these as can be, in their order, none over another."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    gap = min(_LEAST_GAP, (most - least) / max(len(places) - 1, 1))
    found = [0.0] * len(places)
    at = least - gap
    for i in order:
        at = found[i] = max(places[i], at + gap)
    at = most + gap
    for i in reversed(order):
        at = found[i] = min(found[i], at - gap)
    return found


def _limits(values: Sequence[float]) -> tuple[float, float]:
    least, most = min(values), max(values)
    return (least, most) if least < most else (least / 2, most * 2)


def _grid(x: Scale, y: Scale, labels: Labels) -> list[str]:
    parts = []
    for tick in doublings(x.least, x.most, 5):
        at = x.at(tick)
        parts.append(element("path", d=f"M{at:.1f} {y.begin:g}V{y.end:g}", class_="grid"))
        parts.append(text(labels.write_x(tick), at, y.begin + 13, text_anchor="middle"))
    for tick in decades(y.least, y.most):
        at = y.at(tick)
        parts.append(element("path", d=f"M{x.begin:g} {at:.1f}H{x.end:g}", class_="grid"))
        parts.append(text(labels.write_y(tick), x.begin - 4, at + 3.5, text_anchor="end"))
    parts.append(text(labels.y, 2, 10, class_="name"))
    middle = (x.begin + x.end) / 2
    parts.append(text(labels.x, middle, y.begin + 27, text_anchor="middle", class_="name"))
    return parts


def _line(one: Drawn, x: Scale, y: Scale) -> str:
    path = "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in one.points)
    return element(
        "path",
        d=f"M{path}",
        class_=f"c{one.number % marks.NUMBER} line" + " thick" * one.is_thick,
        stroke_dasharray=marks.dash(one.number),
    )
