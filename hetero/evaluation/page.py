"""`hetero report`: what is known of a machine, as one page for a browser that loads nothing.

Pictures are matplotlib's, as SVG in the page, in the colours of its light or dark ground. Without
matplotlib their tables stand alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hetero import html, profile, registry
from hetero.calibration.measure import timing
from hetero.calling import overview
from hetero.calling.planner import OtherMachine
from hetero.evaluation import answers, calls, last, report
from hetero.evaluation.markup import boxes, document, folded, paragraph, table
from hetero.evaluation.report import prefixed
from hetero.imports import load
from hetero.ops import benchmark, over_sizes
from hetero.ops.over_sizes import Line, Plane
from hetero.profile import Profile
from hetero.registry import Operation
from hetero.registry.models import bind_link
from hetero.terminal import aligned
from hetero.times import readable

_SIZE = (5.0, 4.2)  # inches
_MARKERS = "os^vDPX*<>"
_COLUMNS = 4  # sizes in a table
_PARTS = 2  # of each doubling in a map: a plan takes up to 2 ms
_CLEARLY = 1.1  # times as fast as a neighbour's choice, for another one to be drawn
_COPIES = [1 << power for power in range(10, 31)]  # bytes
_OTHER_FORM = KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError
_UNREADABLE = "What is kept beside the profile is of another form: measure it again."


def page(named: str | None = None, progress: Callable[[float, str], None] | None = None) -> str:
    """What is known of this machine, or of another one by its profile.

    Parameters
    ----------
    named : str, optional
        A profile that comes with hetero, or a profile's file. Default: this machine.
    progress : callable, optional
        As in `hetero.calibrate`.

    Raises
    ------
    ValueError
        If there is no such profile; the message names those that there are.
    """
    constants, devices = calls.known(named)
    kept = last.read(profile.default_path() if named is None else Path(named))
    machine, where, sections = OtherMachine(constants, devices), list[tuple[str, str]](), {}
    operations = registry.operations()
    for number, operation in enumerate(operations):
        if progress is not None:
            progress(number / len(operations), operation.function)
        dtypes = {*constants.dtypes().get(operation.name, ())}
        dtype = min(dtypes & {benchmark.dtype_of(operation)} or dtypes, default="float64")
        if figures := [*_figures(operation, dtype, machine, where)]:
            sections[operation.function] = boxes(figures)
    if figures := [*_links(constants)]:
        sections["Copies to devices and back"] = boxes(figures)
    errors = [
        (
            name.replace("|", " "),
            *(f"{e[part]:.0%}" if part in e else "-" for part in report.ERRORS),
        )
        for name, e in constants.residuals().items()
    ]
    sections["Errors of the models"] = table("at shapes not fitted", ("", *report.ERRORS), errors)
    for kind, title, text in (
        (last.LADDER, "Ladders of kernels", load("hetero.ladder.ladder").text),
        (last.VERIFY, "The last verification", report.verification),
    ):
        if kind in kept:
            sections[title] = "".join(_kept(key, one, text) for key, one in kept[kind].items())
    known = overview.machine() if named is None else devices
    sections["The machine"] = folded("what is known of it", html.tree(known))
    names = dict.fromkeys(
        i.get("name") or n for n, i in devices.items() if not i.get("is_host_cpu")
    )
    opens = constants, named, len(names) > 1, where
    try:
        opening = answers.first(*opens, kept.get(last.VERIFY, {}))
    except _OTHER_FORM:  # of another version's verification
        opening = answers.first(*opens, {})
    return document(f"hetero on {', '.join(names)}", opening + _trust(constants), sections)


def _trust(constants: Profile) -> str:
    """Which profile it is, and what in it not to trust; markup."""
    data = constants.data
    text = f"Profile {constants.name!r}, of {data.get('created') or 'an unknown time'}."
    if load := data.get("load"):
        text += f" While it was measured: {timing.described(load)}."
    wrong = [f"Off by a factor: {name.replace('|', ' ')}." for name in constants.doubtful()]
    if report.figure(1.0, 1.0) is None:
        wrong.append(f"There are tables in place of pictures: {report.INSTALL}.")
    return paragraph(text, "soft") + "".join(paragraph(one, "warn") for one in wrong)


def _kept(name: str, found: Any, text: Callable[[Any], str]) -> str:
    """What was measured last, as its command prints it; another version may have kept it."""
    try:
        shown = f"<pre>{escape(aligned(text(found)))}</pre>"
        return paragraph(f"{name}, measured {found['created']}") + shown
    except _OTHER_FORM:
        return paragraph(_UNREADABLE, "warn")


# -- Pictures --------------------------------------------------------------------------------------


def _figure(title: str, draw: Callable[[Any], object], shown: str) -> str:
    """A picture with its table, which is folded; without matplotlib the table."""
    picture = svg(title, draw)
    more = folded("as a table", shown) if picture else shown
    return f"<figure>{picture}<figcaption>{escape(title)}</figcaption>{more}</figure>"


def svg(title: str, draw: Callable[[Any], object]) -> str:
    """What ``draw(axes)`` draws, as an element of the page; nothing without matplotlib."""
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
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def _some(of: list[int]) -> list[int]:
    """The positions of a few, both ends included."""
    number = min(_COLUMNS, len(of))
    return [round(n * (len(of) - 1) / max(number - 1, 1)) for n in range(number)]


def _figures(
    operation: Operation, dtype: str, machine: OtherMachine, where: list[tuple[str, str]]
) -> Iterator[str]:
    """Of an operation: seconds over one size, choices over two; nothing where nothing is known.
    ``where`` gets from where on a device pays."""
    known = len(where)
    for line in over_sizes.lines(operation):

        def priced(size: int, line: Line = line) -> answers.Prices:
            return answers.prices(operation, line.dims(size), dtype, machine)

        at = {size: found for size in line.axis.sizes() if (found := priced(size))}
        if at:
            title = f"{operation.function}, {line.text}, {dtype}"
            where.append((title, answers.pays(at, line.axis, priced)))
            names = dict.fromkeys(name for found in at.values() for name in found)
            curves = {name: {n: f[name] for n, f in at.items() if name in f} for name in names}
            yield _curves(title, line.axis.name, "seconds, predicted", curves, readable)
    for plane in over_sizes.planes(operation) if len(where) > known else ():
        title = f"{operation.function}, {plane.text}, {dtype}: what is chosen"
        yield _choices(title, plane, lambda *d: answers.prices(operation, d, dtype, machine))


def _curves(
    title: str,
    name: str,
    unit: str,
    curves: Mapping[str, Mapping[int, float]],
    shown: Callable[[float], str],
    samples: Mapping[str, Mapping[int, float]] = MappingProxyType({}),
) -> str:
    """Values over a size: label -> size -> value; ``samples`` are measured ones."""
    sizes = sorted({n for curve in curves.values() for n in curve})

    def draw(axes: Any) -> None:
        for label, curve in curves.items():
            dashes = "--" if answers.is_on_cpu(label) else "-"
            (line,) = axes.plot(curve.keys(), curve.values(), dashes, label=label)
            marks = samples.get(label, {})
            axes.plot(marks.keys(), marks.values(), "o", color=line.get_color(), markersize=4)
        axes.set(xlabel=name, ylabel=unit)

    some = [sizes[n] for n in _some(sizes)]
    rows = [(one, *(shown(c[n]) if n in c else "-" for n in some)) for one, c in curves.items()]
    return _figure(title, draw, table("", ("", *(f"{name} = {n}" for n in some)), rows))


def _choices(title: str, plane: Plane, priced: Callable[..., answers.Prices]) -> str:
    """What is chosen over two sizes. A neighbour's choice stays where none is clearly faster."""
    xs, ys = plane.x.sizes(_PARTS), plane.y.sizes(_PARTS)
    cells: dict[tuple[int, int], str] = {}
    for row, y in enumerate(ys):
        for column, x in enumerate(xs):
            found = priced(*plane.dims(x, y))
            least = _CLEARLY * min(found.values(), default=0.0)
            alike = [name for name, t in found.items() if t <= least] or ["none"]
            near = (cells.get((column - 1, row)), cells.get((column, row - 1)))
            cells[column, row] = next((n for n in near if n in alike), alike[0])

    def draw(axes: Any) -> None:
        for marker, name in zip(cycle(_MARKERS), dict.fromkeys(cells.values()), strict=False):
            at = [(xs[column], ys[row]) for (column, row), one in cells.items() if one == name]
            axes.plot(*zip(*at, strict=True), label=name, ls="", marker=marker, markersize=4)
        axes.set(xlabel=plane.x.name, ylabel=plane.y.name)

    head = ("", *(f"{plane.x.name} = {xs[column]}" for column in _some(xs)))
    rows = [(f"{plane.y.name} = {ys[r]}", *(cells[c, r] for c in _some(xs))) for r in _some(ys)]
    return _figure(title, draw, table("", head, rows, range(_COLUMNS + 1)))


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
            title = f"{direction}, {device}"
            if curves:
                yield _curves(
                    title, "bytes", "bytes/s", curves, lambda v: f"{prefixed(v)}B/s", marks
                )
