"""The profile: one machine's fitted constants, versioned, checksummed, stored atomically.

A profile is one JSON file::

    schema_version   int
    name, created    str
    units            what the numbers are in: seconds, bytes, flops
    fingerprint      the machine it was measured on (see `hetero.profile.inventory.fingerprint`)
    devices          device name -> description, as `hetero.machine()` gives it
    links            device name -> {"upload", "download"} -> {"pageable", "pinned"} -> model;
                     optional: "staged", pageable memory through pinned buffers, taken from the size
                     on where it is faster; and "cuda*2" for a device name, two at once with that
                     number of bytes each. What is not there is as it is alone
    host             {"pack": model, "dispatch": {device: {case: seconds}}}: copies within the
                     host's memory, and the host's work around one call on a device
    load, stages     how busy other work kept the machine meanwhile; seconds of each stage
    models           "device|operation|method|dtype|layout" -> model
    sha256           of everything above

and a model is ``{"form", "constants", "residuals"}`` (`hetero.registry.models`); a link's has
"samples", but in profiles that come with hetero; one of several devices may have "moves_apart":
true, if what is moved to them and back is not in it. A device written as "cuda:*" stands for every
device of that kind, a layout "*" for every layout, "C" for "C aligned" and "C odd", "* odd" for
everything odd. `inventory` is this machine.
All of a file is checked before anything is used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from hetero import locks, paths, tables
from hetero.errors import ProfileError, one_of
from hetero.host.copying import staging
from hetero.imports import load
from hetero.profile import inventory
from hetero.profile.inventory import default_path as default_path
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
# Of the cores' time, what other processes may take. By half of it calls of the CPU took two to
# three times as long.
CROWDED = 0.3
log = logging.getLogger("hetero")
_lock = locks.new()
_current: Profile | None = None


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
    """Whether no other load spoiled a calibration, by the profile's "load": processes that kept
    cores busy, and samples "left" that the others contradict."""
    is_free = (load.get("others") or 0.0) <= CROWDED * load.get("cores", 1)
    return is_free and load.get("left", 0) <= LEFT * max(load.get("samples", 0), 1)


class Profile:
    """Constants of one machine, ready to be asked, which can be kept in a file.

    Attributes
    ----------
    name, title : str
        The title says, too, if other load spoiled the calibration.
    is_trusted : bool
        Whether it did not.
    data, devices : dict
        The content of the file; device name -> description.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.devices: dict[str, dict[str, Any]] = data["devices"]
        self.name: str = data["name"]
        self.is_trusted = is_trusted(data.get("load") or {})
        self.title = self.name if self.is_trusted else f"{self.name}, disturbed by other load"
        self._group, self._times = "", 1  # of `at_once`
        for name in ("link", "curve", "least_staged", "at_once", "model", "cost"):
            setattr(self, name, functools.cache(getattr(self, name)))

    @staticmethod
    def conservative() -> Profile:
        """The constants of a machine that is not calibrated."""
        return shipped("conservative")

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the profile as a whole; by default to `default_path`. A link is replaced."""
        target = inventory.place(path)
        paths.replace_file(target, encode(self.data))
        return target

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
        names = (self._group, *self._names(device))
        links = (self.data["links"].get(name, {}).get(direction, {}) for name in names)
        model = next((kinds[memory] for kinds in links if memory in kinds), None)
        if model is None:
            raise KeyError(f"{memory} {direction} of {device}")
        seconds, times = bind_link(model), self._times
        return seconds if times == 1 else lambda nbytes: times * seconds(nbytes)

    def at_once(self, group: str) -> Profile:
        """The same constants, with the links of each of several devices that copy at once, which
        ``group`` names: "cuda*2".

        Where their links were not measured they are taken to share one bus: copies at once take as
        long as one after the other.
        """
        variant = Profile(self.data)
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
            if not known.isdisjoint(self._names(name))
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
        found = [known[name] for name in self._names(device) if name in known]
        return float(found[0].get(case, 0.0)) if found else 0.0

    def _names(self, device: str, kind: str | None = None) -> tuple[str, ...]:
        """The names that constants of a device may be stored under, the nearest one first."""
        same_as = self.devices.get(device, {}).get("same_as", device)
        kind = device.partition(":")[0] if kind is None else kind
        return device, same_as, f"{kind}:*"

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
        models = self.data["models"] | self._links()
        return {key: m["residuals"] for key, m in models.items() if "residuals" in m}

    def _links(self) -> dict[str, dict[str, Any]]:
        """Their names, "device|direction|memory", and their models."""
        return {
            f"{device}|{direction}|{memory}": model
            for device, ways in self.data["links"].items()
            for direction, kinds in ways.items()
            for memory, model in kinds.items()
        }

    def doubtful(self) -> list[str]:
        """The keys of models and links that are off by a factor: something else ran meanwhile."""
        return [name for name, errors in self.residuals().items() if not errors["mean"] < OFF]

    def __reduce__(self) -> tuple[Any, ...]:
        return Profile, (self.data,)

    def __repr__(self) -> str:
        return f"<Profile {self.name!r}: {', '.join(self.devices)}>"


# -- Files -----------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Profile:
    """Read and check a profile file, whatever machine it is of; ProfileError if it is corrupt,
    truncated, or of another schema: the message says which part."""
    try:
        return parse(paths.read_file(path, LARGEST))
    except ValueError as error:
        raise ProfileError(str(error)) from None


def parse(content: bytes) -> Profile:
    """Check the bytes of a profile file: schema, checksum and every constant."""
    try:
        data = json.loads(content)
        if not isinstance(data, dict):
            raise ProfileError(f"it must hold a JSON object, got {type(data).__name__}")
        if (version := data.get("schema_version")) != SCHEMA_VERSION:
            raise ProfileError(f"schema_version must be {SCHEMA_VERSION}, got {version!r}")
        if data.get("sha256") != digest(data):
            raise ProfileError(
                "sha256 does not match the content; if it was edited on purpose, "
                "'python -m hetero.calibration.ship FILE NAME FILE' renews it"
            )
        return _tried(Profile(data))
    except ProfileError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ProfileError(f"its content cannot be used ({reason})") from None


def _tried(profile: Profile) -> Profile:
    """The profile, all of which is evaluated once, so that wrong content shows here and not in a
    call; the error says what is wrong, as Python does."""
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
    for model in (data["host"]["pack"], *profile._links().values()):
        if not all(0.0 <= bind_link(model)(nbytes) < inf for nbytes in _TRIED):
            raise ValueError(f"{model['constants']} give no seconds")
    for device in data["host"].get("dispatch", {}):
        profile.dispatch(device, "host")
    return profile


@functools.cache
def shipped(name: str) -> Profile:
    """A profile that comes with hetero: "conservative", "tesla-t10", "h100", "h200", "h100x2" or
    "h200x2".

    It is read once, and is the same object for all callers: copy its content before changing it.
    """
    home = load("importlib.util").find_spec("hetero.profile.data")
    folder = home.submodule_search_locations[0]
    try:
        content = home.loader.get_data(os.path.join(folder, f"{name}.json"))
    except OSError:
        names = sorted(Path(file).stem for file in os.listdir(folder) if file.endswith(".json"))
        raise ProfileError(
            one_of("profile", names, name).replace("must be", "must be a file or", 1)
            + "; 'hetero calibrate --path FILE' makes the file of a machine"
        ) from None
    return parse(content)


def named(name: str) -> Profile:
    """A shipped profile by name, or any profile by its file's path."""
    return shipped(name) if os.path.isdir(name) or not os.path.exists(name) else read(name)


# -- This machine's --------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A stored profile: its file; None where it is not used; why it is not, or None."""

    path: Path
    profile: Profile | None
    obstacle: str | None


def survey(path: str | os.PathLike[str] | None = None) -> Stored | None:
    """A file's profile, by default `default_path`'s, or why it is not used; None without one."""
    path = Path(path) if path is not None else inventory.default_path()
    try:
        found = _trusted(path)
    except FileNotFoundError:
        return None
    except (ProfileError, OSError) as error:
        return Stored(path, None, str(error))
    obstacle = inventory.obstacle(found.data["fingerprint"])
    return Stored(path, found if obstacle is None else None, obstacle)


def current() -> Profile:
    """This machine's profile; never raises.

    Where no stored profile is of this machine, the shipped conservative one, and one line is
    logged: a hint where there is no file, else a warning that says why.
    """
    global _current
    loaded = _current
    if loaded is None:
        with _lock:
            if _current is None:
                _current = _load()
                staging.least_staged = _current.stages()
            loaded = _current
    return loaded


def set_current(new: Profile | None) -> None:
    """Replace the current profile; None: read it from its file again at the next call."""
    global _current
    with _lock:
        _current = new
        staging.least_staged = new.stages() if new is not None else {}
    tables.forget()


def held(path: str | os.PathLike[str] | None = None) -> Profile | None:
    """The profile of this machine that a file has, by default `default_path`; None without one."""
    stored = survey(path)
    return stored and stored.profile


def _load() -> Profile:
    """The stored profile of this machine, or the conservative one with a line that says why."""
    why, named = "no profile of this machine yet", os.environ.get("HETERO_PROFILE")
    if named:
        why = f"HETERO_PROFILE names the file {named}, which is not there"
    if (stored := survey()) is not None:
        if stored.profile is not None:
            return stored.profile
        why = f"the profile {stored.path} is not used: {stored.obstacle}"
    ask = "Run hetero.calibrate() once, or 'hetero calibrate'."
    log.warning("%s: taking conservative constants. %s", why, ask)
    return shipped("conservative")


def _trusted(path: Path) -> Profile:
    """As `read`, unless other users could have written the file."""
    file, folder = os.stat(path), os.stat(path.parent)
    theirs = file.st_uid not in (os.geteuid(), 0)
    open_to_all = file.st_mode & stat.S_IWOTH or (theirs and folder.st_mode & stat.S_IWOTH)
    if open_to_all and stat.S_ISREG(file.st_mode):
        who = f"user {file.st_uid}, mode {stat.S_IMODE(file.st_mode):o}"
        raise ProfileError(f"anybody may have written it (it belongs to {who})")
    return read(path)
