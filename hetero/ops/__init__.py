"""The operations, by package: products, convolve2d, solvers (cg, poisson), kmeans; and `plan`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from hetero import registry
from hetero.imports import load

if TYPE_CHECKING:
    from hetero.pricing.plan import Plan


def plan(
    operation: str,
    *operands: Any,
    device: str | None = None,
    method: str | None = None,
    profile: str | None = None,
    **options: Any,
) -> Plan:
    """What a call would do, and how long each way to do it would take; nothing is computed.

    Parameters
    ----------
    operation : str
        "matvec", "matmul", "convolve2d", "solve_cg" (or "cg"), "solve_poisson" (or "poisson"),
        "kmeans".
    *operands
        What the call would be given: arrays, or `hetero.spec` stand-ins for them, which have a
        shape and a dtype only.
    device, method : str, optional
        Forced placement, as in the call.
    profile : str, optional
        Of another machine: "tesla-t10", "h100", "h200", "h100x2", "h200x2", or a file that
        `calibrate` wrote there. Default: this machine's.
    **options
        What else the call would be given and the price depends on. convolve2d: ``mode``,
        ``boundary``, ``fillvalue``. solve_cg: ``x0``, ``rtol``, ``atol``, ``maxiter``, ``M``.
        solve_poisson: ``spacing``, ``x0``, ``rtol``, ``maxiter``. kmeans: ``init``,
        ``n_init``, ``max_iter``. Defaults are the functions' own.

    Returns
    -------
    Plan
        ``print(plan)`` shows every candidate with its predicted seconds as a sum of terms, or the
        reason why it is out. ``plan.chosen`` is the one that the call would run.
        A call done in parts has a plan of each in ``plan.parts``: a complex convolution is a sum
        of real ones.

    Raises
    ------
    ValueError
        For an unknown operation, or shapes that do not fit.
    TypeError
        For an option that the operation does not have; the message names those that it has.
    DeviceNotAvailable, MethodNotAvailable
        If the forced placement is not possible; both are in `hetero.errors`.

    Examples
    --------
    >>> import hetero
    >>> p = hetero.plan("matmul", hetero.spec((64, 64)), hetero.spec((64, 64)), device="cpu")
    >>> p.chosen.method
    'blas'
    >>> f = hetero.spec((300, 200))
    >>> hetero.plan("solve_poisson", f, rtol=1e-6, method="multigrid").chosen.method
    'multigrid'
    """
    load("hetero.ops.functions")  # registers them
    planner = load("hetero.calling.planner")
    known = registry.operation(operation)
    taken = inspect.signature(known.problem)
    try:
        taken.bind(*operands, **options)
    except TypeError as error:
        needed = [name for name, one in taken.parameters.items() if one.default is one.empty]
        free = sorted({*taken.parameters, "device", "method", "profile"}.difference(needed))
        arguments = f"its operands are {', '.join(needed)}, and its options {', '.join(free)}"
        raise TypeError(f"plan of {known.function}: {error}; {arguments}") from None
    if profile is None:
        return planner.plan_call(known, operands, options, device, method)
    constants = load("hetero.profile").named(profile)
    machine = planner.Machine(constants, constants.machine())
    if known.plan is not None:
        return known.plan(operands, options, device, method, machine)
    return machine.plan(known.problem(*operands, **options), device, method)
