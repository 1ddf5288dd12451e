"""Matrix-vector product: the public function and its implementations."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hetero.arrays import alignment
from hetero.ops.products import calling
from hetero.ops.products import operands as products
from hetero.runtime import call_cache as express
from hetero.runtime import planner, registry
from hetero.runtime.problem import Problem, check_dims

OPERATION = "matvec"
_shortcuts = planner.shortcut_table()
_express = express.Express()
_remembered, _MISS = _express.find, express.MISS
_ndarray = np.ndarray
_forced = planner.forced.get


def matvec(
    A: Any,
    x: Any,
    /,
    out: Any = None,
    *,
    device: str | None = None,
    method: str | None = None,
    **options: Any,
) -> Any:
    """Matrix-vector product where it is fastest, with the semantics of `numpy.matvec`.

    Parameters
    ----------
    A : (..., m, k) array_like
        On the host, or on a device (anything with ``__cuda_array_interface__``).
    x : (..., k) array_like
        Batch axes broadcast against those of A.
    out : (..., m) array, optional
        Takes the result; may share memory with A or x.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0": compute there. Default: where it is fastest.
    method : str, optional
        "blas" on the CPU; "tiled" (own kernels) or "library" (cuBLAS) on a GPU.
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
    if (
        type(A) is _ndarray
        and type(x) is _ndarray
        and out is None
        and device is None
        and method is None
        and not options
        and _forced() is None
    ):
        run = _shortcuts.get((A.shape, A.strides, A.dtype, x.shape, x.strides, x.dtype))
        if run is not None:
            return run(A, x)
    elif not options and (find := _remembered.get(type(A))) is not None:
        result = find(A, x, out, device, method)
        if result is not _MISS:
            return result
    return calling.call(np.matvec, _shortcuts, _express, A, x, out, device, method, options)


def problem(A: Any, x: Any) -> Problem:
    """The problem of ``matvec(A, x)`` for arrays or `hetero.spec` stand-ins."""
    return products.describe_problem("matvec", A, x)


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with dimensions M K, as ``hetero explain matvec M K`` asks for it."""
    check_dims(OPERATION, dims, "M K")
    return products.from_shapes("matvec", dims, dims[1:], dtype, on)


def _run_blas(device: None, problem: Problem, inputs: list[Any], output: Any) -> Any:
    return getattr(np, problem.function)(*inputs, out=output)


@functools.lru_cache(maxsize=4096)
def _steps(
    dims: tuple[int, ...],
    batch: int,
    dtype: str,
    strides: tuple[tuple[int, ...], ...],
    alignment: int,
    multiprocessors: int,
    block_limit: int,
    capability: tuple[int, int] | None,
) -> Any:
    from hetero import kernels

    m, k = dims
    a, x, y = strides
    return kernels.matvec(
        m=m,
        k=k,
        batch=batch,
        dtype=dtype,
        a_strides=a,
        x_strides=x,
        y_strides=y,
        multiprocessors=multiprocessors,
        alignment=alignment,
        block_limit=block_limit,
        capability=capability,
    )


def _steps_of(device: Any, problem: Problem, aligned: int) -> Any:
    return _steps(
        problem.dims,
        problem.batch,
        problem.dtype,
        problem.strides,
        aligned,
        device.multiprocessors,
        device.block_limit,
        device.capability,
    )


def _run_tiled(device: Any, problem: Problem, inputs: list[Any], output: Any) -> None:
    A, x = products.matrix_and_vector(problem, inputs)
    steps = _steps_of(device, problem, alignment(A, x, output))
    device.run_steps(steps, {"A": A, "x": x, "y": output}, np.dtype(problem.dtype).itemsize)


def _prepare_tiled(device: Any, problem: Problem, aligned: int) -> Any:
    matrix, _ = products.matrix_and_vector(problem, [0, 1])
    names = ("A", "x", "y") if matrix == 0 else ("x", "A", "y")
    itemsize = np.dtype(problem.dtype).itemsize
    return device.prepared(_steps_of(device, problem, aligned), names, itemsize)


def _library_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    from hetero.ops.products import cublas

    return cublas.gemv_obstacle(problem, info)


def _run_library(device: Any, problem: Problem, inputs: list[Any], output: Any) -> None:
    from hetero.ops.products import cublas

    A, x = products.matrix_and_vector(problem, inputs)
    cublas.gemv(device, problem)(A, x, output)


def _prepare_library(device: Any, problem: Problem, aligned: int) -> Any:
    from hetero.ops.products import cublas

    launch = cublas.gemv(device, problem)
    if products.matrix_and_vector(problem, [0, 1])[0] == 0:
        return launch
    return lambda x, A, y: launch(A, x, y)


for _implementation in (
    registry.Implementation(
        OPERATION, "blas", "cpu", registry.no_obstacle, products.cpu_work, _run_blas
    ),
    registry.Implementation(
        OPERATION,
        "tiled",
        "cuda",
        registry.no_obstacle,
        products.gpu_work,
        _run_tiled,
        prepare=_prepare_tiled,
    ),
    registry.Implementation(
        OPERATION,
        "library",
        "cuda",
        _library_obstacle,
        products.gpu_work,
        _run_library,
        prepare=_prepare_library,
    ),
    registry.Implementation(
        OPERATION, "tiled", "opencl", registry.no_obstacle, products.gpu_work, _run_tiled
    ),
):
    registry.register(_implementation)
