"""The public function of a product: the call cache, and what NumPy alone computes.

What devices may compute is planned by `hetero.ops.products.calls`, which is loaded on first need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from hetero import devices, settings
from hetero.arrays import as_array, is_device_array
from hetero.arrays.kept import written
from hetero.calling.call_cache import MISS
from hetero.imports import load
from hetero.tables import bind, find

_FEW = 64**3  # products that NumPy makes in some 20 us, as long as a device takes to begin and end
Function = Callable[..., Any]
Public = TypeVar("Public", bound=Callable[..., Any])
_ndarray = np.ndarray
_forced = settings.forced.get


def product(function: Function) -> Callable[[Public], Public]:
    """Decorator that makes a public function of its signature and documentation.

    Parameters
    ----------
    function : callable
        `numpy.matmul` or `numpy.matvec`: the semantics.
    """
    name = function.__name__

    def public(
        A: Any,
        B: Any,
        /,
        *outs: Any,
        out: Any = None,
        device: str | None = None,
        method: str | None = None,
        **options: Any,
    ) -> Any:
        if outs:
            out = load("hetero.ops.products.operands").as_given(function, outs, out)
        if (
            type(A) is _ndarray
            and type(B) is _ndarray
            and out is None
            and device is None
            and method is None
            and not options
            and _forced() is None
        ):
            run = find((name, A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype))
            if run is not None:
                return run(A, B)
        elif not options and (lookup := find(type(A))) is not None:
            result = lookup(name, A, B, out, device, method)
            if result is not MISS:
                return result
        try:
            return _call(function, A, B, out, device, method, options)
        finally:
            if isinstance(out, _ndarray):
                written(out)

    return lambda documented: functools.wraps(documented)(public)


def _call(
    function: Function,
    A: Any,
    B: Any,
    out: Any,
    device: str | None,
    method: str | None,
    options: dict[str, Any],
) -> Any:
    """Compute ``function(A, B, out=out, **options)`` where it is fastest, or where it is forced."""
    if type(out) is tuple and len(out) == 1 and type(out[0]) is not tuple:
        (out,) = out
    if _forced() is not None:
        device, method = settings.placement(device, method)
    plain = type(A) is type(B) is _ndarray and (out is None or type(out) is _ndarray)
    if not plain and (is_device_array(A) or is_device_array(B) or is_device_array(out)):
        if options:
            raise TypeError(f"device arrays take no {', '.join(options)}")
        return _calls().with_device_arrays(function, A, B, out, device, method)
    if options or _hands_over(A) or _hands_over(B) or not (out is None or type(out) is _ndarray):
        return _calls().refused(function, device, method)(A, B, out=out, **options)
    if not plain:
        A, B = _dense(function, A), _dense(function, B)
    key: tuple[Any, ...] = A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype
    if out is not None or device is not None or method is not None:
        key = *key, device, method, _layout(out)
    run = bind((function.__name__, *key), lambda: _on_host(function, A, B, out, device, method))
    return run(A, B, out)


def _on_host(
    function: Function,
    A: np.ndarray,
    B: np.ndarray,
    out: np.ndarray | None,
    device: str | None,
    method: str | None,
) -> Function:
    """The function that runs such calls: NumPy's own, or one that runs a plan.

    The CPU has one method, NumPy's. And devices need not be looked for, which takes some tenths of
    a second, where NumPy has ended before a device has begun.
    """
    outer = _forced()
    stays = out is None and outer is not None and outer.results == "device"
    few = not stays and _are_few(A, B)
    if device is None and method is None and (few or devices.only_host()):
        return function
    return _calls().on_host(function, A, B, out, device, method)


@functools.cache
def _calls() -> Any:
    return load("hetero.ops.products.calls")


def _are_few(A: np.ndarray, B: np.ndarray) -> bool:
    """Whether NumPy makes all products in the time in which a device begins, and devices were not
    looked for."""
    columns = B.shape[1] if B.ndim == 2 else 1
    return devices.here.found is None and max(A.ndim, B.ndim) <= 2 and A.size * columns <= _FEW


def _layout(out: np.ndarray | None) -> Any:
    return out is not None and (out.shape, out.strides, out.dtype, out.flags.writeable)


def _dense(function: Function, x: Any) -> np.ndarray:
    """``x`` as a NumPy array; sparse matrices are refused."""
    if type(x) is np.ndarray:
        return x
    if hasattr(x, "tocsr"):
        raise ValueError(
            f"{function.__name__} takes dense arrays, got {type(x).__name__}: "
            "multiply with A @ x, or convert it with toarray()"
        )
    return as_array(x)


def _hands_over(x: Any) -> bool:
    """Whether NumPy must decide: subclasses, types with their own arithmetic or kind of result."""
    return type(x) is not np.ndarray and (
        isinstance(x, np.ndarray) or hasattr(x, "__array_ufunc__") or hasattr(x, "__array_wrap__")
    )
