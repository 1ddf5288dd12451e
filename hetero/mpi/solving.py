"""A solve over the ranks, whatever the system: what each takes, the iteration, how it went."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.calling import planner
from hetero.devices.base import Device
from hetero.errors import MethodNotAvailable
from hetero.imports import load
from hetero.mpi.checkpoints import Checkpoint
from hetero.mpi.products import DenseRows, HostVectors, Rows
from hetero.mpi.ranks import Ranks
from hetero.ops.solvers.cg_loop import is_doubtful
from hetero.ops.solvers.systems import CONVERGED, Outcome, Solve, is_safe, scaled
from hetero.pricing.plan import CPU
from hetero.profile import inventory


def place_of(ranks: Ranks, device: str | None, rows: Any, b: np.ndarray) -> Device | None:
    """The device for a rank's own rows, None for the CPU.

    ``device`` is "cpu", a device, or a kind of them, which ranks of a node share by turns. Default:
    that of a `use` block, else by the plan of conjugate gradients for the rank's own square piece.
    """
    device = planner.placement(device, None)[0]
    if device is None and b.size and not inventory.is_host_alone(None):
        problem = load("hetero.ops.solvers.cg").OPERATION.problem(rows.square(b.dtype), b)
        device = planner.plan(problem).chosen.device.partition(":")[0]  # its kind
    if device in (None, CPU) or not b.size:
        return None
    available = load("hetero.devices").available()
    if device in available:
        return available[device]
    names = sorted(name for name in available if name.partition(":")[0] == device)
    return available[names[ranks.node_rank % len(names)]]


def checked_goal(
    method: str | None, device: str | None, checkpoint: Any, every: float, **until: float
) -> dict[str, Any]:
    """When a solve ends, and where it is saved; raises where something of it is no method, path or
    time, or the device, also that of a `use` block, is none that a rank can take."""
    if method not in (None, "cg"):
        raise MethodNotAvailable(f"method must be 'cg', got {method!r}")
    if not float(every) >= 0.0:
        raise ValueError(f"every must be at least 0 seconds, got {every!r}")
    device = planner.placement(device, None)[0]
    planner.check_placement("cg", device, None)
    if device is not None and "*" in device:
        raise ValueError(f"device must be one device of this rank, got {device!r}")
    path = None if checkpoint is None else os.fsdecode(checkpoint)
    return until | {"checkpoint": path, "every": float(every)}


def run(
    ranks: Ranks,
    rows: Rows | DenseRows,
    b: np.ndarray,
    x: np.ndarray,
    goal: dict[str, Any],
    known: dict[str, Any],
    device: str | None,
    *,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    **matrix: Any,
) -> tuple[Outcome, dict[str, Any]]:
    """Solve A x = b from x, which is overwritten; a collective call. Gives how it was done, too.

    ``rows`` are this rank's of A, and b and x its parts of the vectors. ``M`` is a diagonal, or
    ``apply(r, z)`` that writes z = M r. ``known`` tells the problem from others, the same on every
    rank, for JSON; by ``A`` checkpoints tell it, too. ``device``: see `place_of`.
    """
    with contextlib.ExitStack() as stack, np.errstate(all="ignore"):
        place = ranks.agreed(place_of, ranks, device, rows, b)
        host = vectors = HostVectors(ranks)
        if place is None:
            product = rows.product(b.dtype)
        else:
            stack.enter_context(place.active())
            of_device = load("hetero.mpi.on_device").vectors_and_product
            vectors, product = of_device(ranks, place, rows, b.dtype)
        if isinstance(M, np.ndarray):
            M = functools.partial(vectors.multiply, vectors.hold(M))
        saved, before = None, 0
        if goal["checkpoint"] is not None:
            saved = Checkpoint(ranks, goal["checkpoint"], goal["every"], known, {**matrix, "b": b})
            saved.read(x)
            before = saved.done
        called, n = ranks.most(callback is not None), ranks.total(b.size)

        def watch(x: Callable[[], np.ndarray]) -> None:
            """What happens after each iteration: the caller's callback, and checkpoints."""
            if called:
                ranks.agreed(lambda: callback and callback(x()))
            if saved is not None:
                saved.after(x)

        def true_residual(b: Any, x: Any, residual: float, bound: float, norm_b: float) -> float:
            """`matrices.true_residual`: in float64 where rounding to float32 may decide."""
            if not is_doubtful(b.dtype, n, residual, bound, norm_b):
                return residual
            b, x = (vectors.on_host(v).astype(np.float64) for v in (b, x))
            q = b.copy()
            rows.product(q.dtype).times(x, q)
            return host.norm(b - q)

        def solve(b: Any, x: Any, asked: Solve) -> Outcome:
            """Iterate; the callback gives x at the caller's scale."""
            report, at_zero = asked.callback, not ranks.most(np.any(x))
            rhs, u = vectors.hold(b), vectors.hold(x)
            norm_b = vectors.norm(rhs)
            watched = report and (lambda u: watch(lambda: report(vectors.on_host(u))))
            given = product, vectors, true_residual, M, rhs, u, asked._replace(callback=watched)
            outcome = load("hetero.ops.solvers.cg_loop").iterate(*given, norm_b, at_zero)
            np.copyto(x, vectors.on_host(u))
            return outcome._replace(right_side=norm_b)

        report, limit = (lambda x: x) if called or saved else None, goal["maxiter"] - before
        asked = Solve(None, goal["rtol"], goal["atol"], max(limit, 0), report)
        if is_safe(host.norm(b), b.itemsize):
            outcome = solve(b, x, asked)
        else:
            outcome = scaled(solve, b, x, asked, ranks.most)
    outcome = outcome._replace(iterations=outcome.iterations + before)
    how = {"device": CPU if place is None else place.name, "method": "cg", "ranks": ranks.size}
    how |= {"continued_from": before, "iterations": outcome.iterations}
    how |= {"residual": outcome.residual, "status": outcome.status}
    return outcome, how | {"converged": outcome.status == CONVERGED}


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
