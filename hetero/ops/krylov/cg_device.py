"""Conjugate gradients on devices: matrix, vectors and scalars stay there until the end.

`_iterate` is the method. The launches of its steps are in `cg_loops` and `cg_matrices`, what lies
on the devices is in `cg_vectors`, and what several devices copy from each other in
`hetero.ops.linear_systems.exchange`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero.devices import meetings
from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.ops.krylov.cg_loops import Loop, MatrixLoop, Preconditioned, Sweeps
from hetero.ops.krylov.cg_matrices import of_system
from hetero.ops.krylov.cg_persistent import persistent
from hetero.ops.krylov.cg_vectors import HALO, Vectors
from hetero.ops.linear_systems import scaling
from hetero.ops.linear_systems.types import (
    CONVERGED,
    INDEFINITE,
    LIMIT,
    NOT_FINITE,
    Csr,
    Dense,
    DeviceFailed,
    Outcome,
    Stencil,
    least_tolerance,
    unknowns,
)

_STATUS = {0: LIMIT, 1: CONVERGED, 2: INDEFINITE, 3: NOT_FINITE}
_LONGEST_BATCH = 1024
_CHECKPOINT_SECONDS = 2.0


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
    check_every: int | None = None,
    dtype: Any = None,
    going_on: tuple[np.ndarray, np.ndarray] | None = None,
    from_zero: bool = False,
) -> Outcome:
    """Solve A x = b for a symmetric positive definite A.

    Parameters
    ----------
    devices : sequence of Device
        One, or several of one kind: then rows are divided among them. Dense matrices on a device,
        and preconditioners of one device's own launches, take the first alone.
    system : Stencil, Csr or Dense
        Arrays on the host are uploaded for this call.
    b, x : (n,) numpy.ndarray or device buffer
        Right-hand side; start, and place of the result. Of one dtype, float32 or float64. Device
        buffers are contiguous and lie on the only device.
    rtol, atol : float
        Done when norm(b - A x) <= max(rtol norm(b), atol). With both zero, ``maxiter`` iterations
        are done unless the residual becomes exactly zero.
    maxiter : int
    preconditioner : optional
        (n,) numpy.ndarray: the inverse of a diagonal matrix. Otherwise an object whose
        ``apply(r, z)`` starts the launches of z = M r, for buffers of the only device, in its
        default queue, and whose ``files()`` are the kernel files of these launches. For a stencil
        on several devices, ``preconditioner(devices)``: a context with a `SharedHierarchy`, as
        `multigrid_device.held` makes it.
    callback : callable, optional
        Called after each iteration with x on the host, which is fetched for it each time.
    check_every : int, optional
        Iterations between two looks at the scalars. Default: by their measured time, so that
        looking takes no more than a twentieth of it. The result does not depend on it.
    dtype : optional
        Of b and x where both are device buffers and the system has no array on the host.
    going_on : two (n,) numpy.ndarray, optional
        The recurrence's residual and next direction, of a matrix on one device, to go on from an
        iteration elsewhere. Default: b - A x, and the direction of steepest descent.
    from_zero : bool
        Start from zero; what x holds then does not matter. For x on the host.

    Returns
    -------
    Outcome
        CONVERGED only where b - A x, computed anew, meets the tolerance. Where the recurrence's
        residual did but the true one does not, the iteration starts again from the true one; it
        ends as LIMIT when that no longer halves it.

    Raises
    ------
    DeviceFailed
        If a device fails once the iteration has begun; it carries the x that was last saved on
        the host, which happens every other second.
    DeviceError
        If it fails before.

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
    `MatrixLoop`, sparse          14 n + 2 nnz          10 n + nnz values, indices
    `MatrixLoop`, dense           14 n + 2 n^2          10 n + n^2
    `Preconditioned`              10 n, with A and M    11 n, with A and M
    ============================  ====================  =========================

    References
    ----------
    T. Chen and E. Carson, "Predict-and-recompute conjugate gradient variants", SIAM J. Sci.
    Comput. 42 (2020), A3084-A3108: algorithm PR-CG. M. R. Hestenes and E. Stiefel, "Methods of
    conjugate gradients for solving linear systems", J. Res. Nat. Bur. Stand. 49 (1952).
    """
    dtype = _dtype(dtype, b, x, system)

    def run(
        b: Any, x: Any, atol: float, maxiter: int, callback: Any, checked: bool = True
    ) -> Outcome:
        goal = _Goal(rtol, atol, maxiter, checked, going_on)
        watch = _Watch(callback, check_every)
        start = preconditioner, from_zero and not checked
        return _on_devices(devices, system, b, x, dtype, *start, goal, watch)

    with contextlib.suppress(_OutOfRange):
        return run(b, x, atol, maxiter, callback, checked=False)
    limits = {"atol": atol, "maxiter": maxiter, "callback": callback}
    if from_zero:
        x[...] = 0
    if isinstance(b, np.ndarray) and isinstance(x, np.ndarray):
        return scaling.solve(run, b, x, **limits)
    with devices[0].active():
        rhs, start = (np.empty(unknowns(system), dtype) for _ in range(2))
        devices[0].download(b, rhs)
        devices[0].download(x, start)
        outcome = scaling.solve(run, rhs, start, **limits)
        devices[0].upload(start, x)
    return outcome


class _OutOfRange(Exception):
    """The squares of b are not safe to work with: see `hetero.ops.linear_systems.scaling`."""


class _Goal(NamedTuple):
    """Where a solve begins and ends; ``checked``: the squares of b are safe to work with."""

    rtol: float
    atol: float
    maxiter: int
    checked: bool
    going_on: tuple[np.ndarray, np.ndarray] | None


def _iterate(loop: Loop, vectors: Vectors, goal: _Goal, watch: _Watch) -> Outcome:
    """Iterate, and begin anew from the true residual until that meets the tolerance.

    An iteration, of which each device computes its own rows (M = 1, or a diagonal matrix):

        q = A p
        alpha = r.z / p.q,  r.z' = r.z - 2 alpha z.q + alpha^2 q.Mq,  beta = r.z' / r.z
        x = x + alpha p,  r = r - alpha q,  z = M r,  p = z + beta p

    The device decides when it stops, by r.r, which the host looks at once for many iterations.
    """
    # 1. r = b - A x, p = M r.
    r_r, b_b = loop.residual()
    if not (goal.checked or scaling.is_safe(math.sqrt(b_b), vectors.dtype.itemsize)):
        raise _OutOfRange
    watch.begun = True
    done = 0
    if not math.isfinite(r_r + b_b):
        return _end(vectors, NOT_FINITE, 0, r_r, b_b)
    vectors.keep_start()
    first = r_r
    # 2. Until norm(r) <= max(rtol norm(b), atol) for the true residual r.
    tolerance = max(goal.rtol * math.sqrt(b_b), goal.atol)
    target = tolerance * tolerance
    # As on the CPU: what the recurrence says is not to be followed down to nothing.
    lowest = max(target, least_tolerance(vectors.dtype) ** 2 * b_b)
    status = CONVERGED
    before = r_r
    if goal.going_on is not None:
        # Directions belong to the recurrence's residual: with another one, iterations diverge.
        before = math.inf
        for vector, name in zip(goal.going_on, ("r", "p"), strict=True):
            vectors.parts[0].upload(vector, name)
    while r_r > target:
        if done >= goal.maxiter:
            status = LIMIT
            break
        # 3. Iterate until the recurrence's own residual is small enough.
        loop.start(lowest)
        status, count = watch.iterate(loop, vectors, done, goal.maxiter)
        done += count
        loop.finish()
        # 4. The true residual, and what it says of the recurrence's.
        r_r, _ = loop.residual()
        if not math.isfinite(r_r) and not vectors.is_finite():
            vectors.return_to_start()
            return _end(vectors, NOT_FINITE, done, first, b_b)
        if r_r <= target:
            status = CONVERGED
        elif status == CONVERGED and not r_r <= before / 4:
            status = LIMIT
        if status != CONVERGED:
            break
        before = r_r
    return _end(vectors, status, done, r_r, b_b)


def _end(vectors: Vectors, status: str, done: int, r_r: float, b_b: float) -> Outcome:
    """Hand x back, and tell how the solve ended."""
    vectors.hand_back()
    residual = math.sqrt(r_r) if r_r >= 0 else math.nan
    return Outcome(status, done, residual, math.sqrt(b_b) if b_b >= 0 else math.nan)


class _Watch:
    """When the host looks at an iteration on the devices, and what it then tells and saves.

    Attributes
    ----------
    begun : bool
        Whether the iteration began; from then on a device that fails leaves something behind:
    saved, saved_at
        The x last saved on the host, or None, and its number of iterations.
    """

    def __init__(
        self, callback: Callable[[np.ndarray], object] | None, check_every: int | None
    ) -> None:
        self._callback = callback
        self._check_every = 1 if callback is not None else check_every
        self._iteration_seconds: float | None = None
        self.begun = False
        self.saved: np.ndarray | None = None
        self.saved_at = 0
        self._saved_time = time.monotonic()

    @property
    def every(self) -> bool:
        """Whether x must be whole after each iteration."""
        return self._callback is not None

    def iterate(self, loop: Loop, vectors: Vectors, done: int, maxiter: int) -> tuple[str, int]:
        """Iterate until the device says stop, or the limit; (status, iterations)."""
        limit = maxiter - done
        at, status, count = 0, 0, 0
        while at < limit and status == 0:
            began = time.monotonic()
            batch = min(self._batch(loop), limit - at)
            loop.advance(at + batch)
            at += batch
            status, count = loop.record()
            now = time.monotonic()
            self._iteration_seconds = (now - began) / batch
            if now - began >= meetings.PATIENCE / 2:
                loop.exchange.check()
            if status:
                break
            if self._callback is not None:
                self._report(vectors)
            if now - self._saved_time > _CHECKPOINT_SECONDS and (at % 2 == 0 or loop.every):
                loop.exchange.check()
                self.saved, self.saved_at = vectors.fetch(), done + at
                self._saved_time = time.monotonic()
        return _STATUS[status], count

    def _batch(self, loop: Loop) -> int:
        """Iterations to start before looking; even, for x is whole after an even number."""
        if self._check_every is not None:
            return max(1, self._check_every)
        if self._iteration_seconds is None:
            return loop.first_batch
        wanted = loop.batch_seconds / max(self._iteration_seconds, 1e-9)
        return 2 * max(1, min(math.ceil(wanted / 2), _LONGEST_BATCH // 2))

    def _report(self, vectors: Vectors) -> None:
        if isinstance(vectors.result, np.ndarray):
            vectors.hand_back()
            self._callback(vectors.result)
        else:
            self._callback(vectors.fetch())


def _on_devices(
    devices: Sequence[Device],
    system: Any,
    b: Any,
    x: Any,
    dtype: np.dtype,
    preconditioner: Any,
    from_zero: bool,
    goal: _Goal,
    watch: _Watch,
) -> Outcome:
    """Make what a solve needs on the devices, and run it."""
    diagonal = isinstance(preconditioner, np.ndarray)
    several = callable(preconditioner)
    used = list(devices)
    if isinstance(system, Stencil):
        used = used[: max(1, system.shape[0] // HALO)]
    on_device = isinstance(system, Dense) and not isinstance(system.array, np.ndarray)
    if on_device or not (preconditioner is None or diagonal or several):
        used = used[:1]
    try:
        with (
            # One device is active from here on, not for each launch.
            used[0].active() if len(used) == 1 else meetings.turn(used),
            preconditioner(used) if several else contextlib.nullcontext() as hierarchy,
        ):
            inverse = preconditioner if diagonal else None
            vectors = Vectors(used, system, b, x, dtype, inverse, from_zero, hierarchy)
            M = hierarchy or (None if diagonal else preconditioner)
            loop = _loop(vectors, system, diagonal, M, watch.every)
            for part in vectors.parts if M is not None else ():
                with part.active():
                    part.build(M.files())
            loop.every = watch.every
            try:
                return _iterate(loop, vectors, goal, watch)
            except BaseException:
                with contextlib.suppress(Exception):
                    vectors.exchange.synchronize()
                raise
    except DeviceError as error:
        if not watch.begun:
            raise
        raise DeviceFailed(error, watch.saved, watch.saved_at) from error


def _loop(vectors: Vectors, system: Any, diagonal: bool, M: Any, every: bool) -> Loop:
    """The iteration that suits system and preconditioner, with its buffers."""
    plain = M is not None
    if isinstance(system, Stencil) and not plain:
        resident = None if diagonal or every else persistent(vectors, system)
        return resident or Sweeps(vectors, system, diagonal)
    matrix = of_system(vectors, system, diagonal, plain)
    return Preconditioned(matrix, M) if plain else MatrixLoop(matrix)


def _dtype(dtype: Any, b: Any, x: Any, system: Any) -> np.dtype:
    """The solve's dtype, from the first thing that has one."""
    arrays = (b, x, getattr(system, "data", None), getattr(system, "array", None))
    found = [a.dtype for a in arrays if isinstance(a, np.ndarray)]
    chosen = np.dtype(dtype) if dtype is not None else (found or [None])[0]
    if chosen not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {chosen}")
    return chosen
