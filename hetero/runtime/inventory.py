"""The CPU and the devices at hand, described; and the fingerprint that a profile carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero import devices as backends
from hetero import locks
from hetero.devices import cpu

_PACKAGES = ("numpy", "pycuda", "pyopencl", "nvmath-python", "nvidia-cublas")
_listeners: list[Callable[[], None]] = []
_lock = locks.new()
_described: dict[str, dict[str, Any]] | None = None
_generation = 0


def devices() -> dict[str, dict[str, Any]]:
    """Device name -> description; "cpu" first. A device set aside stays, with ``set_aside``."""
    global _described
    found = _described
    if found is None:
        now = _generation
        found = {"cpu": dict(cpu.describe())}
        for name, device in backends.available().items():
            info = dict(device.describe())
            twin = next((n for n, i in found.items() if n != "cpu" and _same(i, info)), None)
            if twin is not None:
                info["same_as"] = twin
            reason = backends.disabled(name)
            if reason:
                info["set_aside"] = reason
            found[name] = info
        with _lock:
            if now == _generation:  # else the devices changed meanwhile
                _described = found
    return found


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a.get(key) == b.get(key) for key in ("kind", "name", "memory_bytes", "driver"))


believed, broken, newly_broken = backends.believed, backends.broken, backends.newly_broken


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever the devices at hand change."""
    _listeners.append(listener)


def changed() -> None:
    """Say that a device was set aside, or that devices must be looked for again."""
    global _described, _generation
    with _lock:
        _generation += 1
        _described = None
    for listener in _listeners:
        listener()


def fingerprint() -> dict[str, Any]:
    """What a profile's constants depend on."""
    processor = cpu.describe()
    return {
        "cpu": {key: processor[key] for key in ("name", "cores")},
        "blas": {key: processor[key] for key in ("blas", "blas_version", "blas_threads")},
        "devices": {
            name: {
                key: info.get(key)
                for key in ("name", "pci_bus_id", "memory_bytes", "driver", "toolkit")
            }
            # Also of broken ones: they are here, whether or not that is known by now.
            for name, device in backends.everything().items()
            for info in (device.describe(),)
        },
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "hetero": _version("hetero"),
    }


def _version(package: str) -> str | None:
    from importlib import metadata  # slow to import, and only a profile needs it

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def difference(stored: dict[str, Any]) -> str | None:
    """In which part a stored fingerprint differs from this machine, None if in none."""
    now = fingerprint()
    for part, value in now.items():
        was = stored.get(part)
        if was == value:
            continue
        if isinstance(value, dict) and isinstance(was, dict):
            for key in sorted({*value, *was}, key=str):
                if value.get(key) != was.get(key):
                    return f"{part} {key} was {was.get(key)!r}, is {value.get(key)!r}"
        return f"{part} was {was!r}, is {value!r}"
    return None


backends.on_change(changed)
