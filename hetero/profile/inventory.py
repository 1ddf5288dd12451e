"""This machine, and the profiles that are of it: their files, checked and read; the current one.

A profile is of this machine by its CPU, its threads, and its cards by name. Profiles are kept in a
file for each machine, in the user's cache directory: nodes of a cluster share a home directory, and
a batch job gets other cores and another card. All of a file is checked before anything is used.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from hetero import __version__, locks, paths, tables
from hetero import devices as backends
from hetero.errors import ProfileError, one_of
from hetero.host import cpu
from hetero.host.copying import copy_jobs
from hetero.imports import load
from hetero.profile.constants import (
    LARGEST,
    SCHEMA_VERSION,
    Constants,
    digest,
    encode,
    try_all,
)

log = logging.getLogger("hetero")
_lock = locks.new()
_current: Profile | None = None
devices, believed, broken = backends.described, backends.believed, backends.broken
changed = tables.forget  # a device was disabled, or devices must be looked for again


def is_host_alone(device: str | None) -> bool:
    """Whether a call from host memory that names this device, or none, can only run on the CPU."""
    return device == "cpu" or (device is None and backends.only_host())


def looked() -> bool:
    """Whether this process looked for devices, which takes some tenths of a second."""
    return backends.here.found is not None


def fingerprint() -> dict[str, Any]:
    """The machine that a profile was measured on; `obstacle` compares it."""
    processor = cpu.describe()
    return {
        "cpu": {
            **{key: processor[key] for key in ("name", "cores")},
            "loops": loop_threads(processor["cores"]),
        },
        "blas": {key: processor[key] for key in ("blas", "blas_version", "blas_threads")},
        "devices": {
            name: {
                key: info.get(key)
                for key in ("name", "pci_bus_id", "memory_bytes", "driver", "toolkit")
            }
            # Also of broken ones, whether or not that is known by now.
            for name, device in backends.everything().items()
            for info in (device.describe(),)
        },
        "hetero": __version__,
    }


def host_devices() -> set[str]:
    """Devices that are this machine's CPU again, such as an OpenCL one; they are not measured."""
    everything = backends.everything().items()
    return {name for name, device in everything if device.describe().get("is_host_cpu")}


def loop_threads(cores: int) -> int:
    """Threads of the CPU's compiled loops, as Numba will count them; it is not imported."""
    try:
        return int(os.environ["NUMBA_NUM_THREADS"])
    except (KeyError, ValueError):
        return cores


# The parts of the fingerprint that must be the same, but for the devices.
PARTS = ("hetero", "cpu name", "cpu cores", "cpu loops", "blas blas", "blas blas_threads")


def obstacle(was: dict[str, Any]) -> str | None:
    """Why a profile with this fingerprint is not of this machine; None where it is.

    Each device here must be in the fingerprint: the same card under the same name, with a driver of
    the same major version. Those that are not here do not matter.
    """
    now = fingerprint()
    for part in PARTS:
        before, after = (_part(of, part.split()) for of in (was, now))
        if before != after:
            return f"{part} was {before!r}, is {after!r}"
    for name in sorted(now["devices"].keys() - host_devices()):
        before, after = (_part(of, ["devices", name, "name"]) for of in (was, now))
        if before != after:
            return f"{name} was {before!r}, is {after!r}" if before else f"{name} is new"
        before, after = (_major(_part(of, ["devices", name, "driver"])) for of in (was, now))
        if before != after:
            return f"the driver of {name} was {before!r}, is {after!r}"
    return None


def _major(version: Any) -> str | None:
    """The major version of a driver; None where it has none."""
    return str(version).partition(".")[0] if version is not None else None


def _part(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


# -- Where profiles are kept -----------------------------------------------------------------------

_MOST = 32  # files that are read, the newest ones


def default_path() -> Path:
    """Where this machine's profile is kept.

    That is the file that ``HETERO_PROFILE`` names, or one in the user's cache directory, named by a
    hash of what makes this machine.
    """
    named = os.environ.get("HETERO_PROFILE")
    return Path(named) if named else _folder() / f"{_identity()}.json"


def stored() -> list[Path]:
    """The files that may hold a profile of this machine, the newest first.

    With ``HETERO_PROFILE`` there is one.
    """
    named = os.environ.get("HETERO_PROFILE")
    candidates = [Path(named)] if named else sorted(_folder().glob("*.json"))
    dated = [(_changed(path), path) for path in candidates]
    there = [(date, path) for date, path in dated if date is not None]
    return [path for _, path in sorted(there, reverse=True)[:_MOST]]


def place(path: str | os.PathLike[str] | None = None) -> Path:
    """The file of a profile to store, with the user's own links resolved; its folder is made.

    Raises
    ------
    OSError
        If nothing can be stored there.
    """
    tempfile = load("tempfile")
    target = Path(path) if path is not None else default_path()
    # In a shared folder a link of another user could point to a file of this one.
    if target.is_symlink() and os.lstat(target).st_uid in (os.geteuid(), 0):
        target = Path(os.path.realpath(target))
    for folder in (target.parent.parent, target.parent):  # the cache directory is private too
        if not folder.exists():
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    tempfile.TemporaryFile(dir=target.parent).close()
    return target


def _folder() -> Path:
    return paths.cache_directory() / "profiles"


def _identity() -> str:
    """A hash of what makes this machine: what `obstacle` compares."""
    now = fingerprint()
    cards = {name: info["name"] for name, info in now["devices"].items()}
    parts = {
        **{part: _part(now, part.split()) for part in PARTS},
        "devices": {n: card for n, card in cards.items() if n not in host_devices()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _changed(path: Path) -> float | None:
    """When a file changed; None where there is none, 0 where it cannot be read."""
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        return None if error.errno == errno.ENAMETOOLONG else 0.0


# -- Profiles --------------------------------------------------------------------------------------


class Profile(Constants):
    """Constants of one machine, ready to be asked, which can be kept in a file.

    Parameters
    ----------
    data : dict
        The content of a profile file.

    Attributes
    ----------
    name, title : str
        The title says, too, if other load spoiled the calibration.
    is_trusted : bool
        Whether it did not.
    data : dict
    devices : dict
        Device name -> description.
    """

    @staticmethod
    def conservative() -> Profile:
        """The constants of a machine that is not calibrated."""
        return shipped("conservative")

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the profile atomically, under a lock; by default to `default_path`.

        A symbolic link of this user (or root) stays; the file that it points to is replaced.
        """
        target = place(path)
        content = encode(self.data)
        with paths.locked(target.with_name(target.name + ".lock")) as alone:
            # Under the lock no other process writes temporary files.
            paths.sweep(target.parent, target.name, paths.ABANDONED if alone is None else 0.0)
            paths.replace_file(target, content, durable=True)
        return target


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
    expected = default_path()
    return sorted(stored(), key=lambda path: path != expected)


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
        found = _trusted(path)
    except (ProfileError, OSError) as error:
        return Stored(path, None, str(error))
    return Stored(path, found, obstacle(found.data["fingerprint"]))


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
    elif not named and len(stored()) > 1:
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
        profile = Profile(data)
        try_all(profile)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
        message = f"its constants cannot be used ({type(error).__name__}: {error})"
        raise ProfileError(message) from None
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
        files = load("importlib.resources").files("hetero.profile.data").iterdir()
        names = sorted(f.name[:-5] for f in files if f.name.endswith(".json"))
        raise ProfileError(
            one_of("profile", names, name).replace("must be", "must be a file or", 1)
            + "; 'hetero calibrate --path FILE' makes the file of a machine"
        ) from None
    return parse(content)


def named(name: str) -> Profile:
    """A shipped profile by name, or any profile by its file's path."""
    if os.path.isdir(name):  # a folder may be named as a profile is
        with contextlib.suppress(ProfileError):
            return shipped(name)
    return read(name) if os.path.exists(name) else shipped(name)


def _trusted(path: Path) -> Profile:
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
