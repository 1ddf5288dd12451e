"""A picture of named rows, each with marks on one scale that all share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hetero.evaluation.page import marks
from hetero.evaluation.page.axes import Scale, Writer, decades, with_room
from hetero.evaluation.page.svg import FONT, WIDTH, Names, element, fitting, picture, text, width

_HIGH, _TOP, _BOTTOM, _GAP = 22.0, 20.0, 32.0, 6.0
_MOST_LEFT, _MOST_RIGHT = 140.0, 90.0


class Row(NamedTuple):
    """A row.

    Attributes
    ----------
    name : str
    number : int
        Of its colour and marker.
    full, hollow : sequence of float
        Where its marks are.
    told : str
        What stands at its end.
    """

    name: str
    number: int
    full: Sequence[float]
    hollow: Sequence[float] = ()
    told: str = ""


def rows(
    names: Names, title: str, told: str, axis: str, write: Writer, found: Sequence[Row]
) -> str:
    """The picture; its axis is logarithmic, and called ``axis``.

    Raises
    ------
    ValueError
        If there is nothing to draw.
    """
    values = [value for one in found for value in (*one.full, *one.hollow)]
    if not values:
        raise ValueError("there is no row to draw")
    left = min(max(width(one.name) for one in found) + 2 * _GAP, _MOST_LEFT)
    right = min(max(width(one.told) for one in found) + 2 * _GAP, _MOST_RIGHT)
    x = Scale(*with_room((min(values), max(values))), left, WIDTH - right)
    floor = _TOP + _HIGH * len(found)
    parts = []
    taken = 0.0
    for tick in decades(x.least, x.most, 5):
        at, half = x.at(tick), width(write(tick)) / 2
        if at - half < taken:
            continue
        taken = at + half + _GAP / 2
        parts.append(element("path", d=f"M{at:.1f} {_TOP:g}V{floor:g}", class_="grid"))
        parts.append(text(write(tick), at, floor + 13, text_anchor="middle"))
    for position, one in enumerate(found):
        y = _TOP + (position + 0.5) * _HIGH
        parts += _row(one, x, y)
    middle = (x.begin + x.end) / 2
    parts.append(text(axis, middle, floor + 27, text_anchor="middle", class_="name"))
    return picture(names, title, told, floor + _BOTTOM, parts)


def _row(one: Row, x: Scale, y: float) -> list[str]:
    parts = [element("path", d=f"M{x.begin:g} {y:.1f}H{x.end:g}", class_="grid")]
    if one.full:
        begin, end = (x.at(value) for value in (min(one.full), max((*one.full, *one.hollow))))
        kind = f"c{one.number % marks.NUMBER} line"
        parts.append(
            element("path", d=f"M{begin:.1f} {y:.1f}H{max(end, begin + 0.5):.1f}", class_=kind)
        )
    parts += [marks.marker(one.number, x.at(value), y, True) for value in one.hollow]
    parts += [marks.marker(one.number, x.at(value), y) for value in one.full]
    baseline = y + FONT * 0.35
    parts.append(
        text(fitting(one.name, x.begin - _GAP), x.begin - _GAP, baseline, text_anchor="end")
    )
    if one.told:
        parts.append(text(one.told, x.end + _GAP, baseline))
    return parts
