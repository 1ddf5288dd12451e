"""The devices: the kinds there are beside the CPU, those at hand, and which of them work.

A kind of device is a module that subclasses `hetero.devices.base.Device` and has a function
``find()``, and a name in `KINDS`. Methods for it are rows that name the kind, or `PORTABLE`
(`hetero.registry.register_method`): all kinds compile the portable kernels.

All that is known is the state of one object, `here`.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hetero import locks, tables
from hetero.errors import DeviceMemoryError, DeviceNotAvailable, one_of
from hetero.host import cpu
from hetero.imports import load

if TYPE_CHECKING:
    from hetero.devices.base import Device

Find = Callable[[], tuple[list["Device"], list[str]]]
CPU = "cpu"
KINDS = ("cuda", "opencl")
_FORKED = "this process was forked from one that used the device"

log = logging.getLogger("hetero")


class Registry:
    """What devices are here, beside the CPU, and which of them can be used.

    Devices are looked for once, on first use, and are never a reason to fail.

    A device is believed when it has compiled and run a small kernel with the right result. That
    takes a context and a compiler, so it is asked of a device when a plan would first use it
    (`believed`), or of all of them by what shows or measures the machine (`proven`). One that fails
    is broken: from then on it is not `available`. One that fails twice later on is disabled.
    """

    def __init__(self) -> None:
        # Kind -> what finds its devices, and what is missing for others; it does not raise.
        self.kinds: dict[str, Find] = {kind: partial(_find, kind) for kind in KINDS}
        self.lock = locks.new()
        self.found: dict[str, Device] | None = None  # by name; None until they were looked for
        self.descriptions: dict[str, dict[str, dict[str, Any]]] = tables.new_table()
        self.absent: list[str] = []  # what is not here and what would bring it
        self.proved: set[str] = set()  # who ran the small kernel right
        self.defects: dict[str, tuple[Device, str]] = {}  # the broken ones, and why
        self.first_failure: dict[str, str] = {}  # of each, its message
        self.reasons: dict[str, str] = {}  # why a device is disabled
        self.short: set[str] = set()  # who had no room for a call
        self._failed_at: dict[str, int] = {}
        self._failures = 0

    def available(self) -> dict[str, Device]:
        """Device name -> `Device`. Empty without packages, driver or device that works."""
        if self.found is None:
            with self.lock:
                if self.found is None:
                    found: dict[str, Device] = {}
                    self.absent.clear()
                    for find in self.kinds.values():
                        devices, missing = find()
                        found.update((device.name, device) for device in devices)
                        self.absent.extend(missing)
                    if self.found is None:  # else a signal handler's call found them meanwhile
                        self.found = found
        return self.found

    def described(self) -> dict[str, dict[str, Any]]:
        """Name -> description; "cpu" first. A device set aside stays, with ``set_aside``.

        Made on first use, and again when something changed.
        """
        now = tables.generation()
        infos = self.descriptions.get("here")
        if infos is None:
            infos = {CPU: dict(cpu.describe())}
            for name, device in self.available().items():
                info = dict(device.describe())
                twin = next((n for n, i in infos.items() if n != CPU and _same(i, info)), None)
                if twin is not None:
                    info["same_as"] = twin
                if (reason := self.disabled(name)) is not None:
                    info["set_aside"] = reason
                infos[name] = info
            tables.remember(self.descriptions, "here", infos, now)
        return infos

    def believed(self, name: str) -> bool:
        """Whether a device works, as far as a small kernel can tell; "cpu" does.

        Asked only once.
        """
        if name in self.proved:
            return True
        with self.lock:
            device = self.available().get(name)
            if device is None:
                return name == CPU
            if name in self.proved or name in self.reasons:
                return True  # set aside: for now
            try:
                device.probe()
            except DeviceMemoryError as error:  # it has no room now, which is no defect
                log.info("%s could not be asked whether it works: %s", name, error)
                return True
            except Exception as error:  # of a backend that breaks in ways of its own
                log.debug("the probe of %s failed", name, exc_info=True)
                reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
                self.defects[name] = device, reason
                self.found = {n: d for n, d in self.available().items() if n != name}
            else:
                self.proved.add(name)
                return True
        tables.forget()
        return False

    def only_host(self) -> bool:
        """Whether no device but this machine's CPU is here, by whatever name."""
        return all(device.describe().get("is_host_cpu") for device in self.available().values())

    def proven(self) -> dict[str, Device]:
        """`available`, when each of them was asked whether it works."""
        return {name: device for name, device in self.available().items() if self.believed(name)}

    def broken(self) -> dict[str, str]:
        """Device name -> why it is not used, of the devices that are here and do not work."""
        return {name: reason for name, (_, reason) in self.defects.items()}

    def everything(self) -> dict[str, Device]:
        """`available`, and the broken ones: all that is here, whatever was asked of it."""
        broken = {name: device for name, (device, _) in self.defects.items()}
        return {**self.available(), **broken}

    def missing(self) -> tuple[str, ...]:
        """What is not here and what would bring it, one sentence each."""
        self.available()
        return tuple(self.absent)

    def get(self, name: str) -> Device:
        """The device of that name.

        Raises
        ------
        DeviceNotAvailable
            The message names the devices that are here.
        """
        try:
            return self.available()[name]
        except KeyError:
            raise self.not_available(name) from None

    def not_available(self, name: str) -> DeviceNotAvailable:
        """The error for a name that stands for no device here, or for a broken one.

        It is "cpu" where a device beside the CPU is wanted.
        """
        here = [*self.available()] if name == CPU else [CPU, *self.available()]
        reason = f": it is broken, {self.defects[name][1]}" if name in self.defects else ""
        if not here:
            return DeviceNotAvailable(f"there is no device but the CPU, got {name!r}")
        return DeviceNotAvailable(one_of("device", here, name) + reason)

    def disabled(self, name: str) -> str | None:
        """Why a device is no longer used in this process, None while it is."""
        return self.reasons.get(name)

    def inherited(self, name: str) -> bool:
        """Whether a device is the parent's of this forked process, which must not touch it."""
        return self.reasons.get(name) == _FORKED

    def failures(self) -> int:
        """How many failures of devices were counted so far in this process."""
        return self._failures

    def count_failure(self, name: str, error: Exception, begun: int | None = None) -> bool | None:
        """Count a device's failure; after the second it is disabled. True if it now is.

        None if it does not count: the device is disabled, or has failed since ``begun``, the number
        of `failures` before what failed began.
        """
        with self.lock:
            if name in self.reasons:
                return None
            failed = name in self.first_failure
            if failed and begun is not None and begun < self._failed_at.get(name, 0):
                return None
            if failed:
                self.reasons[name] = f"set aside after failing twice in this process: {error}"
                return True
            self._failures += 1
            self._failed_at[name] = self._failures
            self.first_failure[name] = str(error)
            return False

    def troubles(self) -> dict[str, str]:
        """Device name -> what it failed with in this process, or that it had no room."""
        return {**dict.fromkeys(self.short, "out of memory"), **self.first_failure}

    def was_short(self, name: str) -> bool:
        """Note that a device had no room for a call; whether it was noted before."""
        with self.lock:
            known = name in self.short
            self.short.add(name)
            return known

    def reset_failures(self, name: str) -> bool:
        """Forget a device's failures, unless this process was forked; True if there were some.

        Whether it works is asked of it again.
        """
        with self.lock:
            if self.inherited(name):
                return False
            self.short.discard(name)
            defect = self.defects.pop(name, None)
            failed = [self.first_failure.pop(name, None), self.reasons.pop(name, None), defect]
            if any(failed):
                self.proved.discard(name)
            if defect is not None:
                self.found = {**self.available(), name: defect[0]}
            return any(failed)

    def after_fork(self) -> None:
        """In a forked child: it cannot use its parent's contexts, and computes on the CPU."""
        if self.found is None:
            return
        for name, device in self.everything().items():
            self.reasons[name] = _FORKED
            # One reference too many keeps it, and all that it holds, from ever being finalized.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))
        tables.forget()


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a.get(key) == b.get(key) for key in ("kind", "name", "memory_bytes", "driver"))


def _find(kind: str) -> tuple[list[Device], list[str]]:
    """What the module of a kind finds."""
    return load(f"hetero.devices.{kind}").find()


here = Registry()

available = here.available
described = here.described
only_host = here.only_host
believed = here.believed
proven = here.proven
broken = here.broken
everything = here.everything
missing = here.missing
get = here.get
not_available = here.not_available
disabled = here.disabled
inherited = here.inherited
failures = here.failures
count_failure = here.count_failure
troubles = here.troubles
was_short = here.was_short
reset_failures = here.reset_failures

os.register_at_fork(after_in_child=here.after_fork)
