"""Row partitions over several devices, and the halos between them.

A grid is cut into slabs of whole rows (2-D) or planes (3-D), one for each device. A device holds
its own rows and, on each side where another slab follows, ``depth`` rows of it: the halo.
Neighbours copy from one another, on streams of their own, while the devices compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from hetero.devices.base import Device


def split(rows: int, parts: int, least: int = 1) -> list[tuple[int, int]]:
    """Cut ``rows`` rows into contiguous parts whose sizes differ by at most one.

    Parameters
    ----------
    rows : int
        At least 1.
    parts : int
        How many are wanted, at least 1.
    least : int
        Fewest rows of a part, at least 1. Where there are too few rows, there are fewer parts; one
        part there always is.

    Returns
    -------
    list of (int, int)
        First row of each part, and the row after its last. The longer parts come first.

    Examples
    --------
    >>> split(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    >>> split(10, 4, least=4)
    [(0, 5), (5, 10)]
    """
    for name, value in (("rows", rows), ("parts", parts), ("least", least)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    parts = max(1, min(parts, rows // least))
    size, longer = divmod(rows, parts)
    cuts = [part * size + min(part, longer) for part in range(parts + 1)]
    return list(itertools.pairwise(cuts))


class Slab(NamedTuple):
    """What one device holds of a grid: rows ``begin - above`` to ``end + below``, in this order.

    Attributes
    ----------
    begin, end : int
        Its own rows, as rows of the whole grid.
    above, below : int
        Halo rows before and after them; 0 at the ends of the grid.
    """

    begin: int
    end: int
    above: int
    below: int

    @property
    def own(self) -> int:
        """Rows of its own."""
        return self.end - self.begin

    @property
    def held(self) -> int:
        """Rows with the halo: what a buffer has room for."""
        return self.above + self.own + self.below


def slabs(rows: int, parts: int, depth: int = 1) -> list[Slab]:
    """Cut a grid into slabs that hold ``depth`` rows of each neighbour.

    No part has fewer than ``depth`` rows, so that a halo comes from one neighbour alone.
    """
    cuts = split(rows, parts, depth)
    last = len(cuts) - 1
    return [
        Slab(begin, end, depth if part else 0, depth if part < last else 0)
        for part, (begin, end) in enumerate(cuts)
    ]


class Halo:
    """Copies of the neighbours' rows, made beside the computing.

    A step on part ``i`` goes: `wait`; launch what writes the rows that the neighbours need;
    `ready`; launch what writes the rest. `exchange` follows when all parts are so far. A part's
    halo is filled only after its own `ready`, so that what was launched before still reads the old
    one. A part that went through `wait` may overwrite the rows that were copied from it in the
    exchange before the last one: two buffers used in turn need nothing more. With a single buffer
    it must wait for its neighbours as well (``wait(i, stream, both=True)``).

    Parameters
    ----------
    devices : sequence of Device
        One for each slab, of one kind; a device may come several times.
    slabs : sequence of Slab
    row_bytes : int
        Bytes from one row (or plane) of a buffer to the next.
    """

    def __init__(self, devices: Sequence[Device], slabs: Sequence[Slab], row_bytes: int) -> None:
        if len(devices) != len(slabs):
            raise ValueError(f"there must be a device for each of {len(slabs)} slabs")
        self._devices = list(devices)
        self._slabs = list(slabs)
        self._row_bytes = row_bytes
        self._ready: list[Any] = [None] * len(slabs)
        self._arrived: list[Any] = [None] * len(slabs)
        self._streams: list[Any] = []
        for device in devices if len(slabs) > 1 else ():
            with device.active():
                self._streams.append(device.new_stream())

    def ready(self, part: int, stream: Any) -> None:
        """Note that what ``stream`` holds now writes the rows that go to the neighbours.

        To be called inside the device's `active`.
        """
        if self._streams:
            self._ready[part] = self._devices[part].record(stream, self._ready[part])

    def exchange(self, buffers: Sequence[Any]) -> None:
        """Copy the neighbours' rows into the halos of ``buffers``, one buffer for each part."""
        if not self._streams:
            return
        for part, device in enumerate(self._devices):
            stream = self._streams[part]
            with device.active():
                device.wait(self._ready[part], stream)
                for neighbour, to, begin, rows in self._copies(part):
                    device.wait(self._ready[neighbour], stream)
                    device.copy_from_peer(
                        buffers[part],
                        self._devices[neighbour],
                        buffers[neighbour],
                        rows * self._row_bytes,
                        to * self._row_bytes,
                        begin * self._row_bytes,
                        stream,
                    )
                self._arrived[part] = device.record(stream, self._arrived[part])

    def wait(self, part: int, stream: Any, both: bool = False) -> None:
        """Hold a stream until the halo of its part has come; also the neighbours', with ``both``.

        To be called inside the device's `active`. Before the first exchange it does nothing.
        """
        whose = range(max(part - 1, 0), min(part + 2, len(self._slabs))) if both else (part,)
        for each in whose:
            if self._arrived[each] is not None:
                self._devices[part].wait(self._arrived[each], stream)

    def _copies(self, part: int) -> list[tuple[int, int, int, int]]:
        """(neighbour, first row here, first row there, rows), counted in the buffers."""
        slab = self._slabs[part]
        copies = []
        if slab.above:
            other = self._slabs[part - 1]
            copies.append((part - 1, 0, other.above + other.own - slab.above, slab.above))
        if slab.below:
            other = self._slabs[part + 1]
            copies.append((part + 1, slab.above + slab.own, other.above, slab.below))
        return copies
