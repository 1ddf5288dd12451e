"""What is here: CPU, BLAS, threads, devices, links; and the fingerprint that a profile carries."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PACKAGES = ("numpy", "pycuda", "pyopencl", "nvmath-python", "nvidia-cublas")
_listeners: list[Callable[[], None]] = []


class Inventory(dict):
    """A plain dict whose ``print`` is readable."""

    def __str__(self) -> str:
        return "\n".join(_lines(self, 0))


def _lines(value: dict[str, Any], depth: int) -> list[str]:
    lines = []
    for key, item in value.items():
        pad = "  " * depth
        if isinstance(item, dict):
            lines.append(f"{pad}{key}:" + ("" if item else " none"))
            lines += _lines(item, depth + 1)
        elif isinstance(item, list):
            lines.append(f"{pad}{key}:" + ("" if item else " none"))
            lines += [f"{pad}  - {entry}" for entry in item]
        else:
            lines.append(f"{pad}{key}: {item}")
    return lines


@functools.cache
def cpu() -> dict[str, Any]:
    """Description of the CPU and the BLAS that NumPy calls.

    Returns
    -------
    dict
        kind, name, cores (those this process may use), memory_bytes, blas, blas_version,
        blas_threads.
    """
    import numpy  # noqa: F401  its BLAS must be loaded to be seen
    from threadpoolctl import threadpool_info

    pools = [p for p in threadpool_info() if p["user_api"] == "blas"]
    pool = next((p for p in pools if "numpy" in p["filepath"]), pools[0] if pools else {})
    cores = _cores()
    return {
        "kind": "cpu",
        "name": _cpu_model(),
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "blas": pool.get("internal_api", "unknown"),
        "blas_version": pool.get("version") or "unknown",
        "blas_threads": min(pool.get("num_threads", cores), cores),
    }


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


_described: dict[str, dict[str, Any]] | None = None


def devices() -> dict[str, dict[str, Any]]:
    """Device name -> description; "cpu" first. A device set aside stays, with ``set_aside``."""
    global _described
    found = _described
    if found is None:
        from hetero import devices as backends

        found = {"cpu": dict(cpu())}
        for name, device in backends.available().items():
            info = dict(device.describe())
            twin = next((n for n, i in found.items() if n != "cpu" and _same(i, info)), None)
            if twin is not None:
                info["same_as"] = twin
            reason = backends.set_aside(name)
            if reason:
                info["set_aside"] = reason
            found[name] = info
        _described = found
    return found


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a.get(key) == b.get(key) for key in ("kind", "name", "memory_bytes", "driver"))


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever the devices at hand change."""
    _listeners.append(listener)


def changed() -> None:
    """Say that a device was set aside, or that devices must be looked for again."""
    global _described
    _described = None
    for listener in _listeners:
        listener()


def machine() -> Inventory:
    """What is here, as a plain dict that prints readably.

    Returns
    -------
    Inventory
        ``cpu``, ``devices`` (name -> description), ``links`` (device -> GB/s of large transfers
        by direction and memory, as calibrated), ``missing`` (what is not here and what would
        bring it), ``profile`` (name and file).

    Examples
    --------
    >>> import hetero
    >>> hetero.machine()["cpu"]["cores"] >= 1
    True
    """
    from hetero import devices as backends
    from hetero import profile

    here = devices()
    constants = profile.current()
    size = 2**28
    links: dict[str, Any] = {}
    for name in here:
        for direction, kinds in constants.data["links"].get(name, {}).items():
            for memory in kinds:
                rate = size / constants.link(name, direction, memory)(size) / 1e9
                links.setdefault(name, {})[f"{direction}, {memory}"] = f"{rate:.1f} GB/s"
    return Inventory(
        cpu={key: value for key, value in here["cpu"].items() if key != "kind"},
        devices={name: info for name, info in here.items() if name != "cpu"},
        links=links,
        missing=list(backends.missing()),
        profile={"name": constants.name, "file": str(profile.default_path())},
    )


def machine_summary() -> str:
    """One line: the CPU, its BLAS, and the devices beside it."""
    here = devices()
    processor = here["cpu"]
    others = [f"{info['name']} ({name})" for name, info in here.items() if name != "cpu"]
    return (
        f"{processor['name']}, {processor['cores']} cores, {processor['blas']} "
        f"{processor['blas_version']}; " + (", ".join(others) or "no other device")
    )


def fingerprint() -> dict[str, Any]:
    """What a profile's constants depend on."""
    processor = cpu()
    return {
        "cpu": {key: processor[key] for key in ("name", "cores")},
        "blas": {key: processor[key] for key in ("blas", "blas_version", "blas_threads")},
        "devices": {
            name: {
                key: info.get(key)
                for key in ("name", "pci_bus_id", "memory_bytes", "driver", "toolkit")
            }
            for name, info in devices().items()
            if name != "cpu"
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


def cache_directory() -> Path:
    """The user's cache directory for hetero; who writes there makes it, private (0700)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hetero"
