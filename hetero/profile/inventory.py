"""This machine: CPU and devices, the fingerprint that a profile carries, where profiles are kept.

A profile is of this machine by its CPU, its threads, and its cards by name. Profiles are kept in a
file for each machine, in the user's cache directory: nodes of a cluster share a home directory, and
a batch job gets other cores and another card.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from hetero import __version__, paths, tables
from hetero import devices as backends
from hetero.host import cpu
from hetero.imports import load

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

    Each device here must be in the fingerprint, the same card under the same name. Those that are
    not here do not matter.
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
    return None


def _part(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


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
