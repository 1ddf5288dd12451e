"""Matrix-vector product: the public function."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import Array
from hetero.ops.products import operands
from hetero.ops.products.public import product
from hetero.registry.problem import Problem, check_dims


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


def problem(A: Any, x: Any) -> Problem:
    """The problem of ``matvec(A, x)`` for arrays or `hetero.spec` stand-ins."""
    return operands.describe_problem("matvec", A, x)


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with dimensions M K, as ``hetero explain matvec M K`` asks for it."""
    check_dims("matvec", dims, *OPERATION.dims)
    return operands.from_shapes("matvec", dims, dims[1:], dtype, on)


OPERATION = registry.register_operation(
    registry.Operation(
        name="matvec",
        function="matvec",
        call=matvec,
        summary="matrix-vector product, with the semantics of numpy.matvec",
        dims=("M K",),
        problem=problem,
        from_dims=from_dims,
    )
)
