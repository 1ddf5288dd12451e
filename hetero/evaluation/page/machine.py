"""What the machine is, and how far its profile can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hetero.calibration.measure import timing
from hetero.calling import overview
from hetero.evaluation.page.drawing import in_bytes, when
from hetero.evaluation.page.markup import facts, paragraph
from hetero.evaluation.page.methods import Devices
from hetero.host.compiled import loops
from hetero.profile import Profile

_HIDDEN = ("elsewhere", "kernels")  # of a device's description
_NOT_CALIBRATED = (
    "This machine is not calibrated: what follows are conservative constants that come with "
    "hetero, of no machine."
)
_NOT_COMPILED = (
    "Not all of the CPU's loops are compiled: where one is missing, calls and maps "
    "show the method that is used until then."
)


def title(devices: Devices) -> str:
    """What the page is of."""
    kinds = {i.get("name") or n: None for n, i in devices.items() if not i.get("is_host_cpu")}
    return f"hetero on {', '.join(kinds)}"


def trust(constants: Profile, is_here: bool) -> str:
    """Which profile it is, and what in it not to trust; markup."""
    data = constants.data
    created, now = when(data.get("created") or "an unknown time"), datetime.now(UTC).isoformat()
    lines = [(f"Profile {constants.name!r}, of {created}; this page is of {when(now)}.", "soft")]
    if is_here and not data.get("fingerprint"):
        lines.append((_NOT_CALIBRATED, "warn"))
    if is_here and not all(map(loops.is_ready, loops.every())):
        lines.append((_NOT_COMPILED, "warn"))
    if load := data.get("load"):
        style = "soft" if timing.is_trusted(load) else "warn"
        lines.append((f"While it was measured: {timing.described(load)}.", style))
    if doubtful := constants.doubtful():
        names = ", ".join(name.replace("|", " ") for name in doubtful)
        lines.append((f"Predictions off by a factor: {names}.", "warn"))
    return "".join(paragraph(text, style) for text, style in lines)


def section(constants: Profile, devices: Devices, is_here: bool) -> str:
    """This machine as `hetero.machine` has it, another one as its profile has it; markup."""
    if is_here:
        return facts(_readable(overview.machine()))
    shown = {
        name: {key: value for key, value in info.items() if key not in _HIDDEN}
        for name, info in devices.items()
    }
    packages = constants.data.get("fingerprint", {}).get("packages")
    return facts(_readable({**shown, **({"packages": packages} if packages else {})}))


def _readable(known: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not known, and with bytes in larger units."""
    shown: dict[str, Any] = {}
    for key, value in known.items():
        if isinstance(value, Mapping):
            shown[key] = _readable(value)
        elif key == "memory_bytes" and value:
            shown["memory"] = in_bytes(value)
        elif value is not None:
            shown[key] = value
    return shown
