"""`hetero report`: what is known of a machine, as one page for a browser that loads nothing.

It opens with two answers: from where a device pays, and how far predictions are off. Pictures are
matplotlib's, as SVG in the page; without matplotlib there are none. Nothing in it runs, whatever
stands in the names that a machine gives.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from html import escape
from statistics import median
from string import Template
from typing import Any

from hetero import registry
from hetero.arrays import HOST
from hetero.calling import overview
from hetero.calling.planner import Machine
from hetero.evaluation import calls, problems, report
from hetero.evaluation.calls import break_even, extents
from hetero.evaluation.problems import Line
from hetero.imports import load
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.registry.models import ModelKey, bind_link
from hetero.terminal import aligned

_SIZE = (5.0, 4.2)  # inches
_COPIES = [1 << power for power in range(10, 31)]  # bytes
Prices = Mapping[str, float]  # "method, device" -> seconds
_DOCUMENT = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root{color-scheme:light dark}
body{max-width:1240px;margin:0 auto;padding:1rem;font:16px/1.5 system-ui;overflow-wrap:anywhere}
.side{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:1rem}
.side>div{border:1px solid #8886;border-radius:8px;padding:.25rem 1rem .75rem;min-width:0}
figure{margin:0}
figure svg{width:100%;height:auto}
@media (prefers-color-scheme:dark){figure svg{filter:invert(.93) hue-rotate(180deg)}}
td{padding:.2rem .5rem .2rem 0;border-bottom:1px solid #8886}
table,pre{font-size:.8125rem;overflow-x:auto}
</style></head><body><h1>$title</h1>
$content
</body></html>
""")


def page(named: str | None = None, ladders: Iterable[str] = ()) -> str:
    """What is known of this machine, or of another one by its profile, which is a name or a file;
    and ``ladders``, as `hetero ladder` prints them.

    Raises
    ------
    ValueError
        If there is no such profile; the message names those that there are.
    """
    constants, devices = calls.known(named)
    pictures, answers = dict[str, list[str]](), list[tuple[str, str]]()
    for title, line, prices, sizes in _lines(constants, devices):
        answers.append((title, _pays(line, prices, sizes)))
        curves: dict[str, dict[int, float]] = {}
        for size in sizes:
            for label, seconds in prices(size).items():
                curves.setdefault(label, {})[size] = seconds
        drawn = _picture(title, line.name, "seconds, predicted", curves)
        pictures.setdefault(title.partition(",")[0], []).append(drawn)
    sections = {function: _boxes(drawn) for function, drawn in pictures.items()}
    sections["Copies to devices and back"] = _boxes(_links(constants))
    sections["Errors of the models"] = _printed(report.calibration(constants))
    sections["Ladders of kernels"] = "".join(map(_printed, ladders))
    known = overview.machine() if named is None else overview.Inventory(devices)
    sections["The machine"] = f"<details><summary>all</summary>{_printed(str(known))}</details>"
    own = {n: i.get("name") or n for n, i in devices.items() if not i.get("is_host_cpu")}
    names = list(dict.fromkeys(own.values()))
    title = "From where a GPU pays" if len(names) > 1 else "No GPU here: the fastest on the CPU"
    if len(names) < 2:
        answers.append(("From where one would pay", "hetero report --profile h200 h200.html"))
    cells = "".join(f"<tr><td>{escape(q)}</td><td>{escape(a)}</td></tr>" for q, a in answers)
    bars = len(ModelKey._fields) - 1  # the keys of links have fewer
    errors = [e["mean"] for key, e in constants.residuals().items() if key.count("|") == bars]
    off = f"{median(errors):.0%} in the median of {len(errors)} models" if errors else "not known"
    opening = [
        f"<h2>{title}</h2><table>{cells}</table>",
        f"<h2>How far predictions are off</h2><p>{off}; hetero verify measures calls</p>",
    ]
    text = f"Profile {constants.name!r}, of {constants.data.get('created') or 'an unknown time'}."
    if report.figure(1.0, 1.0) is None:
        text += f" There are no pictures: {report.INSTALL}."
    parts = [_boxes(opening), f"<p>{escape(text)}</p>"]
    parts += [f"<h2>{escape(head)}</h2>{text}" for head, text in sections.items() if text]
    title = escape(f"hetero on {', '.join(names)}")
    return _DOCUMENT.substitute(title=title, content="\n".join(parts))


def _boxes(found: Iterable[str]) -> str:
    """Pieces of markup, next to each other where there is room; nothing where there are none."""
    inside = "".join(f"<div>{one}</div>" for one in found if one)
    return f'<div class="side">{inside}</div>' if inside else ""


def _printed(text: str) -> str:
    """What a command prints."""
    return f"<pre>{escape(aligned(text))}</pre>"


# -- Answers ---------------------------------------------------------------------------------------


def _lines(
    constants: Profile, devices: dict[str, Any]
) -> Iterator[tuple[str, Line, Callable[[int], Prices], list[int]]]:
    """Each line of problems that the profile knows; the prices of candidates by size, the fastest
    first, of calls on host operands, what they move included; and the sizes to look at."""
    machine = Machine(constants, devices)
    for operation in registry.operations():
        of, known = problems.of(operation), {*constants.dtypes().get(operation.name, ())}
        dtype = min(known & {of.dtype} or known, default="float64")

        def priced(line: Line, size: int, operation: Any = operation, dtype: str = dtype) -> Prices:
            plan = machine.plan(operation.from_dims(line.dims(size), dtype, HOST))
            possible = (c for c in plan.candidates if c.reason is None and c.seconds)
            return {f"{c.method}, {c.device}": c.seconds for c in possible}

        for line in of.lines:
            prices = cache(partial(priced, line))
            if sizes := [n for n in extents(line.least, line.most) if prices(n)]:
                yield f"{operation.function}, {line.text}, {dtype}", line, prices, sizes


def pays(constants: Profile, devices: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What each operation is asked, and from which size on a device pays for it."""
    for title, *line in _lines(constants, devices):
        yield title, _pays(*line)


def _pays(line: Line, prices: Callable[[int], Prices], sizes: list[int]) -> str:
    """From which size on a device is faster than the CPU, copies included; without a device, which
    methods of the CPU's are the fastest at the smallest and at the largest size."""

    def least(on_cpu: bool, size: int) -> float | None:
        times = (t for name, t in prices(size).items() if name.endswith(f", {CPU}") is on_cpu)
        return min(times, default=None)

    cpu, device = partial(least, True), partial(least, False)
    if not all(any(map(side, sizes)) for side in (cpu, device)):
        fastest = (next(iter(prices(n))).partition(",")[0] for n in (sizes[0], sizes[-1]))
        return " to ".join(dict.fromkeys(fastest))
    turn = break_even(cpu, device, sizes)
    if turn.extent is None:
        return f"not up to {line.name} = {turn.largest}"
    gain = (cpu(turn.largest) or math.nan) / (device(turn.largest) or math.nan)
    begin = f"from {line.name} = {turn.extent}" if turn.extent > turn.smallest else "at every size"
    return f"{begin}, {report.rounded(gain, 2)} times as fast at {turn.largest}"


# -- Pictures --------------------------------------------------------------------------------------


def _picture(title: str, over: str, unit: str, curves: Any, samples: Any = None) -> str:
    """Curves as SVG; nothing without matplotlib."""
    if (picture := report.figure(*_SIZE)) is None:
        return ""
    matplotlib, out = load("matplotlib"), io.StringIO()
    report.draw_curves(picture.subplots(), "", over, curves, unit=unit, samples=samples)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        picture.savefig(out, format="svg", transparent=True)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # the same in every picture
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return f"<figure>{text}<figcaption>{escape(title)}</figcaption></figure>"


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
                yield _picture(f"{direction}, {device}", "bytes", "bytes/s", curves, marks)
