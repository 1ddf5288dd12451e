"""Conjugate gradients that begin on the CPU and move to a device where that pays.

They go on there from the same x and r, in the direction that is conjugate to those before. At the
end r is computed anew from x, as at every end of iterations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.errors import DeviceError
from hetero.ops.krylov import cg_cpu, cg_device
from hetero.ops.linear_systems.types import DeviceFailed, Outcome

_clock = time.perf_counter


class _Moves(Exception):
    """Ends the iterations on the CPU."""

    def __init__(self, residual: np.ndarray, direction: np.ndarray) -> None:
        super().__init__()
        self.going_on = residual, direction


def solve(
    device: Device,
    system_on: Callable[[tuple[Any, ...]], tuple[Any, Any]],
    b: np.ndarray,
    x: np.ndarray,
    *,
    schedule: Any,
    maxiter: int,
    callback: Callable[[np.ndarray], object] | None = None,
    **others: Any,
) -> Outcome:
    """Solve A x = b for a dense A; see `cg_cpu.solve` for ``others`` and what it returns.

    Parameters
    ----------
    device : Device
    system_on : callable
        ``system_on(devices)`` gives system and preconditioner there; of none, the CPU's.
    b, x : (n,) ndarray of float32 or float64
        Right-hand side; start in, result out.
    schedule : hetero.ops.cg.adaptive_price.Schedule or None
        None: it does not move.
    maxiter : int
        Of all iterations.
    callback : callable, optional
        Called after each iteration with x.

    Raises
    ------
    DeviceFailed
        If the device fails; it carries an x from which the CPU can go on.
    """
    system, preconditioner = system_on(())
    norms: list[float] = []
    seconds: list[float] = []
    last = [_clock()]

    def moves(square: float, bound: float, r: Any, z: Any, p: Any, rho: float) -> None:
        now = _clock()
        norms.append(square**0.5)
        seconds.append(now - last[0])
        last[0] = now
        done = len(norms)
        left = maxiter - done if norms[-1] > bound else 0
        if left and not done % (done // 32 + 1) and schedule.is_due(norms, seconds, bound, left):
            if preconditioner is not None:
                np.multiply(preconditioner, r, out=z)
            raise _Moves(r, z + p.dtype.type(np.dot(r, z) / rho) * p)

    def timed(x: np.ndarray) -> None:
        """Call back, on no iteration's time."""
        begin = _clock()
        callback(x)  # type: ignore[misc]
        last[0] += _clock() - begin

    if schedule is not None:
        others["moves"] = moves
    given = {"preconditioner": preconditioner, "maxiter": maxiter}
    try:
        return cg_cpu.solve(system, b, x, callback=callback and timed, **given, **others)
    except _Moves as move:
        going_on = move.going_on
    others.pop("moves")
    done, start = len(norms), x.copy()
    try:
        with device.active():
            there, preconditioner = system_on((device,))
            given |= {"preconditioner": preconditioner, "maxiter": maxiter - done}
            given |= {"callback": callback, "going_on": going_on, **others}
            outcome = cg_device.solve((device,), there, b, x, **given)
    except DeviceError as error:
        saved = getattr(error, "x", None)
        since = error.iterations if saved is not None else 0
        failed = DeviceFailed(error, start if saved is None else saved, done + since)
        raise failed from error
    return outcome._replace(iterations=outcome.iterations + done)
