"""The operations: one module each, listed here."""

from __future__ import annotations

from typing import Any

from hetero import planner
from hetero.ops import convolution, matmul, matvec

MODULES = {module.OPERATION: module for module in (matvec, matmul, convolution)}


def module_of(operation: str) -> Any:
    """The module of an operation.

    Raises
    ------
    ValueError
        The message names the operations there are.
    """
    try:
        return MODULES[operation]
    except KeyError:
        names = ", ".join(map(repr, MODULES))
        raise ValueError(f"operation must be one of {names}, got {operation!r}") from None


def plan(
    operation: str, *operands: Any, device: str | None = None, method: str | None = None
) -> planner.Plan:
    """The priced candidates for a call, nothing run.

    Parameters
    ----------
    operation : str
        "matvec", "matmul" or "convolve2d".
    *operands
        What the call would be given: arrays, or `hetero.spec` stand-ins for them.
    device, method : str, optional
        Forced placement, as in the call.

    Returns
    -------
    Plan
        ``print(plan)`` shows every candidate with its terms, or the reason why it is out.

    Raises
    ------
    ValueError
        For an unknown operation, or shapes that do not fit.
    DeviceNotAvailable, MethodNotAvailable
        If the forced placement is not possible.

    Examples
    --------
    >>> import hetero
    >>> p = hetero.plan("matmul", hetero.spec((64, 64)), hetero.spec((64, 64)), device="cpu")
    >>> p.chosen.method
    'blas'
    """
    problem = module_of(operation).problem(*operands)
    return planner.plan(problem, *planner.placement(device, method))
