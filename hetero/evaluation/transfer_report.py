"""What `hetero.evaluation.transfer` gives, as text and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero.evaluation.report import markdown
from hetero.pricing.plan import CPU
from hetero.profile import PINNED, STAGED
from hetero.times import readable

PICTURE = (8.0, 5.0)  # inches
_STYLES = ("-", "--", "-.", ":")
_NOTES = (
    "gain: the CPU's time over that of the device with both copies, measured or else predicted",
    "calls: operands go up once, and each result comes down; staying: the last one alone does",
)


def text(found: Mapping[str, Any]) -> str:
    """Whether it pays; then copies and the work, in words."""
    lines = [
        answer(found),
        "",
        f"{found['up']:,} bytes up and {found['down']:,} down, {found['device']} "
        f"(profile: {found['profile']})",
        "",
    ]
    head = ("host memory", "upload", "download", "measured: upload", "download")
    cells = [
        [memory, *_pair(one["predicted"]), *_pair(one["measured"])]
        for memory, one in found["copies"].items()
    ]
    lines += markdown(head, cells)
    work = found["work"]
    if work is None:
        lines.append("")
        for memory, pays in found["pays"].items():
            than = f"{readable(pays['transfer'])} longer than {found['device']}"
            lines.append(f"{memory}: worth it for work that takes the CPU {than}")
        return "\n".join(lines)
    lines += ["", f"{work['what']}: {_times(CPU, work[CPU])}"]
    if work["device"]["predicted"] is not None:
        lines[-1] += f"; {_times(found['device'] + ' without copies', work['device'])}"
    if work["chosen"] is not None:
        best = work["chosen"]
        took = "" if best["predicted"] is None else f", {readable(best['predicted'])}"
        lines.append(
            f"a call on operands in ordinary memory runs {best['method']} on {best['device']}{took}"
        )
    if work[CPU]["predicted"] is None and work[CPU]["measured"] is None:
        return "\n".join([*lines, "", f"the profile does not tell what {CPU} takes"])
    lines += ["", *markdown(*_verdict(found)), "", *_NOTES]
    if work["device"]["predicted"] is None:
        lines.append(f"{found['device']}'s own time is not known: at least that many calls")
    return "\n".join(lines)


def answer(priced: Mapping[str, Any]) -> str:
    """Whether it pays to move the operands, and from where on, in one sentence.

    Operands in ordinary memory count, staged where the profile knows what that takes, or pinned
    ones where only these pay.
    """
    device, kinds = priced["device"], priced["pays"]
    gains = {memory: pays.get("gain") or 0.0 for memory, pays in kinds.items()}
    memory = STAGED if STAGED in kinds else next(iter(kinds))
    if gains[memory] <= 1.0 < gains.get(PINNED, 0.0):
        memory = PINNED
    pays = kinds[memory]
    copies = f"copies of {readable(pays['transfer'])} ({memory} memory)"
    if priced["work"] is None:
        return f"Yes, if the work takes {CPU} longer than {device} by more than its {copies}."
    if "gain" not in pays:
        return f"Not known: the profile does not tell what {CPU} takes; {copies}."
    calls = pays["calls"]
    staying = "" if calls is None else f"; operands that stay there pay from {calls:,} calls on"
    gain, least = pays["gain"], pays["least_gain"]
    if gain is None and least is None:
        return f"No: {CPU} takes no longer than the {copies}{staying}."
    if gain is None:
        return f"Yes, if {device} computes {least:.4g} times as fast as {CPU} or faster; {copies}."
    begin = ""
    if (at := pays.get("break_even")) is not None:
        name = "n" if len(set(at["dims"] or ())) == 1 else priced["curves"]["over"].lower()
        if at["extent"] is None:
            size = "at no size up to {largest}"
        elif at["extent"] == at["smallest"]:
            size = "at every size looked at, from {name} = {smallest} on"
        else:
            size = "from {name} = {extent} on"
        begin = f" moving pays {size.format(name=name, **at)};"
    if gain > 1.0:
        return f"Yes:{begin} {device} is {gain:.3g} times as fast as {CPU} with {copies}."
    slower = f" {device} takes {1.0 / gain:.3g} times as long as {CPU} with {copies}"
    return f"No:{begin}{slower}{staying}."


def _pair(seconds: Mapping[str, float] | None) -> list[str]:
    return ["-", "-"] if seconds is None else [readable(s) for s in seconds.values()]


def _times(where: str, taken: Mapping[str, Any]) -> str:
    method = f" by {taken['method']}" if taken["method"] else ""
    predicted = "-" if taken["predicted"] is None else readable(taken["predicted"])
    measured = "" if taken["measured"] is None else f" (measured {readable(taken['measured'])})"
    return f"{where}{method} {predicted}{measured}"


def _verdict(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each kind of memory: whether one call pays, or how many do, and from which size."""
    sizes = any("break_even" in pays for pays in found["pays"].values())
    known = found["work"]["device"]["predicted"] is not None
    head = ["host memory", "both copies", "gain of one call" if known else "must be faster by"]
    head += ["pays from calls", "results staying"] + ["pays from size"] * sizes
    cells = []
    for memory, pays in found["pays"].items():
        gain = pays["gain" if known else "least_gain"]
        counts = (pays["calls"], pays["calls_staying"])
        row = [memory, readable(pays["transfer"])]
        row.append("never" if gain is None else f"{gain:.3g} times")
        row += ["never" if calls is None else f"{calls:,}" for calls in counts]
        cells.append([*row, *[_size(pays.get("break_even"))] * sizes])
    return head, cells


def _size(at: Mapping[str, Any] | None) -> str:
    if at is None:
        return "-"
    if at["extent"] is None:
        return f"not up to {at['largest']}"
    return " ".join(map(str, at["dims"]))


def _measured(found: Mapping[str, Any]) -> list[float]:
    """Measured seconds of the work: on the CPU, on the device, and there with both copies."""
    if found["work"] is None:
        return []
    here, there = (found["work"][where]["measured"] for where in (CPU, "device"))
    copies = [sum(one["measured"].values()) for one in found["copies"].values() if one["measured"]]
    with_copies = [] if there is None else [there + seconds for seconds in (0.0, *copies)]
    return [seconds for seconds in (here, *with_copies) if seconds is not None]


def draw(found: Mapping[str, Any], picture: Any) -> None:
    """Draw the curves on a figure of matplotlib's."""
    axes, curves, work = picture.subplots(), found["curves"], found["work"]
    for number, (name, seconds) in enumerate(curves["seconds"].items()):
        points = [(n, s) for n, s in zip(curves["at"], seconds, strict=True) if s is not None]
        if points:
            axes.plot(*zip(*points, strict=True), _STYLES[number % len(_STYLES)], label=name)
    if (points := _measured(found)) and curves["given"]:
        axes.plot([curves["given"]] * len(points), points, "k+", label="measured")
    for memory, pays in found["pays"].items():
        if (at := pays.get("break_even")) and at["extent"] is not None:
            axes.axvline(at["extent"], color="0.7", linewidth=0.8)
            place, look = (at["extent"], 0.02), {"fontsize": "small", "color": "0.4"}
            text, ends = f"{at['extent']}, {memory}", ("data", "axes fraction")
            axes.annotate(text, place, xycoords=ends, rotation=90, **look)
    if work is not None and "bytes" in curves["over"]:
        label = "the work on the CPU"
        axes.axhline(work[CPU]["predicted"], color="0.4", linewidth=0.8, label=label)
    axes.set_xscale("log", base=2)
    title = work["what"] if work else f"copies to and from {found['device']}"
    axes.set(xlabel=curves["over"], ylabel="seconds, predicted", yscale="log", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
