"""The device of a rank: the cheapest by its node's profile, or what the caller names."""

from __future__ import annotations

import contextlib
from typing import Any

from hetero.calling import planner
from hetero.devices.base import Device
from hetero.imports import load
from hetero.mpi.ranks import Ranks
from hetero.pricing.plan import CPU


def check(device: str | None, name: str) -> None:
    """Raise `DeviceNotAvailable` where ``device`` names none that is here."""
    planner.check_placement(name, device, None)
    if device is not None and ("*" in device or "+" in device):
        raise ValueError(f"device must be one device of this rank, got {device!r}")


def place(ranks: Ranks, device: str | None, operation: str, *operands: Any) -> Device | None:
    """The device for a rank's own rows, None for the CPU.

    Ranks of a node share its devices of a kind by turns.

    Parameters
    ----------
    device : str, optional
        "cpu", a device, or a kind of them. Default: by the plan of ``operation`` on ``operands``,
        the rank's own piece of the system; without operands, the CPU.
    """
    if device is None and operands and not planner.is_host_alone(None):
        device = load("hetero.ops").plan(operation, *operands).chosen.device
        device = device.partition(":")[0]  # its kind
    if device in (None, CPU) or not operands:
        return None
    available = load("hetero.devices").available()
    if device in available:
        return available[device]
    names = sorted(name for name in available if name.partition(":")[0] == device)
    return available[names[ranks.node_rank % len(names)]]


def active(device: Device | None) -> Any:
    """Context manager for work on a device; none is needed on the CPU."""
    return contextlib.nullcontext() if device is None else device.active()
