"""Conjugate gradients on devices: the solve, and the launches of its steps with a matrix.

`OnMatrix` takes a product and a launch for the vectors per iteration. It is PR-CG
(kernels/cg/cg_scalars.cu). The iterations on grids are in `cg_grids`. `Rows` are a device's rows of
a dense or sparse matrix, or of a stencil, and their product with a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero import kernels
from hetero.arrays import describe, name_of
from hetero.devices import peers
from hetero.devices.base import Device
from hetero.kernels import Launch
from hetero.kernels.cg import plan as plan_cg
from hetero.ops.solvers import cg_grids, systems
from hetero.ops.solvers.cg_launches import Call, Loop
from hetero.ops.solvers.exchange import Bound, Part, Range, Step, split
from hetero.ops.solvers.systems import Csr, Dense, Outcome, Solve, Stencil, unknowns


def solve(
    devices: Sequence[Device],
    system: Stencil | Csr | Dense,
    b: Any,
    x: Any,
    asked: Solve,
    M: Any = None,
    *,
    dtype: Any = None,
    going_on: tuple[np.ndarray, np.ndarray] | None = None,
) -> Outcome:
    """Solve A x = b for a symmetric positive definite A.

    Parameters
    ----------
    devices : sequence of Device
        One, or several of one kind: then rows are divided among them, of a system on the host and
        without a `DeviceHierarchy`.
    system : Stencil, Csr or Dense
        Arrays on the host are uploaded for this call.
    b, x : (n,) numpy.ndarray, or buffers of the only device
        Right-hand side; start, and place of the result: contiguous, float32 or float64.
    M : optional
        (n,) numpy.ndarray: the inverse of a diagonal matrix. Or for a stencil a `DeviceHierarchy`
        of the first device.
    dtype : optional
        Of b and x. Default: that of b, an array.
    going_on : two (n,) numpy.ndarray, optional
        The recurrence's residual and next direction, of a matrix on one device, to go on from an
        iteration elsewhere. Default: b - A x, and the direction of steepest descent.

    Notes
    -----
    Work of an iteration, for n unknowns and a matrix of nnz entries; elements are those read and
    written, and what A and M take themselves comes on top.

    ============================  ====================  =========================
    iteration                     flops                 elements
    ============================  ====================  =========================
    `Sweeps`, 2-D                 28 n                  5.5 n
    `Sweeps`, 3-D                 32 n                  5.5 n
    `Persistent`                  24 n                  edges and sums
    `OnMatrix`, sparse            14 n + 2 nnz          10 n + nnz values, indices
    `OnMatrix`, dense             14 n + 2 n^2          10 n + n^2
    `Preconditioned`              10 n, with A and M    11 n, with A and M
    ============================  ====================  =========================

    References
    ----------
    T. Chen and E. Carson, "Predict-and-recompute conjugate gradient variants", SIAM J. Sci.
    Comput. 42 (2020), A3084-A3108: algorithm PR-CG. M. R. Hestenes and E. Stiefel, "Methods of
    conjugate gradients for solving linear systems", J. Res. Nat. Bur. Stand. 49 (1952).
    """
    dtype = np.dtype(b.dtype if dtype is None else dtype)

    def run(b: Any, x: Any, asked: Solve) -> Any:
        """Solve; None where the squares of b are not safe to work with, which scaled ones are."""
        with peers.turn(devices):
            call = Call(devices, system, b, x, dtype, M, asked.callback is not None)
            if not isinstance(system, Stencil) or isinstance(M, np.ndarray):
                loop = OnMatrix(call)
            else:
                loop = cg_grids.loop_of(call)
            return loop.solve(asked, going_on)

    if (outcome := run(b, x, asked)) is not None:
        return outcome
    if isinstance(b, np.ndarray) and isinstance(x, np.ndarray):
        return systems.scaled(run, b, x, asked)
    with devices[0].active():
        rhs, start = (np.empty(unknowns(system), dtype) for _ in range(2))
        devices[0].download(b, rhs)
        devices[0].download(x, start)
        outcome = systems.scaled(run, rhs, start, asked)
        devices[0].upload(start, x)
    return outcome


class OnMatrix(Loop):
    """A sparse or dense matrix, by rows over one or several parts, alone or with a diagonal M; a
    stencil with one.

    A part has all of x and p, of which it makes its own elements, and takes those of others that
    its rows meet: a range.
    """

    begins = 0

    def __init__(self, call: Call) -> None:
        system, dtype, diagonal = call.system, call.dtype, call.M is not None
        n, item = unknowns(system), dtype.itemsize
        unit = math.prod(system.shape[1:]) if isinstance(system, Stencil) else 1
        spans = [(i * unit, j * unit) for i, j in split(n // unit, len(call.devices))]
        super().__init__(call, spans, [(0, n)] * len(spans))
        rows: list[Any] = [None] * len(spans)

        def upload(number: int) -> None:
            rows[number] = rows_of(self.parts[number], system, spans[number], dtype, diagonal)

        arrays = [part for part in system if isinstance(part, np.ndarray)]
        self.exchange.at_once(upload, sum(array.nbytes for array in arrays))
        sums, plans = 8 if diagonal else 4, []
        for part, (begin, end) in zip(self.parts, spans, strict=True):
            part.allocate(n * item, "p")
            part.allocate((end - begin) * item, "r", "q")
            part.numbers["own"] = begin
            aligned = part.is_aligned("x", "b") and begin * item % 16 == 0
            how = {"dtype": dtype.name, "aligned": aligned, "diagonal": diagonal}
            plans.append(plan_cg.vectors(end - begin, part.device.target, **how))
            part.allocate(8 * sums * plans[-1][0].grid, "residual sums")
        residuals, sums_of_p, advances = zip(*plans, strict=True)
        self.residual_sums = "residual sums", [plan.grid for plan in residuals], sums
        made = [own.step or plan for own, plan in zip(rows, sums_of_p, strict=True)]
        gather = self.exchange.share_sums([plan.grid for plan in made], sums, "partial")
        # 1. r = b - A x, p = M r.
        needed = [own.needed for own in rows]
        of_x, of_p = (self.exchange.bind(self.copies(needed, name)) for name in "xp")
        residual = self.exchange.launches(residuals, partial="residual sums")
        first = [own.times("x") + then for own, then in zip(rows, residual, strict=True)]
        nothing: list[list[Bound]] = [[] for _ in self.parts]
        self.to_residual = (nothing, of_x), (first, of_p)
        # 3. q = A p, and sums in "partial"; then x, r and p, with one record and the other in turn.
        before = [own.times("p") if own.step is None else [] for own in rows]
        together, self._turns = self.exchange.bind(*gather), []
        for turn in (0, 1):
            scalars = {"before": f"record{turn}", "after": f"record{1 - turn}"}
            last = self.exchange.launches(made, **scalars)
            products = [own + then for own, then in zip(before, last, strict=True)]
            step = self.exchange.launches(advances, partial_before="partial", **scalars)
            self._turns.append(((products, together), (step, of_p)))

    def steps(self, iteration: int) -> Sequence[Step]:
        return self._turns[iteration % 2]


# -- The rows of a system -------------------------------------------------------------------------


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
