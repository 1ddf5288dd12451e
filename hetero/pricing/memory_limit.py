"""How much of a device's memory a call may take: the limit of `use` blocks or the environment."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from typing import Any

from hetero.devices.base import Device
from hetero.pricing.settings import forced

VARIABLE = "HETERO_MEMORY_LIMIT"
_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}
log = logging.getLogger("hetero")
_SHARE = 0.9  # of a device's memory; its driver keeps the rest

Devices = dict[str, dict[str, Any]]


def parsed(limit: float | str, name: str = "memory_limit") -> int:
    """A limit in bytes.

    Parameters
    ----------
    limit : int, float or str
        Bytes, or such as "4 GB" (10^9) and "512 MiB" (2^20).
    name : str
        What it was given as.

    Raises
    ------
    ValueError, TypeError
        If it is no number of bytes above 0.

    Examples
    --------
    >>> parsed("1.5 GB"), parsed("512 MiB"), parsed(1000)
    (1500000000, 536870912, 1000)
    """
    nbytes: float = 0
    if isinstance(limit, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE]\+?[0-9]+)?)\s*([a-zA-Z]*)\s*", limit)
        if match and match[2].upper() in _UNITS:
            nbytes = float(match[1]) * _UNITS[match[2].upper()]
    elif isinstance(limit, bool) or not hasattr(limit, "__float__"):
        raise TypeError(f"{name} must be a number of bytes or a string, got {limit!r}")
    else:
        with contextlib.suppress(OverflowError):
            nbytes = float(limit)
    if not 1 <= nbytes < 2**63:
        raise ValueError(f'{name} must be bytes above 0, such as 4e9 or "4 GB", got {limit!r}')
    return int(nbytes)


def current() -> int | None:
    """The limit of a call that begins now, in bytes; None where there is none."""
    outer = forced.get()
    if outer is not None and outer.memory_limit is not None:
        return outer.memory_limit
    given = os.environ.get(VARIABLE)
    return _of_environment(given) if given else None


@functools.cache
def _of_environment(given: str) -> int | None:
    """The environment's limit; None, and a warning, where it is no number of bytes."""
    try:
        return parsed(given, VARIABLE)
    except ValueError as error:
        log.warning("%s: no limit is taken", error)
        return None


def limited(devices: Devices, limit: int | None) -> Devices:
    """Descriptions of devices with a limit of their memory for each call."""
    if limit is None:
        return devices
    return {
        name: info if info["kind"] == "cpu" else {**info, "memory_limit": limit}
        for name, info in devices.items()
    }


def of(device: Device) -> dict[str, Any]:
    """A device's description, with the limit of a call that begins now."""
    limit, info = current(), device.describe()
    return info if limit is None else {**info, "memory_limit": limit}


def room(info: dict[str, Any]) -> float:
    """Bytes of a device's memory that a call may take; infinite where that is not known."""
    memory = info.get("memory_bytes")
    most = float("inf") if memory is None else _SHARE * memory
    return min(most, info.get("memory_limit") or most)


def too_much(nbytes: int, info: dict[str, Any]) -> str | None:
    """Why a call cannot take ``nbytes`` of a device's memory, None where it can."""
    if nbytes <= room(info):
        return None
    limit, memory = info.get("memory_limit"), info["memory_bytes"]
    if limit is not None and limit < _SHARE * memory:
        return f"needs {_readable(nbytes)}, the limit is {_readable(limit)}"
    return f"needs {nbytes / 2**30:.1f} GiB, the device has {memory / 2**30:.1f} GiB"


def _readable(nbytes: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} byte{'s' * (nbytes != 1)}"
