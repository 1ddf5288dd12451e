"""Conjugate gradients on devices: matrix, vectors and scalars stay there until the end."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.ops.krylov.cg_loops import HALO, Loop, Preconditioned, Steps, Sweeps
from hetero.ops.krylov.cg_matrices import CsrMatrix, DenseMatrix, StencilMatrix
from hetero.ops.krylov.cg_parts import RECORD
from hetero.ops.krylov.cg_persistent import persistent
from hetero.ops.krylov.cg_vectors import Vectors
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
) -> Outcome:
    """Solve A x = b for a symmetric positive definite A.

    Parameters
    ----------
    devices : sequence of Device
        One, or several of one kind: then rows are divided evenly among them. Dense matrices, and
        preconditioners of their own launches, take the first alone.
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
        default queue.
    callback : callable, optional
        Called after each iteration with x on the host, which is fetched for it each time.
    check_every : int, optional
        Iterations between two looks at the scalars. Default: by their measured time, so that
        looking takes no more than a twentieth of it. The result does not depend on it.
    dtype : optional
        Of b and x where both are device buffers and the system has no array on the host.

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

    References
    ----------
    T. Chen and E. Carson, "Predict-and-recompute conjugate gradient variants", SIAM J. Sci.
    Comput. 42 (2020), A3084-A3108: algorithm PR-CG. M. R. Hestenes and E. Stiefel, "Methods of
    conjugate gradients for solving linear systems", J. Res. Nat. Bur. Stand. 49 (1952).
    """
    dtype = _dtype(dtype, b, x, system)
    run = _Run(rtol, atol, maxiter, callback, check_every)
    try:
        return _run(run, devices, system, b, x, dtype, preconditioner)
    except _OutOfRange:
        pass

    def scaled(b: Any, x: Any, atol: float, maxiter: int, callback: Any) -> Outcome:
        run = _Run(rtol, atol, maxiter, callback, check_every, checked=True)
        return _run(run, devices, system, b, x, dtype, preconditioner)

    limits = {"atol": atol, "maxiter": maxiter, "callback": callback}
    if isinstance(b, np.ndarray) and isinstance(x, np.ndarray):
        return scaling.solve(scaled, b, x, **limits)
    with devices[0].active():
        rhs, start = (np.empty(_unknowns(system), dtype) for _ in range(2))
        devices[0].download(b, rhs)
        devices[0].download(x, start)
        outcome = scaling.solve(scaled, rhs, start, **limits)
        devices[0].upload(start, x)
    return outcome


def _run(
    run: _Run,
    devices: Sequence[Device],
    system: Any,
    b: Any,
    x: Any,
    dtype: np.dtype,
    preconditioner: Any,
) -> Outcome:
    """Make what a solve needs on the devices, and run it."""
    try:
        with _entered(devices, system, preconditioner) as used:
            vectors = Vectors(used, system, b, x, dtype, preconditioner)
            loop = _loop(vectors, system, dtype, preconditioner, run.every)
            try:
                return run.solve(loop, vectors)
            except BaseException:
                with contextlib.suppress(Exception):
                    loop.synchronize()
                raise
    except DeviceError as error:
        if not run.begun:
            raise
        raise DeviceFailed(error, run.saved, run.saved_at) from error


class _OutOfRange(Exception):
    """The squares of b are not safe to work with: see `hetero.ops.linear_systems.scaling`."""


class _Run:
    """One solve: when to look, when to start again, what to save."""

    def __init__(
        self,
        rtol: float,
        atol: float,
        maxiter: int,
        callback: Callable[[np.ndarray], object] | None,
        check_every: int | None,
        checked: bool = False,
    ) -> None:
        self._checked = checked
        self._rtol, self._atol, self._maxiter = rtol, atol, maxiter
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

    def solve(self, loop: Loop, vectors: Vectors) -> Outcome:
        loop.every = self.every
        squared, of_b = loop.residual()
        if not (self._checked or scaling.is_safe(math.sqrt(of_b), vectors.dtype.itemsize)):
            raise _OutOfRange
        self.begun = True
        done = 0
        if not math.isfinite(squared + of_b):
            return self._end(vectors, NOT_FINITE, 0, squared, of_b)
        vectors.keep_start()
        first = squared
        tolerance = max(self._rtol * math.sqrt(of_b), self._atol)
        target = tolerance * tolerance
        # As on the CPU: what the recurrence says is not to be followed down to nothing.
        lowest = max(target, least_tolerance(vectors.dtype) ** 2 * of_b)
        status = CONVERGED
        while squared > target:
            if done >= self._maxiter:
                status = LIMIT
                break
            loop.start(lowest)
            status, count = self._iterate(loop, vectors, done)
            done += count
            loop.finish()
            before, (squared, _) = squared, loop.residual()
            if not math.isfinite(squared) and not vectors.is_finite():
                vectors.return_to_start()
                return self._end(vectors, NOT_FINITE, done, first, of_b)
            if squared <= target:
                status = CONVERGED
            elif status == CONVERGED and not squared <= before / 4:
                status = LIMIT
            if status != CONVERGED:
                break
        return self._end(vectors, status, done, squared, of_b)

    def _iterate(self, loop: Loop, vectors: Vectors, done: int) -> tuple[str, int]:
        """Iterate until the device says stop, or the limit; (status, iterations)."""
        limit = self._maxiter - done
        at, status, count = 0, 0, 0
        while at < limit and status == 0:
            began = time.monotonic()
            batch = min(self._batch(loop), limit - at)
            loop.advance(at + batch)
            at += batch
            status, count = loop.record()
            now = time.monotonic()
            self._iteration_seconds = (now - began) / batch
            if status:
                break
            if self._callback is not None:
                self._report(vectors)
            if now - self._saved_time > _CHECKPOINT_SECONDS and (at % 2 == 0 or loop.every):
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

    @staticmethod
    def _end(vectors: Vectors, status: str, done: int, squared: float, of_b: float) -> Outcome:
        vectors.hand_back()
        residual = math.sqrt(squared) if squared >= 0 else math.nan
        return Outcome(status, done, residual, math.sqrt(of_b) if of_b >= 0 else math.nan)


def _unknowns(system: Any) -> int:
    if isinstance(system, Stencil):
        return math.prod(system.shape)
    return system.n if isinstance(system, Dense) else len(system.indptr) - 1


def _dtype(dtype: Any, b: Any, x: Any, system: Any) -> np.dtype:
    """The solve's dtype, from the first thing that has one."""
    arrays = (b, x, getattr(system, "data", None), getattr(system, "array", None))
    found = [a.dtype for a in arrays if isinstance(a, np.ndarray)]
    chosen = np.dtype(dtype) if dtype is not None else (found or [None])[0]
    if chosen not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {chosen}")
    return chosen


@contextlib.contextmanager
def _entered(devices: Sequence[Device], system: Any, preconditioner: Any) -> Any:
    """The devices that take part; a single one is active inside."""
    launches = preconditioner is not None and not isinstance(preconditioner, np.ndarray)
    rows = system.shape[0] // HALO if isinstance(system, Stencil) else len(devices)
    used = list(devices)[: max(1, rows)]
    if isinstance(system, Dense) or launches:
        used = used[:1]
    if len(used) > 1:
        yield used
        return
    with used[0].active():
        yield used


def _loop(vectors: Vectors, system: Any, dtype: np.dtype, preconditioner: Any, every: bool) -> Loop:
    """The iteration that suits system and preconditioner, with its buffers."""
    parts = vectors.parts
    diagonal = isinstance(preconditioner, np.ndarray)
    plain = preconditioner is not None and not diagonal
    if isinstance(system, Stencil) and not plain:
        if len(parts) == 1 and not diagonal and not every:
            loop = persistent(parts[0], system, dtype)
            if loop is not None:
                return loop
        return Sweeps(parts, system, vectors.slabs, dtype, diagonal)
    sizes = [end - begin for begin, end in vectors.spans]
    for part, rows in zip(parts, sizes, strict=True):
        part.room(rows * dtype.itemsize, "r", "q")
        part.room(8 * RECORD, "record0", "record1")
        if not isinstance(system, Csr):
            part.room(rows * dtype.itemsize, "p")
    if isinstance(system, Stencil):
        matrix = StencilMatrix(parts[0], system, dtype)
    elif isinstance(system, Csr):
        matrix = CsrMatrix(parts, system, vectors.spans, dtype, diagonal, plain)
        vectors.load_x()
    else:
        matrix = DenseMatrix(parts[0], system, dtype, diagonal, plain)
    if plain:
        return Preconditioned(matrix, vectors.n, dtype, preconditioner.apply)
    return Steps(matrix, sizes, dtype)
