"""What each rank takes: rows in proportion to its speed, and one of its node's devices."""

from __future__ import annotations

import contextlib
import contextvars
import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.calling import planner
from hetero.devices.base import Device
from hetero.imports import load
from hetero.mpi.ranks import Ranks, ranks_of
from hetero.ops.krylov import cg_products
from hetero.ops.linear_systems.types import Stencil
from hetero.pricing import pricing
from hetero.pricing.plan import CPU, Plan
from hetero.pricing.settings import forced

_SIDE, _TIMES = 512, 5  # of the grid that is multiplied


def rows(n: int, comm: Any = None, *, equal: bool = False) -> tuple[int, int]:
    """The rows that this rank should take of n, in proportion to its speed.

    A collective call. All ranks multiply a small grid at once, for some milliseconds, and agree on
    their speeds.

    Parameters
    ----------
    n : int
    comm : mpi4py.MPI.Comm, optional
        Default: ``MPI.COMM_WORLD``.
    equal : bool
        Cut evenly and measure nothing: the same in every run.

    Returns
    -------
    begin, end : int
        First row, and the one after the last.

    Raises
    ------
    ValueError
        On every rank, where n is not the same on all of them or negative.

    Examples
    --------
    >>> begin, end = hetero.mpi.rows(1000)  # doctest: +SKIP
    """
    ranks = ranks_of(comm)
    failed, facts = None, {}
    try:
        if (n := operator.index(n)) < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        facts = {"n": n, "equal": bool(equal)}
    except Exception as error:
        failed = error
    ranks.agree(failed, **facts)
    speeds = np.ones(ranks.size) if equal else ranks.gather(_speed(ranks))[:, 0]
    cuts = np.rint(np.concatenate([[0.0], np.cumsum(speeds)]) / speeds.sum() * n).astype(int)
    return int(cuts[ranks.rank]), int(cuts[ranks.rank + 1])


def _speed(ranks: Any) -> float:
    """Products a second with the operator of a grid, while the other ranks make theirs."""
    grid = Stencil((_SIDE, _SIDE), (1.0, 1.0))
    product = cg_products.compiled(grid, np.dtype(np.float64))
    p, q = np.ones((2, _SIDE * _SIDE))
    product.times(p, q)
    ranks.comm.Barrier()
    began = time.perf_counter()
    for _ in range(_TIMES):
        product.times(p, q)
    return _TIMES / (time.perf_counter() - began)


def check(
    device: str | None, name: str, method: str | None = None, *, whole: bool = False
) -> str | None:
    """Raise where a name, also that of a `use` block's device, is of none that a rank can take.

    Gives the name where it is such as "cuda:*", which rank 0 can take for the ``whole`` system.
    """
    device = planner.placement(device, None)[0]
    planner.check_placement(name, device, method)
    several = device if device is not None and ("*" in device or "+" in device) else None
    if several and not (whole and several.endswith(":*")):
        raise ValueError(f"device must be one device of this rank, got {device!r}")
    return several


def place(
    ranks: Ranks, device: str | None, operation: str, *operands: Any, **options: Any
) -> Device | None:
    """The device for a rank's own rows, None for the CPU.

    Ranks of a node share its devices of a kind by turns.

    Parameters
    ----------
    device : str, optional
        "cpu", a device, or a kind of them. Default: that of a `use` block, else by the plan of
        ``operation`` on ``operands``, the rank's own piece of the system, with ``options``;
        without operands, the CPU.
    """
    device = planner.placement(device, None)[0]
    if device is None and operands and not planner.is_host_alone(None):
        device = planned(operation, operands, options).chosen.device
        device = device.removeprefix(pricing.WITH_CPU).partition(":")[0]  # its kind
    if device in (None, CPU) or not operands:
        return None
    available = load("hetero.devices").available()
    if device in available:
        return available[device]
    names = sorted(name for name in available if name.partition(":")[0] == device)
    return available[names[ranks.node_rank % len(names)]]


def planned(operation: str, operands: tuple[Any, ...], options: dict[str, Any]) -> Plan:
    """A plan: without the method of a `use` block, where that is not asked for."""

    def plan() -> Plan:
        if (outer := forced.get()) is not None and "method" not in options:
            forced.set(outer._replace(method=None))
        return load("hetero.ops").plan(operation, *operands, **options)

    return contextvars.copy_context().run(plan)


def agreed(ranks: Ranks, find: Callable[[], Any]) -> Any:
    """What ``find()`` gives; where it raises on one rank, all raise."""
    failed = result = None
    try:
        result = find()
    except Exception as error:
        failed = error
    ranks.agree(failed)
    return result


def placed(ranks: Ranks, device: Any, method: Any, name: str, *call: Any, **options: Any) -> Any:
    """The ``device`` and ``method`` of a call, of which a rank's rows come first: see `place`.

    Raises what the call would where they cannot do it.
    """
    check(device, name, method)
    if not len(call[0]):
        return {"device": CPU, "method": None}
    own = place(ranks, device, name, *call, method=method, **options)
    where = {"device": CPU if own is None else own.name, "method": method}
    load("hetero.ops").plan(name, *call, **where, **options)
    return where


def active(device: Device | None) -> Any:
    """Context manager for work on a device; none is needed on the CPU."""
    return contextlib.nullcontext() if device is None else device.active()
