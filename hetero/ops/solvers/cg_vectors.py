"""Conjugate gradients on devices: vectors and scalars stay there until the end.

`Vectors` are the caller's, in parts, and `Loop` is the method. The launches of its steps are in
`cg_matrices` and `cg_device`; what several devices copy from each other is in `exchange`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.devices import peers
from hetero.devices.base import Device
from hetero.kernels.cg.plan import HALO, X_HALO, GridShare
from hetero.ops.solvers import systems
from hetero.ops.solvers.cg_loop import restarted
from hetero.ops.solvers.exchange import Bound, Exchange, Part, Slab, slabs, split
from hetero.ops.solvers.systems import Outcome, Solve, Stencil, unknowns

Step = tuple[Sequence[Sequence[Bound]], Sequence[Any]]  # launches of each part, then copies
RECORD = 8  # doubles of the scalars; kernels/cg/cg_scalars.cu
_STATUS, _COUNT, _TARGET = 0, 1, 4  # of them
_ENDED = (systems.LIMIT, systems.CONVERGED, systems.INDEFINITE, systems.NOT_FINITE)  # by status
_LONGEST_BATCH = 1024


class Vectors:
    """b, x and a diagonal preconditioner of a solve, in parts, from the caller and back.

    b and x are arrays of n elements on the host, or device buffers; ``inverse`` is the inverse of
    the diagonal matrix that preconditions.

    Of the ``parts``, with buffers "b", "x", "inverse", "record0", "record1": ``spans``, first
    element and the one after the last; ``beyond``, elements of neighbours before and after a part's
    own x; ``slabs`` and ``grids``, the rows of a stencil. ``result`` is the caller's x.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        system: Any,
        b: Any,
        x: Any,
        dtype: np.dtype,
        inverse: np.ndarray | None = None,
    ) -> None:
        self.n, self.dtype, self.result = unknowns(system), dtype, x
        if isinstance(system, Stencil):
            plane = math.prod(system.shape[1:])
            self.slabs = slabs(system.shape[0], len(devices), HALO)
            self.grids = [
                GridShare.of(*system, slab.own, low=slab.above > 0, high=slab.below > 0)
                for slab in self.slabs
            ]
        else:
            plane = 1
            self.slabs = [Slab(begin, end, 0, 0) for begin, end in split(self.n, len(devices))]
        self.spans = [(slab.begin * plane, slab.end * plane) for slab in self.slabs]
        edge = X_HALO * plane
        self.beyond = [(edge * bool(slab.above), edge * bool(slab.below)) for slab in self.slabs]
        alone = len(self.slabs) == 1
        self.parts = [Part(device, alone) for device, _ in zip(devices, self.slabs, strict=False)]
        self.exchange = Exchange(self.parts)
        self.load(b=b, x=x, **({} if inverse is None else {"inverse": inverse}))
        for part in self.parts:
            part.allocate(8 * RECORD, "record0", "record1")

    def load(self, **given: Any) -> None:
        """Bring the caller's vectors to the parts; device buffers are taken as they are."""
        flat = {}
        for name, vector in given.items():
            if isinstance(vector, np.ndarray):
                flat[name] = np.ascontiguousarray(vector, self.dtype).reshape(-1)
            else:
                self.parts[0].buffers[name] = vector

        def load(number: int) -> None:
            (begin, end), (above, below) = self.spans[number], self.beyond[number]
            for name, values in flat.items():
                held = values[begin:end] if name == "b" else values[begin - above : end + below]
                self.parts[number].upload(held, name)

        self.exchange.at_once(load, len(flat) * self.n * self.dtype.itemsize)

    def fetch(self) -> np.ndarray:
        """The present x, on the host: in the caller's where that is there, else in a new array."""
        result, item = self.result, self.dtype.itemsize
        whole = result if isinstance(result, np.ndarray) else np.empty(self.n, self.dtype)

        def fetch(number: int) -> None:
            begin, end = self.spans[number]
            self.parts[number].download("x", whole[begin:end], self.beyond[number][0] * item)

        self.exchange.at_once(fetch, self.n * item)
        return whole

    def copy(self, to: str, source: str) -> None:
        """Copy x, or what is as long, on the devices."""
        each = zip(self.parts, self.spans, self.beyond, strict=True)
        for part, (begin, end), (above, below) in each:
            nbytes = (above + end - begin + below) * self.dtype.itemsize
            if to not in part.buffers:
                part.allocate(nbytes, to)
            with part.active():
                part.device.copy(part.buffers[to], part.buffers[source], nbytes, 0, 0, part.stream)


class Loop:
    """Iterations, of which each device computes its own rows.

    The numbers are the steps of Saad's algorithm 9.1 (see `cg_loop`). With M = 1 or a diagonal
    matrix r.z' is predicted, so that all sums of an iteration are made at once; where rounding
    hides what is left of it, beta is 0. With multigrid it is not (`cg_device.Preconditioned`).

        3. q = A p,  alpha = r.z / p.q
        7. r.z' = r.z - 2 alpha z.q + alpha^2 q.Mq,  beta = r.z' / r.z
        4. x = x + alpha p   5. r = r - alpha q   6. z = M r   8. p = z + beta p

    ``done`` is the iterate that the launches so far lead to, ``begins`` at first; ``turn`` tells
    which of the two records is the present one. ``to_residual`` are the steps that compute it,
    ``residual_sums`` what `Exchange.total` takes then, ``from_residual`` those that begin anew.
    """

    to_residual: Sequence[Step]
    residual_sums: tuple[str, list[int], int]
    from_residual: Sequence[Step] = ()

    first_batch = 8  # iterations to start before the record is looked at for the first time
    batch_seconds = 300e-6  # for which the device should run between two looks, which cost 15 us
    begins = -1  # the first step only leads to iterate 0
    records = 2  # that are written in turn
    turn = 0
    seconds: float | None = None  # that an iteration took last

    def __init__(self, vectors: Vectors) -> None:
        self.vectors, self.exchange, self.parts = vectors, vectors.exchange, vectors.parts
        if len(self.parts) > 1:  # queues of several devices take longer to fill again
            self.batch_seconds = max(self.batch_seconds, 2e-3)

    def solve(
        self, asked: Solve, going_on: tuple[np.ndarray, np.ndarray] | None, checked: bool
    ) -> Outcome | None:
        """Iterate, and begin anew from the true residual until that meets the tolerance.

        None where the squares of b are not safe to work with, unless that was ``checked``. The
        device decides when it stops, by r.r, which the host looks at once for many iterations.
        """
        vectors = self.vectors
        # 1. r = b - A x, z = M r, p = z.
        first, norm_b = map(math.sqrt, self.residual())
        if not (checked or systems.is_safe(norm_b, vectors.dtype.itemsize)):
            self.exchange.synchronize()  # before memory is free
            return None
        vectors.copy("start", "x")
        for vector, name in zip(going_on or (), ("r", "p"), strict=False):
            vectors.parts[0].upload(vector, name)
        known = [first]

        def residual(bound: float) -> float:
            return known.pop() if known else math.sqrt(self.residual()[0])

        def steps(limit: int, lowest: float) -> tuple[str, int]:
            # 2. for j = 0, 1, ..., until convergence
            self.start(lowest * lowest)
            ended = self._until_stopped(limit, asked.callback)
            self.finish()
            return ended

        again = going_on is not None  # the true residual may differ from the recurrence's
        outcome = restarted(residual, steps, asked, norm_b, vectors.dtype, once_more=again)
        if outcome.status == systems.NOT_FINITE and not np.isfinite(vectors.fetch()).all():
            vectors.copy("x", "start")
            outcome = outcome._replace(residual=first)
        if isinstance(vectors.result, np.ndarray):
            vectors.fetch()
        return outcome._replace(right_side=norm_b)

    def _until_stopped(self, limit: int, callback: Any) -> tuple[str, int]:
        """Iterate until the device says stop, or the limit; (status, iterations).

        The host looks after each iteration for a callback; else by the time that they take, so
        that looking takes no more than a twentieth of it, at an even number: x is whole then.
        """
        at = status = count = 0
        while at < limit and not status:
            batch = self.first_batch if callback is None else 1
            if callback is None and self.seconds is not None:
                wanted = math.ceil(self.batch_seconds / max(self.seconds, 1e-9) / 2)
                batch = 2 * max(1, min(wanted, _LONGEST_BATCH // 2))
            batch = min(batch, limit - at)
            at += batch
            began = time.monotonic()
            self.advance(at)
            status, count = self.record()
            took = time.monotonic() - began
            self.seconds = took / batch
            if took >= peers.PATIENCE / 2:
                self.exchange.check()
            if callback is not None and not status:
                callback(self.vectors.fetch())
        return _ENDED[status], count

    def residual(self) -> Sequence[float]:
        """Compute r = b - A x, from where an iteration starts; returns r.r and b.b."""
        for step in self.to_residual:
            self.exchange.run(*step)
        self.exchange.check()
        sums = self.exchange.total(*self.residual_sums)
        for step in self.from_residual:
            self.exchange.run(*step)
        return sums[:2]

    def start(self, target: float) -> None:
        """Begin from the last `residual`, to stop where r.r is no more than ``target``."""
        record = np.zeros(RECORD)
        record[[_COUNT, _TARGET]] = self.begins, target
        for part in self.parts:
            for name in ("record0", "record1"):
                part.upload(record, name)
        self.done = self.begins

    def advance(self, to: int) -> None:
        """Start the launches after which x is iterate ``to``, unless the iteration stops before."""
        for iteration in range(self.done, to):
            for step in self.steps(iteration):
                self.exchange.run(*step)
        self.done = max(self.done, to)
        self.turn = self.done % self.records

    def steps(self, iteration: int) -> Sequence[Step]:
        """What `Exchange.run` starts in turn to go from this iterate to the next."""
        raise NotImplementedError

    def record(self) -> tuple[int, int]:
        """(status, iterations since `start`); waits for them."""
        record = self.parts[0].download(f"record{self.turn}", np.empty(RECORD))
        return int(record[_STATUS]), int(record[_COUNT])

    def finish(self) -> None:
        """Make x the iterate of the record."""
