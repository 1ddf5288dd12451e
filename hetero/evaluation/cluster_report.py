"""What `hetero.evaluation.cluster` gives, as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero.evaluation.report import markdown
from hetero.times import readable

PICTURE = (11.0, 4.5)  # inches
_TERMS = {"compute": "--", "launch": "-.", "halo": ":", "sums": (0, (5, 1, 1, 1, 1, 1))}
_BINDS = {
    "compute": "computing binds: each one's own rows",
    "launch": "launches bind: larger grids pay, more of them do not",
    "halo": "halos bind: a message keeps its length, however many share the grid",
    "sums": "sums bind: all wait for the all-reduce",
}


def text(scaled: Mapping[str, Any]) -> str:
    """The whole cluster, one device, the best numbers of them, and both ways to scale."""
    one, *_, last = scaled["strong"][0], *scaled["strong"]
    unit, fits, fastest = scaled["unit"], scaled["fits_from"], scaled["fastest"]
    lines = [
        f"{scaled['call']} by {scaled['method']}: {scaled['devices']:,} {unit} (nodes: "
        f"{scaled['nodes']:,}), constants of {scaled['device']}",
        f"   on {last['parts']:,}: an iteration takes {readable(last['seconds'])} = "
        + " + ".join(f"{name} {readable(last[name])}" for name in _TERMS),
        f"   on 1: {readable(one['seconds'])}, {one['seconds'] / last['seconds']:.3g} times as "
        f"long; efficiency {last['efficiency']:.0%}",
        f"   {_BINDS[last['binds']]}",
        f"   about {scaled['iterations']:,} iterations: "
        + readable(scaled["iterations"] * last["seconds"]),
        f"   memory: no number of {unit} has room for the vectors"
        if fits is None
        else f"   memory: there is room for the vectors from {fits:,} of the {unit} on",
        f"   fastest on {fastest['parts']:,}, {readable(fastest['seconds'])}; efficiency 50% and "
        f"more up to {scaled['half_efficient']:,}",
    ]
    heads = {"strong": "Strong scaling, this grid", "weak": "Weak scaling, as many rows on each"}
    for way, title in heads.items():
        head = (unit, "rows of one", "iteration", *_TERMS, "efficiency", "binds")
        cells = [
            [f"{row['parts']:,}", f"{row['rows']:,}"]
            + [readable(row[name]) for name in ("seconds", *_TERMS)]
            + [f"{row['efficiency']:.0%}", row["binds"]]
            for row in scaled[way]
        ]
        lines += ["", f"{title}:", "", *markdown(head, cells)]
    return "\n".join(lines)


def draw(scaled: Mapping[str, Any], picture: Any) -> None:
    """Draw both ways to scale, next to each other, on a figure of matplotlib's."""
    sides = picture.subplots(1, 2)
    for axes, way in zip(sides, ("strong", "weak"), strict=True):
        rows = scaled[way]
        parts = [row["parts"] for row in rows]
        axes.plot(parts, [row["seconds"] for row in rows], "ko-", label="an iteration")
        ideal = [rows[0]["seconds"] / (n if way == "strong" else 1) for n in parts]
        axes.plot(parts, ideal, color="0.7", label="at efficiency 1")
        for name, style in _TERMS.items():
            axes.plot(parts, [row[name] or None for row in rows], linestyle=style, label=name)
        axes.set(xlabel=scaled["unit"], ylabel="seconds, forecast", title=f"{way} scaling")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
    sides[0].legend(fontsize="small")
    picture.suptitle(f"{scaled['call']} by {scaled['method']}")
