"""A calibration as text; and how all commands write numbers, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

from hetero.calibration.measure import described
from hetero.profile import OFF, Profile, is_trusted
from hetero.registry.models import ModelKey
from hetero.times import readable

ERRORS = ("mean", "p95", "worst")
INSTALL = "a picture needs matplotlib, the extra 'plot': pip install matplotlib"


# Relative errors with which predictions are good enough: in the mean, and of 95 in 100. Methods
# that are chosen between often differ by more than 40 %, and a choice that errs by a factor of two
# seldom costs as much. A link's time is part of every price, alike for all methods there.
OF_METHODS, OF_LINKS = (0.4, 1.0), (0.1, 0.3)


# -- Numbers, tables, pictures ---------------------------------------------------------------------


def rounded(value: float, digits: int = 3) -> str:
    """That many digits, and those before the point."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:.0f}"


def prefixed(value: float) -> str:
    """A number before its unit: 51 T."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} "


def by(extents: Iterable[int]) -> str:
    """Extents as a product."""
    return " x ".join(map(str, extents))


def markdown(head: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines."""
    lines = ["| " + " | ".join(line) + " |" for line in (head, *cells)]
    return [lines[0].replace("|  |", "| |"), "|---" * len(head) + "|", *lines[1:]]


def errors_text(head: str, named: Mapping[str, Mapping[str, float]], wide: int) -> list[str]:
    """Relative errors as lines, in columns."""
    lines = [" ".join([f"{head:<{wide}}", *(f"{part:>7}" for part in ERRORS)])]
    for name, errors in named.items():
        shown = (f"{errors[p]:.1%}" if p in errors else "-" for p in ERRORS)
        lines.append(" ".join([f"{name:<{wide}}", *(f"{one:>7}" for one in shown)]))
    return lines


def figure(width: float, height: float) -> Any | None:
    """An empty picture of that many inches, which no screen shows; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def draw_curves(
    axes: Any,
    title: str,
    over: str,
    curves: Mapping[str, Mapping[int, float]],
    *,
    unit: str = "seconds, predicted",
    samples: Mapping[str, Mapping[int, float]] | None = None,
) -> None:
    """Draw label -> size -> value, both on a logarithmic scale; ``samples`` as dots."""
    for (label, curve), style in zip(curves.items(), cycle(("-", "--", "-.", ":")), strict=False):
        (line,) = axes.plot(curve.keys(), curve.values(), style, label=label)
        marks = (samples or {}).get(label, {})
        axes.plot(marks.keys(), marks.values(), "o", color=line.get_color(), markersize=4)
    axes.set(xlabel=over, ylabel=unit, title=title)
    if not any(curves.values()):
        return
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):  # no powers, whose layout takes most of the time
        axis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", frameon=False)


# -- Calibration -----------------------------------------------------------------------------------


def not_acceptable(profile: Profile) -> list[str]:
    """The models and links whose errors are larger than what is acceptable."""
    wrong = []
    for name, errors in profile.residuals().items():
        mean, p95 = OF_METHODS if name.count("|") == len(ModelKey._fields) - 1 else OF_LINKS
        if not (errors["mean"] <= mean and errors.get("p95", 0.0) <= p95):
            wrong.append(name)
    return wrong


def rough(profile: Profile) -> str:
    """How many models and links are not acceptable, in words."""
    wrong, every = not_acceptable(profile), profile.residuals()
    if not wrong:
        return f"all {len(every)} fits are acceptable" if every else "no fit could be checked"
    return f"rough fits, marked !: {len(wrong)} of {len(every)}"


def calibration(profile: Profile, every: bool = True) -> str:
    """What was fitted and how well: one line for each model, or for those that are not acceptable;
    and which not to trust."""
    lines = []
    for device, directions in profile.data["links"].items():
        for direction, kinds in directions.items():
            for memory in kinds:
                link = profile.curve(device, direction, memory)
                floor, rate = link(1), 2**28 / link(2**28) / 1e9
                lines.append(
                    f"{device} {direction}, {memory}: {readable(floor)} + bytes at {rate:.1f} GB/s"
                )
        if "*" in device.removesuffix(":*"):  # several at once
            if begin := profile.dispatch(device, "host"):
                lines.append(f"{device} to begin on all of them: {readable(begin)}")
            continue
        lines.append(
            f"{device} host work around a call: {readable(profile.dispatch(device, 'host'))}, "
            f"operands there: {readable(profile.dispatch(device, 'device'))}"
        )
    if every and (stages := profile.data.get("stages")):
        lines += ["", *(f"{name}: {readable(took)}" for name, took in stages.items()), ""]
    wrong, names = not_acceptable(profile), profile.residuals()
    head, *errors = errors_text("error of the fit, of copies", names, 52)
    lines += [head] + [
        line.replace("|", " ") + " !" * (name in wrong)
        for name, line in zip(names, errors, strict=True)
        if every or name in wrong
    ]
    limits = "{:.0%} in the mean and {:.0%} at the 95th percentile; of links {:.0%} and {:.0%}"
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
            m, n, k = (axis[-1] for axis in axes)
            flops = 2.0 * m * n * k / model["constants"]["seconds"][-1]
            lines.append(f"cpu BLAS, {dtype}: {flops / 1e9:.0f} GFLOP/s ({by((m, n, k))})")
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
