"""Conjugate gradients on devices: matrix, vectors and scalars stay there until the end.

`_iterate` is the method. The launches of its steps are in `cg_grids` and `cg_matrices`, what lies
on the devices is in `cg_vectors`, and what several devices copy from each other in
`hetero.ops.linear_systems.exchange`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.devices import meetings
from hetero.devices.base import Device
from hetero.kernels.cg.plan_stencil import HALO
from hetero.ops.krylov.cg import restarted
from hetero.ops.krylov.cg_grids import Preconditioned, Sweeps, persistent, stencil_product
from hetero.ops.krylov.cg_matrices import KINDS
from hetero.ops.krylov.cg_vectors import Loop, Vectors
from hetero.ops.linear_systems import systems
from hetero.ops.linear_systems.exchange import Part
from hetero.ops.linear_systems.systems import Csr, Dense, Outcome, Solve, Stencil

_STATUS = (systems.LIMIT, systems.CONVERGED, systems.INDEFINITE, systems.NOT_FINITE)
_LONGEST_BATCH = 1024


def solve(
    devices: Sequence[Device],
    system: Stencil | Csr | Dense,
    b: Any,
    x: Any,
    asked: Solve,
    M: Any = None,
    *,
    dtype: Any = None,
    going_on: tuple[np.ndarray, np.ndarray] | None = None,
) -> Outcome:
    """Solve A x = b for a symmetric positive definite A.

    Parameters
    ----------
    devices : sequence of Device
        One, or several of one kind: then rows are divided among them. Dense matrices on a device,
        and preconditioners of a device's own launches, take the first alone.
    system : Stencil, Csr or Dense
        Arrays on the host are uploaded for this call.
    b, x : (n,) numpy.ndarray, or buffers of the only device
        Right-hand side; start, and place of the result: contiguous, float32 or float64.
    M : optional
        (n,) numpy.ndarray: the inverse of a diagonal matrix. Or for a stencil a `DeviceHierarchy`
        of the first device.
    dtype : optional
        Of b and x. Default: that of b, an array.
    going_on : two (n,) numpy.ndarray, optional
        The recurrence's residual and next direction, of a matrix on one device, to go on from an
        iteration elsewhere. Default: b - A x, and the direction of steepest descent.

    Notes
    -----
    Work of an iteration, for n unknowns and a matrix of nnz entries; elements are those read and
    written, and what A and M take themselves comes beside it.

    ============================  ====================  =========================
    iteration                     flops                 elements
    ============================  ====================  =========================
    `Sweeps`, 2-D                 28 n                  5.5 n
    `Sweeps`, 3-D                 32 n                  5.5 n
    `Persistent`                  24 n                  edges and sums
    `CsrMatrix`                   14 n + 2 nnz          10 n + nnz values, indices
    `DenseMatrix`                 14 n + 2 n^2          10 n + n^2
    `Preconditioned`              10 n, with A and M    11 n, with A and M
    ============================  ====================  =========================

    References
    ----------
    T. Chen and E. Carson, "Predict-and-recompute conjugate gradient variants", SIAM J. Sci.
    Comput. 42 (2020), A3084-A3108: algorithm PR-CG. M. R. Hestenes and E. Stiefel, "Methods of
    conjugate gradients for solving linear systems", J. Res. Nat. Bur. Stand. 49 (1952).
    """
    dtype = np.dtype(b.dtype if dtype is None else dtype)
    diagonal = M if isinstance(M, np.ndarray) else None
    used = list(devices)
    if isinstance(system, Stencil):
        used = used[: max(1, system.shape[0] // HALO)]
    on_device = isinstance(system, Dense) and not isinstance(system.array, np.ndarray)
    if on_device or M is not diagonal:
        used = used[:1]

    def run(b: Any, x: Any, asked: Solve, checked: bool = True) -> Any:
        """Solve; None where the squares of b are not safe to work with, unless it is scaled."""
        # One device is active from here on, not for each launch.
        with used[0].active() if len(used) == 1 else meetings.turn(used):
            vectors = Vectors(used, system, b, x, dtype, diagonal)
            try:
                loop = _loop(vectors, system, M, asked.callback is not None)
                return _iterate(loop, asked, going_on, checked)
            except BaseException:
                with contextlib.suppress(Exception):
                    vectors.exchange.synchronize()
                raise

    if (outcome := run(b, x, asked, checked=False)) is not None:
        return outcome
    if isinstance(b, np.ndarray) and isinstance(x, np.ndarray):
        return systems.scaled(run, b, x, asked)
    with devices[0].active():
        rhs, start = (np.empty(systems.unknowns(system), dtype) for _ in range(2))
        devices[0].download(b, rhs)
        devices[0].download(x, start)
        outcome = systems.scaled(run, rhs, start, asked)
        devices[0].upload(start, x)
    return outcome


def _iterate(
    loop: Loop, asked: Solve, going_on: tuple[np.ndarray, np.ndarray] | None, checked: bool
) -> Outcome | None:
    """Iterate, and begin anew from the true residual until that meets the tolerance.

    An iteration, of which each device computes its own rows, with M = 1 or a diagonal matrix. The
    numbers are the steps of Saad's algorithm 9.1 (see `cg`); r.z' is predicted, so that all
    sums of an iteration are made at once:

        3. q = A p,  alpha = r.z / p.q
        7. r.z' = r.z - 2 alpha z.q + alpha^2 q.Mq,  beta = r.z' / r.z
        4. x = x + alpha p   5. r = r - alpha q   6. z = M r   8. p = z + beta p

    The device decides when it stops, by r.r, which the host looks at once for many iterations.
    """
    vectors, callback = loop.vectors, asked.callback
    # 1. r = b - A x, z = M r, p = z.
    first, norm_b = map(math.sqrt, loop.residual())
    if not (checked or systems.is_safe(norm_b, vectors.dtype.itemsize)):
        loop.exchange.synchronize()  # before memory is free
        return None
    vectors.copy("start", "x")
    for vector, name in zip(going_on or (), ("r", "p"), strict=False):
        vectors.parts[0].upload(vector, name)
    bound, known = max(asked.rtol * norm_b, asked.atol), [first]
    # As on the CPU: what the recurrence says is not to be followed down to nothing.
    lowest = max(bound, systems.least_tolerance(vectors.dtype) * norm_b)

    def residual() -> float:
        return known.pop() if known else math.sqrt(loop.residual()[0])

    def steps(limit: int) -> tuple[str, int]:
        # 2. for j = 0, 1, ..., until convergence
        loop.start(lowest * lowest)
        ended = _until_stopped(loop, limit, callback)
        loop.finish()
        return ended

    again = going_on is not None  # the true residual may differ from the recurrence's
    ended = restarted(residual, steps, bound, asked.maxiter, once_more=again)
    status, done, norm = ended
    if status == systems.NOT_FINITE and not np.isfinite(vectors.fetch()).all():
        vectors.copy("x", "start")
        norm = first
    if isinstance(vectors.result, np.ndarray):
        vectors.fetch()
    return Outcome(status, done, norm, norm_b)


def _until_stopped(loop: Loop, limit: int, callback: Any) -> tuple[str, int]:
    """Iterate until the device says stop, or the limit; (status, iterations).

    The host looks after each iteration for a callback; else by the time that they take, so that
    looking takes no more than a twentieth of it, at an even number: x is whole then.
    """
    at = status = count = 0
    while at < limit and not status:
        batch = loop.first_batch if callback is None else 1
        if callback is None and loop.seconds is not None:
            wanted = math.ceil(loop.batch_seconds / max(loop.seconds, 1e-9) / 2)
            batch = 2 * max(1, min(wanted, _LONGEST_BATCH // 2))
        batch = min(batch, limit - at)
        at += batch
        began = time.monotonic()
        loop.advance(at)
        status, count = loop.record()
        took = time.monotonic() - began
        loop.seconds = took / batch
        if took >= meetings.PATIENCE / 2:
            loop.exchange.check()
        if callback is not None and not status:
            callback(loop.vectors.fetch())
    return _STATUS[status], count


def product(device: Device, system: Any, b: np.ndarray, x: Any) -> tuple[Part, Any]:
    """The part of a solve on one device alone, and what starts q = A p by its buffers "p", "q"."""
    vectors = Vectors((device,), system, b, x, b.dtype)
    if isinstance(system, Stencil):
        return vectors.parts[0], stencil_product(vectors)
    return vectors.parts[0], KINDS[type(system)](vectors, system, plain=True).times


def _loop(vectors: Vectors, system: Any, M: Any, every: bool) -> Loop:
    """The iteration that suits system and preconditioner, with its buffers."""
    diagonal = isinstance(M, np.ndarray)
    if not isinstance(system, Stencil):
        return KINDS[type(system)](vectors, system, diagonal)
    if M is not None and not diagonal:
        return Preconditioned(vectors, system, M)
    resident = None if diagonal or every else persistent(vectors, system)
    return resident or Sweeps(vectors, system, diagonal, every)
