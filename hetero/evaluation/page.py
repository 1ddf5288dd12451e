"""`hetero report`: what is known of a machine, as one page for a browser that loads nothing.

It opens with two answers: from where a device pays, and how far predictions are off. Pictures are
matplotlib's, as SVG in the page, in the colours of its light or dark ground; without matplotlib
there are none. The page has one column on a phone, and lets nothing be loaded or run, whatever
stands in the names that a machine gives.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from statistics import median
from string import Template
from typing import Any

from hetero import registry
from hetero.arrays import HOST
from hetero.calling import overview
from hetero.calling.planner import OtherMachine
from hetero.evaluation import calls, report
from hetero.evaluation.calls import break_even
from hetero.imports import load
from hetero.ops import benchmark
from hetero.ops.benchmark import Line
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.registry import Operation
from hetero.registry.models import ModelKey, bind_link
from hetero.terminal import aligned

_SIZE = (5.0, 4.2)  # inches
_COPIES = [1 << power for power in range(10, 31)]  # bytes
_ON_CPU = f", {CPU}"  # how the names of prices end that are the CPU's
Prices = dict[str, float]  # "method, device" -> seconds
Curves = Mapping[str, Mapping[int, float]]  # label -> size -> value
_DOCUMENT = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root{color-scheme:light dark}
body{max-width:1240px;margin:0 auto;padding:1rem;font:16px/1.5 system-ui,sans-serif;
overflow-wrap:anywhere}
h1,h2{font-size:1.25rem;line-height:1.25}
.soft,summary{opacity:.75;font-size:.875rem}
.side{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:1rem}
.side>div{border:1px solid #8886;border-radius:8px;padding:.25rem 1rem .75rem;min-width:0}
.big{font-size:1.375rem;font-weight:600}
figure{margin:0}
figure svg{width:100%;height:auto}
@media (prefers-color-scheme:dark){figure svg{filter:invert(.93) hue-rotate(180deg)}}
table{border-collapse:collapse;font-size:.8125rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .5rem .2rem 0;text-align:left;vertical-align:top;font-weight:400;
border-bottom:1px solid #8886}
pre{overflow-x:auto;font-size:.8125rem;line-height:1.35}
</style></head><body><h1>$title</h1>
$content
</body></html>
""")


def page(named: str | None = None, ladders: Sequence[Mapping[str, Any]] = ()) -> str:
    """What is known of this machine, or of another one by its profile, which is a name or a file;
    ``ladders`` are results of `hetero.ladder.ladder`.

    Raises
    ------
    ValueError
        If there is no such profile; the message names those that there are.
    """
    constants, devices = calls.known(named)
    machine, pays, sections = OtherMachine(constants, devices), list[tuple[str, str]](), {}
    for operation in registry.operations():
        sections[operation.function] = boxes(_operation(operation, constants, machine, pays))
    sections["Copies to devices and back"] = boxes(_links(constants))
    sections["Errors of the models"] = _printed(report.calibration(constants))
    text = load("hetero.ladder.ladder").text
    sections["Ladders of kernels"] = "".join(_printed(text(one)) for one in ladders)
    known = overview.machine() if named is None else overview.Inventory(devices)
    shown = f"<summary>what is known of it</summary>{_printed(str(known))}"
    sections["The machine"] = f"<details>{shown}</details>"
    own = {n: i.get("name") or n for n, i in devices.items() if not i.get("is_host_cpu")}
    names = list(dict.fromkeys(own.values()))
    title = "From where a GPU pays" if len(names) > 1 else "No GPU here: the fastest on the CPU"
    if len(names) < 2:
        pays.append(("From where one would pay", "hetero report --profile h200 h200.html"))
    means = {key: error["mean"] for key, error in constants.residuals().items()}
    errors = [mean for key, mean in means.items() if key.count("|") == len(ModelKey._fields) - 1]
    off = f"{median(errors):.0%}" if errors else "not known"
    text = f"in the median of {len(errors)} models, at shapes that were not fitted; `hetero verify`"
    said = paragraph(off, "big") + paragraph(f"{text}, run on that machine, measures calls.")
    opening = [f"<h2>{title}</h2>{table(pays)}", f"<h2>How far predictions are off</h2>{said}"]
    text = f"Profile {constants.name!r}, of {constants.data.get('created') or 'an unknown time'}."
    if report.figure(1.0, 1.0) is None:
        text += f" There are no pictures: {report.INSTALL}."
    first = boxes(opening) + paragraph(text, "soft")
    return document(f"hetero on {', '.join(names)}", first, sections)


def _printed(text: str) -> str:
    """What a command prints."""
    return f"<pre>{escape(aligned(text))}</pre>"


def _pays(at: Mapping[int, Prices], line: Line, priced: Callable[[Any], Prices]) -> str:
    """From which size on a device is faster than the CPU, copies included; without a device, which
    methods of the CPU's are the fastest at the smallest and at the largest size.

    ``at`` has prices at some sizes, ``priced(dims)`` gives those of any.
    """

    def least(on_cpu: bool, size: int) -> float | None:
        known = at.get(size) or priced(line.dims(size))
        times = (t for name, t in known.items() if name.endswith(_ON_CPU) is on_cpu)
        return min(times, default=None)

    cpu, device = partial(least, True), partial(least, False)
    if not all(any(map(side, at)) for side in (cpu, device)):
        fastest = (next(iter(at[n])).partition(",")[0] for n in (min(at), max(at)))
        return " to ".join(dict.fromkeys(fastest))
    turn, name = break_even(cpu, device, sorted(at)), line.axis.name
    if turn.extent is None:
        return f"not up to {name} = {turn.largest}"
    gain = (cpu(turn.largest) or math.nan) / (device(turn.largest) or math.nan)
    begin = f"from {name} = {turn.extent}" if turn.extent > turn.smallest else "at every size"
    return f"{begin}, {report.rounded(gain, 2)} times as fast at {turn.largest}"


# -- Pictures --------------------------------------------------------------------------------------


def svg(title: str, draw: Callable[[Any], object]) -> str:
    """What ``draw(axes)`` draws, with its title; nothing without matplotlib."""
    if (picture := report.figure(*_SIZE)) is None:
        return ""
    import matplotlib

    axes, out = picture.subplots(), io.StringIO()
    draw(axes)
    axes.grid(alpha=0.3)
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):  # no powers, whose layout takes most of the time
        axis.set_major_formatter("{x:g}")
    picture.legend(loc="outside lower left", ncols=2, fontsize="small", frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        picture.savefig(out, format="svg", transparent=True)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # the same in every picture
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return f"<figure>{text}<figcaption>{escape(title)}</figcaption></figure>"


def _operation(
    operation: Operation, constants: Profile, machine: OtherMachine, pays: list[tuple[str, str]]
) -> Iterator[str]:
    """Seconds of its methods over a size; ``pays`` gets from where on a device pays."""
    dtypes = {*constants.dtypes().get(operation.name, ())}
    dtype = min(dtypes & {benchmark.dtype_of(operation)} or dtypes, default="float64")
    priced = partial(_prices, operation, dtype, machine)
    for line in benchmark.of(operation, "LINES"):
        at = {n: found for n in line.axis.sizes() if (found := priced(line.dims(n)))}
        if at:
            title = f"{operation.function}, {line.text}, {dtype}"
            pays.append((title, _pays(at, line, priced)))
            names = dict.fromkeys(name for found in at.values() for name in found)
            curves = {name: {n: f[name] for n, f in at.items() if name in f} for name in names}
            yield _curves(title, line.axis.name, "seconds, predicted", curves)


def _prices(operation: Operation, dtype: str, machine: OtherMachine, dims: Any) -> Prices:
    """Seconds of each candidate of a call on host operands, what it moves included; the fastest
    first."""
    plan = machine.plan(operation.from_dims(tuple(dims), dtype, HOST))
    possible = (c for c in plan.candidates if c.reason is None and c.seconds)
    return {f"{c.method}, {c.device}": c.seconds for c in possible}


def _curves(title: str, name: str, unit: str, curves: Curves, samples: Curves | None = None) -> str:
    """Values over a size; ``samples`` are measured ones."""

    def draw(axes: Any) -> None:
        for label, curve in curves.items():
            dashes = "--" if label.endswith(_ON_CPU) else "-"
            (line,) = axes.plot(curve.keys(), curve.values(), dashes, label=label)
            marks = (samples or {}).get(label, {})
            axes.plot(marks.keys(), marks.values(), "o", color=line.get_color(), markersize=4)
        axes.set(xlabel=name, ylabel=unit)

    return svg(title, draw)


def _links(constants: Profile) -> Iterator[str]:
    """The rate of copies over their size: fitted, and the measured samples."""
    for device, directions in constants.data["links"].items():
        for direction, kinds in directions.items():
            curves, marks = {}, {}
            for memory, model in kinds.items():
                seconds, samples = bind_link(model), model.get("samples") or {}
                curves[memory] = {n: n / seconds(n) for n in _COPIES}
                taken = zip(samples.get("bytes", ()), samples.get("seconds", ()), strict=False)
                marks[memory] = {n: n / t for n, t in taken}
            if curves:
                yield _curves(f"{direction}, {device}", "bytes", "bytes/s", curves, marks)


# -- HTML as text ----------------------------------------------------------------------------------


def paragraph(text: str, class_: str = "") -> str:
    """Plain text as a paragraph; what stands in backticks is code."""
    content = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f'<p class="{class_}">{content}</p>'


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column names the rows."""
    lines = ("</td><td>".join(map(escape, row)) for row in rows)
    return f"<table><tr><td>{'</td></tr><tr><td>'.join(lines)}</td></tr></table>"


def boxes(found: Iterable[str]) -> str:
    """Pieces of markup, next to each other where there is room; nothing where there are none."""
    inside = "".join(f"<div>{one}</div>" for one in found if one)
    return f'<div class="side">{inside}</div>' if inside else ""


def document(title: str, first: str, sections: Mapping[str, str]) -> str:
    """The whole page: ``first``, then the sections that are not empty, by their headings."""
    parts = [f"<h2>{escape(head)}</h2>{text}" for head, text in sections.items() if text]
    return _DOCUMENT.substitute(title=escape(title), content="\n".join([first, *parts]))
