"""This machine: its devices, what makes it another one, and where its profile is kept.

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
    return backends.found is not None


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
