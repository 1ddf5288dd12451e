"""The operations: one module each, listed here."""

from __future__ import annotations

from typing import Any

from hetero.ops import cg as conjugate_gradient
from hetero.ops import convolve2d as convolution
from hetero.ops import matmul, matvec, poisson
from hetero.runtime import planner

MODULES = {
    module.OPERATION: module
    for module in (matvec, matmul, convolution, conjugate_gradient, poisson)
}
# A solve may be called by its function's name too.
_FUNCTIONS = {"solve_cg": conjugate_gradient.OPERATION, "solve_poisson": poisson.OPERATION}


def module_of(operation: str) -> Any:
    """The module of an operation, by the operation's name or by its public function's.

    Raises
    ------
    ValueError
        The message names the operations there are.
    """
    try:
        return MODULES[_FUNCTIONS.get(operation, operation)]
    except (KeyError, TypeError):
        names = ", ".join(map(repr, (*MODULES, *_FUNCTIONS)))
        raise ValueError(f"operation must be one of {names}, got {operation!r}") from None


def plan(
    operation: str,
    *operands: Any,
    device: str | None = None,
    method: str | None = None,
    **options: Any,
) -> planner.Plan:
    """What a call would do, and how long each way to do it would take; nothing is computed.

    Parameters
    ----------
    operation : str
        "matvec", "matmul", "convolve2d", "solve_cg" (or "cg"), "solve_poisson" (or "poisson").
    *operands
        What the call would be given: arrays, or `hetero.spec` stand-ins for them, which have a
        shape and a dtype only.
    device, method : str, optional
        Forced placement, as in the call.
    **options
        What else the call would be given and the price depends on. convolve2d: ``mode``,
        ``boundary``, ``fillvalue``. solve_cg: ``x0``, ``rtol``, ``atol``, ``maxiter``, ``M``.
        solve_poisson: ``spacing``, ``x0``, ``rtol``, ``maxiter``. Defaults are the functions' own.

    Returns
    -------
    Plan
        ``print(plan)`` shows every candidate with its predicted seconds as a sum of terms, or the
        reason why it is out. ``plan.chosen`` is the one that the call would run.

    Raises
    ------
    ValueError
        For an unknown operation, or shapes that do not fit.
    TypeError
        For an option that the operation does not have.
    DeviceNotAvailable, MethodNotAvailable
        If the forced placement is not possible; both are in `hetero.errors`.

    Examples
    --------
    >>> import hetero
    >>> p = hetero.plan("matmul", hetero.spec((64, 64)), hetero.spec((64, 64)), device="cpu")
    >>> p.chosen.method
    'blas'
    >>> f = hetero.spec((300, 200))
    >>> [c.method for c in hetero.plan("solve_poisson", f, rtol=1e-6, method="cg").candidates][:1]
    ['cg']
    """
    module = module_of(operation)
    device, method = planner.placement(device, method)
    problem = module.problem(*operands, **options)
    if method is not None and hasattr(module, "named"):
        problem = module.named(problem, method)
    return planner.plan(problem, device, method)
