"""A picture of which choice is made where, each region hatched and named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from hetero.evaluation.page import marks
from hetero.evaluation.page.axes import Scale, doublings, whole
from hetero.evaluation.page.svg import FONT, WIDTH, Names, element, picture, text, width

_SIDE, _LEFT, _TOP, _BOTTOM = 300.0, 46.0, 20.0, 32.0
_HEIGHT = _SIDE + _TOP + _BOTTOM
Cells = Sequence[Sequence[str]]


def regions(
    names: Names,
    title: str,
    told: str,
    axes: tuple[str, str],
    sizes: tuple[Sequence[int], Sequence[int]],
    cells: Cells,
    numbers: Mapping[str, int],
) -> str:
    """The picture.

    Parameters
    ----------
    names, title, told
        As for `picture`.
    axes : (str, str)
        What x and y are called.
    sizes : (sequence of int, sequence of int)
        Of the columns and of the rows, ascending.
    cells : sequence of sequence of str
        The choice in each row and column.
    numbers : mapping
        Choice -> number of its colour and hatch; one more is what stands in its region.
    """
    rows, columns = len(cells), len(cells[0])
    wide, high = _SIDE / columns, _SIDE / rows
    floor = _TOP + _SIDE
    parts = []
    for name, number in numbers.items():
        path = "".join(
            f"M{_LEFT + a * wide:.1f} {floor - (row + 1) * high:.1f}"
            f"h{(b - a) * wide:.2f}v{high + 0.3:.2f}h{(a - b) * wide:.2f}z"
            for row, a, b in _runs(cells, name)
        )
        if path:
            parts.append(element("path", d=path, fill=marks.hatch(number), class_="region"))
    parts.append(element("path", d=_borders(cells, wide, high), class_="border"))
    parts += _ticks(sizes, axes, wide, high)
    for name, number in numbers.items():
        for row, a, b in _names(cells, name, wide, high):
            x, y = _LEFT + (a + b) / 2 * wide, floor - (row + 0.5) * high + FONT * 0.35
            label = f"{number + 1} {name}"
            label = label if width(label) < (b - a) * wide - 4 else str(number + 1)
            parts.append(text(label, x, y, text_anchor="middle", class_="on"))
    return picture(names, title, told, _HEIGHT, parts)


def _runs(cells: Cells, name: str) -> Iterator[tuple[int, int, int]]:
    """Row, first column and the one after the last, of each run of a choice."""
    for row, line in enumerate(cells):
        begin = 0
        for choice, group in groupby(line):
            end = begin + len(list(group))
            if choice == name:
                yield row, begin, end
            begin = end


def _names(cells: Cells, name: str, wide: float, high: float) -> Iterator[tuple[int, int, int]]:
    """Where a choice is named: in each of its regions that has the room, at its widest row."""
    for region in _connected(cells, name):
        runs = [r for r in _runs(cells, name) if (r[0], r[1]) in region]
        tall = max(1, round(FONT * 1.3 / high))

        def room(run: tuple[int, int, int], runs: list = runs, tall: int = tall) -> float:
            row, a, b = run
            beside = [
                min(b, d) - max(a, c)
                for other, c, d in runs
                if abs(other - row) <= tall // 2 and min(b, d) > max(a, c)
            ]
            return min(beside) if len(beside) >= tall else 0.0

        best = max(runs, key=lambda r: (room(r), -abs(r[0] - len(cells) / 2)))
        if room(best) * wide >= FONT * 0.9:
            yield best


def _connected(cells: Cells, name: str) -> list[set[tuple[int, int]]]:
    """The regions of a choice, each as its (row, column) pairs."""
    left = {
        (row, column)
        for row, line in enumerate(cells)
        for column, choice in enumerate(line)
        if choice == name
    }
    found = []
    while left:
        region, edge = set(), [left.pop()]
        while edge:
            row, column = edge.pop()
            region.add((row, column))
            for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                near = row + down, column + right
                if near in left:
                    left.remove(near)
                    edge.append(near)
        found.append(region)
    return found


def _borders(cells: Cells, wide: float, high: float) -> str:
    """Lines between cells of different choices, and around all."""
    floor = _TOP + _SIDE
    parts = [f"M{_LEFT:g} {_TOP:g}h{_SIDE:g}v{_SIDE:g}h{-_SIDE:g}z"]
    for row, line in enumerate(cells):
        for column, choice in enumerate(line):
            x, y = _LEFT + column * wide, floor - row * high
            if column and line[column - 1] != choice:
                parts.append(f"M{x:.1f} {y:.1f}v{-high:.2f}")
            if row and cells[row - 1][column] != choice:
                parts.append(f"M{x:.1f} {y:.1f}h{wide:.2f}")
    return "".join(parts)


def _ticks(
    sizes: tuple[Sequence[int], Sequence[int]], axes: tuple[str, str], wide: float, high: float
) -> list[str]:
    xs, ys = sizes
    floor = _TOP + _SIDE
    # The middle of the first and of the last cell are at the least and at the most size.
    x = Scale(xs[0], xs[-1], _LEFT + wide / 2, _LEFT + _SIDE - wide / 2)
    y = Scale(ys[0], ys[-1], floor - high / 2, _TOP + high / 2)
    parts = []
    for tick in doublings(xs[0], xs[-1]):
        parts.append(element("path", d=f"M{x.at(tick):.1f} {floor:g}v3", class_="tick"))
        parts.append(text(whole(tick), x.at(tick), floor + 13, text_anchor="middle"))
    for tick in doublings(ys[0], ys[-1]):
        parts.append(element("path", d=f"M{_LEFT:g} {y.at(tick):.1f}h-3", class_="tick"))
        parts.append(text(whole(tick), _LEFT - 5, y.at(tick) + 3.5, text_anchor="end"))
    middle = _LEFT + _SIDE / 2
    parts.append(text(axes[0], middle, floor + 27, text_anchor="middle", class_="name"))
    parts.append(text(axes[1], 2, 10, class_="name"))
    assert middle < WIDTH
    return parts
