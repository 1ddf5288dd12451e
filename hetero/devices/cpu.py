"""The CPU: described here, computed on through NumPy by the operations."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import Any

from hetero.host import cgroup
from hetero.imports import load


@functools.cache
def describe() -> dict[str, Any]:
    """Description of the CPU and the BLAS that NumPy calls.

    Returns
    -------
    dict
        kind, name, cores (those this process may use), memory_bytes, blas, blas_version,
        blas_threads.
    """
    load("numpy")  # whose BLAS is looked at
    threadpool_info = load("threadpoolctl").threadpool_info
    pools = [p for p in threadpool_info() if p["user_api"] == "blas"]
    pool = next((p for p in pools if "numpy" in p["filepath"]), pools[0] if pools else {})
    cores = cgroup.cores()
    return {
        "kind": "cpu",
        "name": _cpu_model(),
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "blas": pool.get("internal_api", "unknown"),
        "blas_version": pool.get("version") or "unknown",
        "blas_threads": min(pool.get("num_threads", cores), cores),
    }


def available_memory() -> int:
    """Bytes that can be had now: of the machine, and of the container that the process is in."""
    available = int(describe()["memory_bytes"])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    limited = cgroup.available_memory()
    return available if limited is None else min(available, limited)


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
