"""The iteration of conjugate gradients with a matrix, sparse or dense, on devices, as launches."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hetero import kernels
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.common.launch import Launch
from hetero.ops.krylov.cg_vectors import Loop, Vectors
from hetero.ops.linear_systems.exchange import Bound, BufferCopies, Part
from hetero.ops.linear_systems.partition import Copy, gather_copies, range_copies
from hetero.ops.linear_systems.systems import Csr, Dense

_WIDEST = 2.0  # times its rows: columns from first to last that a part has room for


class MatrixLoop(Loop):
    """A on one or several parts, whose buffers hold x, b, r, p, q and the block sums.

    An iteration is a product, then one launch for the vectors (kernels/cg/cg_scalars.cu), alone or
    with a diagonal preconditioner. With ``plain`` it is there for `times` alone.

    Attributes
    ----------
    sums : int
        Of each block: 4, or 8 with a diagonal preconditioner.
    blocks : list of int
        Of each part's product.
    """

    begins = 0

    def __init__(
        self, vectors: Vectors, system: Any, diagonal: bool = False, plain: bool = False
    ) -> None:
        super().__init__(vectors)
        self.vectors, self.diagonal, self.plain = vectors, diagonal, plain
        self.sums = 8 if diagonal else 4
        self.sizes = [end - begin for begin, end in vectors.spans]
        self._item = vectors.dtype.itemsize
        self._residual_sums = "partial", 2  # their buffer, and how many a block makes
        # Launches that make ready what the others copy of x, and of p.
        self._pack_x: list[list[Bound]] = [[] for _ in self.parts]
        self._pack_p: list[list[Bound]] = [[] for _ in self.parts]
        for part, rows in zip(self.parts, self.sizes, strict=True):
            part.allocate(rows * self._item, "r", "q")
        self._bind(system)
        self._steps = [[self._bind_step(*each, turn) for each in self._each()] for turn in (0, 1)]

    @abc.abstractmethod
    def _bind(self, system: Any) -> None:
        """Bind the launches of a residual and of products, and what parts copy before these of
        others' x and p."""

    def _each(self) -> Iterator[tuple[Part, int]]:
        return zip(self.parts, self.sizes, strict=True)

    def _bind_step(self, part: Part, rows: int, turn: int) -> list[Bound]:
        """x += alpha p, r -= alpha q, p = z + beta p; ``turn`` tells the present record."""
        if self.plain:
            return []
        *_, step = self._plan(part, rows, *(("inverse",) if self.diagonal else ()))
        scalars = {"before": f"record{turn}", "after": f"record{1 - turn}"}
        return [part.bind(step, partial_before="partial", **scalars)]

    def _plan(self, part: Part, rows: int, *more: str) -> tuple[Launch, ...]:
        """Launches on a part's vectors; see `plan_cg.vectors`."""
        size = {"dtype": self.vectors.dtype.name, "aligned": part.is_aligned("x", "b", *more)}
        return plan_cg.vectors(rows, part.device.target, diagonal=self.diagonal, **size)

    def residual(self) -> Sequence[float]:
        """r = b - A x, p = r or inverse * r; returns r.r and b.b."""
        self.exchange.run(self._pack_x, self._copies_of_x)
        self.exchange.run(self._residuals)
        name, count = self._residual_sums
        sums = self.exchange.total(name, self.blocks, count)
        self.exchange.run(self._pack_p, self._copies_of_p)
        return sums[:2]

    def advance(self, to: int) -> None:
        with self.exchange.queued():
            for iteration in range(self.done, to):
                turn = iteration % 2
                # q = A p, and sums in "partial".
                self.exchange.run(self._products[turn], self._gather)
                # The vectors; then p for the next product.
                both = zip(self._steps[turn], self._pack_p, strict=True)
                self.exchange.run([(*step, *pack) for step, pack in both], self._copies_of_p)
                self.turn = 1 - turn
        self.done = max(self.done, to)

    def times(self) -> None:
        """q = A p on one part."""
        self.exchange.run(self._products[0])

    def _make_sums(self, blocks: list[int]) -> list[Copy]:
        """Make room for the sums of the product's blocks of each part."""
        self.blocks = blocks
        return self.exchange.share_sums(blocks, self.sums, "partial")


class CsrMatrix(MatrixLoop):
    """A sparse matrix, by rows over one or several parts.

    A part's p and x are followed by the elements of other parts that its rows meet, in the order
    of their columns. Where parts meet, and each one's rows stay near the diagonal, p and x have
    all elements between its first column and its last instead, and indices remain as they are.
    """

    def _bind(self, system: Csr) -> None:
        vectors, diagonal = self.vectors, self.diagonal
        self._windows = self._near(system)
        shares, needs = self._upload_all(system)
        plans = [
            plan_cg.csr(share, part.device.target, dtype=vectors.dtype.name, diagonal=diagonal)
            for part, share in zip(self.parts, shares, strict=True)
        ]
        sums = self._make_sums([residual.grid for residual, _, _ in plans])
        if self._windows is None:
            copies = self._pack(shares, needs, [plain for _, _, plain in plans])
            sources = "packed", "packed"
        else:
            begins = [begin for begin, _ in vectors.spans]
            copies = range_copies(vectors.spans, self._windows, self._item, begins)
            sources = "x", "p"
        self._copies_of_x, self._copies_of_p = (
            self.exchange.bind(BufferCopies(copies, name, source))
            for name, source in zip("xp", sources, strict=True)
        )
        self._gather = self.exchange.bind(BufferCopies(sums, "partial", "partial"))
        self._residuals: list[list[Bound]] = []
        self._products: tuple[list, list] = [], []
        for number, (part, (residual, step, without)) in enumerate(
            zip(self.parts, plans, strict=True)
        ):
            known = {} if diagonal else {"inverse": "r"}
            self._residuals.append([part.bind(residual, **known, **self._column_0(number, "x"))])
            product = without if self.plain else step
            for turn in (0, 1):
                names = {"before": f"record{turn}", **self._column_0(number, "p")}
                self._products[turn].append([part.bind(product, **names)])
        if isinstance(vectors.result, np.ndarray):  # now there is room for what rows meet besides
            vectors.load("x")

    def _near(self, system: Csr) -> list[tuple[int, int]] | None:
        """First column and the end of the columns of each part; None where they go too far."""
        if self.exchange.meeting is None:
            return None
        windows: list[tuple[int, int]] = [(0, 0)] * len(self.parts)

        def look(number: int) -> None:
            begin, end = self.vectors.spans[number]
            indices = system.indices[system.indptr[begin] : system.indptr[end]]
            low, high = (int(indices.min()), int(indices.max())) if len(indices) else (begin, begin)
            windows[number] = min(low, begin), max(high + 1, end)

        self.exchange.at_once(look, system.indices.nbytes)
        spans = self.vectors.spans
        near = all(
            high - low <= _WIDEST * (end - begin)
            for (low, high), (begin, end) in zip(windows, spans, strict=True)
        )
        return windows if near else None

    def _column_0(self, number: int, vector: str) -> dict[str, Any]:
        """Where a part's vector would have the element of column 0."""
        if self._windows is None:
            return {}
        place = self.parts[number].buffers[vector] - self.vectors.spans[number][0] * self._item
        return {vector: place}

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
        foreign, before, after = np.empty(0, np.int64), 0, 0
        part.numbers["own"] = 0
        if self._windows is not None:
            low, high = self._windows[number]
            before, after = begin - low, high - end
            part.numbers["own"] = begin
        elif len(self.parts) > 1:
            outside = (indices < begin) | (indices >= end)
            foreign = np.unique(indices[outside])
            own = indices - indices.dtype.type(begin)
            own[outside] = end - begin + np.searchsorted(foreign, indices[outside])
            indices, after = own, len(foreign)
        if begin:
            pointers = pointers - pointers[0]
        index = np.promote_types(pointers.dtype, indices.dtype)
        part.upload(np.ascontiguousarray(pointers, index), "pointers")
        part.upload(np.ascontiguousarray(indices, index), "indices")
        part.upload(np.ascontiguousarray(values, self.vectors.dtype), "values")
        for name in ("x", "p"):
            if name not in part.buffers:
                part.allocate((before + end - begin + after) * self._item, name)
                if before:
                    part.buffers[name] += before * self._item
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
        for number, (share, wanted, plan) in enumerate(zip(shares, places, plans, strict=True)):
            part = self.parts[number]
            joined = np.concatenate([*wanted, np.empty(0, np.int64)]).astype(share.index)
            part.upload(joined, "places")
            part.allocate(len(joined) * self._item, "packed")
            launch = plan_cg.pack(plan, len(joined), part.device.target)
            if wanted:
                self._pack_x[number] = [part.bind(launch, p="x")]
                self._pack_p[number] = [part.bind(launch, p="p")]
        return copies


class DenseMatrix(MatrixLoop):
    """A dense matrix, by rows over one or several parts, as matrix-vector products.

    Several parts gather all of x, or p, in "whole", each from all of them.
    """

    def _bind(self, system: Dense) -> None:
        vectors, exchange, several = self.vectors, self.exchange, len(self.parts) > 1
        strides = self._upload_all(system)
        own = "own sums" if several else "partial"
        blocks: list[int] = []
        self._residuals, products = [], []
        for part, rows in self._each():
            part.allocate(rows * self._item, "p")
            if several:
                part.allocate(vectors.n * self._item, "whole")
            residual, sums, _ = self._plan(part, rows)
            blocks.append(residual.grid)
            part.allocate(8 * self.sums * residual.grid, "residual sums")
            if several:
                part.allocate(8 * self.sums * residual.grid, own)
            of_x, of_p = (
                self._product(part, "whole" if several else name, rows, strides) for name in "xp"
            )
            self._residuals.append([*of_x, part.bind(residual, partial="residual sums")])
            products.append((part, of_p, () if self.plain else (sums,)))
        self._residual_sums = "residual sums", self.sums
        self._make_sums(blocks)
        self._products = [
            [
                [*of_p, *(part.bind(one, partial=own) for one in sums)]
                for part, of_p, sums in products
            ]
        ] * 2
        elements = gather_copies([rows * self._item for rows in self.sizes], apart=True)
        gathered = gather_copies([8 * self.sums * count for count in blocks], apart=True)
        self._copies_of_x, self._copies_of_p, self._gather = (
            exchange.bind(BufferCopies(*copies))
            for copies in (
                (elements, "whole", "x"),
                (elements, "whole", "p"),
                (gathered, "partial", own),
            )
        )

    def _upload_all(self, system: Dense) -> tuple[int, int]:
        """Put each part's rows in its memory; returns the strides there, in elements."""
        if not isinstance(system.array, np.ndarray):
            self.parts[0].buffers["A"] = system.array
            return system.strides
        array, strides = np.asarray(system.array, self.vectors.dtype), (system.n, 1)
        if len(self.parts) == 1 and not array.flags.c_contiguous and array.flags.f_contiguous:
            array, strides = array.T, (1, system.n)

        def upload(number: int) -> None:
            begin, end = self.vectors.spans[number]
            self.parts[number].upload(np.ascontiguousarray(array[begin:end]), "A")

        self.exchange.at_once(upload, array.nbytes)
        return strides

    def _product(self, part: Part, vector: str, rows: int, strides: tuple[int, int]) -> list[Bound]:
        """The launches of q = A times a vector."""
        dtype = self.vectors.dtype
        plan = kernels.plan_matvec(
            m=rows,
            k=self.vectors.n,
            batch=1,
            dtype=dtype.name,
            a_strides=(0, *strides),
            x_strides=(0, 1),
            y_strides=(0, 1),
            target=part.device.target,
            alignment=16 if part.is_aligned("A", vector) else dtype.itemsize,
        )
        part.allocate(plan.workspace * self._item, "scratch")
        names = {"x": vector, "y": "q", "partial": "scratch"}
        return [part.bind(launch, **names) for launch in plan.launches]


KINDS = {Csr: CsrMatrix, Dense: DenseMatrix}
