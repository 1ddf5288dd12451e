"""Which constants of a profile hold on this machine as it is now.

Each constant depends on parts of the fingerprint. Where one changed, the constants that depend on
it are put aside, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from hetero import registry
from hetero.host import limits
from hetero.profile import inventory
from hetero.registry.models import ModelKey

# What constants depend on: parts of the fingerprint. "device" is their own device.
DEPENDENCE: dict[str, tuple[str, ...]] = {
    "pack": ("hetero", "cpu"),
    "links": ("hetero", "cpu", "device"),
    "dispatch": ("hetero", "cpu", "device", "numpy"),
    "blas_sleep": ("hetero", "cpu", "cores", limits.BLAS, "loops", "tbb"),
    "models of the CPU": ("hetero", "cpu", "cores"),
    "models of devices": ("hetero", "cpu", "device"),
}
# A model also depends on what its implementation uses (`Implementation.uses`), and a device on the
# package that it is reached through.
BINDINGS = {"cuda": "pycuda", "opencl": "pyopencl"}
PARTS_OF = {"loops": ("loops", "tbb")}  # TBB's threads run them, where it is installed


class Holding(NamedTuple):
    """What holds of a profile here.

    Attributes
    ----------
    data : dict
        The profile's content without what was put aside, under the names that the devices have now.
    aside : dict
        What changed -> the constants of this machine that are put aside for it.
    new : list of str
        Devices that are here and were not when it was measured.
    here : int
        Number of models that are left and are of this machine's devices.
    obstacle : str or None
        Why nothing of the profile is used here.
    """

    data: dict[str, Any]
    aside: dict[str, list[str]]
    new: list[str]
    here: int
    obstacle: str | None


def holding(data: dict[str, Any]) -> Holding:
    """What holds of a profile's content on this machine."""
    was, now = data["fingerprint"], inventory.fingerprint()
    changed = _changes(was, now)
    for part in ("cpu", "hetero"):  # everything depends on these
        if part in changed:
            return Holding({}, {}, [], 0, changed[part])
    devices = _devices(was.get("devices"), now["devices"], data["devices"])
    sorting = _Sorting(changed, devices, now["devices"])
    host = {**data["host"], "dispatch": sorting.kept("dispatch", data["host"].get("dispatch", {}))}
    if "blas_sleep" in host and not sorting.holds(
        "cpu|blas_sleep", "cpu", DEPENDENCE["blas_sleep"]
    ):
        del host["blas_sleep"]
    left = {
        "links": sorting.kept("links", data["links"]),
        "host": host,
        "models": sorting.models(data["models"]),
        "devices": devices.described(data["devices"]),
    }
    number = sum(_is_here(key, now["devices"]) for key in left["models"])
    obstacle = None
    if not number and data["models"]:
        reasons = [*sorting.aside, *devices.gone.values()]
        obstacle = reasons[0] if reasons else "it has no constants of this machine's devices"
    return Holding({**data, **left}, sorting.aside, devices.new, number, obstacle)


class _Devices(NamedTuple):
    """How a profile's devices correspond to those of this machine.

    Attributes
    ----------
    names : dict
        Name in the profile -> name here.
    twins : dict
        Name of a device here -> of another one here with the same card, which was measured.
    gone : dict
        Name in the profile -> what became of a device that is not here as it was.
    new : list of str
        Names of devices that are here and were not.
    """

    names: dict[str, str]
    twins: dict[str, str]
    gone: dict[str, str]
    new: list[str]

    @property
    def taken(self) -> set[str]:
        """Names here of devices that were measured, or equal one that was."""
        return {*self.names.values(), *self.twins}

    def are_together(self, place: str) -> bool:
        """Whether all devices that were measured together, "cuda*2", are here."""
        kind, _, number = place.partition("*")
        return number.isdecimal() and sum(kind_of(n) == kind for n in self.taken) == int(number)

    def described(self, known: dict[str, Any]) -> dict[str, Any]:
        """Descriptions of a profile's devices, under their names here."""
        infos = {}
        for name, info in known.items():
            if name in self.names or name == "cpu":
                info = dict(info)
                here = self.names.get(name, name)
                twin = self.names.get(info.pop("same_as", ""))
                if twin is not None and twin != here:
                    info["same_as"] = twin
                infos[here] = info
        for name, twin in self.twins.items():
            if twin in infos and name not in infos:
                infos[name] = {**infos[twin], "same_as": infos[twin].get("same_as", twin)}
        return infos


def _devices(was: Any, now: dict[str, dict[str, Any]], described: dict[str, Any]) -> _Devices:
    """Match devices by their cards: numbers and slots may differ."""
    was = {n: i for n, i in was.items() if isinstance(i, dict)} if isinstance(was, dict) else {}
    names: dict[str, str] = {}
    closest = (
        lambda old, new: was[old].get(inventory.SLOT) == now[new].get(inventory.SLOT) is not None,
        lambda old, new: old == new,
        lambda old, new: True,
    )
    for close in closest:
        for old in was:
            for new in now:
                if (
                    old not in names
                    and new not in names.values()
                    and _card(was[old]) == _card(now[new])
                    and close(old, new)
                ):
                    names[old] = new
    for old, new in list(names.items()):
        first = described.get(old, {}).get("same_as")
        if first in was and _card(was[first]) == _card(now[new]):
            names.setdefault(first, new)  # that one was measured in place of all, and is not here
    twins = {}
    for new in now:
        if new not in names.values():
            alike = (names[old] for old in names if _card(was[old]) == _card(now[new]))
            if (twin := next(alike, None)) is not None:
                twins[new] = twin
    gone = {}
    for old in was:
        if old not in names:
            here = now.get(old)
            gone[old] = f"{old} is not here" if here is None else _difference(old, was[old], here)
    infos = inventory.devices()
    new = [
        name
        for name in now
        if not (name in was or name in twins or name in names.values())
        and not infos.get(name, {}).get("is_host_cpu")
    ]
    return _Devices(names, twins, gone, new)


def _card(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != inventory.SLOT}


def changes(was: dict[str, Any]) -> str:
    """How a stored fingerprint differs from this machine, but for its devices."""
    return "; ".join(_changes(was, inventory.fingerprint()).values())


def _changes(was: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """Part -> how it changed; what an older version did not record counts as unchanged."""
    changes = {}
    for part, path in inventory.PARTS.items():
        before, after = was, now
        for step in path:
            before = before.get(step) if isinstance(before, dict) else None
            after = after.get(step)
        if before != after and not (before is None and part == "loops"):
            changes[part] = _difference(" ".join(path), before, after)
    before = was.get("packages")
    before, after = before if isinstance(before, dict) else {}, now["packages"]
    for name in before:
        if before[name] != after.get(name):
            changes[name] = f"package {name} was {before[name]!r}, is {after.get(name)!r}"
    return changes


def _difference(name: str, was: Any, now: Any) -> str:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in now:
            if was.get(key) != now[key] and key != inventory.SLOT:
                return f"{name} {key} was {was.get(key)!r}, is {now[key]!r}"
    return f"{name} was {was!r}, is {now!r}"


class _Sorting:
    """Sorts constants into those that hold and those that are put aside."""

    def __init__(self, changed: dict[str, str], devices: _Devices, now: Iterable[str]) -> None:
        self.aside: dict[str, list[str]] = {}
        self._now = set(now)
        self._changed = changed
        self._devices = devices

    def kept(self, section: str, entries: dict[str, Any]) -> dict[str, Any]:
        """The constants of "links" or "dispatch" that hold, by name of the device here."""
        kept = {}
        for name, value in entries.items():
            here = self._devices.names.get(name, name)
            if self.holds(f"{here}|{section}", name, DEPENDENCE[section]):
                kept[here] = value
        return kept

    def models(self, models: dict[str, Any]) -> dict[str, Any]:
        held = {}
        for text, model in models.items():
            key = ModelKey.parse(text)
            kind = "models of the CPU" if key.place == "cpu" else "models of devices"
            here = str(key._replace(place=self._devices.names.get(key.place, key.place)))
            if self.holds(here, key.place, (*DEPENDENCE[kind], *_used(key))):
                held[here] = model
        return held

    def holds(self, name: str, place: str, parts: Iterable[str]) -> bool:
        """Whether all parts that a constant depends on are unchanged; else put it aside."""
        parts = tuple(parts)
        if "device" in parts:
            if place in self._devices.gone:
                # Constants of a device that is not here are of no use.
                if place in self._now and place not in self._devices.taken:
                    self.aside.setdefault(self._devices.gone[place], []).append(name)
                return False
            if "*" in place.removesuffix(":*") and not self._devices.are_together(place):
                return False
            parts += (BINDINGS.get(kind_of(place), ""),)
        for part in parts:
            if part in self._changed:
                self.aside.setdefault(self._changed[part], []).append(name)
                return False
        return True


def _used(key: ModelKey) -> tuple[str, ...]:
    """What the speed of a model's implementation depends on in addition to its place."""
    rows = (row for row in registry.lookup(key.operation) if row.method == key.method)
    uses = next((row.uses for row in rows if row.kind == kind_of(key.place)), ())
    return tuple(part for name in uses for part in PARTS_OF.get(name, (name,)))


def kind_of(place: str) -> str:
    """The kind of a place: "cuda" of "cuda:0" and of "cuda*2"."""
    return re.split("[:*]", place)[0]


def _is_here(key: str, devices: dict[str, Any]) -> bool:
    place = ModelKey.parse(key).place
    return place == "cpu" or place in devices or place.endswith(":*")
