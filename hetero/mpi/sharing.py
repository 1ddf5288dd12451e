"""What each rank takes: rows, and one of its node's devices."""

from __future__ import annotations

import contextvars
import operator
from typing import Any

import numpy as np

from hetero.calling import planner
from hetero.devices.base import Device
from hetero.imports import load
from hetero.mpi.ranks import Ranks, ranks_of
from hetero.pricing.plan import CPU
from hetero.pricing.settings import forced
from hetero.profile import inventory


def rows(n: int, comm: Any = None) -> tuple[int, int]:
    """The rows of n that this rank takes, where all take as many, or one more.

    Parameters
    ----------
    n : int
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``.

    Returns
    -------
    begin, end : int
        First row, and the one after the last.

    Raises
    ------
    ValueError
        Where n is negative.

    Examples
    --------
    >>> begin, end = hetero.mpi.rows(1000)  # doctest: +SKIP
    """
    ranks = ranks_of(comm)
    if (n := operator.index(n)) < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    return n * ranks.rank // ranks.size, n * (ranks.rank + 1) // ranks.size


def check(device: str | None) -> None:
    """Raise where a name, also that of a `use` block's device, is of none that a rank can take."""
    device = planner.placement(device, None)[0]
    planner.check_placement("cg", device, None)
    if device is not None and "*" in device:
        raise ValueError(f"device must be one device of this rank, got {device!r}")


def place(ranks: Ranks, device: str | None, rows: Any, b: np.ndarray) -> Device | None:
    """The device for a rank's own rows, None for the CPU.

    Ranks of a node share its devices of a kind by turns.

    Parameters
    ----------
    device : str, optional
        "cpu", a device, or a kind of them. Default: that of a `use` block, else by the plan of
        conjugate gradients for the rank's own square piece.
    rows : Rows
    b : (own rows,) ndarray
    """
    device = planner.placement(device, None)[0]
    if device is None and b.size and not inventory.is_host_alone(None):
        square = rows.square(b.dtype)
        device = contextvars.copy_context().run(_planned, square, b).partition(":")[0]  # its kind
    if device in (None, CPU) or not b.size:
        return None
    available = load("hetero.devices").available()
    if device in available:
        return available[device]
    names = sorted(name for name in available if name.partition(":")[0] == device)
    return available[names[ranks.node_rank % len(names)]]


def _planned(*system: Any) -> str:
    """The device of a plan, whatever method a `use` block names: that is of another solve."""
    if (outer := forced.get()) is not None:
        forced.set(outer._replace(method=None))
    return load("hetero.ops").plan("cg", *system).chosen.device
