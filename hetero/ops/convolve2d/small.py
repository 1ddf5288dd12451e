"""Calls of `convolve2d` that come down to SciPy's function, known by shapes and dtypes.

Whole numbers and other dtypes that only SciPy takes, and images and filters so small that more time
would go by before another loop has begun than SciPy's takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays import Spec
from hetero.ops.convolve2d import operands as convolving
from hetero.runtime import call_cache, planner
from hetero.runtime.problem import FEW_PRODUCTS

_plans = call_cache.new_table()
_BOUNDARIES = (*convolving.BOUNDARIES, *convolving.ALIASES)


def learn(table: dict[Any, Any], key: Any) -> Callable[[Any, Any, Any], Any] | None:
    """Remember a call as SciPy's if it is one; gives ``run(in1, in2, fillvalue)``, or None.

    Parameters
    ----------
    table : dict
        A `call_cache.new_table`.
    key : tuple
        Shape, strides and dtype of the image, shape and dtype of the filter, mode, boundary.
    """
    shape, _, dtype, filter_shape, filter_dtype, mode, boundary = key
    if not (len(shape) == len(filter_shape) == 2 and all(shape) and all(filter_shape)):
        return None
    if mode not in convolving.MODES or boundary not in _BOUNDARIES:
        return None
    try:
        common = np.result_type(dtype, filter_dtype)
        if mode == "valid" and convolving.swapped(shape, filter_shape):
            shape, filter_shape = filter_shape, shape
    except (TypeError, ValueError):  # the general way says what is wrong
        return None
    now = call_cache.generation()
    few = FEW_PRODUCTS.get(common.char)
    if few is not None:
        found = convolving.window(shape, filter_shape, mode)
        if found.products > few or not _here(common, few):
            return None
    run = _scipys(mode, boundary)
    call_cache.remember(table, key, run, now)
    return run


@functools.cache
def _scipys(mode: str, boundary: str) -> Callable[[Any, Any, Any], Any]:
    from scipy.signal import convolve2d

    def run(in1: Any, in2: Any, fillvalue: Any) -> Any:
        return convolve2d(in1, in2, mode, boundary, fillvalue)

    return run


def _here(dtype: np.dtype, few: int) -> bool:
    """Whether the plan of the most that counts as few is the direct sum on the CPU.

    With less to compute a device only loses: what it costs to begin and to move is the same.
    """
    found = _plans.get(dtype.char)
    if found is None:
        now = call_cache.generation()
        real = dtype.char.lower()
        image, filter = Spec((few // 4 // 64, 64), real), Spec((2, 2), real)
        chosen = planner.plan(convolving.problem(image, filter, "same")).chosen
        found = (chosen.device, chosen.method) == (planner.CPU, "direct")
        call_cache.remember(_plans, dtype.char, found, now)
    return found
