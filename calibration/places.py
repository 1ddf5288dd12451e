"""The places of this machine that a calibration measures."""

from __future__ import annotations

from typing import Any

from hetero import devices as backends
from hetero.errors import DeviceNotAvailable
from hetero.ops.cases import Place
from hetero.pricing import pricing
from hetero.pricing.plan import CPU
from hetero.profile import inventory


def chosen(devices: list[str] | None, infos: dict[str, dict[str, Any]]) -> list[str]:
    """The names of the devices to measure: those asked for after the CPU, or all that are used."""
    if devices is None:
        return [
            name
            for name, info in infos.items()
            if not (info.get("is_host_cpu") or info.get("same_as") or info.get("set_aside"))
        ]
    for name in devices:
        if name not in infos:
            reason = f": it is broken, {why}" if (why := inventory.broken().get(name)) else ""
            raise DeviceNotAvailable(
                f"devices must be among {', '.join(map(repr, infos))}, got {name!r}{reason}"
            )
    return [CPU, *(name for name in devices if name != CPU)]


def places_of(names: list[str], infos: dict[str, dict[str, Any]], quick: bool) -> list[Place]:
    """The CPU, each device, and all equal devices together."""
    found = [
        Place(name, infos[name], () if name == CPU else (backends.get(name),)) for name in names
    ]
    for info in pricing.groups(infos).values() if not quick else ():
        if info["members"][0] in names and not info.get("is_host_cpu"):
            together = tuple(backends.get(member) for member in info["members"])
            found.append(Place(info["constants"], info, together))
    return found
