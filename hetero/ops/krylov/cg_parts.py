"""What conjugate gradients keep on each device, and what the devices tell each other."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetero.devices.base import Device
from hetero.kernels.common.launch import Launch

RECORD = 8  # doubles; kernels/cg/cg_scalars.cu
STATUS, COUNT, TARGET = 0, 1, 4
RUNNING = 0

Bound = tuple[Any, int, int, list[Any]]


class Part:
    """One device's buffers by name, and launches on them.

    Parameters
    ----------
    device : Device
    alone : bool
        Whether it is the only one: then all runs in the device's default queue and inside its
        `active`, which the caller has entered. Otherwise in a stream of this part's own.
    """

    def __init__(self, device: Device, alone: bool) -> None:
        self.device = device
        self._alone = alone
        self._owners: list[Any] = []
        self.buffers: dict[str, Any] = {}
        self.numbers: dict[str, int] = {}
        self.stream: Any = None
        self.event: Any = None
        if not alone:
            with device.active():
                device.synchronize()  # new memory may be in use in the default queue
                self.stream = device.new_stream()

    def active(self) -> Any:
        """Context manager for what follows on this part's device."""
        return contextlib.nullcontext() if self._alone else self.device.active()

    def room(self, nbytes: int, *names: str) -> None:
        """Allocate a buffer for each name."""
        with self.active():
            for name in names:
                self.buffers[name], owner = self.device.allocate(max(nbytes, 16))
                self._owners.append(owner)

    def put(self, name: str, array: np.ndarray, offset: int = 0) -> None:
        """Copy a C-contiguous host array to a buffer, made for it if there is none."""
        if name not in self.buffers:
            self.room(offset + array.nbytes, name)
        if array.nbytes:
            with self.active():
                self.device.upload(array, self.buffers[name], offset)
                if self.stream is not None:  # which does not wait for the default queue
                    self.device.synchronize()

    def get(self, name: str, array: np.ndarray, offset: int = 0) -> np.ndarray:
        """Copy a buffer to a C-contiguous host array, after all that this part has started."""
        with self.active():
            if self.stream is not None:
                self.device.synchronize(self.stream)
            self.device.download(self.buffers[name], array, offset)
        return array

    def bind(self, launch: Launch, **meant: str | int) -> Bound:
        """A launch for `run_all`, with `values` for its arguments."""
        with self.active():
            kernel = self.device.build(launch.source, launch.kernel, launch.defines)
        return kernel, launch.grid, launch.block, self.values(launch, **meant)

    def values(self, launch: Launch, **meant: str | int) -> list[Any]:
        """Buffers and numbers for a launch's arguments; ``meant`` gives some other names."""

        def value(argument: Any) -> Any:
            if type(argument) is not str:
                return argument
            argument = meant.get(argument, argument)
            if type(argument) is not str:
                return argument
            return self.numbers[argument] if argument in self.numbers else self.buffers[argument]

        return [value(argument) for argument in launch.arguments]

    def synchronize(self) -> None:
        """Wait for all that was started."""
        with self.active():
            self.device.synchronize()

    def is_aligned(self, *names: str) -> bool:
        """Whether 16 divides the address of each of these buffers."""
        found = (self.buffers[name] for name in names)
        return all(type(buffer) is not int or buffer % 16 == 0 for buffer in found)


class Copy(NamedTuple):
    """Bytes that one part takes from another. Parts by number, offsets in bytes."""

    target: int
    source: int
    nbytes: int
    target_offset: int
    source_offset: int


class Transfer(NamedTuple):
    """Copies from one buffer of some parts to another of others, both by name."""

    copies: Sequence[Copy]
    into: str
    out_of: str


def run_all(
    parts: Sequence[Part], launches: Sequence[Sequence[Bound]], transfers: Sequence[Transfer] = ()
) -> None:
    """Start each part's launches, then copy between parts; what they start next waits for it.

    With two buffers used in turn, or a launch in between that all wait for, a source may go on at
    once: it writes the copied bytes again only after the next call, in which it waits.
    """
    if len(parts) == 1:
        for bound in launches[0]:
            parts[0].device.launch(*bound)
        return
    for part, bounds in zip(parts, launches, strict=True):
        with part.active():
            for bound in bounds:
                part.device.launch(*bound, 0, part.stream)
            part.event = part.device.record(part.stream, part.event)
    for number, part in enumerate(parts if transfers else ()):
        with part.active():
            for other in parts:
                if other is not part:
                    part.device.wait(other.event, part.stream)
            for copies, into, out_of in transfers:
                for copy in copies:
                    if copy.target == number:
                        source = parts[copy.source]
                        part.device.copy_from_peer(
                            part.buffers[into],
                            source.device,
                            source.buffers[out_of],
                            *copy[2:],
                            part.stream,
                        )


def gather(blocks: Sequence[int], sums: int) -> list[Copy]:
    """Each part's block sums, of ``sums`` doubles a block, for all others, in the parts' order."""
    begins = np.concatenate([[0], np.cumsum(blocks)]) * 8 * sums
    return [
        Copy(target, source, 8 * sums * blocks[source], int(begins[source]), int(begins[source]))
        for target in range(len(blocks))
        for source in range(len(blocks))
        if source != target
    ]


def total(parts: Sequence[Part], name: str, blocks: Sequence[int], sums: int) -> np.ndarray:
    """Sums over the blocks of all parts' own buffers, (sums,); waits for them."""
    totals = np.zeros(sums)
    for part, count in zip(parts, blocks, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            totals += part.get(name, np.empty((count, sums))).sum(axis=0)
    return totals


def new_records(parts: Sequence[Part], count: int, target: float) -> None:
    """Set both records of all parts to the start of an iteration."""
    record = np.zeros(RECORD)
    record[[STATUS, COUNT, TARGET]] = RUNNING, count, target
    for part in parts:
        for name in ("record0", "record1"):
            part.put(name, record)


def read_record(part: Part, name: str) -> tuple[int, int]:
    """(status, count) of a record; waits for what the part has started."""
    record = part.get(name, np.empty(RECORD))
    return int(record[STATUS]), int(record[COUNT])
