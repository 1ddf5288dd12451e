"""The iteration of conjugate gradients with a matrix, sparse or dense, on devices, as launches."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero import kernels
from hetero.arrays import describe, name_of
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.common.launch import Launch
from hetero.ops.solvers.cg_vectors import Loop, Step, Vectors
from hetero.ops.solvers.exchange import Bound, BufferCopies, Copy, Part, gather_copies
from hetero.ops.solvers.systems import Csr, Dense


class MatrixLoop(Loop):
    """A on one or several parts, whose buffers hold x, b, r, p, q and the block sums.

    An iteration is a product, then one launch for the vectors (kernels/cg/cg_scalars.cu), alone or
    with a diagonal preconditioner. With ``plain`` it is there for `times` alone.
    """

    begins = 0

    def __init__(
        self, vectors: Vectors, system: Any, diagonal: bool = False, plain: bool = False
    ) -> None:
        super().__init__(vectors)
        self._diagonal, self._plain = diagonal, plain
        self._sums = 8 if diagonal else 4  # of each block of a product
        self._name, self._item = vectors.dtype.name, vectors.dtype.itemsize
        self._rows = [end - begin for begin, end in vectors.spans]
        # What makes ready what the others copy of x, and of p.
        self._pack: dict[str, list[list[Bound]]] = {name: [[] for _ in self.parts] for name in "xp"}
        for part, rows in zip(self.parts, self._rows, strict=True):
            part.allocate(rows * self._item, "r", "q")
        self._bind(system)
        if plain:
            return
        # x += alpha p, r -= alpha q, p = z + beta p; in turn with one record and the other. Then
        # p is made ready for the next product.
        self._steps: list[list[list[Bound]]] = [[], []]
        for part, rows, pack in zip(self.parts, self._rows, self._pack["p"], strict=True):
            *_, step = self._plan(part, rows, *(("inverse",) if diagonal else ()))
            for turn, steps in enumerate(self._steps):
                scalars = {"before": f"record{turn}", "after": f"record{1 - turn}"}
                steps.append([part.bind(step, partial_before="partial", **scalars), *pack])

    @abc.abstractmethod
    def _bind(self, system: Any) -> None:
        """Bind the launches of a residual, with the name of their sums, the blocks of each part and
        the sums of a block; of products, by turn; and what parts copy of others' x, p and sums."""

    def _plan(self, part: Part, rows: int, *more: str) -> tuple[Launch, ...]:
        """Launches on a part's vectors; see `plan_cg.vectors`."""
        how = {"dtype": self._name, "aligned": part.is_aligned("x", "b", *more)}
        return plan_cg.vectors(rows, part.device.target, diagonal=self._diagonal, **how)

    def steps(self, iteration: int) -> Sequence[Step]:
        turn = iteration % 2  # q = A p, and sums in "partial"; then the vectors
        return (self._products[turn], self._gather), (self._steps[turn], self._copies_of_p)

    def times(self) -> None:
        """q = A p on one part."""
        self.exchange.run(self._products[0])

    def _bind_steps(self, residuals: list[list[Bound]], *groups: BufferCopies) -> None:
        """Bind what parts copy of others' x and p, and of sums; the steps of a residual."""
        x, self._copies_of_p, self._gather = (self.exchange.bind(group) for group in groups)
        self.to_residual = (self._pack["x"], x), (residuals, ())
        self.from_residual = ((self._pack["p"], self._copies_of_p),)


class CsrMatrix(MatrixLoop):
    """A sparse matrix, by rows over one or several parts.

    A part's p and x are followed by the elements of other parts that its rows meet, in the order
    of their columns.
    """

    def _bind(self, system: Csr) -> None:
        found: list[Any] = [None] * len(self.parts)

        def upload(number: int) -> None:
            found[number] = self._upload(number, system)

        self.exchange.at_once(upload, sum(part.nbytes for part in system))
        if len(self.parts) > 1:  # now there is room for what rows meet besides
            self.vectors.load(x=self.vectors.result)
        how = {"dtype": self._name, "diagonal": self._diagonal}
        plans = [
            plan_cg.csr(share, part.device.target, **how)
            for part, (share, _) in zip(self.parts, found, strict=True)
        ]
        blocks = [residual.grid for residual, _, _ in plans]
        sums = self.exchange.share_sums(blocks, self._sums, "partial")
        self.residual_sums = "partial", blocks, 2
        copies = self._pack_foreign(found, plans)
        for part in self.parts:
            part.numbers["own"] = 0
        residuals, steps, without = zip(*plans, strict=True)
        products, known = without if self._plain else steps, {"inverse": "r"}
        self._products = [
            self.exchange.launches(products, before=f"record{turn}") for turn in (0, 1)
        ]
        self._bind_steps(
            self.exchange.launches(residuals, **({} if self._diagonal else known)),
            BufferCopies(copies, "x", "packed"),
            BufferCopies(copies, "p", "packed"),
            BufferCopies(sums, "partial", "partial"),
        )

    def _upload(self, number: int, system: Csr) -> tuple[plan_cg.Rows, np.ndarray]:
        """Put a part's rows in its memory, make its x and p; returns their foreign columns too."""
        part, (begin, end) = self.parts[number], self.vectors.spans[number]
        if not isinstance(system.data, np.ndarray):
            of = dict(zip(("pointers", "indices", "values"), map(describe, system), strict=True))
            part.buffers |= {name: operand.pointer for name, operand in of.items()}
            part.allocate(end * self._item, "p")
            index = name_of(of["indices"].dtype)
            return plan_cg.Rows(end, of["values"].size, index), np.empty(0, np.int64)
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
        for name, array in (("pointers", pointers), ("indices", indices), ("values", values)):
            dtype = self.vectors.dtype if name == "values" else index
            part.upload(np.ascontiguousarray(array, dtype), name)
        vectors = ("p", "x") if len(self.parts) > 1 else ("p",)
        part.allocate((end - begin + len(foreign)) * self._item, *vectors)
        return plan_cg.Rows(end - begin, len(values), index.name), foreign

    def _pack_foreign(
        self, found: list[tuple[plan_cg.Rows, np.ndarray]], plans: list[tuple[Launch, ...]]
    ) -> list[Copy]:
        """Copies of foreign elements from "packed", and launches that pack those of x and of p."""
        if len(self.parts) == 1:
            return []
        copies: list[Copy] = []
        places: list[list[np.ndarray]] = [[] for _ in self.parts]
        for target, (share, foreign) in enumerate(found):
            for source, (low, high) in enumerate(self.vectors.spans):
                first, last = map(int, np.searchsorted(foreign, (low, high)))
                if first < last:
                    offset = sum(map(len, places[source]))
                    sizes = last - first, share.rows + first, offset
                    copies.append(Copy(target, source, *(n * self._item for n in sizes)))
                    places[source].append(foreign[first:last] - low)
        for number, (part, wanted) in enumerate(zip(self.parts, places, strict=True)):
            joined = np.concatenate([*wanted, np.empty(0, np.int64)])
            part.upload(joined.astype(found[number][0].index), "places")
            part.allocate(len(joined) * self._item, "packed")
            launch = plan_cg.pack(plans[number][2], len(joined), part.device.target)
            for name, packs in self._pack.items():
                packs[number] = [part.bind(launch, p=name)] if wanted else []
        return copies


class DenseMatrix(MatrixLoop):
    """A dense matrix, by rows over one or several parts, as matrix-vector products.

    Several parts gather all of x, or p, in "whole", each from all of them.
    """

    def _bind(self, system: Dense) -> None:
        strides = self._upload_all(system)
        # What products take, and where sums are made; of several parts they are gathered.
        x, p, own = "x", "p", "partial"
        if len(self.parts) > 1:
            x = p = "whole"
            own = "own sums"
        residuals, products = [], []
        plans = [self._plan(part, rows) for part, rows in zip(self.parts, self._rows, strict=True)]
        blocks = [residual.grid for residual, _, _ in plans]
        self.residual_sums = "residual sums", blocks, self._sums
        self.exchange.share_sums(blocks, self._sums, "partial")
        for part, rows, (residual, sums, _) in zip(self.parts, self._rows, plans, strict=True):
            part.allocate(rows * self._item, "p")
            part.allocate(8 * self._sums * residual.grid, "residual sums")
            if own != "partial":
                part.allocate(self.vectors.n * self._item, "whole")
                part.allocate(8 * self._sums * residual.grid, own)
            of_x, of_p = (self._product(part, vector, rows, strides) for vector in (x, p))
            residuals.append([*of_x, part.bind(residual, partial="residual sums")])
            products.append(of_p if self._plain else [*of_p, part.bind(sums, partial=own)])
        self._products = [products] * 2
        elements = gather_copies([rows * self._item for rows in self._rows], apart=True)
        gathered = gather_copies([8 * self._sums * count for count in blocks], apart=True)
        self._bind_steps(
            residuals,
            BufferCopies(elements, "whole", "x"),
            BufferCopies(elements, "whole", "p"),
            BufferCopies(gathered, "partial", own),
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
