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

    def __init__(self, buffer: Any, owner: Any, nbytes: int, free: Any) -> None:
        self.buffer, self._owner, self.nbytes = buffer, owner, nbytes
        self.free = free  # the event after which it may be overwritten
        self.users = 0  # steps read ahead that use what lies here
        self.leaving: list[Copy] = []  # stores from here that are under way


class Load(NamedTuple):
    """A block of a host array, of any strides, that is packed in C order into a slot.

    ``begin(source, slot)``, if given, begins the copy in place of the device's upload.
    """

    source: np.ndarray
    slot: Slot
    offset: int = 0
    begin: Callable[[np.ndarray, Slot], Copy] | None = None


class Store(NamedTuple):
    """A packed block in a slot that comes down into a view of a host array."""

    slot: Slot
    target: np.ndarray
    offset: int = 0


class Step(NamedTuple):
    """What is loaded, computed and stored for one block."""

    compute: Callable[[], object]  # begins the work on the default queue, once loads are complete
    loads: tuple[Load, ...] = ()
    stores: tuple[Store, ...] = ()
    uses: tuple[Slot, ...] = ()  # what it reads or writes beside: blocks of earlier steps

    def slots(self) -> set[Slot]:
        """All that it touches."""
        return {*self.uses, *(x.slot for x in self.loads), *(x.slot for x in self.stores)}


def slots(device: Device, nbytes: int, number: int) -> list[Slot]:
    """Buffers of that many bytes each, freed with the last reference; the device must be active.

    Memory that is handed out may still be in use by work begun before, which is waited for.
    """
    before = device.record()
    return [Slot(*device.allocate(max(nbytes, 16)), nbytes, before) for _ in range(number)]


def run(device: Device, steps: Iterable[Step]) -> None:
    """Do the steps; returns when the last block is stored.

    The loads of a step begin when no step before it, that is not yet begun, uses their slots. What
    is loaded and what is stored should have slots of their own: a load waits for the stores from
    its slot. The iterable may be a generator; it is asked a few steps ahead.

    The device must be active in this thread. After an error, and an interrupt, nothing is in
    flight: all that was begun has been waited for.
    """
    source = iter(steps)
    begun: deque[tuple[Step, list[Copy]]] = deque()
    stored: dict[Slot, None] = {}
    try:
        following = next(source, None)
        while following is not None or begun:
            while following is not None and (
                not begun
                or (len(begun) < _AHEAD and not any(x.slot.users for x in following.loads))
            ):
                copies: list[Copy] = []
                begun.append((following, copies))
                _begin(device, following, copies)
                following = next(source, None)
            step, copies = begun[0]
            for copy in copies:
                copy.wait()
            for slot in step.slots():
                _stored(slot)
            step.compute()
            after = device.record()
            for slot in step.slots():
                slot.users -= 1
                slot.free = after
            for slot, target, offset in step.stores:
                stored[slot] = None
                slot.leaving.append(device.begin_download(slot.buffer, target, offset, after))
            begun.popleft()
        for slot in stored:
            _stored(slot)
    except BaseException:
        copies = [copy for _, copies in begun for copy in copies]
        settle(device, copies + [copy for slot in stored for copy in slot.leaving])
        raise


def _begin(device: Device, step: Step, copies: list[Copy]) -> None:
    """Begin a step's loads, each after what used its slot before."""
    for slot in step.slots():
        slot.users += 1
    for source, slot, offset, begin in step.loads:
        _stored(slot)
        if begin is None:
            copies.append(device.begin_upload(source, slot.buffer, offset, slot.free))
        else:
            copies.append(begin(source, slot))


def _stored(slot: Slot) -> None:
    """Wait until what lies in a slot has been stored."""
    while slot.leaving:
        slot.leaving[0].wait()
        del slot.leaving[0]


def settle(device: Device, copies: list[Copy]) -> None:
    """Wait for all that is in flight, whatever becomes of it; one error is enough."""
    for wait in [copy.wait for copy in copies] + [device.synchronize]:
        while True:
            try:
                wait()
            except KeyboardInterrupt:  # once more: memory is freed behind this
                continue
            except Exception:
                pass
            break
