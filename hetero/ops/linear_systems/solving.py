"""What solve_cg and solve_poisson share: vectors checked, a plan run, the CPU as the way out."""

from __future__ import annotations

import logging
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, Operand, Spec, as_array, describe, element_strides
from hetero.runtime import planner, registry
from hetero.runtime.registry import Arguments

log = logging.getLogger("hetero")


class Solve(NamedTuple):
    """What a solver's ``run`` gets as options, beside the right-hand side and x.

    Attributes
    ----------
    system : Stencil, Csr, Dense or LinearOperator
        See `hetero.ops.linear_systems.types`.
    rtol, atol : float
        Done when norm(b - A x) <= max(rtol norm(b), atol).
    maxiter : int
        Most steps.
    preconditioner : object or None
    callback : callable or None
        Called with x after each iteration.
    exactly : bool
        Make ``maxiter`` steps whatever the residual is; for methods that can.
    """

    system: Any
    rtol: float
    atol: float
    maxiter: int
    preconditioner: Any = None
    callback: Callable[[Any], object] | None = None
    exactly: bool = False


class Solved(NamedTuple):
    """A solve's result: x of the caller's array type, how it ended, and where it ran."""

    x: Any
    outcome: Any
    device: str
    method: str


def checked_tolerance(name: str, value: Any) -> float:
    """A tolerance as float; ValueError where it is no number, negative or NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}") from None
    if not number >= 0.0:
        raise ValueError(f"{name} must be at least 0, got {value!r}")
    return number


def checked_limit(maxiter: Any, default: int) -> int:
    """``maxiter`` as int; ValueError where it is no whole number, or negative."""
    if maxiter is None:
        return default
    try:
        number = operator.index(maxiter)
    except TypeError:
        raise ValueError(f"maxiter must be a whole number, got {maxiter!r}") from None
    if number < 0:
        raise ValueError(f"maxiter must be at least 0, got {maxiter!r}")
    return number


def real_dtype(**dtypes: Any) -> np.dtype:
    """float32 if all dtypes fit in it, else float64; ValueError for what is not real."""
    for name, dtype in dtypes.items():
        if np.dtype(dtype).kind not in "fiub":
            raise ValueError(f"{name} must be real, got dtype {np.dtype(dtype)}")
    return number_dtype(**dtypes)


def number_dtype(**dtypes: Any) -> np.dtype:
    """`real_dtype`, or complex64 or complex128 where one of them is complex."""
    small, kind = True, "f"
    for name, dtype in dtypes.items():
        dtype = np.dtype(dtype)
        if dtype.kind not in "fiubc":
            raise ValueError(f"{name} must be real or complex, got dtype {dtype}")
        if dtype.kind == "c":
            kind = "c"
        small = small and dtype.char in "efF"
    return _DTYPES[kind, small]


_DTYPES = {
    ("f", True): np.dtype(np.float32),
    ("f", False): np.dtype(np.float64),
    ("c", True): np.dtype(np.complex64),
    ("c", False): np.dtype(np.complex128),
}


def array_like(value: Any) -> Any:
    """Device arrays and specs as they are, everything else as NumPy array."""
    return value if isinstance(value, Spec) else as_array(value)


def on_host(array: Any, operand: Operand, dtype: np.dtype) -> np.ndarray:
    """Values of an array on the host, C-contiguous and of the solve's dtype."""
    if operand.location != HOST:
        from hetero.runtime import transfer

        array = transfer.to_host(array, operand)
    return np.ascontiguousarray(array, dtype)


def like(array: Any, values: np.ndarray) -> Any:
    """Host values as a new array of the kind of a device array, on its device."""
    from hetero.runtime import transfer

    made, _ = transfer.empty_like(array, describe(array), values.shape, values.dtype)
    transfer.from_host(values, made, describe(made))
    return made


def result_operand(shape: tuple[int, ...], dtype: np.dtype, location: str) -> Operand:
    """A C-contiguous operand without data."""
    strides = tuple(step * dtype.itemsize for step in element_strides(shape))
    return Operand(shape, strides, dtype, location)


def execute(
    plan: planner.Plan,
    solve: Solve,
    b: Any,
    x0: Any,
    system_on: Callable[[tuple[Any, ...]], tuple[Any, Any]],
) -> Solved:
    """Run a solve's plan; a device that fails hands over to the CPU.

    Parameters
    ----------
    plan : Plan
    solve : Solve
        System and preconditioner are not set yet.
    b : array
        The caller's right-hand side.
    x0 : array or None
        The caller's start.
    system_on : callable
        ``system_on(used)`` gives system and preconditioner as those devices want them; none: the
        CPU.
    """
    from hetero import devices
    from hetero.errors import DeviceError
    from hetero.runtime import failures

    problem, chosen = plan.problem, plan.chosen
    implementation, name = chosen.implementation, chosen.device
    done = 0
    if name != planner.CPU:
        used = matching(name)
        begun = devices.failures()
        try:
            system, preconditioner = system_on(used)
            solve = solve._replace(system=system, preconditioner=preconditioner)
            return _on_devices(plan, used, solve, b, x0)
        except DeviceError as error:
            if used[0].capturing:
                raise
            failures.report(used[0].name, error, begun=begun)
            failures.release(error)
            if getattr(error, "x", None) is not None:
                x0, done = error.x, error.iterations
        methods = {i.method: i for i in registry.lookup(problem.operation) if i.kind == "cpu"}
        info = devices_info()[planner.CPU]
        able = [i for i in methods.values() if i.excludes(problem, info) is None]
        implementation = next((i for i in able if i.method == implementation.method), able[0])
    dtype = np.dtype(problem.dtype)
    described = describe(b)
    rhs = on_host(b, described, dtype)
    x = np.zeros(rhs.shape, dtype)
    if x0 is not None:
        x[...] = on_host(x0, describe(x0), dtype).reshape(rhs.shape)
    system, preconditioner = system_on(())
    limit = max(solve.maxiter - done, 0)
    solve = solve._replace(system=system, maxiter=limit, preconditioner=preconditioner)
    outcome = implementation.run((), problem, Arguments((rhs,), x, solve))
    if done:
        outcome = outcome._replace(iterations=outcome.iterations + done)
    if described.location == HOST:
        return Solved(x, outcome, planner.CPU, implementation.method)
    return Solved(like(b, x), outcome, planner.CPU, implementation.method)


def devices_info() -> dict[str, dict[str, Any]]:
    """Device name -> description."""
    from hetero.runtime.inventory import devices

    return devices()


def matching(name: str) -> tuple[Any, ...]:
    """The devices a candidate's name stands for: one, or with "cuda:*" all of a kind."""
    from hetero import devices

    kind, _, which = name.partition(":")
    if which != "*":
        return (devices.get(name),)
    return tuple(
        device
        for device in devices.available().values()
        if device.kind == kind and devices.disabled(device.name) is None
    )


def _on_devices(plan: planner.Plan, used: tuple[Any, ...], solve: Solve, b: Any, x0: Any) -> Solved:
    from hetero.runtime import transfer

    problem, chosen = plan.problem, plan.chosen
    device = used[0]
    dtype = np.dtype(problem.dtype)
    described = describe(b)
    run = chosen.implementation.run
    here = len(used) == 1 and described.location == device.name
    if not (here and described.dtype == dtype and described.is_c_contiguous()):
        rhs = on_host(b, described, dtype)
        x = np.zeros(rhs.shape, dtype)
        if x0 is not None:
            x[...] = on_host(x0, describe(x0), dtype).reshape(rhs.shape)
        outcome = run(used, problem, Arguments((rhs,), x, solve))
        if described.location == HOST:
            return Solved(x, outcome, chosen.device, chosen.method)
        return Solved(like(b, x), outcome, chosen.device, chosen.method)
    with device.active():
        if transfer.needs_synchronizing(described):
            device.synchronize()
        made, pointer = transfer.empty_like(b, described, described.shape, dtype)
        if x0 is None:
            device.fill(pointer, described.nbytes)
        else:
            transfer.from_host(
                on_host(x0, describe(x0), dtype).reshape(described.shape), made, describe(made)
            )
        outcome = run(used, problem, Arguments((described.pointer,), pointer, solve))
        device.synchronize()
    return Solved(made, outcome, chosen.device, chosen.method)


def warn(what: str, outcome: Any) -> None:
    """A RuntimeWarning that names why a solve broke down."""
    warnings.warn(
        f"{what} stopped after {outcome.iterations} iterations: {outcome.status}; "
        f"norm(b - A x) is {outcome.residual:.3g} for the x returned",
        RuntimeWarning,
        stacklevel=3,
    )


def digits(rtol: float, dtype: np.dtype) -> float:
    """ln of the factor a residual must shrink by, no further than rounding lets it."""
    return -math.log(min(max(rtol, float(np.finfo(dtype).eps)), 1.0))
