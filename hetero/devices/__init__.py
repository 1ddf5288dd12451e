"""The devices at hand, beside the CPU: found once, on first use, and never a reason to fail."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from hetero import locks
from hetero.errors import DeviceNotAvailable

if TYPE_CHECKING:
    from hetero.devices.base import Device

_BACKENDS = ("cuda", "opencl")
_lock = locks.new()
_found: dict[str, Device] | None = None
_missing: list[str] = []
_listeners: list[Callable[[], None]] = []
_strikes: dict[str, str] = {}
_set_aside: dict[str, str] = {}

log = logging.getLogger("hetero")


def available() -> dict[str, Device]:
    """Device name -> `Device`. Empty without packages, driver or device."""
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
        names = ", ".join(map(repr, ("cpu", *available())))
        raise DeviceNotAvailable(f"device must be one of {names}, got {name!r}") from None


def set_aside(name: str) -> str | None:
    """Why a device is no longer used in this process, None while it is."""
    return _set_aside.get(name)


def strike(name: str, error: Exception) -> bool:
    """Note that a device failed; after the second time it is set aside. True if it now is."""
    with _lock:
        if name in _set_aside:
            return False
        if name in _strikes:
            _set_aside[name] = f"set aside after failing twice in this process: {error}"
            return True
        _strikes[name] = str(error)
        return False


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` when devices cease to be usable without anybody's call having failed."""
    _listeners.append(listener)


def _after_fork() -> None:
    """A forked child cannot use its parent's CUDA contexts: it computes on the CPU."""
    global _found
    if _found is None:
        return
    for name, device in _found.items():
        _set_aside[name] = "this process was forked from one that used the device"
        device.abandon()
    for listener in _listeners:
        listener()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
