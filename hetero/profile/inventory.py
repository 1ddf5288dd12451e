"""This machine, and the profiles that are of it: their files, checked and read; the current one.

A profile is of this machine by its CPU, its threads, and its cards by name. Profiles are kept in a
file for each machine, in the user's cache directory: nodes of a cluster share a home directory, and
a batch job gets other cores and another card. All of a file is checked before anything is used.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from hetero import __version__, locks, paths, tables
from hetero import devices as backends
from hetero.errors import ProfileError
from hetero.host import cpu
from hetero.host.copying import copy_jobs
from hetero.imports import load
from hetero.profile.constants import Profile, read, shipped

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


# -- What makes a machine --------------------------------------------------------------------------


def fingerprint() -> dict[str, Any]:
    """The machine that a profile was measured on; `obstacle` compares it."""
    known = cpu.describe()
    parts = ("name", "pci_bus_id", "memory_bytes", "driver", "toolkit")
    processor = {"name": known["name"], "cores": known["cores"]}
    return {
        "cpu": {**processor, "loops": loop_threads(known["cores"])},
        "blas": {key: known[key] for key in ("blas", "blas_version", "blas_threads")},
        "devices": {  # also broken ones, whether or not that is known by now
            name: {key: device.describe().get(key) for key in parts}
            for name, device in backends.everything().items()
        },
        "hetero": __version__,
    }


def loop_threads(cores: int) -> int:
    """Threads of the CPU's compiled loops, as Numba will count them; it is not imported."""
    try:
        return int(os.environ["NUMBA_NUM_THREADS"])
    except (KeyError, ValueError):
        return cores


def _identity(of: dict[str, Any]) -> dict[str, Any]:
    """What a fingerprint says that must stay the same, by name; a driver by its major version.

    A device that is this machine's CPU again, such as an OpenCL one, is not measured.
    """
    found = {"hetero": of.get("hetero")}
    for part, keys in (("cpu", ("name", "cores", "loops")), ("blas", ("blas", "blas_threads"))):
        found |= {f"{part} {key}": of.get(part, {}).get(key) for key in keys}
    here = backends.everything()
    for name, info in sorted(of.get("devices", {}).items()):
        if name not in here or not here[name].describe().get("is_host_cpu"):
            driver = info.get("driver")
            found[name] = info.get("name")
            found[f"the driver of {name}"] = driver and str(driver).partition(".")[0]
    return found


def obstacle(was: dict[str, Any]) -> str | None:
    """Why a profile with this fingerprint is not of this machine; None where it is.

    Each device here must be in the fingerprint: the same card under the same name, with a driver of
    the same major version. Those that are not here do not matter.
    """
    known = _identity(was)
    for what, now in _identity(fingerprint()).items():
        if what not in known:
            return f"{what} is new"
        if known[what] != now:
            return f"{what} was {known[what]!r}, is {now!r}"
    return None


def default_path() -> Path:
    """Where this machine's profile is kept: the file that ``HETERO_PROFILE`` names, or one in the
    user's cache directory, named by a hash of what makes this machine."""
    if named := os.environ.get("HETERO_PROFILE"):
        return Path(named)
    parts = {k: v for k, v in _identity(fingerprint()).items() if not k.startswith("the driver")}
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return paths.cache_directory() / "profiles" / f"{name}.json"


def place(path: str | os.PathLike[str] | None = None) -> Path:
    """The file of a profile to store, in a folder that is made; OSError if nothing can be."""
    target = Path(path) if path is not None else default_path()
    for folder in (target.parent.parent, target.parent):  # the cache directory is private too
        if not folder.exists():
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    load("tempfile").TemporaryFile(dir=target.parent).close()
    return target


class Stored(NamedTuple):
    """A stored profile: its file; None where that cannot be read; why it is not used, or None."""

    path: Path
    profile: Profile | None
    obstacle: str | None


def survey() -> list[Stored]:
    """What `default_path` has: a profile, or why it cannot be used; nothing without a file."""
    path = default_path()
    try:
        found = _trusted(path)
    except FileNotFoundError:
        return []
    except (ProfileError, OSError) as error:
        return [Stored(path, None, str(error))]
    return [Stored(path, found, obstacle(found.data["fingerprint"]))]


# -- Profiles --------------------------------------------------------------------------------------


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
    return next((one.profile for one in survey() if one.obstacle is None), None)


def _load() -> Profile:
    """The stored profile of this machine, or the conservative one with a line that says why."""
    why, named = "no profile of this machine yet", os.environ.get("HETERO_PROFILE")
    if named:
        why = f"HETERO_PROFILE names the file {named}, which is not there"
    for path, found, reason in survey():
        if reason is None and found is not None:
            return found
        other = "is of another machine or other circumstances" if found else "cannot be used"
        why = f"the profile {path} {other}: {reason}"
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
