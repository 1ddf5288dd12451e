"""Matrix-matrix product: the public function."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import Array
from hetero.ops.products import operands
from hetero.ops.products.public import product
from hetero.ops.products.ranges import cut
from hetero.registry.problem import Problem, check_dims


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


def problem(A: Any, B: Any) -> Problem:
    """The problem of ``matmul(A, B)`` for arrays or `hetero.spec` stand-ins."""
    return operands.describe_problem("matmul", A, B)


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with dimensions M N K, as ``hetero explain matmul M N K`` asks for it."""
    check_dims("matmul", dims, *OPERATION.dims)
    m, n, k = dims
    return operands.from_shapes("matmul", (m, k), (k, n), dtype, on)


OPERATION = registry.register_operation(
    registry.Operation(
        name="matmul",
        function="matmul",
        call=matmul,
        summary="matrix product, with the semantics of numpy.matmul",
        dims=("M N K",),
        problem=problem,
        from_dims=from_dims,
        cut=cut,
    )
)
