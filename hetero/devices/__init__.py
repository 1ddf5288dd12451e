"""The devices: the kinds there are beside the CPU, those at hand, and which of them work.

A kind of device is a module that subclasses `hetero.devices.base.Device` and has a function
``find()``, and a name in `KINDS`. Methods for it are rows that name the kind, or `PORTABLE`
(`hetero.registry.register_method`): all kinds compile the portable kernels.

Devices are looked for once, on first use, and are never a reason to fail.

A device is believed when it has compiled and run a small kernel with the right result. That takes a
context and a compiler, so it is asked of a device when a plan would first use it (`believed`), or
of all of them by what shows or measures the machine (`proven`). One that fails is broken: from then
on it is not `available`. One that fails twice later on is disabled.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hetero import locks, tables
from hetero.errors import DeviceMemoryError, DeviceNotAvailable, one_of
from hetero.host import cpu
from hetero.imports import load, undisturbed

if TYPE_CHECKING:
    from hetero.devices.base import Device

CPU = "cpu"
KINDS = ("cuda", "opencl")
_FORKED = "this process was forked from one that used the device"

log = logging.getLogger("hetero")


@dataclasses.dataclass
class Health:
    """What is known in this process of how a device works."""

    is_proved: bool = False  # it ran the small kernel right
    defect: str | None = None  # why it is broken: what came of that kernel
    failure: str | None = None  # what it failed with first
    set_aside: str | None = None  # why it is used no longer
    was_short: bool = False  # it had no room for a call


kinds = [*KINDS]  # that are looked for
lock = locks.new()
found: dict[str, Device] | None = None  # by name; None until they were looked for
health: defaultdict[str, Health] = defaultdict(Health)
descriptions: dict[str, dict[str, dict[str, Any]]] = tables.new_table()
absent: list[str] = []  # what is not here and what would bring it


def everything() -> dict[str, Device]:
    """Device name -> `Device`, of all that are here, broken or not."""
    global found
    if found is None:
        with lock:
            if found is None:
                here: dict[str, Device] = {}
                absent.clear()
                for kind in kinds:
                    find = load(f"hetero.devices.{kind}").find  # does not raise
                    devices, lacking = undisturbed(find)
                    here.update((device.name, device) for device in devices)
                    absent.extend(lacking)
                if found is None:  # else a signal handler's call found them meanwhile
                    found = here
    return found


def available() -> dict[str, Device]:
    """`everything` but the broken. Empty without packages, driver or device that works."""
    return {name: device for name, device in everything().items() if not health[name].defect}


def described() -> dict[str, dict[str, Any]]:
    """Name -> description; "cpu" first. A device set aside stays, with ``set_aside``.

    Made on first use, and again when something changed.
    """
    now = tables.generation()
    infos = descriptions.get("here")
    if infos is None:
        infos, first = {CPU: dict(cpu.describe())}, {}
        for name, device in available().items():
            info = infos[name] = dict(device.describe())
            alike = tuple(info.get(key) for key in ("kind", "name", "memory_bytes", "driver"))
            if (twin := first.setdefault(alike, name)) != name:
                info["same_as"] = twin
            if (reason := disabled(name)) is not None:
                info["set_aside"] = reason
        tables.remember(descriptions, "here", infos, now)
    return infos


def believed(name: str) -> bool:
    """Whether a device works, as far as a small kernel can tell; "cpu" does. Asked only once."""
    known = health[name]
    if known.is_proved:
        return True
    with lock:
        device = available().get(name)
        if device is None:
            return name == CPU
        if known.is_proved or known.set_aside:
            return True  # set aside: for now
        try:
            device.probe()
        except DeviceMemoryError as error:  # it has no room now, which is no defect
            log.info("%s could not be asked whether it works: %s", name, error)
            return True
        except Exception as error:  # of a backend that breaks in ways of its own
            log.debug("the probe of %s failed", name, exc_info=True)
            known.defect = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        else:
            known.is_proved = True
            return True
    tables.forget()
    return False


def only_host() -> bool:
    """Whether no device but this machine's CPU is here, by whatever name."""
    return all(device.describe().get("is_host_cpu") for device in available().values())


def proven() -> dict[str, Device]:
    """`available`, when each of them was asked whether it works."""
    return {name: device for name, device in available().items() if believed(name)}


def broken() -> dict[str, str]:
    """Device name -> why it is not used, of the devices that are here and do not work."""
    return {name: known.defect for name, known in [*health.items()] if known.defect}


def missing() -> tuple[str, ...]:
    """What is not here and what would bring it, one sentence each."""
    everything()
    return tuple(absent)


def get(name: str) -> Device:
    """The device of that name.

    Raises
    ------
    DeviceNotAvailable
        The message names the devices that are here.
    """
    device = None if health[name].defect else everything().get(name)
    if device is None:
        raise not_available(name)
    return device


def not_available(name: str) -> DeviceNotAvailable:
    """The error for a name that stands for no device here, or for a broken one.

    It is "cpu" where a device other than the CPU is wanted.
    """
    here = [*available()] if name == CPU else [CPU, *available()]
    if not here:
        return DeviceNotAvailable(f"there is no device but the CPU, got {name!r}")
    defect = health[name].defect
    reason = f": it is broken, {defect}" if defect else ""
    return DeviceNotAvailable(one_of("device", here, name) + reason)


def disabled(name: str) -> str | None:
    """Why a device is no longer used in this process, None while it is."""
    return health[name].set_aside


def inherited(name: str) -> bool:
    """Whether a device is the parent's of this forked process, which must not touch it."""
    return disabled(name) == _FORKED


def count_failure(name: str, error: Exception) -> bool | None:
    """Count a device's failure; after the second it is disabled. True if it now is, None if it was
    already."""
    with lock:
        known = health[name]
        if known.set_aside:
            return None
        if known.failure is None:
            known.failure = str(error)
            return False
        known.set_aside = f"set aside after failing twice in this process: {error}"
        return True


def troubles() -> dict[str, str]:
    """Device name -> what it failed with in this process, or that it had no room."""
    known = {n: h.failure or "out of memory" * h.was_short for n, h in [*health.items()]}
    return {name: trouble for name, trouble in known.items() if trouble}


def reset_failures(name: str) -> bool:
    """Forget a device's failures, unless this process was forked; True if there were some.

    Whether it works is asked of it again.
    """
    with lock:
        known = health[name]
        if inherited(name):
            return False
        failed = bool(known.failure is not None or known.set_aside or known.defect)
        health[name] = Health(is_proved=known.is_proved and not failed)
        return failed


def after_fork() -> None:
    """In a forked child: it cannot use its parent's contexts, and computes on the CPU."""
    for name, device in (found or {}).items():
        health[name].set_aside = _FORKED
        # One reference too many keeps it, and all that it holds, from ever being finalized.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))
    tables.forget()


os.register_at_fork(after_in_child=after_fork)
