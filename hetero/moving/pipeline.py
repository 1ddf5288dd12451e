"""Blocks that go up to a device, are computed there and come down, all three at the same time.

A pipeline is a sequence of steps. Each loads blocks of host arrays into slots, which are buffers of
the device that hold one block after another, computes with what lies in its slots, and stores
blocks of results. While one step is computed, the loads of those after it and the stores of those
before it are under way. Steps are computed in their order, on the device's default queue.

The host schedules, which takes microseconds for a step: steps should take milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from hetero.devices.base import Copy, Device

_AHEAD = 16  # steps whose loads may be begun before those of the first are complete


class Slot:
    """A buffer of a device, as a launch takes it, for one block after another; `slots` makes it."""

    def __init__(self, buffer: Any, owner: Any, free: Any) -> None:
        self.buffer, self._owner = buffer, owner
        self.free = free  # the event after which it may be overwritten
        self.leaving: list[Copy] = []  # stores from here that may be under way

    def stored(self) -> None:
        """Wait until what lies here has been stored."""
        for copy in self.leaving:
            copy.wait()
        self.leaving = []


class Load(NamedTuple):
    """A block of a host array, of any strides, that is packed in C order into a slot.

    ``begin(source, slot)``, if given, begins the copy in place of the device's upload.
    """

    source: np.ndarray
    slot: Slot
    begin: Callable[[np.ndarray, Slot], Copy] | None = None


class Store(NamedTuple):
    """A packed block in a slot that comes down into a view of a host array."""

    slot: Slot
    target: np.ndarray


class Step(NamedTuple):
    """What is loaded, computed and stored for one block."""

    compute: Callable[[], object]  # begins the work on the default queue, once loads are complete
    loads: tuple[Load, ...] = ()
    stores: tuple[Store, ...] = ()
    uses: tuple[Slot, ...] = ()  # what else it reads or writes: blocks of earlier steps

    def slots(self) -> set[Slot]:
        """All that it touches."""
        return {*self.uses, *(x.slot for x in self.loads), *(x.slot for x in self.stores)}


def slots(device: Device, nbytes: int, number: int) -> list[Slot]:
    """Buffers of that many bytes each, freed with the last reference; the device must be active.

    Memory that is handed out may still be in use by work begun before, which is waited for.
    """
    before = device.record()
    return [Slot(*device.allocate(max(nbytes, 16)), before) for _ in range(number)]


def run(device: Device, steps: Iterable[Step]) -> None:
    """Do the steps; returns when the last block is stored.

    The loads of a step begin when no step before it, that is not computed, uses their slots. What
    is loaded and what is stored should have slots of their own: a load waits for the stores from
    its slot. The iterable may be a generator; it is asked a few steps ahead.

    The device must be active in this thread. After an error, and an interrupt, nothing is in
    flight: all that was begun has been waited for.
    """
    source = iter(steps)
    begun: deque[tuple[Step, list[Copy]]] = deque()
    stores: list[Copy] = []
    try:
        following = next(source, None)
        while following is not None or begun:
            while following is not None and _may_begin(following, begun):
                copies: list[Copy] = []
                begun.append((following, copies))
                for block, slot, begin in following.loads:
                    slot.stored()
                    if begin is None:
                        copy = device.begin_upload(block, slot.buffer, 0, slot.free)
                    else:
                        copy = begin(block, slot)
                    copies.append(copy)
                following = next(source, None)
            step, copies = begun[0]
            for copy in copies:
                copy.wait()
            used = step.slots()
            for slot in used:
                slot.stored()
            step.compute()
            after = device.record()
            for slot in used:
                slot.free = after
            for slot, target in step.stores:
                stores.append(device.begin_download(slot.buffer, target, 0, after))
                slot.leaving.append(stores[-1])
            begun.popleft()
        for copy in stores:
            copy.wait()
    except BaseException:
        copies = [copy for _, copies in begun for copy in copies]
        settle([copy.wait for copy in copies + stores] + [device.synchronize])
        raise


def _may_begin(step: Step, begun: deque[tuple[Step, list[Copy]]]) -> bool:
    """Whether no step that is begun, and not computed, uses what this one loads."""
    if not begun or len(begun) >= _AHEAD:
        return not begun
    used = set().union(*(earlier.slots() for earlier, _ in begun))
    return used.isdisjoint([load.slot for load in step.loads])


def settle(waits: Iterable[Callable[[], object]]) -> None:
    """Make calls that wait for what is in flight, whatever becomes of it; one error is enough."""
    for wait in waits:
        while True:
            try:
                wait()
            except KeyboardInterrupt:  # once more: memory is freed behind this
                continue
            except Exception:
                pass
            break
