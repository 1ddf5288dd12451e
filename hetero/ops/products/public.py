"""The public functions of products: the call cache, and what NumPy alone computes.

What devices may compute is planned by `hetero.ops.products.methods`, which is loaded on first need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from hetero import devices, registry
from hetero.arrays import Array, as_array, is_device_array
from hetero.arrays.kept import written
from hetero.imports import load
from hetero.ops.products.operands import as_given, cut, describe_problem, from_dims
from hetero.tables import MISS, bind, find, forced, placement

_METHODS = "hetero.ops.products.methods"
_FEW = 64**3  # products that NumPy makes in some 20 us, as long as a device takes to begin and end
Function = Callable[..., Any]
Public = TypeVar("Public", bound=Callable[..., Any])
_ndarray = np.ndarray
_forced = forced.get
# The problems of ``matvec(A, x)`` and ``matmul(A, B)`` for arrays or `hetero.spec` stand-ins.
matvec_problem = functools.partial(describe_problem, "matvec")
matmul_problem = functools.partial(describe_problem, "matmul")


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
            out = as_given(function, outs, out)
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
            return _call(function, A, B, out, options, device, method)
        finally:
            if isinstance(out, _ndarray):
                written(out)

    return lambda documented: functools.wraps(documented)(public)


def _call(
    function: Function, A: Any, B: Any, out: Any, options: dict[str, Any], *placed: str | None
) -> Any:
    """Compute ``function(A, B, out=out, **options)`` where it is fastest, or where it is forced: on
    a device, by a method."""
    if type(out) is tuple and len(out) == 1 and type(out[0]) is not tuple:
        (out,) = out
    if _forced() is not None:
        placed = placement(*placed)
    plain = type(A) is type(B) is _ndarray and (out is None or type(out) is _ndarray)
    if not plain and (is_device_array(A) or is_device_array(B) or is_device_array(out)):
        if options:
            raise TypeError(f"device arrays take no {', '.join(options)}")
        return load(_METHODS).with_device_arrays(function, A, B, out, *placed)
    if options or _hands_over(A) or _hands_over(B) or not (out is None or type(out) is _ndarray):
        return load(_METHODS).refused(function, *placed)(A, B, out=out, **options)
    if not plain:
        A, B = _dense(function, A), _dense(function, B)
    key: tuple[Any, ...] = A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype
    if out is not None or placed != (None, None):
        into = out is not None and (out.shape, out.strides, out.dtype, out.flags.writeable)
        key = *key, *placed, into
    run = bind((function.__name__, *key), lambda: _on_host(function, A, B, out, *placed))
    return run(A, B, out)


def _on_host(
    function: Function, A: np.ndarray, B: np.ndarray, out: np.ndarray | None, *placed: str | None
) -> Function:
    """The function that runs such calls: NumPy's own, or one that runs a plan.

    The CPU has one method, NumPy's. And devices need not be looked for, which takes some tenths of
    a second, where NumPy has ended before a device has begun.
    """
    outer = _forced()
    stays = out is None and outer is not None and outer.results == "device"
    columns = B.shape[1] if B.ndim == 2 else 1
    is_small = max(A.ndim, B.ndim) <= 2 and A.size * columns <= _FEW
    few = is_small and not stays and devices.found is None
    if placed == (None, None) and (few or devices.only_host()):
        return function
    return load(_METHODS).on_host(function, A, B, out, *placed)


def _dense(function: Function, x: Any) -> np.ndarray:
    """``x`` as a NumPy array; sparse matrices are refused."""
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


# -- Matrix times vector ---------------------------------------------------------------------------


@product(np.matvec)
def matvec(
    A: Any,
    x: Array,
    /,
    out: Any = None,
    *,
    device: str | None = None,
    method: str | None = None,
    **options: Any,
) -> Array:
    """Matrix-vector product where it is fastest, with the semantics of `numpy.matvec`.

    Parameters
    ----------
    A : (..., m, k) array_like
        On the host, or on a device (anything with ``__cuda_array_interface__``, or
        exported by DLPack).
    x : (..., k) array_like
        Batch axes broadcast against those of A.
    out : (..., m) array, optional
        Takes the result; may share memory with A or x.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0": compute there. Default: where it is fastest.
    method : str, optional
        "blas" on the CPU; "tiled" (own kernels) on a GPU.
    **options
        ``casting``, ``order``, ``dtype``, ``subok``, ``axes``: NumPy's own, computed by NumPy.

    Returns
    -------
    (..., m) array
        float32 and float64 run on devices, every other dtype on the CPU. A NumPy array where both
        operands lie on the host (of types with ``__array_ufunc__`` or ``__array_wrap__`` what NumPy
        makes of them, on the CPU); where one lies on a device, an array of that one's type, there.

    Raises
    ------
    ValueError, TypeError
        As NumPy, for shapes and casting, and for sparse matrices.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` is not available; the message names what is.

    See Also
    --------
    hetero.plan : the priced candidates, nothing run.

    References
    ----------
    A. White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn
    University, 2013, sections 3.4, 3.5 and 4.6.1.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> hetero.matvec(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 1.0]))
    array([3., 7.])
    """


registry.register_operation(
    registry.Operation(
        name="matvec",
        function="matvec",
        call=matvec,
        summary="matrix-vector product, with the semantics of numpy.matvec",
        dims=("M K",),
        problem=matvec_problem,
        from_dims=functools.partial(from_dims, "matvec"),
    )
)


# -- Matrix times matrix ---------------------------------------------------------------------------


@product(np.matmul)
def matmul(
    A: Array,
    B: Any,
    /,
    out: Any = None,
    *,
    device: str | None = None,
    method: str | None = None,
    **options: Any,
) -> Array:
    """Matrix product where it is fastest, with the semantics of `numpy.matmul`.

    Parameters
    ----------
    A : (..., m, k) or (k,) array_like
        On the host, or on a device (anything with ``__cuda_array_interface__``, or
        exported by DLPack).
    B : (..., k, n) or (k,) array_like
        Batch axes broadcast against those of A.
    out : array, optional
        Takes the result; may share memory with A or B.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0": compute there; "cuda:*": on all GPUs, each with a range
        of operands that lie on the host. Default: where it is fastest.
    method : str, optional
        "blas" on the CPU; on a GPU "tiled" (own kernels), "tensor" (float32 by 16-bit pieces on
        tensor cores of compute capability 9.0; elsewhere as "tiled"), "library" (cuBLAS) or
        "streamed" (operands on the host in ranges that move while others are computed).
    **options
        ``casting``, ``order``, ``dtype``, ``subok``, ``axes``, ``axis``: NumPy's own, computed by
        NumPy.

    Returns
    -------
    (..., m, n) array
        Without the axes that 1-D operands lack. float32 and float64 run on devices, every other
        dtype on the CPU. A NumPy array where both operands lie on the host (of types with
        ``__array_ufunc__`` or ``__array_wrap__`` what NumPy makes of them, on the CPU); where one
        lies on a device, an array of that one's type, there.

    Raises
    ------
    ValueError, TypeError
        As NumPy, for shapes and casting, and for sparse matrices.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` is not available; the message names what is.

    See Also
    --------
    hetero.plan : the priced candidates, nothing run.

    References
    ----------
    A. White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn
    University, 2013, sections 3.3 to 3.5 and 4.6.2.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> hetero.matmul(np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1., 2.],
           [3., 4.]])
    """


registry.register_operation(
    registry.Operation(
        name="matmul",
        function="matmul",
        call=matmul,
        summary="matrix product, with the semantics of numpy.matmul",
        dims=("M N K",),
        problem=matmul_problem,
        from_dims=functools.partial(from_dims, "matmul"),
        cut=cut,
    )
)
