"""Matrix-matrix product: the public function and its implementations."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.arrays import alignment
from hetero.ops.products import calling
from hetero.ops.products import operands as products
from hetero.runtime import call_cache as express
from hetero.runtime import planner, registry
from hetero.runtime.models import Work
from hetero.runtime.problem import Problem, check_dims

OPERATION = "matmul"
VECTOR_BYTES = 16  # of the widest loads; operands are expected to be aligned for them
_SPLIT_CALLS = 1.15  # what a second launch and its buffer add to what a call costs the host
_shortcuts = planner.shortcut_table()
_express = express.Express()
_remembered, _MISS = _express.find, express.MISS
_ndarray = np.ndarray
_forced = planner.forced.get


def matmul(
    A: Any,
    B: Any,
    /,
    out: Any = None,
    *,
    device: str | None = None,
    method: str | None = None,
    **options: Any,
) -> Any:
    """Matrix product where it is fastest, with the semantics of `numpy.matmul`.

    Parameters
    ----------
    A : (..., m, k) or (k,) array_like
        On the host, or on a device (anything with ``__cuda_array_interface__``).
    B : (..., k, n) or (k,) array_like
        Batch axes broadcast against those of A.
    out : array, optional
        Takes the result; may share memory with A or B.
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0": compute there. Default: where it is fastest.
    method : str, optional
        "blas" on the CPU; "tiled" (own kernels) or "library" (cuBLAS) on a GPU.
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
    if (
        type(A) is _ndarray
        and type(B) is _ndarray
        and out is None
        and device is None
        and method is None
        and not options
        and _forced() is None
    ):
        run = _shortcuts.get((A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype))
        if run is not None:
            return run(A, B)
    elif not options and (find := _remembered.get(type(A))) is not None:
        result = find(A, B, out, device, method)
        if result is not _MISS:
            return result
    return calling.call(np.matmul, _shortcuts, _express, A, B, out, device, method, options)


def problem(A: Any, B: Any) -> Problem:
    """The problem of ``matmul(A, B)`` for arrays or `hetero.spec` stand-ins."""
    return products.describe_problem("matmul", A, B)


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with dimensions M N K, as ``hetero explain matmul M N K`` asks for it."""
    check_dims(OPERATION, dims, "M N K")
    m, n, k = dims
    return products.from_shapes("matmul", (m, k), (k, n), dtype, on)


def _run_blas(device: None, problem: Problem, inputs: list[Any], output: Any) -> Any:
    return np.matmul(*inputs, out=output)


@functools.lru_cache(maxsize=4096)
def _steps(
    dims: tuple[int, ...],
    batch: int,
    dtype: str,
    strides: tuple[tuple[int, ...], ...],
    alignment: int,
    multiprocessors: int,
    block_limit: int,
    shared_limit: int,
    capability: tuple[int, int] | None,
) -> Any:
    from hetero import kernels

    m, n, k = dims
    a, b, c = strides
    return kernels.matmul(
        m=m,
        n=n,
        k=k,
        batch=batch,
        dtype=dtype,
        a_strides=a,
        b_strides=b,
        c_strides=c,
        multiprocessors=multiprocessors,
        alignment=alignment,
        block_limit=block_limit,
        shared_limit=shared_limit,
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
        device.shared_limit,
        device.capability,
    )


def _tiled_work(problem: Problem, info: dict[str, Any]) -> Work:
    """As `products.gpu_work`, with the device's seconds that the kernels' own plan counts on."""
    work = products.gpu_work(problem, info)
    if not problem.strides or "arch" not in info:
        return work
    major, minor = divmod(int(info["arch"].removeprefix("sm_")), 10)
    steps = _steps(
        problem.dims,
        problem.batch,
        problem.dtype,
        problem.strides,
        VECTOR_BYTES,
        info["multiprocessors"],
        info["block_limit"],
        info["shared_limit"],
        (major, minor),
    )
    calls = 1.0 if len(steps.launches) == 1 else _SPLIT_CALLS
    return replace(work, estimate=steps.seconds, calls=calls)


def _run_tiled(device: Any, problem: Problem, inputs: list[Any], output: Any) -> None:
    A, B = inputs
    steps = _steps_of(device, problem, alignment(A, B, output))
    device.run_steps(steps, {"A": A, "B": B, "C": output}, np.dtype(problem.dtype).itemsize)


def _prepare_tiled(device: Any, problem: Problem, aligned: int) -> Any:
    itemsize = np.dtype(problem.dtype).itemsize
    return device.prepared(_steps_of(device, problem, aligned), ("A", "B", "C"), itemsize)


def _library_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    from hetero.ops.products import cublas

    return cublas.gemm_obstacle(problem, info)


def _run_library(device: Any, problem: Problem, inputs: list[Any], output: Any) -> None:
    from hetero.ops.products import cublas

    cublas.gemm(device, problem)(*inputs, output)


def _prepare_library(device: Any, problem: Problem, aligned: int) -> Any:
    from hetero.ops.products import cublas

    return cublas.gemm(device, problem)


for _implementation in (
    registry.Implementation(
        OPERATION, "blas", "cpu", registry.no_obstacle, products.cpu_work, _run_blas
    ),
    registry.Implementation(
        OPERATION,
        "tiled",
        "cuda",
        registry.no_obstacle,
        _tiled_work,
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
