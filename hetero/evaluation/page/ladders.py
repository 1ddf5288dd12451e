"""The ladders that were measured last: how fast each rung is, and how far below the roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hetero.evaluation.page.axes import flops, rate, scaled
from hetero.evaluation.page.html import figure, figures, folded, heading, items, paragraph, table
from hetero.evaluation.page.marks import Numbers
from hetero.evaluation.page.rows import Row, rows
from hetero.evaluation.page.svg import Names
from hetero.pricing.plan import readable

_READ = (
    "Kernels on the way from one thread to the best, on operands that lie on the device. Full "
    "marks: what is reached; hollow ones: what the roof, measured too, allows for so many "
    "operations and bytes."
)


def section(kept: Mapping[str, Mapping[str, Any]], names: Names) -> str:
    """Every ladder that is kept, as `hetero.evaluation.ladder.ladder` gives it; markup."""
    return paragraph(_READ) + "".join(_one(found, names) for found in kept.values())


def _one(found: Mapping[str, Any], names: Names) -> str:
    roof = found["roof"]
    text = (
        f"One {found['what']}, measured {found['created']}. The roof: "
        f"{flops(roof['flops_per_second'])} ({roof['how']}) and {rate(roof['bytes_per_second'])} "
        "(a copy)."
    )
    title = f"{found['operation']} {found['dtype']} on {found['device']} ({found['name']})"
    numbers = Numbers()
    sizes = dict.fromkeys(row["size"] for row in found["rows"])
    pictures = []
    for size in sizes:
        at = [row for row in found["rows"] if row["size"] == size]
        if any("seconds" in row for row in at):
            pictures.append(_figure(title, at, roof, numbers, names))
    ideas = {row["method"]: row["idea"] for row in found["rows"] if row.get("idea")}
    told = items(f"<b>{escape(name)}</b>: {escape(idea)}" for name, idea in ideas.items())
    parts = [heading(3, title), paragraph(text), figures(pictures)]
    return "".join([*parts, folded("what each step brings", told) if ideas else ""])


def _figure(
    title: str,
    at: Sequence[Mapping[str, Any]],
    roof: Mapping[str, Any],
    numbers: Numbers,
    names: Names,
) -> str:
    """One size, in the unit of what the roof says is scarce."""
    timed = [row for row in at if "seconds" in row]
    what, unit = "flops_per_second", "FLOP/s"
    if timed[-1]["bytes_per_second"] / roof["bytes_per_second"] > (
        timed[-1]["flops_per_second"] / roof["flops_per_second"]
    ):
        what, unit = "bytes_per_second", "B/s"
    drawn = [
        Row(
            f"{row['number']} {row['method']}",
            numbers[row["method"]],
            [row[what]],
            [row[what] / row["share"]] if row["share"] else [],
            readable(row["seconds"]),
        )
        for row in timed
    ]
    dims = " x ".join(map(str, at[0]["dims"]))
    told = "; ".join(f"{one.name}: {one.told}" for one in drawn) + "."
    picture = rows(names, f"{title}: {dims}", told, unit, scaled, drawn)
    cells = [
        (
            row["method"],
            readable(row["seconds"]),
            _figures(row[what] * 1e-9),
            "-" if row["gain"] is None else _figures(row["gain"]),
            f"{row['share']:.1%}" if row["share"] < 0.095 else f"{row['share']:.0%}",
        )
        for row in timed
    ]
    head = ("", "time", f"G{unit}", "gain", "of the roof")
    left_out = [f"{row['method']} is left out: {row['reason']}." for row in at if "reason" in row]
    return figure(picture, dims, left_out, folded("as a table", table("", head, cells)))


def _figures(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
