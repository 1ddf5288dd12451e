"""The profile: one machine's fitted constants, versioned, checksummed, stored atomically.

A profile is one JSON file::

    schema_version   int
    name, created    str
    units            what the numbers are in: seconds, bytes, flops
    fingerprint      the machine it was measured on (see `hetero.runtime.inventory.fingerprint`)
    devices          device name -> description, as `hetero.machine()` gives it
    links            device name -> {"upload", "download"} -> {"pageable", "pinned"} -> model
    host             {"pack": model, "dispatch": {device: {case: seconds}}}: copies within the
                     host's memory, and the host's work around one call on a device
    models           "device|operation|method|dtype|layout" -> model
    kernels          optional: card -> tuning table of its kernels (`hetero.kernels.common.tuning`)
    sha256           of everything above

and a model is ``{"form", "constants", "residuals", "samples"}`` (`hetero.runtime.models`). A device
written as "cuda:*" stands for every device of that kind, a layout "*" for every layout, "C" for
"C aligned" and "C odd", "* odd" for everything odd. In the profiles that come with hetero
``models`` is a text: all of them packed, without samples (`hetero.runtime.packing`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetero import locks, paths
from hetero.errors import ProfileError
from hetero.kernels.common import tuning
from hetero.runtime import inventory
from hetero.runtime.models import Cost, ModelKey, bind, bind_link, try_out

SCHEMA_VERSION = 2
LARGEST = 16 << 20  # bytes of a profile file; a full one of a machine with a GPU has half a million
UNITS = {"time": "seconds", "size": "bytes", "work": "flops"}
_PARTS = ("fingerprint", "devices", "links", "host", "models")

log = logging.getLogger("hetero")


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
        self._costs: dict[tuple[str, ...], Cost | None] = {}
        self._links: dict[tuple[str, ...], Callable[[int], float]] = {}

    def cost(
        self, device: str, kind: str, operation: str, method: str, dtype: str, layout: str
    ) -> Cost | None:
        """The cost function of an implementation, or None where no constants are known."""
        key = (device, operation, method, dtype, layout)
        try:
            return self._costs[key]
        except KeyError:
            pass
        order, _, alignment = layout.partition(" ")
        found = None
        for name in self._names(device, kind):
            for shape in (layout, order, f"* {alignment}", "*"):
                model = self.data["models"].get(
                    str(ModelKey(name, operation, method, dtype, shape))
                )
                if model is not None and found is None:
                    found = bind(model)
        self._costs[key] = found
        return found

    def link(self, device: str, direction: str, memory: str = "pageable") -> Callable[[int], float]:
        """Seconds as a function of bytes, "upload" to or "download" from a device.

        Raises
        ------
        KeyError
            If the profile knows nothing of this link.
        """
        key = (device, direction, memory)
        if key not in self._links:
            for name in self._names(device, device.partition(":")[0]):
                model = self.data["links"].get(name, {}).get(direction, {}).get(memory)
                if model is not None:
                    self._links[key] = bind_link(model)
                    break
            else:
                raise KeyError(f"{memory} {direction} of {device}")
        return self._links[key]

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
        """Write the profile atomically, under a lock; the default place is `default_path`.

        A link of this user's (or root's) stays, and the file that it leads to is replaced.
        """
        target = place(path)
        content = encode(self.data)
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
        if key in ("devices", "links", "models", "kernels") and isinstance(value, dict) and value:
            rows = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
            text = "{\n" + ",\n".join(rows) + "\n }"
        parts.append(f" {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def default_path() -> Path:
    """Where this machine's profile is kept: ``HETERO_PROFILE``, or the user's cache directory."""
    named = os.environ.get("HETERO_PROFILE")
    return Path(named) if named else paths.cache_directory() / "profile.json"


def place(path: str | os.PathLike[str] | None = None) -> Path:
    """Where a profile will be stored, at the end of the user's own links; its folder is made.

    Raises
    ------
    OSError
        If nothing can be stored there.
    """
    import tempfile

    target = Path(path) if path is not None else default_path()
    # In a folder of many users' a link can be another's, and lead to a file of this one's.
    if target.is_symlink() and os.lstat(target).st_uid in (os.geteuid(), 0):
        target = Path(os.path.realpath(target))
    if not target.parent.exists():
        target.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    tempfile.TemporaryFile(dir=target.parent).close()
    return target


def read(path: str | os.PathLike[str]) -> Profile:
    """Read and check a profile file, whatever machine it is of.

    Raises
    ------
    FileNotFoundError
    ProfileError
        If it is corrupt, truncated, or of another schema; the message says which part.
    """
    try:
        content = paths.read_file(path, LARGEST)
    except ValueError as error:
        raise ProfileError(str(error)) from None
    return parse(content)


def parse(content: bytes) -> Profile:
    """Check the bytes of a profile file."""
    try:
        return _parse(content)
    except (RecursionError, MemoryError) as error:
        message = f"its JSON is nested too deeply or too large ({type(error).__name__})"
        raise ProfileError(message) from None


def _parse(content: bytes) -> Profile:
    try:
        data = json.loads(content)
    except ValueError as error:
        raise ProfileError(f"it is not complete JSON ({error})") from None
    if not isinstance(data, dict):
        raise ProfileError(f"it must hold a JSON object, got {type(data).__name__}")
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ProfileError(f"schema_version must be {SCHEMA_VERSION}, got {version!r}")
    if data.get("sha256") != digest(data):
        raise ProfileError("sha256 does not match the content")
    if isinstance(data.get("models"), str):
        from hetero.runtime import packing  # what it takes is for few profiles

        try:
            data = {**data, "models": packing.unpacked(data["models"], LARGEST)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProfileError(f"its packed models cannot be read ({error})") from None
    for part in _PARTS:
        if not isinstance(data.get(part), dict):
            raise ProfileError(
                f"part {part!r} must be an object, got {type(data.get(part)).__name__}"
            )
    if not isinstance(data.get("name"), str):
        raise ProfileError(f"name must be a string, got {data.get('name')!r}")
    try:
        _try_out(data)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
        message = f"its constants cannot be used ({type(error).__name__}: {error})"
        raise ProfileError(message) from None
    return Profile(data)


def _try_out(data: dict[str, Any]) -> None:
    """Evaluate everything once, so that wrong content shows here and not in a call."""
    profile = Profile(data)
    for name, info in data["devices"].items():
        if not isinstance(info["kind"], str) or not isinstance(info.get("same_as", ""), str):
            raise TypeError(f"devices {name}: kind and same_as must be strings")
    for key, model in data["models"].items():
        ModelKey.parse(key)
        try:
            try_out(model)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise type(error)(f"{key}: {error}") from None
    for device, directions in data["links"].items():
        for direction, kinds in directions.items():
            for memory in kinds:
                for nbytes in (1, 2**20, 2**30):
                    seconds = profile.link(device, direction, memory)(nbytes)
                    if not 0.0 <= seconds < math.inf:
                        raise ValueError(f"{memory} {direction} of {device}: {seconds} seconds")
    for device in data["host"].get("dispatch", {}):
        for case in data["host"]["dispatch"][device]:
            if not 0.0 <= profile.dispatch(device, case) < math.inf:
                raise ValueError(f"dispatch of {device}, {case}")
    if not 0.0 <= profile.pack(2**20) < math.inf:
        raise ValueError("pack")
    for table in data.get("kernels", {}).values():
        tuning.parse(table)


def shipped(name: str) -> Profile:
    """A profile that comes with hetero: "conservative", "tesla-t10", "h200"."""
    from importlib import resources

    folder = resources.files("hetero.calibration.profiles")
    try:
        content = (folder / f"{name}.json").read_bytes()
    except (FileNotFoundError, OSError):
        names = sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json"))
        raise ProfileError(
            f"profile must be a file or one of {', '.join(map(repr, names))}, got {name!r}"
        ) from None
    return parse(content)


def named(name: str) -> Profile:
    """A shipped profile by name, or any profile by its file's path."""
    return read(name) if os.path.exists(name) else shipped(name)


_lock = locks.new()
_current: Profile | None = None
_listeners: list[Callable[[], None]] = []


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever the current profile is replaced."""
    _listeners.append(listener)


def current() -> Profile:
    """This machine's profile; never raises.

    Without a usable profile the shipped conservative constants are taken, and one line is logged
    that says why: a hint where there is no file, a warning that names the part where there is one.
    """
    global _current
    found = _current
    if found is None:
        with _lock:
            if _current is None:
                _current = _load()
            found = _current
    return found


def set_current(new: Profile | None) -> None:
    """Replace the current profile; None: read it from its file again at the next call."""
    global _current
    with _lock:
        _current = new
    for listener in _listeners:
        listener()


def _believed(path: Path) -> Profile:
    """As `read`, unless anybody could have put the file there."""
    file, folder = os.stat(path), os.stat(path.parent)
    theirs = file.st_uid not in (os.geteuid(), 0)
    if stat.S_ISREG(file.st_mode) and (
        file.st_mode & stat.S_IWOTH or (theirs and folder.st_mode & stat.S_IWOTH)
    ):
        raise ProfileError(
            f"anybody may have written it (it belongs to user {file.st_uid}, "
            f"mode {stat.S_IMODE(file.st_mode):o})"
        )
    return read(path)


def _load() -> Profile:
    path = default_path()
    try:
        found = _believed(path)
        difference = inventory.difference(found.data["fingerprint"])
        if difference is None:
            return found
        reason = f"it was measured in other circumstances: {difference}"
    except FileNotFoundError:
        missing = "no profile of this machine yet"
        if os.environ.get("HETERO_PROFILE"):
            missing = f"HETERO_PROFILE names the file {path}, which is not there"
        log.warning(
            "%s: taking conservative constants. "
            "Run hetero.calibrate() once, or 'hetero calibrate'.",
            missing,
        )
        return shipped("conservative")
    except (ProfileError, OSError) as error:
        reason = str(error)
    log.warning(
        "the profile %s cannot be used: %s. Taking conservative constants; "
        "'hetero calibrate' writes a new one.",
        path,
        reason,
    )
    return shipped("conservative")
