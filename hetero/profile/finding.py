"""Profile files, checked before anything of them is used; this machine's, and the current one."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from hetero import locks, paths, tables
from hetero.errors import ProfileError, one_of
from hetero.host.copying import copy_jobs
from hetero.imports import load
from hetero.profile import inventory
from hetero.profile.constants import LARGEST, SCHEMA_VERSION, Profile, digest
from hetero.registry.models import ModelKey, try_out

log = logging.getLogger("hetero")

_lock = locks.new()
_current: Profile | None = None


class Stored(NamedTuple):
    """A stored profile.

    Attributes
    ----------
    path : Path
    profile : Profile or None
        None where the file cannot be read.
    obstacle : str or None
        Why it is not used here.
    """

    path: Path
    profile: Profile | None
    obstacle: str | None


def survey() -> list[Stored]:
    """The stored profiles, the one that is used first; unreadable ones do not raise."""
    return sorted(map(_look, _files()), key=lambda one: one.obstacle is not None)


def _files() -> list[Path]:
    expected = inventory.default_path()
    return sorted(inventory.stored(), key=lambda path: path != expected)


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
                copy_jobs.least_staged = _current.stages()
            loaded = _current
    return loaded


def set_current(new: Profile | None) -> None:
    """Replace the current profile; None: read it from its file again at the next call."""
    global _current
    with _lock:
        _current = new
        copy_jobs.least_staged = new.stages() if new is not None else {}
    tables.forget()


def held() -> Profile | None:
    """The stored profile of this machine; None without one."""
    best = _best()
    return best.profile if best is not None and best.obstacle is None else None


def _look(path: Path) -> Stored:
    """A stored profile, or why it cannot be used."""
    try:
        found = believed(path)
    except (ProfileError, OSError) as error:
        return Stored(path, None, str(error))
    return Stored(path, found, inventory.obstacle(found.data["fingerprint"]))


def _best() -> Stored | None:
    """The stored profile of this machine; if none is, one with the reason; None without a file."""
    first = None
    for one in map(_look, _files()):
        if one.obstacle is None:
            return one  # the others need not be read
        first = first or one
    return first


def _load() -> Profile:
    """The stored profile of this machine, or the conservative one with a line that says why."""
    best, named = _best(), os.environ.get("HETERO_PROFILE")
    if best is None:
        why = "no profile of this machine yet"
        if named:
            why = f"HETERO_PROFILE names the file {named}, which is not there"
    elif best.obstacle is None:
        return best.profile
    elif best.profile is None:
        why = f"the profile {best.path} cannot be used: {best.obstacle}"
    elif not named and len(inventory.stored()) > 1:
        why = "none of the stored profiles is of this machine ('hetero info' lists them)"
    else:
        other = "another machine or other circumstances"
        why = f"the profile {best.path} is of {other}: {best.obstacle}"
    ask = "Run hetero.calibrate() once, or 'hetero calibrate'."
    log.warning("%s: taking conservative constants. %s", why, ask)
    return shipped("conservative")


_PARTS = ("fingerprint", "devices", "links", "host", "models")


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
    """Check schema, checksum and every constant."""
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
        raise ProfileError(
            "sha256 does not match the content; if it was edited on purpose, "
            "'python -m hetero.calibration.ship FILE NAME FILE' renews it"
        )
    for part in _PARTS:
        if not isinstance(data.get(part), dict):
            raise ProfileError(
                f"part {part!r} must be an object, got {type(data.get(part)).__name__}"
            )
    for key, default in (("name", None), ("created", "")):
        if not isinstance(data.get(key, default), str):
            raise ProfileError(f"{key} must be a string, got {data.get(key)!r}")
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
        if not 0.0 <= seconds < math.inf:
            raise ValueError(f"{what}: {seconds} seconds")


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
        files = load("importlib.resources").files("hetero.profile.data").iterdir()
        names = sorted(f.name[:-5] for f in files if f.name.endswith(".json"))
        raise ProfileError(
            one_of("profile", names, name).replace("must be", "must be a file or", 1)
            + "; 'hetero calibrate --path FILE' makes the file of a machine"
        ) from None
    return parse(content)


Profile.conservative = staticmethod(lambda: shipped("conservative"))


def named(name: str) -> Profile:
    """A shipped profile by name, or any profile by its file's path."""
    if os.path.isdir(name):  # a folder may be named as a profile is
        with contextlib.suppress(ProfileError):
            return shipped(name)
    return read(name) if os.path.exists(name) else shipped(name)


def believed(path: Path) -> Profile:
    """As `read`, unless other users could have written the file."""
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
