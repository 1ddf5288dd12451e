"""Matrices on devices, as conjugate gradients need them: residuals, and products with sums."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero import kernels
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg import plan_stencil as plan_cg_stencil
from hetero.kernels.common.launch import Launch
from hetero.ops.krylov.cg_vectors import Vectors
from hetero.ops.linear_systems.exchange import Bound, BufferCopies, Part
from hetero.ops.linear_systems.partition import Copy
from hetero.ops.linear_systems.types import Csr, Dense, Stencil


class Matrix(abc.ABC):
    """A on one or several parts, whose buffers hold x, b, r, p, q and the block sums.

    Preconditioned by a diagonal matrix, if ``diagonal``, or by launches of its own, if ``plain``.

    Attributes
    ----------
    sums : int
        Of each block: 4, 8 with a diagonal preconditioner, or 2 with any other.
    blocks : list of int
        Of each part's product.
    """

    def __init__(self, vectors: Vectors, diagonal: bool, plain: bool) -> None:
        self.vectors = vectors
        self.exchange = vectors.exchange
        self.parts = vectors.parts
        self.diagonal = diagonal
        self.plain = plain
        self.sums = 2 if plain else (8 if diagonal else 4)
        self.sizes = [end - begin for begin, end in vectors.spans]
        self._item = vectors.dtype.itemsize
        for part, rows in zip(self.parts, self.sizes, strict=True):
            part.allocate(rows * self._item, "r", "q")

    @abc.abstractmethod
    def residual(self) -> Sequence[float]:
        """r = b - A x, p = r or inverse * r; returns r.r and b.b."""

    @abc.abstractmethod
    def product(self, turn: int) -> None:
        """q = A p, and sums in "partial". ``turn`` tells which record is the present one."""

    def times(self) -> None:
        """q = A p; what the sums hold then does not matter."""
        self.product(0)

    def change(self, launches: Sequence[Sequence[Bound]]) -> None:
        """Start launches that change p."""
        self.exchange.run(launches)

    def _make_sums(self, blocks: list[int]) -> list[Copy]:
        """Make room for the sums of the product's blocks of each part."""
        self.blocks = blocks
        return self.exchange.share_sums(blocks, self.sums, "partial")


class StencilMatrix(Matrix):
    """-div grad, on one part, for a preconditioner of its own launches."""

    def __init__(self, vectors: Vectors, stencil: Stencil) -> None:
        super().__init__(vectors, False, True)
        (part,) = self.parts
        part.allocate(vectors.n * self._item, "p")
        residual, product = plan_cg_stencil.stencil(
            plan_cg_stencil.GridShare.of(*stencil), vectors.target(part), dtype=vectors.dtype.name
        )
        self._make_sums([product.grid])
        self._residual = part.bind(residual, inverse="r")
        self._product = part.bind(product)

    def residual(self) -> Sequence[float]:
        self.exchange.run([(self._residual,)])
        return self.exchange.total("partial", self.blocks, 2)

    def product(self, turn: int) -> None:
        self.exchange.run([(self._product,)])


class CsrMatrix(Matrix):
    """A sparse matrix, by rows over one or several parts.

    A part's p and x are followed by the elements of other parts that its rows meet, in the order
    of their columns.
    """

    def __init__(self, vectors: Vectors, system: Csr, diagonal: bool, plain: bool) -> None:
        super().__init__(vectors, diagonal, plain)
        shares, needs = self._upload_all(system)
        plans = [
            plan_cg.csr(share, vectors.target(part), dtype=vectors.dtype.name, diagonal=diagonal)
            for part, share in zip(self.parts, shares, strict=True)
        ]
        sums = self._make_sums([residual.grid for residual, _, _ in plans])
        copies = self._pack(shares, needs, [plain for _, _, plain in plans])
        self._foreign_x = self.exchange.bind(BufferCopies(copies, "x", "packed"))
        self._foreign_p = self.exchange.bind(BufferCopies(copies, "p", "packed"))
        self._gather = self.exchange.bind(BufferCopies(sums, "partial", "partial"))
        self._residuals: list[list[Bound]] = []
        self._products: tuple[list, list] = [], []
        for part, (residual, step, without) in zip(self.parts, plans, strict=True):
            known = {} if diagonal else {"inverse": "r"}
            self._residuals.append([part.bind(residual, **known)])
            product = without if plain else step
            for turn in (0, 1):
                self._products[turn].append([part.bind(product, before=f"record{turn}")])
        vectors.load_x()

    def _upload_all(self, system: Csr) -> tuple[list[plan_cg.Rows], list[np.ndarray]]:
        """`_upload` of all parts."""
        found: dict[int, tuple[plan_cg.Rows, np.ndarray]] = {}

        def upload(number: int) -> None:
            found[number] = self._upload(number, system)

        self.exchange.at_once(upload, system.data.nbytes + system.indices.nbytes)
        shares, needs = zip(*(found[number] for number in range(len(found))), strict=True)
        return list(shares), list(needs)

    def _upload(self, number: int, system: Csr) -> tuple[plan_cg.Rows, np.ndarray]:
        """Put a part's rows in its memory, make its x and p; returns their foreign columns too."""
        part, (begin, end) = self.parts[number], self.vectors.spans[number]
        pointers = system.indptr[begin : end + 1]
        where = slice(int(pointers[0]), int(pointers[-1]))
        indices, values = system.indices[where], system.data[where]
        foreign = np.empty(0, np.int64)
        if len(self.parts) > 1:
            outside = (indices < begin) | (indices >= end)
            foreign = np.unique(indices[outside])
            own = indices - indices.dtype.type(begin)
            own[outside] = end - begin + np.searchsorted(foreign, indices[outside])
            indices, pointers = own, pointers - pointers[0]
        index = np.promote_types(pointers.dtype, indices.dtype)
        part.upload(np.ascontiguousarray(pointers, index), "pointers")
        part.upload(np.ascontiguousarray(indices, index), "indices")
        part.upload(np.ascontiguousarray(values, self.vectors.dtype), "values")
        for name in ("x", "p"):
            if name not in part.buffers:
                part.allocate((end - begin + len(foreign)) * self._item, name)
        return plan_cg.Rows(end - begin, len(values), index.name), foreign

    def _pack(
        self, shares: list[plan_cg.Rows], needs: list[np.ndarray], plans: list[Launch]
    ) -> list[Copy]:
        """Copies of foreign elements from "packed", and launches that pack those of x and of p."""
        copies: list[Copy] = []
        places: list[list[np.ndarray]] = [[] for _ in self.parts]
        for target, foreign in enumerate(needs):
            begin, end = self.vectors.spans[target]
            for source, (low, high) in enumerate(self.vectors.spans):
                first, last = np.searchsorted(foreign, (low, high))
                if first < last:
                    offset = sum(map(len, places[source]))
                    copies.append(
                        Copy(
                            target,
                            source,
                            int(last - first) * self._item,
                            (end - begin + int(first)) * self._item,
                            offset * self._item,
                        )
                    )
                    places[source].append(foreign[first:last] - low)
        self._pack_x: list[list[Bound]] = []
        self._pack_p: list[list[Bound]] = []
        for part, share, wanted, plan in zip(self.parts, shares, places, plans, strict=True):
            joined = np.concatenate([*wanted, np.empty(0, np.int64)]).astype(share.index)
            part.upload(joined, "places")
            part.allocate(len(joined) * self._item, "packed")
            launch = plan_cg.pack(plan, len(joined), self.vectors.target(part))
            self._pack_x.append([part.bind(launch, p="x")] if wanted else [])
            self._pack_p.append([part.bind(launch, p="p")] if wanted else [])
        return copies

    def residual(self) -> Sequence[float]:
        self.exchange.run(self._pack_x, self._foreign_x)
        self.exchange.run(self._residuals)
        sums = self.exchange.total("partial", self.blocks, 2)
        self.change([()] * len(self.parts))
        return sums

    def product(self, turn: int) -> None:
        self.exchange.run(self._products[turn], self._gather)

    def change(self, launches: Sequence[Sequence[Bound]]) -> None:
        both = [(*first, *then) for first, then in zip(launches, self._pack_p, strict=True)]
        self.exchange.run(both, self._foreign_p)


class DenseMatrix(Matrix):
    """A dense matrix on one part, through the launches of a matrix-vector product."""

    def __init__(self, vectors: Vectors, system: Dense, diagonal: bool, plain: bool) -> None:
        super().__init__(vectors, diagonal, plain)
        (part,) = self.parts
        part.allocate(vectors.n * self._item, "p")
        dtype, strides = vectors.dtype, system.strides
        if isinstance(system.array, np.ndarray):
            array = np.asarray(system.array, dtype)
            if array.flags.f_contiguous and not array.flags.c_contiguous:
                array, strides = array.T, (1, system.n)
            else:
                array, strides = np.ascontiguousarray(array), (system.n, 1)
            part.upload(array, "A")
        else:
            part.buffers["A"] = system.array
        self._launch_plans = {
            name: self._plan(part, name, system.n, strides, dtype) for name in "xp"
        }
        target = vectors.target(part)
        size = {"dtype": dtype.name, "aligned": part.is_aligned("x", "b")}
        residual, sums, _ = plan_cg.vectors(system.n, target, diagonal=diagonal, **size)
        dots, _, _ = plan_cg.dots(system.n, target, **size)
        self._residual_sums = 8 if diagonal else 4
        part.allocate(8 * self._residual_sums * residual.grid, "residual sums")
        self._make_sums([residual.grid])
        self._residual = part.bind(residual, partial="residual sums")
        self._sums = part.bind(dots, a="q", b="p") if plain else part.bind(sums)

    def _plan(
        self, part: Part, vector: str, n: int, strides: tuple[int, int], dtype: np.dtype
    ) -> kernels.LaunchPlan:
        target = self.vectors.target(part)
        return kernels.plan_matvec(
            m=n,
            k=n,
            batch=1,
            dtype=dtype.name,
            a_strides=(0, *strides),
            x_strides=(0, 1),
            y_strides=(0, 1),
            multiprocessors=target.multiprocessors,
            alignment=16 if part.is_aligned("A", vector) else dtype.itemsize,
            block_limit=target.block_limit,
            capability=part.device.capability,
            tuning=target.table,
        )

    def _multiply(self, vector: str) -> None:
        (part,) = self.parts
        buffers = {"A": part.buffers["A"], "x": part.buffers[vector], "y": part.buffers["q"]}
        part.device.run_launches(self._launch_plans[vector], buffers, self._item)

    def residual(self) -> Sequence[float]:
        self._multiply("x")
        self.exchange.run([(self._residual,)])
        return self.exchange.total("residual sums", self.blocks, self._residual_sums)[:2]

    def product(self, turn: int) -> None:
        self.times()
        self.exchange.run([(self._sums,)])

    def times(self) -> None:
        self._multiply("p")


def of_system(vectors: Vectors, system: Any, diagonal: bool, plain: bool) -> Matrix:
    """A system's matrix; a stencil's without a diagonal preconditioner."""
    if isinstance(system, Stencil):
        return StencilMatrix(vectors, system)
    return (CsrMatrix if isinstance(system, Csr) else DenseMatrix)(vectors, system, diagonal, plain)
