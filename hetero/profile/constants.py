"""What a profile says: constants of one machine, ready to be asked; the bytes of a file of them."""

from __future__ import annotations

import functools
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
_TRIED = (1, 2**20, 2**30)  # bytes that every link of a profile is asked about
SCHEMA_VERSION = 3
LARGEST = 16 << 20  # bytes of a profile file; a full one of a machine with a GPU has half a million
UNITS = {"time": "seconds", "size": "bytes", "work": "flops"}
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


def is_trusted(load: dict[str, Any]) -> bool:
    """Whether few enough samples are doubtful to trust a calibration, by the profile's "load"."""
    return load.get("left", 0) <= LEFT * max(load.get("samples", 0), 1)


class Constants:
    """Constants of one machine, ready to be asked; see `hetero.Profile`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.devices: dict[str, dict[str, Any]] = data["devices"]
        self.name: str = data["name"]
        self.is_trusted = is_trusted(data.get("load") or {})
        self.title = self.name if self.is_trusted else f"{self.name}, disturbed by other load"
        self._group, self._times = "", 1  # of `at_once`
        for name in ("link", "curve", "least_staged", "at_once", "model", "cost"):
            setattr(self, name, functools.cache(getattr(self, name)))

    def link(self, device: str, direction: str, memory: str = "pageable") -> Callable[[int], float]:
        """Seconds that a copy takes, as a function of bytes; KeyError where the profile knows
        nothing of this link.

        Of pageable memory it is "staged" from the size on from which that curve is the lower one,
        as the devices do it (`least_staged`).

        Parameters
        ----------
        device : str
        direction : {"upload", "download"}, to or from the device
        memory : {"pageable", "pinned"}
        """
        plain = self.curve(device, direction, memory)
        least = self.least_staged(device, direction) if memory == PAGEABLE else inf
        if least == inf:
            return plain
        staged = self.curve(device, direction, STAGED)
        return lambda nbytes: staged(nbytes) if nbytes >= least else plain(nbytes)

    def curve(self, device: str, direction: str, memory: str) -> Callable[[int], float]:
        """One curve as it was measured; parameters as in `link`, but "staged" is pageable memory
        through pinned buffers (`hetero.host.copying.staging`), and "pageable" by the driver."""
        names = (self._group, *self._names(device, device.partition(":")[0]))
        links = (self.data["links"].get(name, {}).get(direction, {}) for name in names)
        model = next((kinds[memory] for kinds in links if memory in kinds), None)
        if model is None:
            raise KeyError(f"{memory} {direction} of {device}")
        seconds, times = bind_link(model), self._times
        return seconds if times == 1 else lambda nbytes: times * seconds(nbytes)

    def at_once(self, group: str) -> Self:
        """The same constants, with the links of each of several devices that copy at once, which
        ``group`` names: "cuda*2".

        Where their links were not measured they are taken to share one bus: copies at once take as
        long as one after the other.
        """
        variant = type(self)(self.data)
        variant._group = group
        if group not in self.data["links"]:
            variant._times = int(group.partition("*")[2])
        # Several devices at once stage what each of them stages alone.
        variant.least_staged = self.least_staged  # type: ignore[method-assign]
        return variant

    def least_staged(self, device: str, direction: str) -> float:
        """Bytes from which on staged copies of pageable memory are faster, whatever their size;
        infinite where none are, or none were measured."""
        least = inf
        try:
            plain, staged = (self.curve(device, direction, m) for m in (PAGEABLE, STAGED))
        except KeyError:
            return least
        for nbytes in reversed(_STAGED_SIZES):
            if staged(nbytes) >= plain(nbytes):
                break
            least = nbytes
        return least

    def stages(self) -> dict[str, dict[str, float]]:
        """Device -> direction -> `least_staged`, of all devices with known staged copies."""
        links = self.data["links"].items()
        known = {name for name, ways in links if any(STAGED in kinds for kinds in ways.values())}
        return {
            name: {way: self.least_staged(name, way) for way in ("upload", "download")}
            for name in self.devices
            if not known.isdisjoint(self._names(name, name.partition(":")[0]))
        }

    def pack(self, nbytes: int) -> float:
        """Seconds to copy a host array that is not dense into one that is."""
        return bind_link(self.data["host"]["pack"])(nbytes)

    def dispatch(self, device: str, case: str) -> float:
        """Seconds of the host's own work around one call, without moving and launching.

        ``case`` is "host", with operands there; "device", with operands there; or "detour", with
        operands on the device and computed on the CPU.
        """
        known = self.data["host"].get("dispatch", {})
        for name in self._names(device, device.partition(":")[0]):
            if name in known:
                return float(known[name].get(case, 0.0))
        return 0.0

    def _names(self, device: str, kind: str) -> tuple[str, ...]:
        """The names that constants of a device may be stored under, the nearest one first."""
        same_as = self.devices.get(device, {}).get("same_as")
        return (device, *((same_as,) if same_as else ()), f"{kind}:*")

    def model(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> dict[str, Any] | None:
        """The stored model of an implementation, or None where no constants are known."""
        order, _, alignment = layout.partition(" ")
        keys = (
            str(ModelKey(name, operation, method, dtype, shape))
            for name in self._names(device, kind)
            for shape in (layout, order, f"* {alignment}", "*")
        )
        models = self.data["models"]
        return next((models[key] for key in keys if key in models), None)

    def cost(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> Cost | None:
        """The cost function of an implementation, or None where no constants are known."""
        model = self.model(device, kind, operation, method, dtype, layout)
        return None if model is None else bind(model)

    def moves_apart(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> bool:
        """Whether the model of several devices leaves out moving operands and results."""
        model = self.model(device, kind, operation, method, dtype, layout) or {}
        return bool(model.get("moves_apart"))

    def is_doubtful(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> bool:
        """Whether the model of an implementation is off by a factor."""
        model = self.model(device, kind, operation, method, dtype, layout) or {}
        return "residuals" in model and not model["residuals"]["mean"] < OFF

    def machine(self) -> dict[str, dict[str, Any]]:
        """Its devices, described as those of another machine.

        Packages of this machine do not matter: what has constants can run there, and nothing else.
        """
        return {name: {**info, "elsewhere": True} for name, info in self.devices.items()}

    def dtypes(self) -> dict[str, set[str]]:
        """Operation -> dtypes that it has constants for."""
        dtypes: dict[str, set[str]] = {}
        for known in map(ModelKey.parse, self.data["models"]):
            dtypes.setdefault(known.operation, set()).add(known.dtype)
        return dtypes

    def residuals(self) -> dict[str, dict[str, float]]:
        """Model key -> relative errors of the fit: mean, p95, worst."""
        models = dict(self.data["models"])
        for device, directions in self.data["links"].items():
            for direction, kinds in directions.items():
                models |= {f"{device}|{direction}|{kind}": m for kind, m in kinds.items()}
        return {key: m["residuals"] for key, m in models.items() if "residuals" in m}

    def doubtful(self) -> list[str]:
        """The keys of models and links that are off by a factor: something else ran meanwhile."""
        return [name for name, errors in self.residuals().items() if not errors["mean"] < OFF]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.data,)

    def __repr__(self) -> str:
        return f"<Profile {self.name!r}: {', '.join(self.devices)}>"


def try_all(profile: Constants) -> None:
    """Evaluate everything once, so that wrong content shows here and not in a call; the error says
    what is wrong, as Python does."""
    data = profile.data
    dict(data["fingerprint"])
    for info in profile.devices.values():
        info["kind"].partition(":")
    for name, errors in profile.residuals().items():
        if not errors["mean"] >= 0.0:
            raise ValueError(f"the mean error of {name} is {errors['mean']}")
    for key, model in data["models"].items():
        ModelKey.parse(key)
        try_out(model)
    links = [
        model
        for ways in data["links"].values()
        for kinds in ways.values()
        for model in kinds.values()
    ]
    for model in (data["host"]["pack"], *links):
        if not all(0.0 <= bind_link(model)(nbytes) < inf for nbytes in _TRIED):
            raise ValueError(f"{model['constants']} give no seconds")
    for device in data["host"].get("dispatch", {}):
        profile.dispatch(device, "host")
