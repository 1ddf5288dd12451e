"""What conjugate gradients keep on the devices: the caller's vectors, and the scalars' records.

`Loop` is what the iterations in `cg_grids` and `cg_matrices` have in common.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.ops.linear_systems.exchange import Exchange, Part
from hetero.ops.linear_systems.partition import Slab, around, slabs, split
from hetero.ops.linear_systems.systems import Csr, Stencil, unknowns

# Rows beyond its own that a part of a stencil needs of p and r, and of x.
HALO = 2
X_HALO = 1

RECORD = 8  # doubles of the scalars; kernels/cg/cg_scalars.cu
_STATUS, _COUNT, _TARGET = 0, 1, 4  # of them
_RUNNING = 0


class Vectors:
    """b, x and a diagonal preconditioner of a solve, in parts, from the caller and back.

    b and x are arrays of n elements on the host, or device buffers; ``inverse`` is the inverse of
    the diagonal matrix that preconditions. ``from_zero``: x is zero, whatever its array holds.
    ``hierarchy``: of multigrid, on several devices. Parts then have its cuts and streams, and its
    vectors on the whole grid as "r" and "z".

    Attributes
    ----------
    n : int
        Unknowns.
    spans : list of (int, int)
        First element of each part, and the one after its last.
    beyond : list of (int, int)
        Elements of neighbours before and after a part's own x.
    slabs : list of Slab
        For a stencil, the rows of each part.
    exchange : Exchange
    parts : sequence of Part
        With buffers "b", "x" (of a `Csr` its matrix loads it), "inverse", "record0", "record1".
    result : numpy.ndarray or device buffer
        The caller's x.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        system: Any,
        b: Any,
        x: Any,
        dtype: np.dtype,
        inverse: np.ndarray | None,
        from_zero: bool = False,
        hierarchy: Any = None,
    ) -> None:
        self.n = unknowns(system)
        if isinstance(system, Stencil):
            plane = math.prod(system.shape[1:])
            even = slabs(system.shape[0], len(devices), HALO)
            self.slabs = even if hierarchy is None else around(hierarchy.cuts, X_HALO)
        else:
            plane = 1
            self.slabs = [Slab(begin, end, 0, 0) for begin, end in split(self.n, len(devices))]
        self.dtype = dtype
        self.spans = [(slab.begin * plane, slab.end * plane) for slab in self.slabs]
        alone = len(self.slabs) == 1
        self.parts = [Part(device, alone) for device, _ in zip(devices, self.slabs, strict=False)]
        if hierarchy is not None:
            for part, memory in zip(self.parts, hierarchy.memories, strict=True):
                part.stream = memory.stream
                part.buffers |= {"r": memory.buffers["f0"], "z": memory.buffers["u0"]}
        self.exchange = Exchange(self.parts, hierarchy and hierarchy.exchange)
        self.beyond = [
            (X_HALO * plane * bool(slab.above), X_HALO * plane * bool(slab.below))
            for slab in self.slabs
        ]
        self.result = x
        self._from_zero = from_zero
        self._given = {"b": b, "x": x} | ({} if inverse is None else {"inverse": inverse})
        later = isinstance(system, Csr) and isinstance(x, np.ndarray)
        self.load(*(name for name in self._given if not (later and name == "x")))
        for part in self.parts:
            part.allocate(8 * RECORD, "record0", "record1")

    def load(self, *names: str) -> None:
        """Bring the caller's vectors to the parts; device buffers are taken as they are."""
        flat = {}
        for name in names:
            if isinstance(vector := self._given[name], np.ndarray):
                flat[name] = np.ascontiguousarray(vector, self.dtype).reshape(-1)
            else:
                self.parts[0].buffers[name] = vector

        def load(part: Part, begin: int, end: int, above: int, below: int) -> None:
            for name, values in flat.items():
                first, last = (begin, end) if name == "b" else (begin - above, end + below)
                if name != "x" or not self._from_zero:
                    part.upload(values[first:last], name)
                    continue
                nbytes = (last - first) * self.dtype.itemsize
                if name not in part.buffers:
                    part.allocate(nbytes, name)
                with part.active():
                    part.device.fill(part.buffers[name], nbytes, stream=part.stream)

        self._at_once(load, len(flat))

    def _at_once(self, copy: Callable[..., object], vectors: int = 1) -> None:
        """``copy(part, begin, end, above, below)`` for all parts; it copies a span of that
        many vectors."""

        def task(number: int) -> None:
            copy(self.parts[number], *self.spans[number], *self.beyond[number])

        self.exchange.at_once(task, vectors * self.n * self.dtype.itemsize)

    def fetch(self, out: np.ndarray | None = None) -> np.ndarray:
        """The present x, on the host, in ``out`` where given: C-contiguous and of this dtype."""
        whole = np.empty(self.n, self.dtype) if out is None else out.reshape(-1)

        def fetch(part: Part, begin: int, end: int, above: int, _: int) -> None:
            part.download("x", whole[begin:end], above * self.dtype.itemsize)

        self._at_once(fetch)
        return whole

    def hand_back(self) -> None:
        """Write x to where the caller wants it."""
        result = self.result
        if not isinstance(result, np.ndarray):
            return
        if result.flags.c_contiguous and result.dtype == self.dtype:
            self.fetch(result)
        else:
            result[...] = self.fetch().reshape(result.shape)

    def copy(self, to: str, source: str) -> None:
        """Copy x, or what is as long, on the devices."""
        each = zip(self.parts, self.spans, self.beyond, strict=True)
        for part, (begin, end), (above, below) in each:
            nbytes = (above + end - begin + below) * self.dtype.itemsize
            if to not in part.buffers:
                part.allocate(nbytes, to)
            with part.active():
                part.device.copy(part.buffers[to], part.buffers[source], nbytes, 0, 0, part.stream)


class Loop(abc.ABC):
    """What the iterations have in common.

    Attributes
    ----------
    every : bool
        Whether x must be whole after each iteration; to be set before `start`.
    first_batch : int
        Iterations to start before the record is looked at for the first time.
    batch_seconds : float
        How long the device should run between two looks, which cost 15 us.
    seconds : float or None
        What an iteration took last.
    done : int
        Iterate that the launches so far lead to, ``begins`` at first.
    turn : int
        Which of the two records is the present one.
    """

    first_batch = 8
    batch_seconds = 300e-6
    begins = -1  # the first step only leads to iterate 0
    turn = 0

    def __init__(self, vectors: Vectors) -> None:
        self.exchange = vectors.exchange
        self.parts = vectors.parts
        self.every = False
        self.seconds: float | None = None
        if len(self.parts) > 1:  # queues of several devices take longer to fill again
            self.batch_seconds = max(self.batch_seconds, 2e-3)

    @abc.abstractmethod
    def residual(self) -> Sequence[float]:
        """Compute r = b - A x, from where an iteration starts; returns r.r and b.b."""

    def start(self, target: float) -> None:
        """Begin from the last `residual`, to stop where r.r is no more than ``target``."""
        record = np.zeros(RECORD)
        record[[_STATUS, _COUNT, _TARGET]] = _RUNNING, self.begins, target
        for part in self.parts:
            for name in ("record0", "record1"):
                part.upload(record, name)
        self.done = self.begins

    @abc.abstractmethod
    def advance(self, to: int) -> None:
        """Start the launches after which x is iterate ``to``, unless the iteration stops before."""

    def record(self) -> tuple[int, int]:
        """(status, iterations since `start`); waits for them."""
        record = self.parts[0].download(f"record{self.turn}", np.empty(RECORD))
        return int(record[_STATUS]), int(record[_COUNT])

    def finish(self) -> None:  # noqa: B027  # nothing to do where x does not lag
        """Make x the iterate of the record."""
