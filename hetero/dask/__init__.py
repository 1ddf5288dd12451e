"""The functions of hetero on `dask.array`: each block where it is fastest on its worker.

`matmul`, `matvec` and `convolve2d` give Dask arrays, of which nothing is computed before
``compute()``. `kmeans` and `KMeans` iterate at once. ``docs/dask.md`` says what to expect.
"""

from __future__ import annotations

import math
import operator
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np

from hetero import devices
from hetero.calling import planner
from hetero.host import cpu
from hetero.imports import INSTALL, load
from hetero.ops import functions, plan
from hetero.ops.convolve2d import problem
from hetero.pricing.plan import CPU

try:
    import dask.array as da
except ImportError as error:
    raise ImportError(f"hetero.dask needs Dask; {INSTALL['dask']} ({error})") from error

__all__ = ["KMeans", "convolve2d", "kmeans", "matmul", "matvec", "solve_cg", "solve_poisson"]

_PADDING = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}  # da.pad's names
_AXES = "abcdefghijklmnopqrstuvwxyz"
_WHY_NOT = (
    "{0} is not done with Dask: every iteration exchanges halos and sums between all blocks, each "
    "of them a task of Dask's scheduler; use hetero.mpi.{0}"
)


def __getattr__(name: str) -> Any:
    if name in ("KMeans", "kmeans"):  # their module imports scikit-learn where that is installed
        return getattr(load(f"{__name__}.clustering"), name)
    raise AttributeError(f"module 'hetero.dask' has no attribute {name!r}")


# -- Blocks ----------------------------------------------------------------------------------------


def run(name: str, *operands: Any, call: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The function of this name on a block, where it is fastest; of GPUs, on the worker's own.

    That is the one of the number at the end of the name of a distributed cluster's worker, modulo
    the number of GPUs. Any where no worker runs this, and where CUDA_VISIBLE_DEVICES is set.
    """
    is_free = not options.get("device") and "CUDA_VISIBLE_DEVICES" not in os.environ
    worker = _distributed("get_worker") if is_free else None
    number = worker and re.search(r"\d+$", str(worker.name))
    gpus = [gpu for gpu in devices.available() if gpu.startswith("cuda:")] if number else []
    if gpus and plan(name, *operands, **options).chosen.device != CPU:
        options["device"] = gpus[int(number[0]) % len(gpus)]
    return (call or getattr(functions, name))(*operands, **options)


def _distributed(what: str) -> Any:
    """The client or the worker that there is of a distributed cluster."""
    with suppress(ValueError):  # there is none
        return "distributed" in sys.modules and getattr(sys.modules["distributed"], what)()


def checked_dtype(
    name: str, *operands: Any, device: str | None = None, method: str | None = None, **how: Any
) -> np.dtype:
    """The dtype of a result, once a placement and options that are wrong have been refused; devices
    of a distributed cluster are its workers'."""
    planner.check_placement(name, None if _distributed("get_client") else device, method)
    elements = [np.ones((1,) * operand.ndim, operand.dtype) for operand in operands]
    return run(name, *elements, **how).dtype


def by_blocks(
    name: str, function: Callable[..., Any], axes: str, dtype: Any, *pairs: Any, **more: Any
) -> da.Array:
    """A Dask array of what a function makes of blocks.

    ``pairs`` are arrays, each with a letter for every axis; ``axes`` has those of the result. Of an
    array with one that the result lacks the function gets the list of blocks along it. ``more`` is
    for `dask.array.blockwise`.
    """
    more |= {"meta": da.utils.meta_from_array(pairs[0], len(axes), dtype)}
    return da.blockwise(function, axes, *pairs, dtype=dtype, token=f"hetero-{name}", **more)


# -- The functions ---------------------------------------------------------------------------------


def convolve2d(
    image: Any,
    kernel: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: Any = 0,
    **placed: str,
) -> da.Array:
    """Convolve an image in blocks, as `hetero.convolve2d`.

    Parameters
    ----------
    image : (..., h, w) Dask array or array_like
        float32, float64, complex or integers. Blocks smaller than the kernel are merged.
    kernel : (fh, fw) array
    mode, boundary, fillvalue
        As of `hetero.convolve2d`.
    **placed
        ``device`` and ``method`` of `hetero.convolve2d`, for each block.

    Returns
    -------
    (..., oh, ow) Dask array
        With "same" in the image's blocks.

    Raises
    ------
    ValueError
        As `hetero.convolve2d`; where "valid" meets a kernel larger than the image, which is not
        swapped with it here; where "wrap" or "symm" reads farther than the image is long.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` names nothing. On a distributed cluster a device is looked for
        by the workers.

    Examples
    --------
    >>> import dask.array as da, hetero.dask, numpy as np
    >>> image = da.ones((4, 4), chunks=2)
    >>> hetero.dask.convolve2d(image, np.ones((2, 2)), mode="valid").compute()
    array([[4., 4., 4.],
           [4., 4., 4.],
           [4., 4., 4.]])
    """
    image = da.asanyarray(image)
    kernel = kernel if hasattr(kernel, "shape") else da.asarray(kernel)
    if image.ndim < 2 or kernel.ndim != 2:
        raise ValueError(
            f"an image of two or more dimensions and a kernel of two are needed, got "
            f"{image.shape} and {kernel.shape}"
        )
    problem.refuse_colour(image.shape)
    how = {"mode": mode, "boundary": boundary, "fillvalue": fillvalue}
    dtype = checked_dtype("convolve2d", image, kernel, **how, **placed)
    if 0 in (*image.shape, *kernel.shape):
        empty = np.empty(image.shape, image.dtype), np.empty(kernel.shape, kernel.dtype)
        return da.from_array(run("convolve2d", *empty, **how))
    image.rechunk({-2: -1, -1: -1})  # Dask's error for unknown chunks
    axes, depth, pads, chunks, adjusted = _AXES[: image.ndim], {}, [(0, 0)] * image.ndim, {}, {}
    for axis, length in zip((image.ndim - 2, image.ndim - 1), kernel.shape, strict=True):
        depth[axis] = length // 2, (length - 1) // 2
        if mode != "valid":
            pads[axis] = depth[axis] if mode == "same" else (length - 1, length - 1)
        elif image.shape[axis] < length:
            raise ValueError(f"the kernel {kernel.shape} is larger than the image {image.shape}")
        if boundary != "fill" and max(pads[axis]) > image.shape[axis]:
            raise ValueError(f"{boundary!r} would read {max(pads[axis])} points beyond the image")
        merged = list(image.chunks[axis])  # the boundary becomes part of the outer blocks
        merged[0] += pads[axis][0]
        merged[-1] += pads[axis][1]
        chunks[axis] = da.overlap.ensure_minimum_chunksize(length, tuple(merged))
        adjusted[axes[axis]] = partial(operator.add, 1 - length)
    if mode != "valid":
        fill = {"constant_values": fillvalue} if boundary == "fill" else {}
        image = da.pad(image.astype(dtype), pads, _PADDING[boundary], **fill)
    shared = da.overlap.overlap(image.rechunk(chunks), depth, "none")
    more = {"kernel": kernel, "adjust_chunks": adjusted, **placed}
    return by_blocks("convolve2d", _valid, axes, dtype, shared, axes, **more)


def _valid(block: Any, kernel: Any, **placed: str) -> Any:
    if block.ndim == 3:  # one that is 3 or 4 wide is no image in colour
        return _valid(block[None], kernel, **placed)[0]
    return run("convolve2d", block, kernel, mode="valid", **placed)


def matmul(A: Any, B: Any, **placed: str) -> da.Array:
    """A product of matrices in blocks, as `hetero.matmul` and `numpy.matmul`.

    Parameters
    ----------
    A, B : (..., m, k) or (k,), and (..., k, n) or (k,) Dask arrays or array_like
        Along k B is cut as A is; of a NumPy and a Dask array the former as the latter.
    **placed
        ``device`` and ``method`` of `hetero.matmul`, for each block.

    Returns
    -------
    (..., m, n) Dask array
        Products of blocks, added up by Dask.

    Raises
    ------
    ValueError
        For shapes that do not fit; `DeviceNotAvailable` and `MethodNotAvailable` as `convolve2d`.

    Examples
    --------
    >>> import dask.array as da, hetero.dask
    >>> hetero.dask.matmul(da.ones((2, 6), chunks=2), da.ones((6, 2), chunks=3)).compute()
    array([[6., 6.],
           [6., 6.]])
    """
    follows = isinstance(A, da.Array)
    A, B = da.asanyarray(A), da.asanyarray(B)
    dtype = checked_dtype("matmul", A, B, **placed)  # refuses scalars, too
    squeezed = ((-2,) if A.ndim == 1 else ()) + ((-1,) if B.ndim == 1 else ())
    A, B = A[None] if A.ndim == 1 else A, B[:, None] if B.ndim == 1 else B
    if A.shape[-1] != B.shape[-2] and not math.isnan(A.shape[-1] + B.shape[-2]):
        raise ValueError(f"shapes do not fit: {A.shape} and {B.shape}")
    inner = (A.chunks if follows else B.chunks[:-1])[-1]
    A, B = A.rechunk({A.ndim - 1: inner}), B.rechunk({B.ndim - 2: inner})
    axes = _AXES[: max(A.ndim, B.ndim) + 1]  # those of stacks and A's rows, k, B's columns
    stacks, rows, k, columns = axes[:-3], *axes[-3:]
    pairs = A, (stacks + rows + k)[-A.ndim :], B, (stacks + k + columns)[-B.ndim :]
    more = {"count": math.prod(A.numblocks) * B.numblocks[-1], "adjust_chunks": {k: 1}, **placed}
    products = by_blocks("matmul", _product, axes, dtype, *pairs, **more)
    is_one = products.numblocks[-2] == 1
    whole = products.squeeze(-2) if is_one else products.sum(axis=-2, dtype=dtype)
    return whole.squeeze(squeezed)


def _product(A: Any, B: Any, count: int, **placed: str) -> Any:
    """A product of blocks, one of `count`, with an axis for the sum of products.

    Where Dask's threads have one each, BLAS has one thread: its products would take turns.
    """
    in_pool = threading.current_thread() is not threading.main_thread()
    with cpu.one_thread() if in_pool and count >= cpu.describe()["cores"] else nullcontext():
        return run("matmul", A, B, **placed)[..., None, :]


def matvec(A: Any, x: Any, **placed: str) -> da.Array:
    """The product of a matrix and a vector: `matmul` with one column, as `hetero.matvec`.

    Parameters
    ----------
    A, x : (..., m, k) and (..., k) Dask arrays or array_like
    **placed
        See `matmul`.

    Returns
    -------
    (..., m) Dask array

    Examples
    --------
    >>> import dask.array as da, hetero.dask
    >>> hetero.dask.matvec(da.ones((2, 6), chunks=2), da.ones(6, chunks=3)).compute()
    array([6., 6.])
    """
    return matmul(A, da.asanyarray(x)[..., None], **placed)[..., 0]


def solve_cg(*operands: Any, **options: Any) -> NoReturn:
    """Not done with Dask, as the error says."""
    raise NotImplementedError(_WHY_NOT.format("solve_cg"))


def solve_poisson(*operands: Any, **options: Any) -> NoReturn:
    """Not done with Dask, as the error says."""
    raise NotImplementedError(_WHY_NOT.format("solve_poisson"))
