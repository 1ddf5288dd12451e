"""A profile as text; `hetero report`, what is known of a machine as one page for a browser that
loads nothing; and how all commands write numbers, tables and pictures.

The page opens with two answers: from where a device pays, and how far predictions are off. Pictures
are matplotlib's, as SVG in the page; without matplotlib there are none. Nothing in it runs,
whatever stands in the names that a machine gives.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from html import escape
from itertools import cycle
from statistics import median
from string import Template
from typing import Any

from hetero import registry
from hetero.arrays import HOST
from hetero.calibration.measure import described
from hetero.calling import overview
from hetero.calling.planner import Machine
from hetero.errors import readable
from hetero.evaluation import calls, problems
from hetero.evaluation.calls import break_even, extents
from hetero.evaluation.problems import Line
from hetero.imports import load
from hetero.pricing.plan import CPU
from hetero.profile import OFF, Profile, is_trusted
from hetero.registry.models import ModelKey
from hetero.terminal import aligned

INSTALL = "a picture needs matplotlib, the extra 'plot': pip install matplotlib"
# Relative errors with which predictions are good enough: in the mean, and of 95 in 100. Methods
# that are chosen between often differ by more than 40 %, and a choice that errs by a factor of two
# seldom costs as much. A link's time is part of every price, alike for all methods there.
OF_METHODS, OF_LINKS = (0.4, 1.0), (0.1, 0.3)
_SIZE = (5.0, 4.2)  # inches
Prices = Mapping[str, float]  # "method, device" -> seconds


# -- Numbers, tables, pictures ---------------------------------------------------------------------


def rounded(value: float, digits: int = 3) -> str:
    """That many digits, and those before the point."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:.0f}"


def by(extents: Iterable[int]) -> str:
    """Extents as a product."""
    return " x ".join(map(str, extents))


def markdown(head: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """A table's lines."""
    lines = ["| " + " | ".join(line) + " |" for line in (head, *cells)]
    return [lines[0].replace("|  |", "| |"), "|---" * len(head) + "|", *lines[1:]]


def errors(head: str, named: Mapping[str, Mapping[str, float]], wrong: Any = ()) -> list[str]:
    """Relative errors by name as a table's lines; those of names that are ``wrong`` are marked."""
    parts = ("mean", "p95", "worst")
    cells = [
        [name.replace("|", " "), *(f"{e[p]:.1%}" if p in e else "-" for p in parts)]
        + ["!" * (name in wrong)]
        for name, e in named.items()
    ]
    return markdown((head, *parts, ""), cells)


def figure(width: float = 9.0, height: float = 5.5) -> Any | None:
    """An empty picture of that many inches, which no screen shows; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def draw_curves(
    picture: Any,
    title: str,
    over: str,
    curves: Mapping[str, Mapping[int, float]],
    unit: str = "seconds, predicted",
) -> None:
    """Draw label -> size -> value on a figure, both on a logarithmic scale."""
    axes = picture.subplots()
    for (label, curve), style in zip(curves.items(), cycle(("-", "--", "-.", ":")), strict=False):
        axes.plot(curve.keys(), curve.values(), style, label=label)
    axes.set(xlabel=over, ylabel=unit, title=title, xscale="log", yscale="log")
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):  # no powers, whose layout takes most of the time
        axis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", frameon=False)


# -- A profile as text -----------------------------------------------------------------------------


def _is_of_method(name: str) -> bool:
    """Whether a fit is of a method; the names of links have fewer parts."""
    return name.count("|") == len(ModelKey._fields) - 1


def not_acceptable(profile: Profile) -> list[str]:
    """The models and links whose errors are larger than what is acceptable."""
    wrong = []
    for name, errors in profile.residuals().items():
        mean, p95 = OF_METHODS if _is_of_method(name) else OF_LINKS
        if not (errors["mean"] <= mean and errors.get("p95", 0.0) <= p95):
            wrong.append(name)
    return wrong


def rough(profile: Profile) -> str:
    """How many models and links are not acceptable, in words; nothing without any, on a CPU."""
    wrong, every = not_acceptable(profile), profile.residuals()
    if not wrong:
        return f"\nall {len(every)} fits are acceptable" if every else ""
    return f"\nrough fits, marked !: {len(wrong)} of {len(every)}"


def calibration(profile: Profile, every: bool = True) -> str:
    """What was fitted and how well: one line for each model, or for those that are not acceptable;
    and which not to trust."""
    lines = []
    for device, directions in profile.data["links"].items():
        if device.endswith(":*"):  # conservative: of no device that was measured
            continue
        for direction, kinds in directions.items():
            for memory in kinds:
                link = profile.curve(device, direction, memory)
                took, rate = readable(link(1)), 2**28 / link(2**28) / 1e9
                lines.append(f"{device} {direction}, {memory}: {took} + bytes at {rate:.1f} GB/s")
        host, there = (readable(profile.dispatch(device, on)) for on in ("host", "device"))
        if "*" not in device:
            lines.append(f"{device} host work around a call: {host}, operands there: {there}")
        elif profile.dispatch(device, "host"):  # several at once
            lines.append(f"{device} to begin on all of them: {host}")
    if every and (stages := profile.data.get("stages")):
        lines += ["", *(f"{name}: {readable(took)}" for name, took in stages.items()), ""]
    wrong, found = not_acceptable(profile), profile.residuals()
    shown = {name: found[name] for name in found if every or name in wrong}
    limits = "{:.0%} in the mean and {:.0%} at the 95th percentile; of links {:.0%} and {:.0%}"
    if shown:
        lines += errors("error of the fit, of copies", shown, wrong)
        lines += ["", f"acceptable: {limits.format(*OF_METHODS, *OF_LINKS)}"]
    if load := profile.data.get("load"):
        lines += ["", f"while it was measured: {described(load)}"]
        if not is_trusted(load):
            lines.append("This calibration cannot be trusted: calibrate when nothing else runs.")
    if off := profile.doubtful():
        names = ", ".join(name.replace("|", " ") for name in off)
        lines += ["", f"off by more than {OFF:.0%} in the mean: {names}"]
        lines.append("Something else was running, it seems; calibrate again when nothing is.")
    return "\n".join(lines)


def rates(profile: Profile) -> list[str]:
    """How fast the CPU's BLAS multiplies matrices, and White's constants of each link."""
    lines = []
    for dtype in ("float32", "float64"):
        model = profile.model("cpu", "cpu", "matmul", "blas", dtype, "CC") or {}
        if axes := model.get("constants", {}).get("axes"):
            sizes = [axis[-1] for axis in axes]
            flops = 2.0 * math.prod(sizes) / model["constants"]["seconds"][-1]
            lines.append(f"cpu BLAS, {dtype}: {flops / 1e9:.0f} GFLOP/s ({by(sizes)})")
    for device, directions in profile.data["links"].items():
        for direction in (way for way in ("upload", "download") if way in directions):
            for memory, model in directions[direction].items():
                first, last = model["constants"][0], model["constants"][-1]
                rate = 1.0 / (1.0 / last["bytes_per_second"] + last["seconds_per_byte"])
                lines.append(
                    f"{device} {direction}, {memory}: set-up {readable(first['seconds'])}, "
                    f"{rate / 1e9:.1f} GB/s; T_x = {last['bytes_per_second'] / 1e9:.1f} GB/s, "
                    f"c0 = {last['seconds_per_byte'] * 1e12:.3g} ms/GB, "
                    f"c1 = {readable(last['seconds'])}"
                )
    return lines


# -- From where a device pays ----------------------------------------------------------------------


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
    return f"{begin}, {rounded(gain, 2)} times as fast at {turn.largest}"


# -- The page --------------------------------------------------------------------------------------

_DOCUMENT = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
:root{color-scheme:light dark}
body{max-width:1240px;margin:0 auto;padding:1rem;font:16px/1.5 system-ui;overflow-wrap:anywhere}
.side{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:1rem}
figure{margin:0}
figure img{width:100%}
@media (prefers-color-scheme:dark){figure img{filter:invert(.93) hue-rotate(180deg)}}
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
    pictures, answers = dict[str, str](), list[tuple[str, str]]()
    for title, line, prices, sizes in _lines(constants, devices):
        answers.append((title, _pays(line, prices, sizes)))
        labels = dict.fromkeys(label for n in sizes for label in prices(n))
        curves = {of: {n: prices(n)[of] for n in sizes if of in prices(n)} for of in labels}
        function = title.partition(",")[0]
        pictures[function] = pictures.get(function, "") + _picture(title, line.name, curves)
    known = overview.machine() if named is None else overview.Inventory(devices)
    names = {n: i.get("name") or n for n, i in devices.items() if not i.get("is_host_cpu")}
    names = list(dict.fromkeys(names.values()))
    head = "From where a GPU pays" if len(names) > 1 else "No GPU here: the fastest on the CPU"
    if len(names) < 2:
        answers.append(("From where one would pay", "hetero report --profile h200 h200.html"))
    cells = "".join(f"<tr><td>{escape(q)}</td><td>{escape(a)}</td></tr>" for q, a in answers)
    off = [e["mean"] for name, e in constants.residuals().items() if _is_of_method(name)]
    far = f"{median(off):.0%} in the median of {len(off)} models" if off else "not known"
    text = f"Profile {constants.name!r}, of {constants.data.get('created') or 'an unknown time'}."
    if figure() is None:
        text += f" There are no pictures: {INSTALL}."
    sections = {
        head: f"<table>{cells}</table>",
        "How far predictions are off": f"<p>{far}; hetero verify measures calls</p>"
        f"<p>{escape(text)}</p>",
        **{o: f'<div class="side">{drawn}</div>' for o, drawn in pictures.items() if drawn},
        "Errors of the models": _printed(calibration(constants)),
        "Ladders of kernels": "".join(map(_printed, ladders)),
        "The machine": f"<details><summary>all</summary>{_printed(str(known))}</details>",
    }
    parts = [f"<h2>{escape(head)}</h2>{text}" for head, text in sections.items() if text]
    title = escape(f"hetero on {', '.join(names)}")
    return _DOCUMENT.substitute(title=title, content="\n".join(parts))


def _printed(text: str) -> str:
    """What a command prints."""
    return f"<pre>{escape(aligned(text))}</pre>"


def _picture(title: str, over: str, curves: Any) -> str:
    """Curves as SVG; nothing without matplotlib."""
    if (picture := figure(*_SIZE)) is None:
        return ""
    out = io.BytesIO()
    draw_curves(picture, "", over, curves)
    with load("matplotlib").rc_context({"svg.fonttype": "none"}):
        picture.savefig(out, format="svg", transparent=True)
    source, name = base64.b64encode(out.getvalue()).decode(), escape(title)
    image = f'<img alt="{name}" src="data:image/svg+xml;base64,{source}">'
    return f"<figure>{image}<figcaption>{name}</figcaption></figure>"
