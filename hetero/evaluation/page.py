"""`hetero report`: what is known of a machine, as one page for a browser that loads nothing.

It opens with four answers: from where a device pays, how far predictions are off, how good the
choices were, and the command that comes next. Pictures are matplotlib's, as SVG in the page, in the
colours of its light or dark ground; without matplotlib there are none.
"""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import escape
from itertools import cycle
from pathlib import Path
from statistics import fmean, median
from typing import Any

from hetero import profile, registry
from hetero.arrays import HOST
from hetero.calling import overview
from hetero.calling.planner import OtherMachine
from hetero.evaluation import calls, last, report
from hetero.evaluation.calls import break_even
from hetero.evaluation.markup import boxes, document, paragraph, table
from hetero.host import loops
from hetero.imports import load
from hetero.ops import benchmark
from hetero.ops.benchmark import Line, Plane
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.profile.constants import OFF
from hetero.registry import Operation
from hetero.registry.models import ModelKey, bind_link
from hetero.terminal import aligned

_SIZE = (5.0, 4.2)  # inches
_MARKERS = "os^vDPX*<>"
_PARTS = 2  # of each doubling in a map: a plan takes up to 2 ms
_COPIES = [1 << power for power in range(10, 31)]  # bytes
_COSTLY = 1.1  # chosen over best, geometric mean, from which on new constants are worth their time
_VERIFY = "`hetero verify`, run on that machine, measures calls."
_OTHER_FORM = KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError
_ON_CPU = f", {CPU}"  # how the names of prices end that are the CPU's
Prices = dict[str, float]  # "method, device" -> seconds
Curves = Mapping[str, Mapping[int, float]]  # label -> size -> value


def page(named: str | None = None) -> str:
    """What is known of this machine, or of another one by its profile, which is a name or a file.

    Raises
    ------
    ValueError
        If there is no such profile; the message names those that there are.
    """
    constants, devices = calls.known(named)
    kept = last.read(profile.default_path() if named is None else Path(named))
    machine, pays, sections = OtherMachine(constants, devices), list[tuple[str, str]](), {}
    for operation in registry.operations():
        sections[operation.function] = boxes(_operation(operation, constants, machine, pays))
    sections["Copies to devices and back"] = boxes(_links(constants))
    sections["Errors of the models"] = _printed(report.calibration(constants))
    for kind, title, text in (
        (last.LADDER, "Ladders of kernels", load("hetero.ladder.ladder").text),
        (last.VERIFY, "The last verification", report.verification),
    ):
        sections[title] = "".join(_kept(key, one, text) for key, one in kept.get(kind, {}).items())
    known = overview.machine() if named is None else overview.Inventory(devices)
    shown = f"<summary>what is known of it</summary>{_printed(str(known))}"
    sections["The machine"] = f"<details>{shown}</details>"
    own = {n: i.get("name") or n for n, i in devices.items() if not i.get("is_host_cpu")}
    names = list(dict.fromkeys(own.values()))
    title = "From where a GPU pays" if len(names) > 1 else "No GPU here: the fastest on the CPU"
    if len(names) < 2:
        pays.append(("From where one would pay", "hetero report --profile h200 h200.html"))
    verified = kept.get(last.VERIFY, {})
    opening = [f"<h2>{title}</h2>{table(pays)}", *_quality(constants, named, verified)]
    text = f"Profile {constants.name!r}, of {constants.data.get('created') or 'an unknown time'}."
    if report.figure(1.0, 1.0) is None:
        text += f" There are no pictures: {report.INSTALL}."
    first = boxes(opening) + paragraph(text, "soft")
    return document(f"hetero on {', '.join(names)}", first, sections)


def _printed(text: str) -> str:
    """What a command prints."""
    return f"<pre>{escape(aligned(text))}</pre>"


def _kept(name: str, found: Any, text: Callable[[Any], str]) -> str:
    """What was measured last, as its command prints it; another version may have kept it."""
    try:
        return paragraph(f"{name}, measured {found['created']}") + _printed(text(found))
    except _OTHER_FORM:
        return paragraph(f"{name}: kept in another form, measure it again.")


# -- Answers ---------------------------------------------------------------------------------------


def pays(constants: Profile, devices: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What each operation is asked, and from which size on a device pays for it."""
    machine = OtherMachine(constants, devices)
    for operation in registry.operations():
        dtype, priced = _priced(operation, constants, machine)
        for title, line, at in _lines(operation, dtype, priced):
            yield title, _pays(at, line, priced)


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


def _quality(constants: Profile, named: str | None, verified: Mapping[str, Any]) -> Iterator[str]:
    """How far predictions are off, how good choices are, and what comes next: by what `verify`
    measured last, else by the errors of the models; markup."""
    means = {key: error["mean"] for key, error in constants.residuals().items()}
    bars = len(ModelKey._fields) - 1  # the keys of links have fewer
    errors = {ModelKey.parse(key): mean for key, mean in means.items() if key.count("|") == bars}
    off = f"{median(errors.values()):.0%}" if errors else "not known"
    of_off = f"in the median of {len(errors)} models, at shapes that were not fitted; {_VERIFY}"
    number, ratio, best, of_best = 0, 1.0, "not measured", _VERIFY
    try:
        weights = [one["problems"] for one in verified.values()]
        found = [one["chosen_error"] for one in verified.values()]
        over = [one["chosen_over_best"] for one in verified.values()]
        if number := sum(weights):
            some = f"{number} random calls of {', '.join(n.partition(',')[0] for n in verified)}"
            off = f"{fmean((one['mean'] for one in found), weights):.0%}"
            of_off = f"in the mean of {some}; {max(one['worst'] for one in found):.0%} at worst."
            ratio = math.exp(fmean((math.log(one["geometric_mean"]) for one in over), weights))
            worst = max(one["worst"] for one in over)
            best, of_best = f"{ratio:.3f}", f"geometric mean of {some}; {worst:.3g} at worst."
    except _OTHER_FORM:  # of another version's verification
        number = 0
    command, why = advice(constants, named, errors, number, ratio)
    for head, answer, text in (
        ("How far predictions are off", off, of_off),
        ("Time of the choice over the best", best, of_best),
        ("Next", f"`{command}`", why),
    ):
        yield f"<h2>{head}</h2>{paragraph(answer, 'big')}{paragraph(text)}"


def advice(
    constants: Profile,
    named: str | None,
    errors: Mapping[ModelKey, float],
    calls: int,
    ratio: float,
) -> tuple[str, str]:
    """The command that comes next, and why: the first thing that is missing, or wrong."""
    if named is not None:
        why = "prices the calls of your script, as it runs here, on that machine."
        return f"hetero advise --on {shlex.quote(named)} script.py", why
    if not constants.data.get("fingerprint"):
        return "hetero calibrate", "This machine is not calibrated; its constants are a guess."
    if not all(map(loops.is_ready, loops.every())):
        return "hetero compile", "Not all of the CPU's loops are compiled."
    if not constants.is_trusted:
        return "hetero calibrate", "Other load disturbed the last calibration: run it when idle."
    models = {key.operation for key, mean in errors.items() if not mean < OFF}
    if off := [f" --only {one.function}" for one in registry.operations() if one.name in models]:
        return f"hetero calibrate{''.join(off)}", "Predictions of these are off by a factor."
    if not calls:
        return "hetero verify", "No choice was measured yet."
    if ratio > _COSTLY:
        return "hetero calibrate", "The choices cost more than they should."
    return "python -m hetero.accel script.py", "All is measured: runs a script with these choices."


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
    """Seconds of its methods over one size, choices over two; nothing where nothing is known.
    ``pays`` gets from where on a device pays."""
    dtype, priced = _priced(operation, constants, machine)
    known = len(pays)
    for title, line, at in _lines(operation, dtype, priced):
        pays.append((title, _pays(at, line, priced)))
        names = dict.fromkeys(name for found in at.values() for name in found)
        curves = {name: {n: f[name] for n, f in at.items() if name in f} for name in names}
        yield _curves(title, line.axis.name, "seconds, predicted", curves)
    for plane in benchmark.of(operation, "PLANES", ()) if len(pays) > known else ():
        title = f"{operation.function}, {plane.text}, {dtype}: what is chosen"
        yield _choices(title, plane, priced)


def _priced(
    operation: Operation, constants: Profile, machine: OtherMachine
) -> tuple[str, Callable[[Any], Prices]]:
    """The dtype that is shown of an operation, and prices in it as a function of dimensions."""
    dtypes = {*constants.dtypes().get(operation.name, ())}
    dtype = min(dtypes & {benchmark.dtype_of(operation)} or dtypes, default="float64")
    return dtype, partial(_prices, operation, dtype, machine)


def _lines(
    operation: Operation, dtype: str, priced: Callable[[Any], Prices]
) -> Iterator[tuple[str, Line, dict[int, Prices]]]:
    """Title, the line, and prices along it, of each size that is shown and known."""
    for line in benchmark.of(operation, "LINES"):
        at = {n: found for n in line.axis.sizes() if (found := priced(line.dims(n)))}
        if at:
            yield f"{operation.function}, {line.text}, {dtype}", line, at


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


def _choices(title: str, plane: Plane, priced: Callable[[Any], Prices]) -> str:
    """What is chosen over two sizes."""
    chosen: dict[str, list[tuple[int, int]]] = {}
    for y in plane.y.sizes(_PARTS):
        for x in plane.x.sizes(_PARTS):
            chosen.setdefault(next(iter(priced(plane.dims(x, y))), "none"), []).append((x, y))

    def draw(axes: Any) -> None:
        for marker, (name, at) in zip(cycle(_MARKERS), chosen.items(), strict=False):
            axes.plot(*zip(*at, strict=True), label=name, ls="", marker=marker, markersize=4)
        axes.set(xlabel=plane.x.name, ylabel=plane.y.name)

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
