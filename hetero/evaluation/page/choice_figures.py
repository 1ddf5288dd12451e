"""Figures of what is chosen over two sizes."""

from __future__ import annotations

from html import escape

from hetero.evaluation.page import marks
from hetero.evaluation.page.axes import whole
from hetero.evaluation.page.choices import Choices
from hetero.evaluation.page.html import figure, folded, items, table
from hetero.evaluation.page.marks import Numbers
from hetero.evaluation.page.regions import regions
from hetero.evaluation.page.svg import Names, element
from hetero.ops.over_sizes import Plane

_ROWS = 5  # of a table


def choice_figure(
    within: str, title: str, plane: Plane, found: Choices, numbers: Numbers, names: Names
) -> str:
    """A picture, its key, and some rows as a table; markup.

    Parameters
    ----------
    within, title : str
        The operation, and of which problems of it.
    plane : Plane
    found : Choices
    numbers : Numbers
        Choice -> number of its colour and hatch.
    names : Names
    """
    counts = found.counts()
    total = sum(counts.values())
    shares = [f"{name} in {count / total:.0%} of the map" for name, count in counts.items()]
    told = "; ".join(shares) + "."
    shown = {name: numbers[name] for name in counts}
    axes, sizes = (plane.x.name, plane.y.name), (found.xs, found.ys)
    picture = regions(names, f"{within}: {title}", told, axes, sizes, found.cells, shown)
    key = items((_key(name, number, counts[name] / total) for name, number in shown.items()), "key")
    lines = []
    if found.gain > 1.05:
        lines.append(f"Up to {found.gain:.3g} times as fast as the CPU.")
    rows = folded("where the choice turns", _table(plane, found))
    return figure(picture, title, lines, key + rows)


def _key(name: str, number: int, share: float) -> str:
    swatch = element(
        "svg",
        element("rect", width=22, height=14, fill=marks.hatch(number), class_="swatch"),
        viewBox="0 0 22 14",
        aria_hidden="true",
    )
    return f"{swatch}{number + 1} {escape(name)}, {share:.0%}"


def _table(plane: Plane, found: Choices) -> str:
    last = len(found.ys) - 1
    shown = sorted({round(number * last / (_ROWS - 1)) for number in range(_ROWS)})
    rows = []
    for row in shown:
        (first, *_), *others = found.runs(row)
        turns = [f"{name} from {plane.x.name} = {whole(x)}" for name, x, _ in others]
        rows.append((f"{plane.y.name} = {whole(found.ys[row])}", ", then ".join([first, *turns])))
    return table("", ("", "chosen"), rows, words=(0, 1))
