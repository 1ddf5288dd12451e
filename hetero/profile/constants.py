"""What a profile says: constants of one machine, ready to be asked; the bytes of a file of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from math import inf
from typing import Any, Self

from hetero.registry.models import Cost, ModelKey, bind, bind_link, try_out

PAGEABLE, PINNED, STAGED = "pageable", "pinned", "staged"
# Bytes that may be staged. The threads that help with smaller copies would compete with BLAS's
# threads, which spin for a moment after a product: 2.7 MB took 3.5 ms in place of 0.6.
_STAGED_SIZES = [round(2.0 ** (step / 4)) for step in range(4 * 22, 4 * 31 + 1)]
SCHEMA_VERSION = 3
LARGEST = 16 << 20  # bytes of a profile file; a full one of a machine with a GPU has half a million
UNITS = {"time": "seconds", "size": "bytes", "work": "flops"}
CPU = "cpu"
OFF = 1.0  # mean relative error of a model from which on it is not to be trusted
LEFT = 0.1  # of the samples may be doubtful in a calibration that is trusted


def digest(data: dict[str, Any]) -> str:
    """sha256 of a profile's content, less the sum itself."""
    body = {key: value for key, value in data.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def encode(data: dict[str, Any]) -> bytes:
    """The bytes of a profile file, checksum included; one line for each device, link and model."""
    parts = []
    for key, value in {**data, "sha256": digest(data)}.items():
        text = json.dumps(value)
        if key in ("devices", "links", "models") and isinstance(value, dict) and value:
            rows = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
            text = "{\n" + ",\n".join(rows) + "\n }"
        parts.append(f" {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def doubtful_share(seen: dict[str, Any]) -> float:
    """The fraction of doubtful samples of a calibration, by the profile's "load"."""
    return seen.get("left", 0) / max(seen.get("samples", 0), 1)


def is_trusted(seen: dict[str, Any]) -> bool:
    """Whether few enough samples are doubtful to trust a calibration."""
    return doubtful_share(seen) <= LEFT


class Constants:
    """Constants of one machine, ready to be asked; see `hetero.Profile`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.devices: dict[str, dict[str, Any]] = data["devices"]
        self.name: str = data["name"]
        self.is_trusted = is_trusted(data.get("load") or {})
        self.title = self.name if self.is_trusted else f"{self.name}, disturbed by other load"
        self._models: dict[tuple[str, ...], dict[str, Any] | None] = {}
        self._costs: dict[tuple[str, ...], Cost | None] = {}
        self._links: dict[tuple[str, ...], Callable[[int], float]] = {}
        self._least: dict[tuple[str, str], float] = {}
        self._together: dict[str, Self] = {}
        self._group: tuple[str, ...] = ()
        self._quiet, self._times = self, 1

    def link(self, device: str, direction: str, memory: str = "pageable") -> Callable[[int], float]:
        """Seconds that a copy takes, as a function of bytes.

        Of pageable memory it is "staged" from the size on from which that curve is the lower one,
        as the devices do it (`least_staged`).

        Parameters
        ----------
        device : str
        direction : {"upload", "download"}, to or from the device
        memory : {"pageable", "pinned"}

        Raises
        ------
        KeyError
            If the profile knows nothing of this link.
        """
        key = (device, direction, memory, "link")
        try:
            return self._links[key]
        except KeyError:
            pass
        seconds = curve = self.curve(device, direction, memory)
        least = self.least_staged(device, direction) if memory == PAGEABLE else inf
        if least < inf:
            staged = self.curve(device, direction, STAGED)

            def seconds(nbytes: int) -> float:
                return staged(nbytes) if nbytes >= least else curve(nbytes)

        self._links[key] = seconds
        return seconds

    def curve(self, device: str, direction: str, memory: str) -> Callable[[int], float]:
        """One curve as it was measured; parameters as in `link`, but "staged" is pageable memory
        through pinned buffers (`hetero.host.copying.staging`), and "pageable" by the driver."""
        key = (device, direction, memory)
        if key not in self._links:
            for name in (*self._group, *self._names(device, device.partition(":")[0])):
                kinds = self.data["links"].get(name, {}).get(direction, {})
                model = kinds.get(memory)
                if model is not None:
                    self._links[key] = self._in_turn(bind_link(model))
                    break
            else:
                raise KeyError(f"{memory} {direction} of {device}")
        return self._links[key]

    def _in_turn(self, curve: Callable[[int], float]) -> Callable[[int], float]:
        """A curve for the copies of all devices one after another, where they share a bus."""
        times = self._times
        return curve if times == 1 else lambda nbytes: times * curve(nbytes)

    def at_once(self, group: str) -> Self:
        """The same constants, with the links of each of several devices that copy at once.

        Parameters
        ----------
        group : str
            Of the devices together, "cuda*2". Where their links were not measured they are taken
            to share one bus: copies at once take as long as one after the other.
        """
        variant = self._together.get(group)
        if variant is None:
            variant = self._together[group] = type(self)(self.data)
            variant._group, variant._quiet = (group,), self
            if group not in self.data["links"]:
                variant._times = int(group.partition("*")[2])
        return variant

    def least_staged(self, device: str, direction: str) -> float:
        """Bytes from which on staged copies of pageable memory are faster, whatever their size;
        infinite where none are, or none were measured.

        Several devices at once stage what each of them stages alone.
        """
        key = device, direction
        if key not in self._least:
            least = inf
            with contextlib.suppress(KeyError):
                plain, staged = (self._quiet.curve(*key, memory) for memory in (PAGEABLE, STAGED))
                for nbytes in reversed(_STAGED_SIZES):
                    if staged(nbytes) >= plain(nbytes):
                        break
                    least = nbytes
            self._least[key] = least
        return self._least[key]

    def stages(self) -> dict[str, dict[str, float]]:
        """Device -> direction -> `least_staged`, of all devices with known staged copies."""
        return {
            name: {way: self.least_staged(name, way) for way in ("upload", "download")}
            for name in self.devices
            if any(
                STAGED in kinds
                for known in self._names(name, name.partition(":")[0])
                for kinds in self.data["links"].get(known, {}).values()
            )
        }

    def _names(self, device: str, kind: str) -> tuple[str, ...]:
        same_as = self.devices.get(device, {}).get("same_as")
        return (device, *((same_as,) if same_as else ()), f"{kind}:*")

    def cost(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> Cost | None:
        """The cost function of an implementation, or None where no constants are known."""
        key = device, kind, operation, method, dtype, layout
        try:
            return self._costs[key]
        except KeyError:
            model = self.model(*key)
            cost = self._costs[key] = None if model is None else bind(model)
            return cost

    def moves_apart(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> bool:
        """Whether the model of several devices leaves out moving operands and results."""
        model = self.model(device, kind, operation, method, dtype, layout) or {}
        return bool(model.get("moves_apart"))

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

    def pack(self, nbytes: int) -> float:
        """Seconds to copy a host array that is not dense into one that is."""
        key = ("pack",)
        if key not in self._links:
            self._links[key] = bind_link(self.data["host"]["pack"])
        return self._links[key](nbytes)

    def dispatch(self, device: str, case: str) -> float:
        """Seconds of the host's own work around one call, without moving and launching.

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

    def machine(self) -> dict[str, dict[str, Any]]:
        """Its devices, described as those of another machine.

        Packages of this machine do not matter: what has constants can run there, and nothing else.
        """
        return {name: {**info, "elsewhere": True} for name, info in self.devices.items()}

    def dtypes(self) -> dict[str, set[str]]:
        """Operation -> dtypes that it has constants for."""
        dtypes: dict[str, set[str]] = {}
        for key in self.data["models"]:
            known = ModelKey.parse(key)
            dtypes.setdefault(known.operation, set()).add(known.dtype)
        return dtypes

    def residuals(self) -> dict[str, dict[str, float]]:
        """Model key -> relative errors of the fit: mean, p95, worst."""
        rows = {key: m["residuals"] for key, m in self.data["models"].items() if "residuals" in m}
        for device, directions in self.data["links"].items():
            for direction, kinds in directions.items():
                for memory, model in kinds.items():
                    if "residuals" in model:
                        rows[f"{device}|{direction}|{memory}"] = model["residuals"]
        return rows

    def doubtful(self) -> list[str]:
        """The keys of models and links that are off by a factor: something else ran meanwhile."""
        return [name for name, errors in self.residuals().items() if not errors["mean"] < OFF]

    def is_doubtful(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> bool:
        """Whether the model of an implementation is off by a factor."""
        model = self.model(device, kind, operation, method, dtype, layout) or {}
        return "residuals" in model and not model["residuals"]["mean"] < OFF

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["data"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<Profile {self.name!r}: {', '.join(self.devices)}>"


def try_all(profile: Constants) -> None:
    """Evaluate everything once, so that wrong content shows here and not in a call."""
    data = profile.data
    for name, info in data["devices"].items():
        texts = info["kind"], info.get("name", ""), info.get("same_as", "")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"devices {name}: kind, name and same_as must be strings")
        numbers = info.get("memory_bytes"), info.get("blas_threads")
        if not all(isinstance(number, int | None) for number in numbers):
            raise TypeError(f"devices {name}: memory_bytes and blas_threads must be whole numbers")
    for name, errors in profile.residuals().items():
        if not all(isinstance(value, float | int) for value in (errors["mean"], *errors.values())):
            raise TypeError(f"residuals of {name} must be numbers")
    for key, model in data["models"].items():
        ModelKey.parse(key)
        try:
            try_out(model)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise type(error)(f"{key}: {error}") from None
    found = {"pack": profile.pack(2**20)}
    for device, directions in data["links"].items():
        for direction, kinds in directions.items():
            for memory in kinds:
                for nbytes in (1, 2**20, 2**30):
                    curve = profile.curve(device, direction, memory)
                    found[f"{memory} {direction} of {device}, {nbytes} bytes"] = curve(nbytes)
    for device in data["host"].get("dispatch", {}):
        for case in ("host", "device", "detour"):
            found[f"dispatch of {device}, {case}"] = profile.dispatch(device, case)
    for what, seconds in found.items():
        if not 0.0 <= seconds < inf:
            raise ValueError(f"{what}: {seconds} seconds")
