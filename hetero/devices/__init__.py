"""The devices: the kinds there are beside the CPU, those at hand, and which of them work.

A kind of device is a module that subclasses `hetero.devices.base.Device` and has a function
``find()``, and a name in `KINDS`. Methods for it are rows that name the kind, or `PORTABLE`
(`hetero.registry.register_method`): all kinds compile the portable kernels.

All that is known is the state of one object, `here`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
from collections import defaultdict
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


@dataclasses.dataclass
class Health:
    """What is known in this process of how a device works."""

    is_proved: bool = False  # it ran the small kernel right
    defect: str | None = None  # why it is broken: what came of that kernel
    failure: str | None = None  # what it failed with first, and which of all failures that was
    failed_at: int = 0
    set_aside: str | None = None  # why it is used no longer
    was_short: bool = False  # it had no room for a call


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
        self.health: defaultdict[str, Health] = defaultdict(Health)
        self.descriptions: dict[str, dict[str, dict[str, Any]]] = tables.new_table()
        self.absent: list[str] = []  # what is not here and what would bring it
        self._failures = 0

    def everything(self) -> dict[str, Device]:
        """Device name -> `Device`, of all that are here, broken or not."""
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

    def available(self) -> dict[str, Device]:
        """`everything` but the broken. Empty without packages, driver or device that works."""
        health = self.health
        return {n: device for n, device in self.everything().items() if not health[n].defect}

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
        known = self.health[name]
        if known.is_proved:
            return True
        with self.lock:
            device = self.available().get(name)
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

    def only_host(self) -> bool:
        """Whether no device but this machine's CPU is here, by whatever name."""
        return all(device.describe().get("is_host_cpu") for device in self.available().values())

    def proven(self) -> dict[str, Device]:
        """`available`, when each of them was asked whether it works."""
        return {name: device for name, device in self.available().items() if self.believed(name)}

    def broken(self) -> dict[str, str]:
        """Device name -> why it is not used, of the devices that are here and do not work."""
        return {name: known.defect for name, known in [*self.health.items()] if known.defect}

    def missing(self) -> tuple[str, ...]:
        """What is not here and what would bring it, one sentence each."""
        self.everything()
        return tuple(self.absent)

    def get(self, name: str) -> Device:
        """The device of that name.

        Raises
        ------
        DeviceNotAvailable
            The message names the devices that are here.
        """
        device = None if self.health[name].defect else self.everything().get(name)
        if device is None:
            raise self.not_available(name)
        return device

    def not_available(self, name: str) -> DeviceNotAvailable:
        """The error for a name that stands for no device here, or for a broken one.

        It is "cpu" where a device beside the CPU is wanted.
        """
        here = [*self.available()] if name == CPU else [CPU, *self.available()]
        if not here:
            return DeviceNotAvailable(f"there is no device but the CPU, got {name!r}")
        defect = self.health[name].defect
        reason = f": it is broken, {defect}" if defect else ""
        return DeviceNotAvailable(one_of("device", here, name) + reason)

    def disabled(self, name: str) -> str | None:
        """Why a device is no longer used in this process, None while it is."""
        return self.health[name].set_aside

    def inherited(self, name: str) -> bool:
        """Whether a device is the parent's of this forked process, which must not touch it."""
        return self.disabled(name) == _FORKED

    def failures(self) -> int:
        """How many failures of devices were counted so far in this process."""
        return self._failures

    def count_failure(self, name: str, error: Exception, begun: int | None = None) -> bool | None:
        """Count a device's failure; after the second it is disabled. True if it now is.

        None if it does not count: the device is disabled, or has failed since ``begun``, the number
        of `failures` before what failed began.
        """
        with self.lock:
            known = self.health[name]
            if known.set_aside:
                return None
            if known.failure is None:
                self._failures += 1
                known.failure, known.failed_at = str(error), self._failures
                return False
            if begun is not None and begun < known.failed_at:
                return None
            known.set_aside = f"set aside after failing twice in this process: {error}"
            return True

    def troubles(self) -> dict[str, str]:
        """Device name -> what it failed with in this process, or that it had no room."""
        found = {n: h.failure or "out of memory" * h.was_short for n, h in self.health.items()}
        return {name: trouble for name, trouble in found.items() if trouble}

    def reset_failures(self, name: str) -> bool:
        """Forget a device's failures, unless this process was forked; True if there were some.

        Whether it works is asked of it again.
        """
        with self.lock:
            known = self.health[name]
            if self.inherited(name):
                return False
            failed = bool(known.failure is not None or known.set_aside or known.defect)
            self.health[name] = Health(is_proved=known.is_proved and not failed)
            return failed

    def after_fork(self) -> None:
        """In a forked child: it cannot use its parent's contexts, and computes on the CPU."""
        for name, device in (self.found or {}).items():
            self.health[name].set_aside = _FORKED
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
reset_failures = here.reset_failures

os.register_at_fork(after_in_child=here.after_fork)
