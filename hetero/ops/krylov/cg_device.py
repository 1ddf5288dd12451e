"""Conjugate gradients on devices: matrix, vectors and scalars stay there until the end.

`_iterate` is the method. The launches of its steps are in `cg_grids` and `cg_matrices`, what lies
on the devices is in `cg_vectors`, and what several devices copy from each other in
`hetero.ops.linear_systems.exchange`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.devices import meetings
from hetero.devices.base import Device
from hetero.kernels.cg.plan_stencil import HALO
from hetero.ops.krylov.cg_grids import Preconditioned, Sweeps, persistent
from hetero.ops.krylov.cg_matrices import KINDS
from hetero.ops.krylov.cg_vectors import Loop, Vectors
from hetero.ops.linear_systems.systems import (
    CONVERGED,
    INDEFINITE,
    LIMIT,
    NOT_FINITE,
    Csr,
    Dense,
    Outcome,
    Stencil,
    is_safe,
    least_tolerance,
    scaled,
    unknowns,
)

_STATUS = {0: LIMIT, 1: CONVERGED, 2: INDEFINITE, 3: NOT_FINITE}
_LONGEST_BATCH = 1024


def solve(
    devices: Sequence[Device],
    system: Stencil | Csr | Dense,
    b: Any,
    x: Any,
    *,
    rtol: float,
    atol: float,
    maxiter: int,
    preconditioner: Any = None,
    callback: Callable[[np.ndarray], object] | None = None,
    dtype: Any = None,
    going_on: tuple[np.ndarray, np.ndarray] | None = None,
) -> Outcome:
    """Solve A x = b for a symmetric positive definite A; see `cg_cpu.solve` for what is not listed.

    Parameters
    ----------
    devices : sequence of Device
        One, or several of one kind: then rows are divided among them. Dense matrices on a device,
        and preconditioners of a device's own launches, take the first alone.
    system : Stencil, Csr or Dense
        Arrays on the host are uploaded for this call.
    b, x : (n,) numpy.ndarray or device buffer
        Right-hand side; start, and place of the result. Of one dtype, float32 or float64, and
        contiguous. Device buffers lie on the only device.
    preconditioner : optional
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
    diagonal = preconditioner if isinstance(preconditioner, np.ndarray) else None
    M = preconditioner if diagonal is None else None
    used = list(devices)
    if isinstance(system, Stencil):
        used = used[: max(1, system.shape[0] // HALO)]
    on_device = isinstance(system, Dense) and not isinstance(system.array, np.ndarray)
    if on_device or M is not None:
        used = used[:1]

    def run(
        b: Any, x: Any, atol: float, maxiter: int, callback: Any, checked: bool = True
    ) -> Outcome | None:
        """Solve; None where the squares of b are not safe to work with, unless it is scaled."""
        # One device is active from here on, not for each launch.
        with used[0].active() if len(used) == 1 else meetings.turn(used):
            vectors = Vectors(used, system, b, x, dtype, diagonal)
            try:
                loop = _loop(vectors, system, diagonal is not None, M, callback is not None)
                limits = rtol, atol, maxiter, callback
                return _iterate(loop, *limits, going_on, checked)
            except BaseException:
                with contextlib.suppress(Exception):
                    vectors.exchange.synchronize()
                raise

    if (outcome := run(b, x, atol, maxiter, callback, checked=False)) is not None:
        return outcome
    limits = {"atol": atol, "maxiter": maxiter, "callback": callback}
    if isinstance(b, np.ndarray) and isinstance(x, np.ndarray):
        return scaled(run, b, x, **limits)
    with devices[0].active():
        rhs, start = (np.empty(unknowns(system), dtype) for _ in range(2))
        devices[0].download(b, rhs)
        devices[0].download(x, start)
        outcome = scaled(run, rhs, start, **limits)
        devices[0].upload(start, x)
    return outcome


def _iterate(
    loop: Loop,
    rtol: float,
    atol: float,
    maxiter: int,
    callback: Callable[[np.ndarray], object] | None,
    going_on: tuple[np.ndarray, np.ndarray] | None,
    checked: bool,
) -> Outcome | None:
    """Iterate, and begin anew from the true residual until that meets the tolerance.

    An iteration, of which each device computes its own rows (M = 1, or a diagonal matrix):

        q = A p
        alpha = r.z / p.q,  r.z' = r.z - 2 alpha z.q + alpha^2 q.Mq,  beta = r.z' / r.z
        x = x + alpha p,  r = r - alpha q,  z = M r,  p = z + beta p

    The device decides when it stops, by r.r, which the host looks at once for many iterations.
    """
    vectors = loop.vectors
    # 1. r = b - A x and p = M r.
    r_r, b_b = loop.residual()
    if not (checked or is_safe(math.sqrt(b_b), vectors.dtype.itemsize)):
        loop.exchange.synchronize()  # before memory is free
        return None
    status, done, first, before = CONVERGED, 0, r_r, r_r
    if going_on is not None:
        for vector, name in zip(going_on, ("r", "p"), strict=True):
            vectors.parts[0].upload(vector, name)
        before = math.inf  # the true residual may differ from the recurrence's
    if math.isfinite(r_r + b_b):
        vectors.copy("start", "x")
    else:
        status = NOT_FINITE
    # 2. Until norm(r) <= tolerance for the true residual r.
    tolerance = max(rtol * math.sqrt(b_b), atol)
    target = tolerance * tolerance
    # As on the CPU: what the recurrence says is not to be followed down to nothing.
    lowest = max(target, least_tolerance(vectors.dtype) ** 2 * b_b)
    while status == CONVERGED and r_r > target:
        if done >= maxiter:
            status = LIMIT
            break
        # 3. Iterate until the recurrence's own residual is small enough.
        loop.start(lowest)
        status, count = _until_stopped(loop, maxiter - done, callback)
        done += count
        loop.finish()
        # 4. The true residual, and what it says of the recurrence's.
        r_r, _ = loop.residual()
        if not math.isfinite(r_r) and not np.isfinite(vectors.fetch()).all():
            vectors.copy("x", "start")
            status, r_r = NOT_FINITE, first
        elif r_r <= target:
            status = CONVERGED
        elif status == CONVERGED and not r_r <= before / 4:
            status = LIMIT
        before = r_r
    if isinstance(vectors.result, np.ndarray):
        vectors.fetch()
    return Outcome(status, done, math.sqrt(r_r), math.sqrt(b_b))


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


def _loop(vectors: Vectors, system: Any, diagonal: bool, M: Any, every: bool) -> Loop:
    """The iteration that suits system and preconditioner, with its buffers."""
    if not isinstance(system, Stencil):
        return KINDS[type(system)](vectors, system, diagonal)
    if M is not None:
        return Preconditioned(vectors, system, M)
    resident = None if diagonal or every else persistent(vectors, system)
    return resident or Sweeps(vectors, system, diagonal, every)
