"""`hetero transfer`: is it worth moving this to a device at all? As data, text and a picture.

Copies up and down are priced, and measured where the device is here, by each kind of host memory.
Beside them stands the predicted time of the work itself on the CPU and on the device. The decision
is White's listing 4.18; how many calls pay for a copy that stays on the device is the question
after it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from hetero import devices as backends
from hetero.arrays import HOST
from hetero.calibration.environment.copies import Copies, is_asked
from hetero.calibration.measure import candidates
from hetero.calling.planner import Machine, OtherMachine
from hetero.errors import DeviceNotAvailable, one_of
from hetero.evaluation import calls
from hetero.evaluation.calls import Call, break_even, calls_from, extents
from hetero.evaluation.report import markdown
from hetero.pricing.plan import CPU, Candidate
from hetero.profile import PAGEABLE, PINNED, STAGED, Profile, inventory
from hetero.times import readable

PICTURE = (8.0, 5.0)  # inches
_STYLES = ("-", "--", "-.", ":")
WAYS = ("upload", "download")
MEMORIES = (PAGEABLE, STAGED, PINNED)
_SMALLEST, _LARGEST = 8, 16384  # leading dimensions among which the break-even size is looked for
_FURTHER = 4  # and up to that many times the given one
_LEAST_BYTES, _MOST_BYTES = 1 << 10, 1 << 24  # of the curve of copies, at least


class Given(NamedTuple):
    """Work by its seconds: on the CPU, and on the device with its operands there, if known."""

    cpu: float
    device: float | None = None

    def __str__(self) -> str:
        return "the given work"


def transfer(
    up: int | None,
    down: int | None,
    work: Given | Call | None = None,
    *,
    device: str | None = None,
    constants: Profile | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Whether it pays to move bytes to a device, and its results back, as plain data.

    ``up`` and ``down`` are bytes, None for those of a `Call`; ``constants`` those of another
    machine, where nothing is measured. ``copies`` are by kind of host memory, ``pays`` what `pays`
    tells with the "break_even" of a `Call`, ``curves`` predicted seconds of a `Call` over its
    leading dimension, else of copies over bytes.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device, or none was named and there is none.
    ValueError
        If bytes are not given, and there is no `Call` to take them from.
    """
    say = progress or (lambda share, text: None)
    if isinstance(work, Call):
        own = [sum(parts) for parts in work.moved()]
        up, down = own[0] if up is None else up, own[1] if down is None else down
        ratios = up / max(own[0], 1), down / max(own[1], 1)  # kept at every size
        parts = work.moved(*ratios)
    elif up is None or down is None:
        missing = "UP and DOWN" if up is None else "DOWN"
        raise ValueError(f"{missing} must be given in bytes, unless --work names an operation")
    else:
        parts = [up], [down]
    is_here = constants is None
    if constants is None:
        constants, devices = calls.known(None)
    else:
        devices = constants.machine() or inventory.devices()
    name = _device(device, devices, is_here)
    say(0.0, "copies")
    measured = _measured_copies(name, up, down) if is_here else {}
    predicted = {memory: _predicted_copies(constants, name, memory, parts) for memory in MEMORIES}
    copies = {
        memory: {"predicted": predicted[memory], "measured": measured.get(memory)}
        for memory in MEMORIES
        if predicted[memory] is not None or memory in measured
    }
    say(0.4, "the work")
    machine = OtherMachine(constants, devices)
    done = None if work is None else _work(work, machine, name)
    say(0.7, "sizes")
    found = {memory: pays(one, done) for memory, one in copies.items()}
    over, given, curves = "bytes", None, {}
    if isinstance(work, Call):
        over, given = work.leading, work.extent
        sizes = extents(min(_SMALLEST, given), max(_LARGEST, _FURTHER * given))
        curves = _curves(work, machine, name, constants, ratios, copies)
        for memory in (memory for memory in copies if predicted[memory] is not None):
            at = break_even(curves[CPU], curves[f"{name}, {memory}"], sizes)
            dims = None if at.extent is None else list(work.of_size(at.extent).dims)
            found[memory]["break_even"] = {**at._asdict(), "dims": dims}
    else:
        sizes = extents(_LEAST_BYTES, max(_FURTHER * max(up, down), _MOST_BYTES))
        for memory, way in itertools.product(copies, WAYS):
            with suppress(KeyError):  # what the profile does not know
                curves[f"{way}, {memory}"] = _curve(constants, name, memory, way)
    seconds = {label: [curve(n) for n in sizes] for label, curve in curves.items()}
    return {
        "device": name,
        "profile": constants.name,
        "up": up,
        "down": down,
        "copies": copies,
        "work": done,
        "pays": found,
        "curves": {"over": over, "given": given, "at": sizes, "seconds": seconds},
    }


def _device(device: str | None, devices: Mapping[str, Mapping[str, Any]], is_here: bool) -> str:
    """The device that is asked about."""
    others = [name for name in devices if name != CPU]
    for name in others:
        if name == device or (device is None and not devices[name].get("is_host_cpu")):
            return name
    said = "no GPU is here"
    if others and device is not None:
        said = one_of("--device", others, device)
    elif others:
        said += f"; --device takes {' or '.join(map(repr, others))}"
    if is_here:
        said += (
            "; --profile h100, h200, h100x2, h200x2 or tesla-t10 predicts for a machine with one"
        )
    raise DeviceNotAvailable(said)


def _predicted_copies(
    constants: Profile, name: str, memory: str, parts: tuple[list[int], list[int]]
) -> dict[str, float] | None:
    """Seconds of each direction's copies; None where the profile does not know one.

    What is too small to be staged goes as pageable memory does.
    """
    with suppress(KeyError):
        return {
            way: sum(_curve(constants, name, memory, way)(nbytes) for nbytes in copies if nbytes)
            for way, copies in zip(WAYS, parts, strict=True)
        }
    return None


def _curve(constants: Profile, name: str, memory: str, way: str) -> Callable[[int], float]:
    found = constants.curve(name, way, memory)
    return constants.link(name, way) if memory == STAGED else found


def _measured_copies(name: str, up: int, down: int) -> dict[str, dict[str, float]]:
    """Kind of memory -> direction -> seconds, of copies for which the device has room."""
    device = backends.get(name)
    if max(up, down) > int(device.describe()["memory_bytes"]) // 4:
        return {}
    found: dict[str, dict[str, float]] = {}
    with device.active():
        copies = Copies(device, max(up, down, 1))
        for way, memory in copies.ways:
            nbytes = up if way == WAYS[0] else down
            as_it_goes = memory if is_asked((way, memory), nbytes) else PAGEABLE
            copy = partial(copies, way, as_it_goes, nbytes)
            found.setdefault(memory, {})[way] = candidates.typical(copy) if nbytes else 0.0
    return found


def _work(work: Given | Call, machine: Machine, name: str) -> dict[str, Any]:
    """Predicted seconds of the work on the CPU, and on the device with its operands there."""
    if isinstance(work, Given):
        own = {CPU: work.cpu, "device": work.device}
        taken = {where: {"predicted": own[where], "method": None} for where in own}
        return {"what": str(work), **taken, "chosen": None}
    alone = work.chosen(machine, HOST, CPU), work.chosen(machine, name, name)
    found = dict(zip((CPU, "device"), map(_taken, alone), strict=True))
    best = work.chosen(machine, HOST)
    chosen = best and {"device": best.device, **_taken(best)}
    return {"what": str(work), **found, "chosen": chosen}


def _taken(candidate: Candidate | None) -> dict[str, Any]:
    seconds, method = (candidate.seconds, candidate.method) if candidate else (None, None)
    return {"predicted": seconds, "method": method}


def pays(copies: Mapping[str, Any], work: Mapping[str, Any] | None) -> dict[str, Any]:
    """Whether moving pays, by the copies of one kind of host memory: measured, else predicted.

    transfer: seconds of both copies. If the time on the CPU is known also gain: the CPU's
    time over that of the device with both copies; least_gain: how many times as fast as the CPU the
    device must compute for a gain of 1; calls: from how many calls on it pays, if operands go up
    once and each result comes down; calls_staying: if results stay there but for the last one. None
    where there is no such number; without the device's time calls are as if it took none.
    """
    moves = copies["measured"] or copies["predicted"]
    up, down = (moves[way] for way in WAYS)
    if work is None or (cpu := work[CPU]["predicted"]) is None:
        return {"transfer": up + down}
    device, left = work["device"]["predicted"], cpu - up - down
    return {
        "transfer": up + down,
        "gain": None if device is None else cpu / (up + device + down),
        "least_gain": cpu / left if left > 0.0 else None,
        "calls": calls_from(up, (device or 0.0) + down, cpu),
        "calls_staying": calls_from(up + down, device or 0.0, cpu),
    }


def _curves(
    call: Call,
    machine: Machine,
    name: str,
    constants: Profile,
    ratios: Sequence[float],
    memories: Iterable[str],
) -> dict[str, Callable[[int], float | None]]:
    """Predicted seconds of a call over its leading dimension: on the CPU, on the device without
    copies, and there with both copies by each kind of host memory."""

    @functools.cache
    def alone(where: str, extent: int) -> float | None:
        try:
            found = call.of_size(extent).chosen(machine, HOST if where == CPU else where, where)
        except ValueError:  # the operation does not take that size
            found = None
        return None if found is None else found.seconds

    def moved(memory: str, extent: int) -> float | None:
        if (seconds := alone(name, extent)) is None:
            return None
        parts = call.of_size(extent).moved(*ratios)
        copies = _predicted_copies(constants, name, memory, parts)
        return None if copies is None else seconds + sum(copies.values())

    return {
        CPU: partial(alone, CPU),
        f"{name} without copies": partial(alone, name),
        **{f"{name}, {memory}": partial(moved, memory) for memory in memories},
    }


# -- As text ---------------------------------------------------------------------------------------


def text(found: Mapping[str, Any]) -> str:
    """Whether it pays; then copies and the work, in words."""
    device, work, copies = found["device"], found["work"], found["copies"]
    moved = f"{found['up']:,} bytes up and {found['down']:,} down"
    lines = [answer(found), "", f"{moved}, {device} (profile: {found['profile']})", ""]
    head = ["host memory", "upload", "download", "measured"]
    cells = {memory: [memory, *_pair(one["predicted"])] for memory, one in copies.items()}
    for memory, one in copies.items():
        cells[memory].append("-" if one["measured"] is None else " + ".join(_pair(one["measured"])))
    after = []
    if work is not None:
        after = [f"{work['what']}: {_times(CPU, work[CPU])}"]
        if is_known := work["device"]["predicted"] is not None:
            after[-1] += f"; {_times(device + ' without copies', work['device'])}"
        if (best := work["chosen"]) is not None:
            took = "" if best["predicted"] is None else f", {readable(best['predicted'])}"
            way = f"{best['method']} on {best['device']}"
            after.append(f"a call on operands in ordinary memory runs {way}{took}")
        if work[CPU]["predicted"] is None:
            after.append(f"the profile does not tell what {CPU} takes")
        else:
            has_sizes = any("break_even" in pays for pays in found["pays"].values())
            head += ["gain of one call" if is_known else "must be faster by", "pays from calls"]
            head += ["results staying"] + ["pays from size"] * has_sizes
            for memory, pays in found["pays"].items():
                gain = pays["gain" if is_known else "least_gain"]
                cells[memory].append("never" if gain is None else f"{gain:.3g} times")
                for count in (pays["calls"], pays["calls_staying"]):
                    cells[memory].append("never" if count is None else f"{count:,}")
                cells[memory] += [_size(pays.get("break_even"))] * has_sizes
    return "\n".join([*lines, *markdown(head, list(cells.values())), "", *after])


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
    calls, gain, least = pays["calls"], pays["gain"], pays["least_gain"]
    staying = "" if calls is None else f"; operands that stay there pay from {calls:,} calls on"
    if gain is None and least is None:
        return f"No: {CPU} takes no longer than the {copies}{staying}."
    if gain is None:
        return f"Yes, if {device} computes {least:.4g} times as fast as {CPU} or faster; {copies}."
    begin = ""
    if (at := pays.get("break_even")) is not None:
        name = "n" if len(set(at["dims"] or ())) == 1 else priced["curves"]["over"].lower()
        size = f"from {name} = {at['extent']} on"
        if at["extent"] is None:
            size = f"at no size up to {at['largest']}"
        elif at["extent"] == at["smallest"]:
            size = f"at every size looked at, {size}"
        begin = f" moving pays {size};"
    if gain > 1.0:
        return f"Yes:{begin} {device} is {gain:.3g} times as fast as {CPU} with {copies}."
    slower = f" {device} takes {1.0 / gain:.3g} times as long as {CPU} with {copies}"
    return f"No:{begin}{slower}{staying}."


def _pair(seconds: Mapping[str, float] | None) -> list[str]:
    return ["-", "-"] if seconds is None else [readable(s) for s in seconds.values()]


def _times(where: str, taken: Mapping[str, Any]) -> str:
    method = f" by {taken['method']}" if taken["method"] else ""
    return f"{where}{method} {'-' if taken['predicted'] is None else readable(taken['predicted'])}"


def _size(at: Mapping[str, Any] | None) -> str:
    if at is None:
        return "-"
    if at["extent"] is None:
        return f"not up to {at['largest']}"
    return " ".join(map(str, at["dims"]))


def draw(found: Mapping[str, Any], picture: Any) -> None:
    """Draw the curves on a figure of matplotlib's."""
    axes, curves, work = picture.subplots(), found["curves"], found["work"]
    for style, (name, seconds) in zip(itertools.cycle(_STYLES), curves["seconds"].items()):
        points = [(n, s) for n, s in zip(curves["at"], seconds, strict=True) if s is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=name)
    for memory, pays in found["pays"].items():
        if (at := pays.get("break_even")) and at["extent"] is not None:
            label = f"from {at['extent']} on, {memory}"
            axes.axvline(at["extent"], color="0.7", linewidth=0.8, label=label)
    if work is not None and "bytes" in curves["over"]:
        label = "the work on the CPU"
        axes.axhline(work[CPU]["predicted"], color="0.4", linewidth=0.8, label=label)
    axes.set_xscale("log", base=2)
    title = work["what"] if work else f"copies to and from {found['device']}"
    axes.set(xlabel=curves["over"], ylabel="seconds, predicted", yscale="log", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
