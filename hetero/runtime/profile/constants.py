"""`Profile`: constants of one machine, ready to be asked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from hetero import paths
from hetero.kernels.cpu import blas_spin
from hetero.runtime import thread_counts
from hetero.runtime.models import Cost, ModelKey, Work, bind, bind_link
from hetero.runtime.profile import encoding, places
from hetero.runtime.thread_counts import Threads

CPU = "cpu"
PAGEABLE, PINNED, STAGED = "pageable", "pinned", "staged"
ENQUEUED = "enqueued"  # a way to share a call, see `hetero.runtime.beside_cpu`
_STAGED_SIZES = [round(2.0 ** (step / 4)) for step in range(4 * 18, 4 * 31 + 1)]  # bytes


class Contention(NamedTuple):
    """What the CPU and a device that share a call lose to one another.

    Attributes
    ----------
    cpu, device : float
        How many times as long each takes for its range as it takes alone.
    spared : int
        How many of BLAS's threads the CPU's range does without.
    handover : float
        Seconds that the call takes beside the range that takes longer.
    """

    cpu: float
    device: float
    spared: int = 0
    handover: float = 2e-4


# Two that end together by their prices alone then take as long as the faster one by itself.
UNKNOWN_CONTENTION = Contention(2.0, 2.0)


class Profile:
    """Constants of one machine, ready to be asked.

    Parameters
    ----------
    data : dict
        The content of a profile file.

    Attributes
    ----------
    name : str
    data : dict
    devices : dict
        Device name -> description.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.name: str = data["name"]
        self.devices: dict[str, dict[str, Any]] = data["devices"]
        self._models: dict[tuple[str, ...], dict[str, Any] | None] = {}
        self._costs: dict[tuple[str, ...], Cost | None] = {}
        self._links: dict[tuple[str, ...], Callable[[int], float]] = {}
        self._least: dict[tuple[str, str], float] = {}
        self._beside: dict[str, bool] = {}
        self._together: dict[str, Profile] = {}
        self._group: tuple[str, ...] = ()
        self._quiet, self._times = self, 1

    def cost(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> Cost | None:
        """The cost function of an implementation, or None where no constants are known."""
        key = (device, operation, method, dtype, layout)
        try:
            return self._costs[key]
        except KeyError:
            pass
        model = self.model(device, kind, operation, method, dtype, layout)
        found = None if model is None else bind(model)
        self._costs[key] = found
        return found

    def moves_apart(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> bool:
        """Whether the model of several devices leaves out what is moved to them and back."""
        model = self.model(device, kind, operation, method, dtype, layout) or {}
        return bool(model.get("moves_apart"))

    def threads(
        self, operation: str, method: str, dtype: str, layout: str, work: Work
    ) -> Threads | None:
        """How many threads a method of the CPU takes for some work; None where that is not known
        or all are best."""
        model = self.model(CPU, CPU, operation, method, dtype, layout) or {}
        table = model.get("threads")
        return None if table is None else thread_counts.choose(table, work)

    def model(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> dict[str, Any] | None:
        """The stored model of an implementation, or None where no constants are known."""
        asked = device, kind, operation, method, dtype, layout
        if asked not in self._models:
            order, _, alignment = layout.partition(" ")
            keys = (
                str(ModelKey(name, operation, method, dtype, shape))
                for name in self._names(device, kind)
                for shape in (layout, order, f"* {alignment}", "*")
            )
            models = self.data["models"]
            self._models[asked] = next((models[key] for key in keys if key in models), None)
        return self._models[asked]

    def link(
        self, device: str, direction: str, memory: str = "pageable", beside: str = ""
    ) -> Callable[[int], float]:
        """Seconds that a copy takes, as a function of bytes.

        Of pageable memory it is "staged" from the size on from which that curve is the lower one,
        as the devices do it (`least_staged`).

        Parameters
        ----------
        device : str
            Or all equal ones that copy at once, "cuda*2": then the bytes are those of each.
        direction : {"upload", "download"}, to or from the device
        memory : {"pageable", "pinned"}
        beside : str, optional
            `blas_use.BESIDE_BLAS`: right after a product of the CPU. Where that makes no
            difference it is the quiet link.

        Raises
        ------
        KeyError
            If the profile knows nothing of this link.
        """
        key = (device, direction, memory, beside, "link")
        try:
            return self._links[key]
        except KeyError:
            pass
        found = curve = self._at_once(device, direction, memory, beside)
        least = self.least_staged(device, direction) if memory == PAGEABLE else inf
        if least < inf:
            staged = self._at_once(device, direction, STAGED, beside)

            def found(nbytes: int) -> float:
                return staged(nbytes) if nbytes >= least else curve(nbytes)

        self._links[key] = found
        return found

    def _at_once(
        self, device: str, direction: str, memory: str, beside: str
    ) -> Callable[[int], float]:
        """A curve; of several devices at once that of one alone, where it is no other."""
        try:
            return self.curve(device, direction, memory, beside)
        except KeyError:
            if _alone(device) == device:
                raise
            return self.curve(_alone(device), direction, memory, beside)

    def curve(
        self, device: str, direction: str, memory: str, beside: str = ""
    ) -> Callable[[int], float]:
        """One curve as it was measured; as `link`, but that ``memory`` may be "staged", pageable
        memory through pinned buffers (`hetero.devices.staging`), and "pageable" never is."""
        key = (device, direction, memory, beside)
        if key not in self._links:
            for name in (*self._group, *self._names(device, device.partition(":")[0])):
                kinds = self.data["links"].get(name, {}).get(direction, {})
                model = kinds.get(f"{memory} {beside}") or kinds.get(memory)
                if model is not None:
                    self._links[key] = self._in_turn(bind_link(model))
                    break
            else:
                raise KeyError(f"{memory} {direction} of {device}")
        return self._links[key]

    def _in_turn(self, curve: Callable[[int], float]) -> Callable[[int], float]:
        """A curve for as many copies as go one after the other."""
        times = self._times
        return curve if times == 1 else lambda nbytes: times * curve(nbytes)

    def at_once(self, group: str) -> Profile:
        """The same constants, with the links of each of several devices that copy at once.

        Parameters
        ----------
        group : str
            Of the devices together, "cuda*2". Where their links were not measured they are taken
            to share one bus: copies at once take as long as one after the other.
        """
        found = self._together.get(group)
        if found is None:
            found = self._together[group] = Profile(self.data)
            found._group, found._quiet = (group,), self
            if group not in self.data["links"]:
                found._times = int(group.partition("*")[2])
        return found

    def least_staged(self, device: str, direction: str) -> float:
        """Bytes from which on staged copies of pageable memory are faster, whatever their size;
        infinite where none are, or none were measured.

        Several devices at once stage what each of them stages alone.
        """
        key = _alone(device), direction
        if key not in self._least:
            found = inf
            with contextlib.suppress(KeyError):
                plain, staged = (self._quiet.curve(*key, memory) for memory in (PAGEABLE, STAGED))
                for nbytes in reversed(_STAGED_SIZES):
                    if staged(nbytes) >= plain(nbytes):
                        break
                    found = nbytes
            self._least[key] = found
        return self._least[key]

    def stages(self) -> dict[str, dict[str, float]]:
        """Device -> direction -> `least_staged`, of all devices whose staged copies are known."""
        return {
            name: {way: self.least_staged(name, way) for way in ("upload", "download")}
            for name in self.devices
            if any(
                STAGED in kinds
                for known in self._names(name, name.partition(":")[0])
                for kinds in self.data["links"].get(known, {}).values()
            )
        }

    def has_links(self, beside: str) -> bool:
        """Whether some links were measured beside something, and differ then."""
        if beside not in self._beside:
            self._beside[beside] = any(
                memory.endswith(beside)
                for directions in self.data["links"].values()
                for kinds in directions.values()
                for memory in kinds
            )
        return self._beside[beside]

    def pack(self, nbytes: int) -> float:
        """Seconds to copy a host array that is not dense into one that is."""
        key = ("pack",)
        if key not in self._links:
            self._links[key] = bind_link(self.data["host"]["pack"])
        return self._links[key](nbytes)

    def dispatch(self, device: str, case: str) -> float:
        """Seconds of the host's own work around one call, beside moving and launching.

        Parameters
        ----------
        device : str
        case : {"host", "device", "detour"}
            Operands on the host; on the device; on the device and computed on the CPU.
        """
        known = self.data["host"].get("dispatch", {})
        for name in self._names(device, device.partition(":")[0]):
            if name in known:
                return float(known[name].get(case, 0.0))
        return 0.0

    def contention(self, device: str, operation: str, way: str) -> Contention:
        """What the CPU and a device that share a call lose to one another.

        Parameters
        ----------
        device, operation : str
        way : {"pageable", "pinned", "enqueued"}
            What the device's operands lie in, where a thread does its range; else `ENQUEUED`.

        Returns
        -------
        Contention
            `UNKNOWN_CONTENTION` where it was not measured.
        """
        known = self.data["host"].get("contention", {})
        for name in self._names(device, device.partition(":")[0]):
            if (found := known.get(name, {}).get(operation, {}).get(way)) is not None:
                return Contention(**found)
        return UNKNOWN_CONTENTION

    def blas_sleep(self) -> float:
        """Seconds of a loop's work from which on BLAS's idle threads are put to sleep for it."""
        return float(self.data["host"].get("blas_sleep", blas_spin.LONG))

    def _names(self, device: str, kind: str) -> tuple[str, ...]:
        same_as = self.devices.get(device, {}).get("same_as")
        return (device, *((same_as,) if same_as else ()), f"{kind}:*")

    def machine(self) -> dict[str, dict[str, Any]]:
        """Its devices as another machine's: none of its packages is looked for on this one.

        What was measured there was there, and what has no constants is not considered.
        """
        tables = self.data.get("kernels", {})
        return {
            name: {**info, "elsewhere": True, "kernels": tables.get(info.get("name"))}
            for name, info in self.devices.items()
        }

    @property
    def is_partial(self) -> bool:
        """Whether not all was measured."""
        return "unfinished" in self.data

    def dtypes(self) -> dict[str, set[str]]:
        """What it has constants for: operation -> dtypes."""
        found: dict[str, set[str]] = {}
        for key in self.data["models"]:
            known = ModelKey.parse(key)
            found.setdefault(known.operation, set()).add(known.dtype)
        return found

    def residuals(self) -> dict[str, dict[str, float]]:
        """Model key -> relative errors of the fit: mean, p95, worst."""
        rows = {key: m["residuals"] for key, m in self.data["models"].items() if "residuals" in m}
        for device, directions in self.data["links"].items():
            for direction, kinds in directions.items():
                for memory, model in kinds.items():
                    if "residuals" in model:
                        rows[f"{device}|{direction}|{memory}"] = model["residuals"]
        return rows

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the profile atomically, under a lock; the default place is `places.default_path`.

        A link of this user's (or root's) stays, and the file that it leads to is replaced.
        """
        target = places.place(path)
        content = encoding.encode(self.data)
        with paths.locked(target.with_name(target.name + ".lock")) as alone:
            # Who holds the lock knows that none of them is being written now.
            paths.sweep(target.parent, target.name, 0.0 if alone else paths.ABANDONED)
            paths.replace_file(target, content, durable=True)
        return target

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["data"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<Profile {self.name!r}: {', '.join(self.devices)}>"


def _alone(device: str) -> str:
    """One of several devices at once: "cuda:0" of "cuda*2"."""
    kind, several, _ = device.partition("*")
    return f"{kind}:0" if several and ":" not in device else device
