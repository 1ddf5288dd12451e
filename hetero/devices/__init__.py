"""The devices at hand, beside the CPU: found once, on first use, and never a reason to fail.

A device is believed when it has compiled and run a small kernel with the right result. That takes
a context and a compiler, so it is asked of a device when a plan would first use it (`believed`), or
of all of them by what shows or measures the machine (`proven`). One that fails is broken: from then
on it is not `available`.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from hetero import locks
from hetero.errors import DeviceMemoryError, DeviceNotAvailable

if TYPE_CHECKING:
    from hetero.devices.base import Device

_BACKENDS = ("cuda", "opencl")
_lock = locks.new()
_found: dict[str, Device] | None = None
_missing: list[str] = []
_listeners: list[Callable[[], None]] = []
_strikes: dict[str, str] = {}
_struck_at: dict[str, int] = {}
_failures = 0
_set_aside: dict[str, str] = {}
_believed: set[str] = set()
_broken: dict[str, tuple[Device, str]] = {}
_told: dict[str, tuple[Device, str]] = {}
_short: set[str] = set()
_FORKED = "this process was forked from one that used the device"

log = logging.getLogger("hetero")


def available() -> dict[str, Device]:
    """Device name -> `Device`. Empty without packages, driver or device that works."""
    global _found
    if _found is None:
        with _lock:
            if _found is None:
                found: dict[str, Device] = {}
                _missing.clear()
                for backend in _BACKENDS:
                    module = importlib.import_module(f"hetero.devices.{backend}")
                    devices, missing = module.find()
                    found.update((device.name, device) for device in devices)
                    _missing.extend(missing)
                if _found is None:  # else a signal handler's call found them meanwhile
                    _found = found
    return _found


def believed(name: str) -> bool:
    """Whether a device works, as far as a small kernel can tell; "cpu" does. Asked only once."""
    global _found
    if name in _believed:
        return True
    with _lock:
        device = available().get(name)
        if device is None:
            return name == "cpu"
        if name in _believed or name in _set_aside or device.capturing:
            return True  # the last two: for now; a graph would take the probe in
        try:
            device.probe()
        except DeviceMemoryError as error:  # it has no room now, which is no defect
            log.info("%s could not be asked whether it works: %s", name, error)
            return True
        except Exception as error:  # of a backend that breaks in ways of its own
            log.debug("the probe of %s failed", name, exc_info=True)
            _broken[name] = device, _one_line(error)
            _found = {other: it for other, it in available().items() if other != name}
        else:
            _believed.add(name)
            return True
    for listener in _listeners:
        listener()
    return False


def proven() -> dict[str, Device]:
    """`available`, when each of them was asked whether it works."""
    return {name: device for name, device in available().items() if believed(name)}


def broken() -> dict[str, str]:
    """Device name -> why it is not used, of the devices that are here and do not work."""
    return {name: reason for name, (_, reason) in _broken.items()}


def newly_broken(name: str) -> str | None:
    """Why a device is broken, for the first who asks since it was found out; else None."""
    with _lock:
        found = _broken.get(name)
        if found is None or _told.get(name) is found:
            return None
        _told[name] = found
        return found[1]


def everything() -> dict[str, Device]:
    """`available`, and the broken ones: what is here does not depend on what was asked of it."""
    return {**available(), **{name: device for name, (device, _) in _broken.items()}}


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def missing() -> tuple[str, ...]:
    """What is not here and what would bring it, one sentence each."""
    available()
    return tuple(_missing)


def get(name: str) -> Device:
    """The device of that name.

    Raises
    ------
    DeviceNotAvailable
        The message names the devices that are here.
    """
    try:
        return available()[name]
    except KeyError:
        raise not_available(name) from None


def not_available(name: str) -> DeviceNotAvailable:
    """The error for a name that stands for no device here, or for a broken one.

    It is "cpu" where a device beside the CPU is wanted.
    """
    here = [*available()] if name == "cpu" else ["cpu", *available()]
    names = ", ".join(map(repr, here)) or "those beside the CPU, of which there is none"
    reason = f": it is broken, {_broken[name][1]}" if name in _broken else ""
    return DeviceNotAvailable(f"device must be one of {names}, got {name!r}{reason}")


def set_aside(name: str) -> str | None:
    """Why a device is no longer used in this process, None while it is."""
    return _set_aside.get(name)


def failures() -> int:
    """How many failures of devices were counted so far in this process."""
    return _failures


def strike(name: str, error: Exception, begun: int | None = None) -> bool | None:
    """Note that a device failed; after the second time it is set aside. True if it now is.

    None if it does not count: the device is set aside, or has failed since ``begun``, the number of
    `failures` before what failed began.
    """
    global _failures
    with _lock:
        if name in _set_aside:
            return None
        if name in _strikes and begun is not None and begun < _struck_at.get(name, 0):
            return None
        if name in _strikes:
            _set_aside[name] = f"set aside after failing twice in this process: {error}"
            return True
        _failures += 1
        _struck_at[name] = _failures
        _strikes[name] = str(error)
        return False


def troubles() -> dict[str, str]:
    """Device name -> what it failed with in this process, or that it had no room."""
    return {**dict.fromkeys(_short, "out of memory"), **_strikes}


def was_short(name: str) -> bool:
    """Note that a device had no room for a call; whether it was noted before."""
    with _lock:
        known = name in _short
        _short.add(name)
        return known


def forgive(name: str) -> bool:
    """Forget a device's failures, unless this process was forked; True if there were some.

    Whether it works is asked of it again.
    """
    global _found
    with _lock:
        if _set_aside.get(name) == _FORKED:
            return False
        _short.discard(name)
        failed = [_strikes.pop(name, None), _set_aside.pop(name, None), _broken.pop(name, None)]
        if any(failed):
            _believed.discard(name)
        if failed[2] is not None:
            _found = {**available(), name: failed[2][0]}
        return any(failed)


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` when devices cease to be usable without anybody's call having failed."""
    _listeners.append(listener)


def _after_fork() -> None:
    """A forked child cannot use its parent's CUDA contexts: it computes on the CPU."""
    global _found
    if _found is None:
        return
    for name, device in everything().items():
        _set_aside[name] = _FORKED
        device.abandon()
    for listener in _listeners:
        listener()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
