"""A solve over the ranks, whatever the system: the iteration, what watches it, how it went."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import Spec
from hetero.calling import planner
from hetero.devices.base import Device
from hetero.errors import MethodNotAvailable
from hetero.imports import load
from hetero.mpi import choosing, pipelined, sharing
from hetero.mpi.checkpoints import Checkpoint
from hetero.mpi.products import DenseRows, Rows, true_residual
from hetero.mpi.ranks import Ranks
from hetero.mpi.vectors import HostVectors, Vectors
from hetero.ops.cg import System, checked
from hetero.ops.linear_systems import scaling
from hetero.ops.linear_systems.solve import Solve, execute
from hetero.ops.linear_systems.types import CONVERGED, Outcome
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory

_COPIED = 5e9  # bytes a second, from one process of a node to another
_MOST = 2**31 - 1  # unknowns, and entries of a matrix, that one rank takes: MPI counts in int32


class Goal(NamedTuple):
    """When a solve ends, how it is done, and where it is saved."""

    rtol: float
    atol: float
    maxiter: int
    method: str | None
    checkpoint: str | None
    every: float


def checked_goal(
    rtol: float, atol: float, maxiter: int, method: str | None, checkpoint: Any, every: float
) -> Goal:
    """A `Goal`; ValueError where something of it is no method, path or time."""
    if method not in (None, *choosing.METHODS):
        raise MethodNotAvailable(f"method must be one of {choosing.METHODS}, got {method!r}")
    if not float(every) >= 0.0:
        raise ValueError(f"every must be at least 0 seconds, got {every!r}")
    path = None if checkpoint is None else os.fsdecode(checkpoint)
    return Goal(rtol, atol, maxiter, method, path, float(every))


class _Watch:
    """What happens after each iteration: the caller's callback, and checkpoints."""

    def __init__(
        self,
        ranks: Ranks,
        callback: Callable[[Any], object] | None,
        saved: Checkpoint | None,
        on_host: Callable[[Any], np.ndarray],
    ) -> None:
        self._ranks, self._callback, self._saved = ranks, callback, saved
        self._on_host = on_host
        self.done = 0
        self.error: BaseException | None = None

    def __call__(self, x: np.ndarray) -> None:
        self.done += 1
        if self._callback is not None and self.error is None:
            try:
                self._callback(self._on_host(x))
            except Exception as error:  # all ranks raise it, after the next sum
                self.error = error
                self._ranks.ask(failed=True)
        if self._ranks.failed:
            self._ranks.agree(self.error)
        if self._saved is not None:
            if self._ranks.save:
                self._saved.save(self._on_host(x), self.done)
            self._saved.ask()


def run(
    ranks: Ranks,
    rows: Rows | DenseRows,
    b: np.ndarray,
    x: np.ndarray,
    goal: Goal,
    preconditioner: Any,
    callback: Callable[[Any], object] | None,
    fingerprint: Callable[[], dict[str, Any]],
    device: Device | None = None,
) -> tuple[Outcome, dict[str, Any]]:
    """Solve A x = b from x, which is overwritten.

    Parameters
    ----------
    b, x : (own rows,) ndarray
    preconditioner : None, (own rows,) ndarray or callable
        As `cg_cpu.solve` takes it, for the rank's own rows.
    fingerprint : callable
        Gives what tells the problem from others, the same on every rank.
    device : Device, optional
        Where this rank's rows lie; active. Default: on the CPU.

    Returns
    -------
    Outcome
    dict
        How it was done.
    """
    ranks.forget()
    vectors: Vectors = HostVectors(ranks)
    host, norm_b = vectors, vectors.norm(b)
    if device is None:
        product = rows.product(b.dtype)
    else:
        on_device = load("hetero.mpi.on_device")
        vectors, product = on_device.vectors_and_product(ranks, device, rows, b.dtype)
        if preconditioner is not None:
            preconditioner = vectors.multiplier(preconditioner)
    residual_of = true_residual(host, rows, vectors.on_host)
    saved = None
    if goal.checkpoint is not None:
        starts = ranks.starts(b.size)
        saved = Checkpoint(ranks, goal.checkpoint, starts, fingerprint(), goal.every)
    watch = _Watch(ranks, callback, saved, vectors.on_host)
    before = watch.done = saved.read(x) if saved is not None else 0
    prices = None
    method = goal.method or "cg"
    if goal.method is None and ranks.size > 1:
        held = vectors.hold(b)
        preconditioned = preconditioner is not None
        prices = choosing.prices(ranks, vectors, product.times, held, preconditioned)
        method = choosing.cheaper(prices)
    iterate = functools.partial(
        load("hetero.ops.krylov.cg_cpu").iterate,
        product,
        vectors,
        residual_of,
        goal.rtol,
        preconditioner,
    )

    def solve(
        b: Any, x: Any, atol: float, maxiter: int, report: Any, norm_b: float | None = None
    ) -> Outcome:
        at_zero = not ranks.most(np.any(x))
        rhs, u = vectors.hold(b), vectors.hold(x)
        norm_b = vectors.norm(rhs) if norm_b is None else norm_b
        if report not in (None, watch):  # `scaling.solve`'s takes x on the host
            report = functools.partial(lambda tell, u: tell(vectors.on_host(u)), report)
        loop = pipelined.loop(rhs) if method == "pipelined" else None
        outcome = iterate(rhs, u, atol, maxiter, report, norm_b, at_zero, loop)
        done = outcome.iterations
        if loop is not None and outcome.status != CONVERGED and done < maxiter:
            # Its recurrences round more: the other iteration has the last word.
            outcome = iterate(rhs, u, atol, maxiter - done, report, norm_b, False)
            outcome = outcome._replace(iterations=done + outcome.iterations)
        x[...] = vectors.on_host(u)
        return outcome._replace(right_side=norm_b)

    # On all ranks where one has a callback: they have to hear that it raised.
    report = watch if ranks.most(callback is not None or saved is not None) else None
    limit = max(goal.maxiter - before, 0)
    with np.errstate(all="ignore"):
        if scaling.is_safe(norm_b, b.itemsize):
            outcome = solve(b, x, goal.atol, limit, report, norm_b)
        else:
            given = {"atol": goal.atol, "maxiter": limit, "callback": report}
            outcome = scaling.solve(solve, b, x, most=ranks.most, **given)
    ranks.agree(watch.error)
    outcome = outcome._replace(iterations=outcome.iterations + before)
    name = "cpu" if device is None else device.name
    return outcome, _how(ranks, outcome, name, method, False, prices, before)


def _how(
    ranks: Ranks,
    outcome: Outcome,
    device: str,
    method: str,
    gathered: bool,
    prices: Any,
    before: int,
) -> dict[str, Any]:
    return {
        "device": device,
        "method": method,
        "prices": prices,
        "ranks": ranks.size,
        "gathered": gathered,
        "continued_from": before,
        "iterations": outcome.iterations,
        "residual": outcome.residual,
        "converged": outcome.status == CONVERGED,
        "status": outcome.status,
    }


def by_one_rank(
    ranks: Ranks,
    starts: np.ndarray,
    system: Any,
    b: np.ndarray,
    x: np.ndarray,
    goal: Goal,
    device: str | None,
    possible: bool,
    started: bool,
    M: Any = None,
) -> tuple[Outcome, dict[str, Any]] | None:
    """As `run`, by rank 0 with the whole system; None where all ranks have to iterate.

    Rank 0 takes it where all ranks are of one node, none has a device that rank 0 does not see, and
    the plan of the whole is a device's, for no less time than the rows of the others take to be
    copied there and back; with a ``device`` such as "cuda:*" whatever the time, or ValueError.

    ``system`` is the whole grid's Poisson or the rank's rows, M "jacobi" or the rank's part of a
    diagonal; ``possible`` tells whether no other argument forbids it, ``started`` whether x is set.
    """
    device, n, seen = planner.placement(device, None)[0], int(starts[-1]), []
    named, is_grid = str(device).endswith(":*"), hasattr(system, "stencil")
    possible &= goal.checkpoint is None and goal.method != "pipelined" and ranks.one_node
    if possible and n and (named or device is None) and not planner.is_host_alone(device):
        here = [i for name, i in inventory.devices().items() if name != CPU]
        seen = [f"{i['kind']} {i['name']} {i.get(inventory.SLOT)}" for i in here]
    each = ranks.every([seen, getattr(system, "nnz", 0)])
    entries = [number for _, number in each]
    is_large = max(n, sum(entries)) > _MOST
    if is_large or not all(seen and {*seen} <= {*each[0][0]} for seen, _ in each):
        if named and n:
            raise ValueError(
                f"device={device!r} is for ranks of one node, and for sparse rows or grids by 'cg' "
                "without a callback or a checkpoint: name one device of this rank"
            )
        return None
    csr_array, limits = load("scipy.sparse").csr_array, (goal.rtol, goal.atol, goal.maxiter)

    def choose() -> Plan | None:
        whole = system
        if not is_grid:  # any values, in memory that is never touched
            pointers = np.zeros(n + 1, np.int32)
            pointers[-1] = count = sum(entries)
            arrays = np.empty(count, b.dtype), np.empty(count, np.int32), pointers
            whole = csr_array(arrays, (n, n))
        options: dict[str, Any] = dict(zip(("rtol", "atol", "maxiter"), limits, strict=True))
        options |= {"M": None if M is None else "jacobi", "device": device}
        with planner.use(results="host"):
            plan = sharing.planned("cg", (whole, Spec((n,), b.dtype)), options)
        copied = 2 * b.itemsize * (n - int(starts[1])) + (b.itemsize + 4) * sum(entries[1:])
        pays = plan.chosen.device != CPU and copied / _COPIED <= (plan.chosen.seconds or 0.0)
        return plan if named or pays else None

    plan = sharing.agreed(ranks, lambda: None if ranks.rank else choose())
    if not ranks.every(plan is not None)[0]:
        return None
    rhs, start = ranks.joined(starts, b, 0), None
    if ranks.most(started):
        start = ranks.joined(starts, x, 0)
    inverse = ranks.joined(starts, M, 0) if isinstance(M, np.ndarray) else M
    if not is_grid:
        rows = ranks.starts(system.nnz)
        data = ranks.joined(rows, system.data, 0)
        indices = ranks.joined(rows, system.indices.astype(np.int32, copy=False), 0)
        lengths = ranks.joined(starts, np.diff(system.indptr).astype(np.int32), 0)

    def solve() -> tuple[Any, ...]:
        whole = system
        if not is_grid:
            pointers = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            whole = csr_array((data, indices, pointers), (n, n))
        whole, asked = System(whole, b.dtype, inverse), Solve(None, *limits)
        done = execute(plan, asked, rhs, start, whole.on)
        outcome, norm_b = done.outcome, done.outcome.right_side
        if norm_b is None:  # from the CPU
            largest = float(np.abs(rhs).max()) or 1.0
            with np.errstate(all="ignore"):
                norm_b = largest * np.linalg.norm(rhs / largest)
        elif outcome.status == CONVERGED:
            outcome = checked(whole, rhs, done.x, asked, outcome)
        status, iterations, residual, _ = outcome
        return done.x, done.device, status, int(iterations), float(residual), float(norm_b)

    def rested() -> tuple[Any, ...]:
        try:
            return (None,) if ranks.rank else solve()
        finally:
            ranks.rest()

    u, *ended = sharing.agreed(ranks, rested)
    used, *ended = ranks.every(ended)[0]
    ranks.comm.Scatterv([u, np.diff(starts)], x, 0)
    outcome = Outcome(*ended)
    return outcome, _how(ranks, outcome, used, "cg", True, None, 0)


def checked_vector(name: str, vector: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A rank's part of a vector; ValueError for another shape, or what is not real."""
    vector = np.asarray(vector)
    if vector.shape != shape and vector.shape != (*shape, 1):
        raise ValueError(f"{name} must have shape {shape}, got {vector.shape}")
    if vector.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be real, got dtype {vector.dtype}")
    return vector.reshape(shape)


def together(ranks: Ranks, number: int) -> str:
    """The sum of all ranks' checksums."""
    return f"{sum(map(int, ranks.every(str(number)))) % 2**64:016x}"
