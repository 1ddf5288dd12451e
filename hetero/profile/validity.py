"""Whether a profile is of this machine: its CPU, its threads, and its cards by name."""

from __future__ import annotations

from typing import Any

from hetero.profile import inventory

# The parts of the fingerprint that must be the same, but for the devices.
PARTS = ("hetero", "cpu name", "cpu cores", "cpu loops", "blas blas", "blas blas_threads")


def obstacle(was: dict[str, Any]) -> str | None:
    """Why a profile with this fingerprint is not of this machine; None where it is.

    Each device here must be in the fingerprint, the same card under the same name. Those that are
    not here do not matter.
    """
    now = inventory.fingerprint()
    for part in PARTS:
        before, after = (_part(of, part.split()) for of in (was, now))
        if before != after:
            return f"{part} was {before!r}, is {after!r}"
    for name in sorted(now["devices"].keys() - inventory.host_devices()):
        before, after = (_part(of, ["devices", name, "name"]) for of in (was, now))
        if before != after:
            return f"{name} was {before!r}, is {after!r}" if before else f"{name} is new"
    return None


def identity() -> dict[str, Any]:
    """What `obstacle` compares, of this machine."""
    now = inventory.fingerprint()
    cards = {name: info["name"] for name, info in now["devices"].items()}
    return {
        **{part: _part(now, part.split()) for part in PARTS},
        "devices": {n: card for n, card in cards.items() if n not in inventory.host_devices()},
    }


def _part(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value
