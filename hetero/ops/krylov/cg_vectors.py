"""b, x and a diagonal preconditioner of a solve, from the caller to the devices and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.ops.krylov.cg_loops import HALO, X_HALO
from hetero.ops.krylov.cg_parts import Part
from hetero.ops.linear_systems.partition import Slab, slabs, split
from hetero.ops.linear_systems.types import Csr, Dense, Stencil


class Vectors:
    """The parts of a solve, with the vectors that the caller gave.

    Attributes
    ----------
    n : int
        Unknowns.
    parts : list of Part
    spans : list of (int, int)
        First element of each part, and the one after its last.
    slabs : list of Slab
        For a stencil, the rows of each part.
    result : numpy.ndarray or device buffer
        The caller's x.
    """

    def __init__(
        self,
        devices: list[Device],
        system: Any,
        b: Any,
        x: Any,
        dtype: np.dtype,
        preconditioner: Any,
    ) -> None:
        if isinstance(system, Stencil):
            self.n, plane = math.prod(system.shape), math.prod(system.shape[1:])
            self.slabs = slabs(system.shape[0], len(devices), HALO)
            cuts = [(slab.begin, slab.end) for slab in self.slabs]
        else:
            self.n = system.n if isinstance(system, Dense) else len(system.indptr) - 1
            plane = 1
            cuts = split(self.n, len(devices))
            self.slabs = [Slab(begin, end, 0, 0) for begin, end in cuts]
        self.dtype = dtype
        self.spans = [(begin * plane, end * plane) for begin, end in cuts]
        self.parts = [
            Part(device, len(cuts) == 1) for device, _ in zip(devices, cuts, strict=False)
        ]
        # Elements of neighbours before and after a part's own x.
        self._beyond = [
            (X_HALO * plane * bool(slab.above), X_HALO * plane * bool(slab.below))
            for slab in self.slabs
        ]
        self.result = x
        self._load(system, b, x, preconditioner)

    def _load(self, system: Any, b: Any, x: Any, preconditioner: Any) -> None:
        held = {"b": b, "x": x}
        if isinstance(preconditioner, np.ndarray):
            held["inverse"] = preconditioner
        for name, vector in held.items():
            if not isinstance(vector, np.ndarray):
                self.parts[0].buffers[name] = vector
                continue
            flat = np.ascontiguousarray(vector, self.dtype).reshape(-1)
            for part, (begin, end), (above, below) in self._each():
                if name == "b":
                    part.put(name, flat[begin:end])
                elif name == "inverse" or not isinstance(system, Csr):
                    part.put(name, flat[begin - above : end + below])

    def load_x(self) -> None:
        """Load x where a `CsrMatrix` has made room for it and for what its rows meet besides."""
        if isinstance(self.result, np.ndarray):
            flat = np.ascontiguousarray(self.result, self.dtype).reshape(-1)
            for part, (begin, end), _ in self._each():
                part.put("x", flat[begin:end])

    def _each(self) -> Iterator[tuple[Part, tuple[int, int], tuple[int, int]]]:
        return zip(self.parts, self.spans, self._beyond, strict=True)

    def fetch(self) -> np.ndarray:
        """X on the host."""
        whole = np.empty(self.n, self.dtype)
        for part, (begin, end), (above, _) in self._each():
            part.get("x", whole[begin:end], above * self.dtype.itemsize)
        return whole

    def hand_back(self) -> None:
        """Write x to where the caller wants it."""
        if isinstance(self.result, np.ndarray):
            self.result[...] = self.fetch().reshape(self.result.shape)

    def keep_start(self) -> None:
        """Keep a copy of x on the devices, for `return_to_start`."""
        self._copy("start", "x")

    def return_to_start(self) -> None:
        """Make x what it was at `keep_start`."""
        self._copy("x", "start")

    def _copy(self, to: str, source: str) -> None:
        for part, (begin, end), (above, below) in self._each():
            nbytes = (above + end - begin + below) * self.dtype.itemsize
            if to not in part.buffers:
                part.room(nbytes, to)
            with part.active():
                part.device.copy(part.buffers[to], part.buffers[source], nbytes, 0, 0, part.stream)

    def is_finite(self) -> bool:
        """Whether all of x is finite; fetches it."""
        return bool(np.isfinite(self.fetch()).all())
