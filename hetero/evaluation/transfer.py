"""`hetero transfer`: is it worth moving this to a device at all? As data, text and a picture.

Copies are compared with the predicted time of the work on the CPU and on the device: White's
decision (2013, listing 4.18).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from hetero.arrays import HOST
from hetero.calling.planner import Machine
from hetero.evaluation import calls
from hetero.evaluation.calls import Call, break_even, extents
from hetero.evaluation.report import draw_curves, markdown
from hetero.pricing.plan import CPU
from hetero.profile import PAGEABLE, PINNED, STAGED
from hetero.times import readable

PICTURE = (8.0, 5.0)  # inches


def transfer(
    up: int | None,
    down: int | None,
    work: Call | tuple[float, ...] = (),
    *,
    device: str | None = None,
    named: str | None = None,
) -> dict[str, Any]:
    """Whether it pays to move bytes to a device, and its results back, as plain data.

    ``up`` and ``down`` are bytes, None for those of a `Call`; ``work`` may also be its seconds, on
    the CPU and on the device, as far as they are known; ``named`` is the profile of another
    machine. Gives for each kind of host memory, in ``pays``, the seconds of both copies, and where
    the work is known: gain, the CPU's time over that of the device with its copies; calls, from how
    many on operands pay that go up once; break_even of a `Call`, in its leading dimension.

    Raises
    ------
    DeviceNotAvailable, ValueError
        If there is no such device or profile, or bytes and a `Call` are both missing.
    """
    if (call := work if isinstance(work, Call) else None) is None and None in (up, down):
        missing = "UP and DOWN" if up is None else "DOWN"
        raise ValueError(f"{missing} must be given in bytes, unless --work names an operation")
    name = calls.gpu((known := calls.known(named))[1], device)
    extent, over, least, most = max(up or 0, down or 0, 1), "bytes", 1 << 10, 1 << 24
    if call is not None:
        extent, over, least, most = call.extent, call.leading, 8, 16384
    sizes = extents(min(least, extent), max(most, 4 * extent))
    constants, machine = known[0], Machine(*known)

    def parts(size: int) -> list[list[int]]:
        """Bytes of each copy up, and down."""
        if call is None:
            return [[up * size // extent], [down * size // extent]]
        problem = call.of_size(size).problem()
        return [[o.nbytes for o in problem.inputs], [problem.output.nbytes]]

    own = [sum(each) for each in parts(extent)]
    total = own[0] if up is None else up, own[1] if down is None else down
    ratios = [given / max(n, 1) for n, given in zip(own, total, strict=True)]

    def copies(memory: str, size: int) -> list[float]:
        """Seconds of both directions; what is too small to be staged goes as pageable memory."""
        seconds = []
        for way, ratio, each in zip(("upload", "download"), ratios, parts(size), strict=True):
            known = constants.curve(name, way, memory)  # or KeyError
            link = constants.link(name, way) if memory == STAGED else known
            seconds.append(sum(link(round(ratio * n)) for n in each if n))
        return seconds

    @cache
    def alone(where: str, size: int) -> tuple[float | None, str | None]:
        """Seconds of the work on the CPU, or on the device with its operands there; its method."""
        if call is None:
            return (*work, None, None)[where != CPU], None
        with suppress(ValueError):  # the operation does not take that size
            on = HOST if where == CPU else where
            if found := call.of_size(size).chosen(machine, on, where):
                return found.seconds, found.method
        return None, None

    def seconds(memory: str | None, size: int) -> float | None:
        """Of the work on the CPU, or on the device with copies from and to such host memory."""
        taken = alone(CPU if memory is None else name, size)[0] if work else 0.0
        return taken if None in (taken, memory) else taken + sum(copies(memory, size))

    def curve(memory: str | None) -> dict[int, float]:
        return {n: known for n in sizes if (known := seconds(memory, n)) is not None}

    curves, cpu = {CPU: curve(None)} if work else {}, partial(seconds, None)
    pays: dict[str, Any] = {}
    done = alone(CPU, extent), alone(name, extent)
    here, there = (seconds for seconds, _ in done)
    for memory in (PAGEABLE, STAGED, PINNED):
        with suppress(KeyError):  # of what the profile does not know
            upload, download = copies(memory, extent)
            one = pays[memory] = {"upload": upload, "download": download}
            curves[f"{name}, {memory}"] = curve(memory)
            if here is not None and there is not None:
                one["gain"], gained = here / (upload + there + download), here - there - download
                one["calls"] = int(upload / gained) + 1 if gained > 0.0 else None
            if call is not None and here is not None:
                one["break_even"] = break_even(cpu, partial(seconds, memory), sizes)._asdict()
    what = str(call or "the given work") if work else f"copies to and from {name}"
    moved = {"device": name, "profile": constants.name, "up": total[0], "down": total[1]}
    return moved | {"what": what, "done": done, "pays": pays, "over": over, "curves": curves}


def text(found: Mapping[str, Any]) -> str:
    """Whether it pays by copies of ordinary memory, in one sentence; copies and the work."""
    device, kinds, ((cpu, by), (there, by_device)) = found["device"], found["pays"], found["done"]
    one = kinds[memory := STAGED if STAGED in kinds else PAGEABLE]
    both, gain, at = one["upload"] + one["download"], one.get("gain"), one.get("break_even")
    copies, pays = f"copies of {readable(both)} ({memory} memory)", ""
    if at is not None:
        every = "at every size looked at, " * (at["extent"] == at["smallest"])
        size = f"{every}from {found['over']} = {at['extent']} on"
        pays = f" moving pays {size if at['extent'] else 'at no size looked at'};"
    if gain is not None:
        word, fast = "Yes" if gain > 1.0 else "No", f"{gain:.3g} times as fast as {CPU}"
        answer = f"{word}:{pays} {device} is {fast} with {copies}."
    elif cpu is None:
        answer = f"Yes, if the work takes {CPU} longer than {device} by more than its {copies}."
    else:
        left = readable(max(cpu - both, 0.0))
        answer = f"Yes, if the work takes {device} less than {left}; {copies}."
    moved = "{up:,} bytes up and {down:,} down, {device} (profile: {profile})".format_map(found)
    lines = [answer, "", moved]
    for where, seconds, method in ((CPU, cpu, by), (f"{device} alone", there, by_device)):
        if seconds is not None:
            lines.append(f"{found['what']} on {where}: {readable(seconds)} by {method or 'itself'}")
    cells = [
        [kind, readable(one["upload"]), readable(one["download"])]
        + [f"{one['gain']:.3g} times" if "gain" in one else "", str(one.get("calls") or "")]
        + [str(one.get("break_even", {}).get("extent") or "")]
        for kind, one in kinds.items()
    ]
    head = "host memory", "upload", "download", "gain of one call", "pays from calls", "from size"
    return "\n".join([*lines, "", *markdown(head, cells)])


def draw(found: Mapping[str, Any], picture: Any) -> None:
    """Draw the curves on a figure of matplotlib's."""
    draw_curves(picture.subplots(), found["what"], found["over"], found["curves"])
