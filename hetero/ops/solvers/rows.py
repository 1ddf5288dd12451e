"""A device's rows of a dense or sparse matrix, or of a stencil, and their product with a vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero import kernels
from hetero.arrays import describe, name_of
from hetero.devices.base import Device
from hetero.kernels import Launch
from hetero.kernels.cg import plan as plan_cg
from hetero.ops.solvers.exchange import Bound, Part, Range
from hetero.ops.solvers.systems import Csr, Dense, Stencil, unknowns


class Rows(NamedTuple):
    """A part's rows of a matrix, in its memory."""

    needed: Range  # of the columns that they meet
    times: Callable[[str], list[Bound]]  # binds q = A times the whole vector of that name
    step: Launch | None = None  # q = A p with the sums of a step, where one launch makes both


def rows_of(part: Part, system: Any, span: Range, dtype: np.dtype, diagonal: bool = False) -> Rows:
    """The rows ``span`` of a system; those on the host are uploaded."""
    if isinstance(system, Dense):
        return _dense_rows(part, system, span, dtype)
    (begin, end), target, step = span, part.device.target, None
    if isinstance(system, Stencil):
        plane, n = math.prod(system.shape[1:]), unknowns(system)
        grid = plan_cg.GridShare.of(*system, (end - begin) // plane, low=begin > 0, high=end < n)
        _, product = plan_cg.stencil(grid, target, dtype=dtype.name, before=begin // plane)
        needed = max(begin - plane, 0), min(end + plane, n)
    else:
        needed, *share = _upload_sparse(part, system, span, dtype)
        how = {"dtype": dtype.name, "diagonal": diagonal}
        step, product = plan_cg.csr(end - begin, *share, target, **how)
    part.allocate(16 * product.grid, "sums of a product")
    names = {"partial": "sums of a product", "first_block": 0}
    return Rows(needed, lambda vector: [part.bind(product, p=vector, **names)], step)


def _upload_sparse(part: Part, system: Csr, span: Range, dtype: np.dtype) -> tuple[Range, int, str]:
    """The columns that the rows meet, their entries, and the indices' dtype."""
    if not isinstance(system.data, np.ndarray):
        of = dict(zip(("pointers", "indices", "values"), map(describe, system), strict=True))
        part.buffers |= {name: operand.pointer for name, operand in of.items()}
        return span, of["values"].size, name_of(of["indices"].dtype)
    pointers = system.indptr[span[0] : span[1] + 1]
    where = slice(int(pointers[0]), int(pointers[-1]))
    indices, values = system.indices[where], system.data[where]
    if len(indices) and part.stream is not None:  # of several parts
        span = int(indices.min()), int(indices.max()) + 1
    index = np.promote_types(pointers.dtype, indices.dtype)
    if pointers[0]:
        pointers = pointers - pointers[0]
    part.upload(np.ascontiguousarray(pointers, index), "pointers")
    part.upload(np.ascontiguousarray(indices, index), "indices")
    part.upload(np.ascontiguousarray(values, dtype), "values")
    return span, len(values), index.name


def _dense_rows(part: Part, system: Dense, span: Range, dtype: np.dtype) -> Rows:
    array, strides, n = system.array, system.strides, system.n
    if isinstance(array, np.ndarray):
        rows, strides = array[slice(*span)].astype(dtype, copy=False), (n, 1)
        if len(rows) == n and rows.flags.f_contiguous and not rows.flags.c_contiguous:
            rows, strides = rows.T, (1, n)
        part.upload(np.ascontiguousarray(rows), "A")
    else:
        part.buffers["A"] = array

    def times(vector: str) -> list[Bound]:
        scratch = f"scratch of {vector}"
        plan = kernels.plan_matvec(
            m=span[1] - span[0],
            k=n,
            batch=1,
            dtype=dtype.name,
            a_strides=(0, *strides),
            x_strides=(0, 1),
            y_strides=(0, 1),
            target=part.device.target,
            alignment=16 if part.is_aligned("A", vector) else dtype.itemsize,
        )
        part.allocate(plan.workspace * dtype.itemsize, scratch)
        names = {"x": vector, "y": "q", "partial": scratch}
        return [part.bind(launch, **names) for launch in plan.launches]

    return Rows((0, n), times)


def product(device: Device, system: Any, dtype: np.dtype) -> tuple[Part, Callable[[], object]]:
    """A part on one device, which is active, and what starts q = A p by its buffers "p", "q"."""
    part, n = Part(device, alone=True), unknowns(system)
    part.allocate(n * dtype.itemsize, "p", "q")
    part.numbers["own"] = 0
    return part, partial(part.start, *rows_of(part, system, (0, n), dtype).times("p"))
