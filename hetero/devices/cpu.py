"""The CPU as a device: described here, computed on through NumPy by the operations."""

from __future__ import annotations

from typing import Any

from hetero import inventory

NAME = "cpu"


def describe() -> dict[str, Any]:
    """kind, name, cores, memory_bytes, blas, blas_version, blas_threads."""
    return dict(inventory.cpu())
