"""What matvec and matmul share: operands checked as NumPy would, and made a problem; how a product
of host arrays is cut into ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hetero.arrays import (
    HOST,
    Operand,
    Spec,
    array_or_spec,
    dense,
    describe,
    element_strides,
    name_of,
)
from hetero.registry import Cut, Problem, check_dims, dtype_obstacle

Box = tuple[tuple[int, int], ...]
_MULTIPLE = 128  # rows and columns of the tiles that kernels compute


def as_given(function: Callable[..., Any], outs: tuple[Any, ...], out: Any) -> Any:
    """``out`` of a call that gave it by its place; TypeError where NumPy has one.

    A tuple of one array is for ``out=`` alone.
    """
    if len(outs) > 1 or out is not None or isinstance(outs[0], tuple):
        function(1.0, 1.0, *outs, **({} if out is None else {"out": out}))
    return outs[0]


def build(function: str, a: Operand, b: Operand, out: Operand | None) -> Problem | None:
    """The problem of ``numpy.<function>(a, b, out=out)``, matmul or matvec; None where NumPy would
    not accept it. A product with one row or one column is a matvec."""
    shapes = _core_shapes(function, a.shape, b.shape)
    if shapes is None:
        return None
    m, n, k, result_shape = shapes
    try:
        dtype = np.result_type(a.dtype, b.dtype)
    except TypeError:
        return None
    location = next((o.location for o in (a, b) if o.location != HOST), HOST)
    if out is None:
        out = dense(result_shape, dtype, location)
    elif out.shape != result_shape or out.dtype != dtype or out.readonly:
        return None
    obstacle = dtype_obstacle(a, b, out)
    batch, strides = 1, None
    if obstacle is None:
        folded = _fold(function, a, b, out)
        if folded is None:
            obstacle = "no single stride walks the batch axes"
        else:
            batch, strides = folded
    if m == 1 or n == 1:
        operation, dims = "matvec", (m if n == 1 else n, k)
        if strides:  # of matrix, vector and result, with one column, or with one row
            x, y, z = strides
            column = x, y[:2], z[:2]
            strides = column if n == 1 else ((y[0], y[2], y[1]), (x[0], x[2]), (z[0], z[2]))
    else:
        operation, dims = "matmul", (m, n, k)
    layout = _layout(operation, strides, dtype.itemsize) if strides else "*"
    laid = batch, strides or (), layout
    return Problem(operation, dims, name_of(dtype), (a, b), out, *laid, function, obstacle)


def _layout(operation: str, strides: tuple[tuple[int, ...], ...], itemsize: int) -> str:
    """Which axis of A (and B) is contiguous, and whether vector loads are possible."""
    matrices = strides[:1] if operation == "matvec" else strides
    width = 16 // itemsize
    aligned = True
    order = ""
    for position, (batch, row, column) in enumerate(matrices):
        by_rows = abs(column) <= abs(row)
        if (row if by_rows else column) % width or batch % width:
            aligned = False
        if position < len(strides) - 1:
            order += "C" if by_rows else "F"
    return f"{order} {'aligned' if aligned else 'odd'}"


def _axes(function: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[bool, bool], ...]:
    """Which of row and column A, B and the result have as an axis, by the shapes of A and B."""
    if function == "matvec":
        return (True, True), (True, False), (True, False)
    rows, columns = len(a) > 1, len(b) > 1
    return (rows, True), (True, columns), (rows, columns)


def _core_shapes(
    function: str, a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[int, int, int, tuple[int, ...]] | None:
    """(m, n, k, shape of the result), or None where the shapes do not fit."""
    *axes, (rows, columns) = _axes(function, a, b)
    ends = [len(shape) - row - column for shape, (row, column) in zip((a, b), axes, strict=True)]
    if min(ends) < 0:
        return None
    m, k = a[ends[0]] if axes[0][0] else 1, a[-1]
    inner, n = b[ends[1]], b[-1] if axes[1][1] else 1
    if k != inner:
        return None
    batch: tuple[int, ...] = ()
    if any(ends):
        try:
            batch = np.broadcast_shapes(a[: ends[0]], b[: ends[1]])
        except ValueError:
            return None
    return m, n, k, batch + (m,) * rows + (n,) * columns


def _fold(
    function: str, a: Operand, b: Operand, out: Operand
) -> tuple[int, tuple[tuple[int, ...], ...]] | None:
    """(batch, strides of A, B and C as (batch, row, column)), in elements.

    The axes in front of the matrices are broadcast, and folded into one; None where no single
    stride walks them. A missing axis has stride 0.
    """
    fronts, cores = [], []
    axes = _axes(function, a.shape, b.shape)
    for operand, (row, column) in zip((a, b, out), axes, strict=True):
        if operand is out and operand.location == HOST:  # written on the device, then fetched
            strides: tuple[int, ...] | None = element_strides(operand.shape)
        else:
            strides = operand.staged_strides()
        assert strides is not None  # dtype_obstacle has looked
        end = len(strides) - row - column
        cores.append((strides[end] if row else 0, strides[-1] if column else 0))
        fronts.append((operand.shape[:end], strides[:end]))
    shape = fronts[-1][0]  # of the result
    if not shape:
        return 1, tuple([(0, *core) for core in cores])
    spread = [
        [0] * (len(shape) - len(own))
        + [stride if extent != 1 else 0 for extent, stride in zip(own, along, strict=True)]
        for own, along in fronts
    ]
    batch, between = 1, [0] * len(fronts)
    for extent, *along in reversed([*zip(shape, *spread, strict=True)]):
        if extent == 1:
            continue
        if batch > 1 and any(o != s * batch for o, s in zip(along, between, strict=True)):
            return None
        if batch == 1:
            between = along
        batch *= extent
    return batch, tuple((stride, *core) for stride, core in zip(between, cores, strict=True))


def describe_problem(function: str, A: Any, B: Any) -> Problem:
    """The problem of a product of arrays or specs.

    Raises
    ------
    ValueError
        If the shapes do not fit, as NumPy.
    TypeError
        NumPy's, if it has no product of these dtypes.
    """
    a, b = (describe(array_or_spec(x)) for x in (A, B))
    getattr(np, function).resolve_dtypes((a.dtype, b.dtype, None))
    problem = build(function, a, b, None)
    if problem is None:
        raise ValueError(f"{function}: operands of shapes {a.shape} and {b.shape} do not fit")
    return problem


def from_dims(function: str, dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem of two row-major operands that lie in one place."""
    check_dims(function, dims, "M K" if function == "matvec" else "M N K")
    m, *n, k = dims
    return describe_problem(function, Spec((m, k), dtype, on=on), Spec((k, *n), dtype, on=on))


# -- Ranges ----------------------------------------------------------------------------------------


def cut(problem: Problem) -> Cut:
    """How a product of two or more axes is cut, into ranges of the batch, of rows and of columns.

    A range of C is the product of a panel of rows of A and a panel of columns of B, each with the
    whole of k: every element of C is summed as the whole product sums it.
    """
    a, b, out = *problem.inputs, problem.output
    ndim = len(out.shape)
    needs = _needed(a, ndim, ndim - 2), _needed(b, ndim, ndim - 1)

    def index(shape: tuple[int, ...], axes: Iterable[int], box: Box) -> tuple[slice, ...]:
        """Of an array, which is cut along these axes of the result: its own, from the end."""
        found = [slice(0, extent) for extent in shape]
        for axis in axes:
            found[axis - ndim] = slice(*box[axis])
        return tuple(found)

    def laid(operand: Operand, axes: Iterable[int], box: Box, place: str) -> Operand:
        """A part of an operand as it lies on the host, or packed on a device, there by columns
        where these are contiguous on the host."""
        shape = tuple([part.stop - part.start for part in index(operand.shape, axes, box)])
        if place == HOST:
            return operand._replace(shape=shape)
        part = dense(shape, operand.dtype, place)
        if min(operand.shape[-2:]) > 1 and abs(operand.strides[-1]) > abs(operand.strides[-2]):
            size = part.dtype.itemsize
            part = part._replace(strides=(*part.strides[:-2], size, size * shape[-2]))
        return part

    def part(box: Box, place: str) -> Problem:
        operands = [laid(o, axes, box, place) for o, axes in zip((a, b), needs, strict=True)]
        made = build(problem.function, *operands, laid(out, range(ndim), box, place))
        assert made is not None  # as the whole
        return made

    def arrays(box: Box, whole: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        pairs = zip(whole, needs, strict=True)
        return tuple([x[index(x.shape, axes, box)] for x, axes in pairs])

    names = (*["batch"] * (ndim - 2), "rows", "columns")
    return Cut(
        axes=tuple(zip(names, out.shape, strict=True)),
        needs=needs,
        problem=part,
        arrays=arrays,
        output=lambda box, out: out[index(out.shape, range(ndim), box)],
        steps=(*[1] * (ndim - 2), _MULTIPLE, _MULTIPLE),
        seconds=(4e-4, 4e-5),  # H100, 16 cores
        both=1.0,
    )


def _needed(operand: Operand, ndim: int, core: int) -> tuple[int, ...]:
    """Axes of the result that decide which part of an operand a range reads."""
    batch = range(ndim - len(operand.shape), ndim - 2)
    return (*[axis for axis in batch if operand.shape[axis - ndim] > 1], core)
