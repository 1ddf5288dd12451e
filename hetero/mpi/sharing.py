"""What each rank takes: rows in proportion to its speed, and one of its node's devices; or one rank
takes the whole system, and all devices."""

from __future__ import annotations

import contextlib
import contextvars
import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays import Spec
from hetero.calling import planner
from hetero.devices.base import Device
from hetero.imports import load
from hetero.mpi.ranks import Ranks, ranks_of
from hetero.ops.krylov import cg_products
from hetero.ops.linear_systems.types import Stencil
from hetero.pricing import pricing
from hetero.pricing.plan import CPU, Candidate
from hetero.pricing.settings import forced
from hetero.profile import inventory

_SIDE, _TIMES = 512, 5  # of the grid that is multiplied
_COPIED = 5e9  # bytes a second, from one process of a node to another
_MOST = 2**31 - 1  # entries of a matrix that one rank takes, with indices in int32


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

    Gives the name that stands for all devices of a kind, "cuda:*", for the rank that takes the
    ``whole`` system; None for any other.
    """
    device = planner.placement(device, None)[0]
    planner.check_placement(name, device, method)
    if device is None or not ("*" in device or "+" in device):
        return None
    if whole and device.endswith(":*"):
        return device
    raise ValueError(f"device must be one device of this rank, got {device!r}")


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
        device = contextvars.copy_context().run(_planned, operation, operands, options).device
        device = device.removeprefix(pricing.WITH_CPU).partition(":")[0]  # its kind
    if device in (None, CPU) or not operands:
        return None
    available = load("hetero.devices").available()
    if device in available:
        return available[device]
    names = sorted(name for name in available if name.partition(":")[0] == device)
    return available[names[ranks.node_rank % len(names)]]


def _planned(operation: str, operands: tuple[Any, ...], options: dict[str, Any]) -> Candidate:
    """The choice of a plan, in a context of its own: without the method of a `use` block, where
    that is not asked for."""
    if (outer := forced.get()) is not None and "method" not in options:
        forced.set(outer._replace(method=None))
    return load("hetero.ops").plan(operation, *operands, **options).chosen


def of_one_rank(
    ranks: Ranks,
    starts: np.ndarray,
    system: Any,
    dtype: np.dtype,
    device: str | None,
    possible: bool,
    **options: Any,
) -> list[str] | None:
    """Device and method of "cg" for the whole system on rank 0; None where all ranks iterate.

    A collective call. Rank 0 takes the system where all ranks are of one node, none has a device
    that rank 0 does not see, and the plan of the whole is a device's, for no less time than the
    rows of the others take to be copied there and back.

    Parameters
    ----------
    starts : (size + 1,) int64
        First unknown of each rank, and the number of all.
    system : Poisson or SciPy CSR
        The whole grid's, or this rank's rows.
    device : str, optional
        All of a kind, such as "cuda:*": the time does not count.
    possible : bool
        Whether this rank asks for nothing that the iteration of all ranks alone does.
    **options
        Of the plan.

    Raises
    ------
    ValueError
        On every rank, where all devices of a kind are named and it is not possible.
    """
    device = planner.placement(device, None)[0]
    named, n, seen = str(device).endswith(":*"), int(starts[-1]), []
    if possible and ranks.one_node and n and (named or device is None):
        here = {} if planner.is_host_alone(device) else inventory.devices()
        seen = [
            f"{info['kind']} {info['name']} {info.get(inventory.SLOT)}"
            for name, info in here.items()
            if name != CPU
        ]
    each = ranks.every([seen, getattr(system, "nnz", 0)])
    first, entries = each[0][0], sum(number for _, number in each)
    if entries > _MOST or not all(seen and {*seen} <= {*first} for seen, _ in each):
        if named and n:
            raise ValueError(
                f"device={device!r} is for ranks of one node, and for sparse rows or grids by 'cg' "
                "without a callback or a checkpoint: name one device of this rank"
            )
        return None

    def choose() -> list[str] | None:
        if ranks.rank:
            return None
        whole = system if hasattr(system, "stencil") else _of_size(n, entries, dtype)
        operands, asked = (whole, Spec((n,), dtype)), options | {"device": device}
        chosen = contextvars.copy_context().run(_planned, "cg", operands, asked)
        copied = 2 * dtype.itemsize * (n - int(starts[1]))
        copied += (dtype.itemsize + 4) * (entries - each[0][1])
        pays = chosen.device != CPU and copied / _COPIED <= (chosen.seconds or 0.0)
        return [chosen.device, chosen.method] if named or pays else None

    return ranks.every(agreed(ranks, choose))[0]


def _of_size(n: int, entries: int, dtype: np.dtype) -> Any:
    """A matrix of any values, for a plan; its memory is never touched."""
    pointers = np.zeros(n + 1, np.int32)
    pointers[-1] = entries
    arrays = np.empty(entries, dtype), np.empty(entries, np.int32), pointers
    return load("scipy.sparse").csr_array(arrays, shape=(n, n))


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
