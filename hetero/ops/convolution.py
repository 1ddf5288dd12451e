"""Two-dimensional convolution: can be priced; not run yet."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, Operand, Spec, describe, element_strides
from hetero.models import Work
from hetero.problem import Problem, dtype_obstacle

OPERATION = "convolve2d"


def problem(image: Any, filter: Any) -> Problem:
    """The problem of convolving an image with a filter, the result as large as the image.

    Parameters
    ----------
    image : (h, w) array or spec
    filter : (filter_h, filter_w) array or spec

    Raises
    ------
    ValueError
        If either is not two-dimensional.
    """
    a, b = describe(image), describe(filter)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ValueError(f"image and filter must have 2 dimensions, got {a.shape} and {b.shape}")
    dtype = np.result_type(a.dtype, b.dtype)
    location = next((o.location for o in (a, b) if o.location != HOST), HOST)
    strides = tuple(s * dtype.itemsize for s in element_strides(a.shape))
    output = Operand(a.shape, strides, dtype, location)
    return Problem(
        OPERATION,
        (*a.shape, *b.shape),
        dtype.name,
        (a, b),
        output,
        device_obstacle=dtype_obstacle(a, b),
    )


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with dimensions H W FH FW, as ``hetero explain convolve2d`` asks for it."""
    if len(dims) != 4:
        raise ValueError(f"convolve2d takes 4 dimensions, H W FH FW, got {len(dims)}")
    return problem(Spec(dims[:2], dtype, on=on), Spec(dims[2:], dtype, on=on))


def _work(problem: Problem, info: dict[str, Any]) -> Work:
    h, w, filter_h, filter_w = problem.dims
    moved = sum(o.nbytes for o in (*problem.inputs, problem.output))
    return Work(problem.dims, 2.0 * h * w * filter_h * filter_w, moved)


for _kind in ("cpu", "cuda"):
    registry.register(
        registry.Implementation(OPERATION, "direct", _kind, registry.no_obstacle, _work)
    )
