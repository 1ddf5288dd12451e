"""How exact a solve must be and how long it may take, checked; what follows from it."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np


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


def digits(rtol: float, dtype: np.dtype) -> float:
    """ln of the factor a residual must shrink by, no further than rounding lets it."""
    return -math.log(min(max(rtol, float(np.finfo(dtype).eps)), 1.0))
