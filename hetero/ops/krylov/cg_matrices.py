"""Matrices on devices, as conjugate gradients need them: residuals, and products with sums."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np

from hetero import kernels
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg import plan_stencil as plan_cg_stencil
from hetero.kernels.common.launch import Launch
from hetero.ops.krylov import cg_parts
from hetero.ops.krylov.cg_parts import Bound, Copy, Part, Transfer
from hetero.ops.linear_systems.types import Csr, Dense, Stencil

Spans = Sequence[tuple[int, int]]


def grid_of(
    stencil: Stencil, rows: int, low: bool = False, high: bool = False
) -> plan_cg_stencil.Grid:
    """A share of ``rows`` rows of a stencil's grid."""
    weights = [1.0 / h**2 for h in stencil.spacing]
    if len(weights) == 2:
        return plan_cg_stencil.Grid(
            rows, 1, stencil.shape[1], (weights[0], 0.0, weights[1]), low, high
        )
    return plan_cg_stencil.Grid(rows, *stencil.shape[1:], tuple(weights), low, high)


class Matrix(abc.ABC):
    """A on one or several parts, whose buffers hold x, b, r, p, q and the block sums.

    Attributes
    ----------
    sums : int
        Of each block: 4, 8 with a diagonal preconditioner, or 2 with any other.
    blocks : list of int
        Of each part's product.
    """

    def __init__(self, parts: Sequence[Part], diagonal: bool, plain: bool) -> None:
        self.parts = parts
        self.diagonal = diagonal
        self.plain = plain
        self.sums = 2 if plain else (8 if diagonal else 4)
        self.blocks: list[int] = []

    @abc.abstractmethod
    def residual(self) -> tuple[float, float]:
        """r = b - A x, p = r or inverse * r; returns r.r and b.b."""

    @abc.abstractmethod
    def product(self, turn: int) -> None:
        """q = A p, and sums in "partial". ``turn`` tells which record is the present one."""

    def change(self, launches: Sequence[Sequence[Bound]]) -> None:
        """Start launches that change p."""
        cg_parts.run_all(self.parts, launches)

    def _make_sums(self) -> None:
        """Make room for the block sums of all parts in each, and say how many there are."""
        for number, part in enumerate(self.parts):
            part.room(8 * self.sums * sum(self.blocks), "partial")
            part.numbers["blocks_before"] = sum(self.blocks)
            part.numbers["first_block"] = sum(self.blocks[:number])


class StencilMatrix(Matrix):
    """-div grad, on one part, for a preconditioner of its own launches."""

    def __init__(self, part: Part, stencil: Stencil, dtype: np.dtype) -> None:
        super().__init__([part], False, True)
        residual, product = plan_cg_stencil.stencil(
            grid_of(stencil, stencil.shape[0]),
            dtype=dtype.name,
            x_halo=0,
            r_start=0,
            p_start=0,
            pitch=int(np.prod(stencil.shape[1:])),
            scaled=False,
            multiprocessors=part.device.multiprocessors,
            block_limit=part.device.block_limit,
        )
        self.blocks = [product.grid]
        self._make_sums()
        self._residual = part.bind(residual, inverse="r")
        self._product = part.bind(product)

    def residual(self) -> tuple[float, float]:
        cg_parts.run_all(self.parts, [(self._residual,)])
        r_r, b_b = cg_parts.total(self.parts, "partial", self.blocks, 2)
        return float(r_r), float(b_b)

    def product(self, turn: int) -> None:
        cg_parts.run_all(self.parts, [(self._product,)])


class CsrMatrix(Matrix):
    """A sparse matrix, by rows over one or several parts.

    A part's p and x are followed by the elements of other parts that its rows meet, in the order
    of their columns.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        system: Csr,
        spans: Spans,
        dtype: np.dtype,
        diagonal: bool,
        plain: bool,
    ) -> None:
        super().__init__(parts, diagonal, plain)
        self._item = dtype.itemsize
        self._spans = spans
        self._copies: list[Copy] = []
        shares, needs, plans = [], [], []
        for part, span in zip(parts, spans, strict=True):
            share, foreign = self._upload(part, system, span, dtype)
            shares.append(share)
            needs.append(foreign)
            plans.append(
                plan_cg.csr(
                    share,
                    dtype=dtype.name,
                    diagonal=diagonal,
                    multiprocessors=part.device.multiprocessors,
                    block_limit=part.device.block_limit,
                )
            )
        self.blocks = [residual.grid for residual, _, _ in plans]
        self._make_sums()
        self._pack_x, self._pack_p = self._packing(shares, needs, [plain for _, _, plain in plans])
        self._gather = Transfer(cg_parts.gather(self.blocks, self.sums), "partial", "partial")
        self._residuals: list[list[Bound]] = []
        self._products: tuple[list, list] = [], []
        for part, (residual, step, without) in zip(parts, plans, strict=True):
            known = {} if diagonal else {"inverse": "r"}
            self._residuals.append([part.bind(residual, **known)])
            product = without if plain else step
            for turn in (0, 1):
                self._products[turn].append([part.bind(product, before=f"record{turn}")])

    def _upload(
        self, part: Part, system: Csr, span: tuple[int, int], dtype: np.dtype
    ) -> tuple[plan_cg.Rows, np.ndarray]:
        """Put a part's rows in its memory, make its x and p; returns their foreign columns too."""
        begin, end = span
        pointers = system.indptr[begin : end + 1]
        where = slice(int(pointers[0]), int(pointers[-1]))
        indices, values = system.indices[where], system.data[where]
        foreign = np.empty(0, np.int64)
        if len(self._spans) > 1:
            outside = (indices < begin) | (indices >= end)
            foreign = np.unique(indices[outside])
            own = indices - indices.dtype.type(begin)
            own[outside] = end - begin + np.searchsorted(foreign, indices[outside])
            indices, pointers = own, pointers - pointers[0]
        index = np.promote_types(pointers.dtype, indices.dtype)
        part.put("pointers", np.ascontiguousarray(pointers, index))
        part.put("indices", np.ascontiguousarray(indices, index))
        part.put("values", np.ascontiguousarray(values, dtype))
        for name in ("x", "p"):
            if name not in part.buffers:
                part.room((end - begin + len(foreign)) * self._item, name)
        return plan_cg.Rows(end - begin, len(values), index.name), foreign

    def _packing(
        self, shares: list[plan_cg.Rows], needs: list[np.ndarray], plans: list[Launch]
    ) -> tuple[list[list[Bound]], list[list[Bound]]]:
        """Prepare the exchange of foreign elements; launches that pack those of x and of p."""
        places: list[list[np.ndarray]] = [[] for _ in self.parts]
        for target, foreign in enumerate(needs):
            begin, end = self._spans[target]
            for source, (low, high) in enumerate(self._spans):
                first, last = np.searchsorted(foreign, (low, high))
                if first < last:
                    offset = sum(map(len, places[source]))
                    self._copies.append(
                        Copy(
                            target,
                            source,
                            int(last - first) * self._item,
                            (end - begin + int(first)) * self._item,
                            offset * self._item,
                        )
                    )
                    places[source].append(foreign[first:last] - low)
        packing: tuple[list, list] = [], []
        for part, share, wanted, plan in zip(self.parts, shares, places, plans, strict=True):
            joined = np.concatenate([*wanted, np.empty(0, np.int64)]).astype(share.index)
            part.put("places", joined)
            part.room(len(joined) * self._item, "packed")
            launch = plan_cg.pack(plan, len(joined), part.device.multiprocessors)
            for which, name in enumerate("xp"):
                packing[which].append([part.bind(launch, p=name)] if wanted else [])
        return packing

    def residual(self) -> tuple[float, float]:
        cg_parts.run_all(self.parts, self._pack_x, [Transfer(self._copies, "x", "packed")])
        cg_parts.run_all(self.parts, self._residuals)
        r_r, b_b = cg_parts.total(self.parts, "partial", self.blocks, 2)
        self.change([()] * len(self.parts))
        return float(r_r), float(b_b)

    def product(self, turn: int) -> None:
        cg_parts.run_all(self.parts, self._products[turn], [self._gather])

    def change(self, launches: Sequence[Sequence[Bound]]) -> None:
        both = [(*first, *then) for first, then in zip(launches, self._pack_p, strict=True)]
        cg_parts.run_all(self.parts, both, [Transfer(self._copies, "p", "packed")])


class DenseMatrix(Matrix):
    """A dense matrix on one part, through the launches of a matrix-vector product."""

    def __init__(
        self, part: Part, system: Dense, dtype: np.dtype, diagonal: bool, plain: bool
    ) -> None:
        super().__init__([part], diagonal, plain)
        self._item = dtype.itemsize
        device = part.device
        strides = system.strides
        if isinstance(system.array, np.ndarray):
            array = np.asarray(system.array, dtype)
            if array.flags.f_contiguous and not array.flags.c_contiguous:
                array, strides = array.T, (1, system.n)
            else:
                array, strides = np.ascontiguousarray(array), (system.n, 1)
            part.put("A", array)
        else:
            part.buffers["A"] = system.array
        self._steps = {name: self._plan(part, name, system.n, strides, dtype) for name in "xp"}
        size = {
            "dtype": dtype.name,
            "aligned": part.is_aligned("x", "b"),
            "multiprocessors": device.multiprocessors,
            "block_limit": device.block_limit,
        }
        residual, sums, _ = plan_cg.vectors(system.n, diagonal=diagonal, **size)
        dots, _, _ = plan_cg.dots(system.n, **size)
        self.blocks = [residual.grid]
        self._residual_sums = 8 if diagonal else 4
        part.room(8 * self._residual_sums * residual.grid, "residual sums")
        self._make_sums()
        self._residual = part.bind(residual, partial="residual sums")
        self._sums = part.bind(dots, a="q", b="p") if plain else part.bind(sums)

    def _plan(
        self, part: Part, vector: str, n: int, strides: tuple[int, int], dtype: np.dtype
    ) -> kernels.Steps:
        return kernels.plan_matvec(
            m=n,
            k=n,
            batch=1,
            dtype=dtype.name,
            a_strides=(0, *strides),
            x_strides=(0, 1),
            y_strides=(0, 1),
            multiprocessors=part.device.multiprocessors,
            alignment=16 if part.is_aligned("A", vector) else dtype.itemsize,
            block_limit=part.device.block_limit,
            capability=part.device.capability,
        )

    def _multiply(self, vector: str) -> None:
        (part,) = self.parts
        buffers = {"A": part.buffers["A"], "x": part.buffers[vector], "y": part.buffers["q"]}
        part.device.run_steps(self._steps[vector], buffers, self._item)

    def residual(self) -> tuple[float, float]:
        self._multiply("x")
        cg_parts.run_all(self.parts, [(self._residual,)])
        sums = cg_parts.total(self.parts, "residual sums", self.blocks, self._residual_sums)
        return float(sums[0]), float(sums[1])

    def product(self, turn: int) -> None:
        self._multiply("p")
        cg_parts.run_all(self.parts, [(self._sums,)])
