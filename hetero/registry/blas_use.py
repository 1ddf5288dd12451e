"""Whether the threads of NumPy's BLAS still spin after a product, as far as hetero knows.

Idle threads of a BLAS look for more work for a while, and keep cores and memory busy meanwhile.
hetero knows of the products that it handed to BLAS itself, and not of those that a program makes
with NumPy; and that they sleep during long work where `hetero.host.blas_spin` can say so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from hetero.host import blas_spin, limits
from hetero.registry import Implementation

BESIDE_BLAS = "beside BLAS"  # how what is measured then is called
SPINS = 0.1  # seconds: OpenBLAS's 2^28 clock cycles
LEAST = 1e6  # flops of a product; those below are done by few threads, or one
_last = {"end": -math.inf}
_clock = time.monotonic


def note() -> None:
    """A product by BLAS has just ended."""
    _last["end"] = _clock()


def beside() -> str:
    """`BESIDE_BLAS` while BLAS's threads spin after a product of hetero's, else ""."""
    spin = _clock() - _last["end"] < SPINS and not blas_spin.is_cut()
    return BESIDE_BLAS if spin else ""


def undisturbed(
    implementation: Implementation,
    seconds: float | None,
    function: Callable[..., Any],
    least: float = blas_spin.LONG,
) -> Callable[..., Any]:
    """A function that runs a method of the CPU: BLAS sleeps during ``least`` seconds and more.

    Where the method's loops can be few enough for one thread, it sleeps from the first one on that
    takes several.
    """
    if seconds is None or seconds < least or limits.BLAS in implementation.uses:
        return function
    shares = limits.LOOPS in implementation.uses
    asleep = blas_spin.asleep_in_loops if shares else blas_spin.asleep

    def run(*arguments: Any, **options: Any) -> Any:
        with asleep(seconds):
            return function(*arguments, **options)

    return run


def noted(flops: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes a product of so many flops, and notes its end unless it is small."""
    if flops < LEAST:
        return function

    def run(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        note()
        return result

    return run
