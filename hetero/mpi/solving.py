"""A solve over the ranks, whatever the system: the iteration, what watches it, how it went."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.errors import MethodNotAvailable
from hetero.imports import load
from hetero.mpi import sharing
from hetero.mpi.checkpoints import Checkpoint
from hetero.mpi.products import DenseRows, Rows
from hetero.mpi.ranks import Ranks
from hetero.mpi.vectors import HostVectors, Vector, Vectors
from hetero.ops.krylov.cg_products import is_doubtful
from hetero.ops.linear_systems import scaling
from hetero.ops.linear_systems.types import CONVERGED, Outcome
from hetero.pricing.plan import CPU


class Goal(NamedTuple):
    """When a solve ends, and where it is saved."""

    rtol: float
    atol: float
    maxiter: int
    checkpoint: str | None
    every: float


def checked_goal(
    rtol: float, atol: float, maxiter: int, method: str | None, checkpoint: Any, every: float
) -> Goal:
    """A `Goal`; ValueError where something of it is no method, path or time."""
    if method not in (None, "cg"):
        raise MethodNotAvailable(f"method must be 'cg', got {method!r}")
    if not float(every) >= 0.0:
        raise ValueError(f"every must be at least 0 seconds, got {every!r}")
    path = None if checkpoint is None else os.fsdecode(checkpoint)
    return Goal(rtol, atol, maxiter, path, float(every))


def run(
    ranks: Ranks,
    rows: Rows | DenseRows,
    b: np.ndarray,
    x: np.ndarray,
    goal: Goal,
    preconditioner: Any,
    callback: Callable[[Any], object] | None,
    known: dict[str, Any],
    sums: Callable[[], dict[str, int]],
    device: str | None,
) -> tuple[Outcome, dict[str, Any]]:
    """Solve A x = b from x, which is overwritten; a collective call.

    Parameters
    ----------
    rows : Rows or DenseRows
        This rank's of A; closed at the end.
    b, x : (own rows,) ndarray
    preconditioner : None, (own rows,) ndarray or callable
        A diagonal, or ``apply(r, z)`` that writes z = M r for `Vector`s.
    known : dict
        What tells the problem from others, the same on every rank, for JSON.
    sums : callable
        Gives the checksums of this rank's operands, by name.
    device : str or None
        See `sharing.place`.

    Returns
    -------
    Outcome
    dict
        How it was done.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(rows.close)

        def placed() -> tuple[Any, ...]:
            place, of_device = sharing.place(ranks, device, rows, b), None
            if place is not None:
                stack.enter_context(place.active())
                of_device = load("hetero.mpi.on_device").vectors_and_product
            return place, of_device, HostVectors(), load("hetero.ops.krylov.cg_cpu").iterate

        place, of_device, host, iterate = ranks.agreed(placed)
        if place is None:
            own, product = host, rows.product(b.dtype)
        else:
            own, product = of_device(ranks, place, rows, b.dtype)
        vectors = Vectors(ranks, own, b.dtype)
        if isinstance(preconditioner, np.ndarray):
            preconditioner = vectors.multiplier(preconditioner)
        saved = None
        if goal.checkpoint is not None:
            each = ranks.every(ranks.agreed(sums))
            for name in each[0]:
                known[name] = f"{sum(one[name] for one in each) % 2**64:016x}"
            saved = Checkpoint(ranks, goal.checkpoint, ranks.starts(b.size), known, goal.every)
        before = done = saved.read(x) if saved is not None else 0

        def watch(x: Callable[[], np.ndarray]) -> None:
            """What happens after each iteration: the caller's callback, and checkpoints."""
            nonlocal done
            done += 1
            if callback is not None:
                ranks.attempt(lambda: callback(x()))
            if saved is not None:
                if ranks.save:
                    saved.save(x, done)
                saved.ask()

        def true_residual(
            b: Vector, x: Vector, residual: float, bound: float, norm_b: float
        ) -> float:
            """`cg_products.true_residual`: in float64 where rounding to float32 may decide."""
            if not is_doubtful(b.dtype, rows.unknowns, residual, bound, norm_b):
                return residual
            wide = Vectors(ranks, host, np.dtype(np.float64))
            b, x = (
                wide.made(lambda v: own.on_host(v).astype(wide.dtype), v.values) for v in (b, x)
            )
            q = b.copy()
            rows.product(wide.dtype).times(x, q)
            return wide.norm(b - q)

        def solve(b: Any, x: Any, atol: float, maxiter: int, report: Any) -> Outcome:
            """Iterate; ``report`` gives x at the caller's scale."""
            at_zero = not ranks.most(np.any(x))
            rhs, u = (vectors.made(own.hold, array) for array in (b, x))
            norm_b = vectors.norm(rhs)
            watched = report and (lambda u: watch(lambda: report(own.on_host(u.values))))
            given = product, vectors, true_residual, goal.rtol, preconditioner
            outcome = iterate(*given, rhs, u, atol, maxiter, watched, norm_b, at_zero)
            ranks.attempt(lambda: np.copyto(x, own.on_host(u.values)))
            return outcome._replace(right_side=norm_b)

        report = None if callback is None and saved is None else lambda x: x
        limit = max(goal.maxiter - before, 0)
        norm_b = Vectors(ranks, host, b.dtype).norm(Vector(vectors, b))
        with np.errstate(all="ignore"):
            if scaling.is_safe(norm_b, b.itemsize):
                outcome = ranks.agreed(solve, b, x, goal.atol, limit, report)
            else:
                given = {"atol": goal.atol, "maxiter": limit, "callback": report}
                outcome = ranks.agreed(lambda: scaling.solve(solve, b, x, most=ranks.most, **given))
    outcome = outcome._replace(iterations=outcome.iterations + before)
    return outcome, {
        "device": CPU if place is None else place.name,
        "method": "cg",
        "ranks": ranks.size,
        "continued_from": before,
        "iterations": outcome.iterations,
        "residual": outcome.residual,
        "converged": outcome.status == CONVERGED,
        "status": outcome.status,
    }


def checked_vector(
    name: str, vector: Any, shape: tuple[int, ...], taken: str = "an array"
) -> np.ndarray:
    """A rank's part of a vector; ValueError for another shape, or what is not real."""
    vector = checked_array(name, vector, taken)
    if vector.shape != shape and vector.shape != (*shape, 1):
        raise ValueError(f"{name} must have shape {shape}, got {vector.shape}")
    if vector.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be real, got dtype {vector.dtype}")
    return vector.reshape(shape)


def checked_array(name: str, given: Any, taken: str = "an array") -> np.ndarray:
    """What NumPy makes an array of numbers of; ValueError for sparse matrices and operators."""
    array = np.asarray(given)
    if array.dtype.kind == "O":
        raise ValueError(f"{name} must be {taken}, got {type(given).__name__}")
    return array
