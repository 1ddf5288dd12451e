"""The CPU and the devices at hand, described; and the fingerprint that a profile carries."""

from __future__ import annotations

import os
from typing import Any

from hetero import devices as backends
from hetero import tables
from hetero.devices import cpu
from hetero.imports import load

_PACKAGES = (
    *("numpy", "scipy", "numba", "tbb", "pycuda", "pyopencl"),
    *("nvmath-python", "nvidia-cublas", "nvidia-cufft"),
)


_described: dict[str, dict[str, dict[str, Any]]] = tables.new_table()


def devices() -> dict[str, dict[str, Any]]:
    """Device name -> description; "cpu" first. A device set aside stays, with ``set_aside``.

    Made on first use, and again when something changed.
    """
    now = tables.generation()
    infos = _described.get("devices")
    if infos is None:
        infos = {"cpu": dict(cpu.describe())}
        for name, device in backends.available().items():
            info = dict(device.describe())
            twin = next((n for n, i in infos.items() if n != "cpu" and _same(i, info)), None)
            if twin is not None:
                info["same_as"] = twin
            reason = backends.disabled(name)
            if reason:
                info["set_aside"] = reason
            infos[name] = info
        tables.remember(_described, "devices", infos, now)
    return infos


changed = tables.forget  # a device was disabled, or devices must be looked for again


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a.get(key) == b.get(key) for key in ("kind", "name", "memory_bytes", "driver"))


believed, broken, newly_broken = backends.believed, backends.broken, backends.newly_broken


def is_host_alone(device: str | None) -> bool:
    """Whether a call from host memory that names this device, or none, can only run on the CPU."""
    return device == "cpu" or (device is None and backends.only_host())


def looked() -> bool:
    """Whether this process looked for devices, which takes some tenths of a second."""
    return backends.here.found is not None


def fingerprint() -> dict[str, Any]:
    """The machine that a profile was measured on; `hetero.profile.validity` compares it."""
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
        "packages": {name: _version(name) for name in _PACKAGES},
        "hetero": _version("hetero"),
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


def _version(package: str) -> str | None:
    metadata = load("importlib.metadata")  # slow to import, and only a profile needs it
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
