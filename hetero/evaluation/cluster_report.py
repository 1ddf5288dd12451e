"""What `hetero.evaluation.cluster` gives, as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero.evaluation.report import markdown
from hetero.pricing.plan import readable

PICTURE = (11.0, 4.5)  # inches
_TERMS = {"compute": "--", "launch": "-.", "halo": ":", "sums": (0, (5, 1, 1, 1, 1, 1))}
_BINDS = {
    "compute": "computing binds: more of them pay",
    "launch": "launches bind: larger grids pay, more of them do not",
    "halo": "halos bind: messages of the same length, however many there are",
    "sums": "sums bind: all wait for the all-reduce",
}


def text(found: Mapping[str, Any]) -> str:
    """The whole cluster, one device, the best numbers of them, and both ways to scale."""
    one, last, unit, fits = found["strong"][0], found["strong"][-1], found["unit"], "of none"
    if found["fits_from"] is not None:
        fits = f"of each from {found['fits_from']:,} {unit} on"
    terms = " + ".join(f"{name} {readable(last[name])}" for name in _TERMS)
    whole = readable(found["iterations"] * last["seconds"])
    fastest = found["fastest"]
    lines = [
        f"{found['call']} by {found['method']}: {found['devices']:,} {unit} in "
        f"{found['nodes']:,} nodes, constants of {found['device']}",
        f"   {last['parts']:,}: an iteration takes {readable(last['seconds'])} = {terms}",
        f"   1: {readable(one['seconds'])}; {one['seconds'] / last['seconds']:.3g} times as long, "
        f"efficiency {last['efficiency']:.0%}",
        f"   {_BINDS[last['binds']]}",
        f"   about {found['iterations']:,} iterations: {whole}",
        f"   its vectors fit the memory {fits}",
        f"   fastest: {fastest['parts']:,} {unit}, {readable(fastest['seconds'])}; efficient by "
        f"half: up to {found['half_efficient']:,}",
    ]
    heads = {"strong": "Strong scaling, this grid", "weak": "Weak scaling, as many rows on each"}
    for way, title in heads.items():
        head = (unit, "rows of one", "iteration", *_TERMS, "efficiency", "binds")
        cells = [
            [f"{row['parts']:,}", f"{row['rows']:,}"]
            + [readable(row[name]) for name in ("seconds", *_TERMS)]
            + [f"{row['efficiency']:.0%}", row["binds"]]
            for row in found[way]
        ]
        lines += ["", f"{title}:", "", *markdown(head, cells)]
    return "\n".join(lines)


def draw(found: Mapping[str, Any], picture: Any) -> None:
    """Draw both ways to scale, next to each other, on a figure of matplotlib's."""
    sides = picture.subplots(1, 2)
    for axes, way in zip(sides, ("strong", "weak"), strict=True):
        rows = found[way]
        parts = [row["parts"] for row in rows]
        axes.plot(parts, [row["seconds"] for row in rows], "ko-", label="an iteration")
        ideal = [rows[0]["seconds"] / (n if way == "strong" else 1) for n in parts]
        axes.plot(parts, ideal, color="0.7", label="at efficiency 1")
        for name, style in _TERMS.items():
            some = [(row["parts"], row[name]) for row in rows if row[name] > 0.0]
            if some:
                axes.plot(*zip(*some, strict=True), linestyle=style, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel(found["unit"])
        axes.set_ylabel("seconds, forecast")
        axes.set_title(f"{way} scaling: {found['call']}", fontsize="medium")
        axes.grid(alpha=0.3)
    sides[0].legend(fontsize="small")
