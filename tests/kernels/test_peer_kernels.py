"""Kernels by which several devices work together, run on the CPU, in many random orders.

What they must not get wrong is planted as mistakes, which the same runs must see.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from devices_on_cpu import Failure, bound, run
from fakes import Memory, view

from hetero.kernels import Launch
from hetero.kernels.common.plan import WORDS, exchange

PATIENCE = 4000  # turns that a device waits for another one: no device stops for so long
LOST = 0  # place of a word: kernels/common/peer_flags.cu


class Buffers:
    """A device's memory by name; what nobody wrote is NaN."""

    def __init__(self) -> None:
        self._memory: list[Memory] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.addresses: dict[str, int] = {}

    def add(self, name, shape, dtype, value=None):
        """A new array, whose bytes are 0xFF without a value."""
        empty = np.empty(shape, dtype)
        self._memory.append(Memory(empty.nbytes))
        address = self._memory[-1].address
        array = view(address, empty.shape, dtype, empty.strides)
        array[...] = np.frombuffer(b"\xff" * 8, dtype)[0] if value is None else value
        self.arrays[name], self.addresses[name] = array, address

    def state(self):
        """What its memory holds but for addresses, to compare."""
        return {n: a.tobytes() for n, a in self.arrays.items() if a.dtype != np.int64}

    def damaged(self):
        return any(memory.damaged() for memory in self._memory)


# -- Copies, and a meeting -----------------------------------------------------------------------

# What devices make of each other's values between two meetings, with several blocks.
STEP = """
#define THREADS 32
KERNEL(THREADS, 1)
step(const unsigned int *now, unsigned int *next, index_t begin, index_t end, index_t all,
     index_t blocks)
{
    const index_t first = begin + blockIdx.x * THREADS + threadIdx.x;
    for (index_t at = first; at < end; at += blocks * THREADS) {
        let_others_run();
        next[at] = 3 * now[at] + 5 * now[(7 * at + 3) % all] + 1;
    }
}
"""


class Meetings:
    """Devices that own ``size`` words of a vector each, and meet after each change of it."""

    def __init__(self, devices, size, patience=PATIENCE, edit=None):
        self.whole = np.arange(devices * size, dtype=np.uint32)
        self.devices = [Buffers() for _ in range(devices)]
        self.met = 0
        for device in self.devices:
            device.add("state0", self.whole.shape, np.uint32, self.whole)
            device.add("state1", self.whole.shape, np.uint32)
            device.add("own", WORDS, np.uint32, 0)
        self._launches = []  # of each device, for each turn
        for rank, device in enumerate(self.devices):
            device.add("words", devices, np.int64, [d.addresses["own"] for d in self.devices])
            begin, pair = rank * size, []
            for now, after in (("state0", "state1"), ("state1", "state0")):
                copies = [
                    (d.addresses[after] + 4 * begin, device.addresses[after] + 4 * begin, 4 * size)
                    for d in self.devices
                    if d is not device
                ]
                plan, counted = exchange(copies, devices, rank, patience / 1e9)
                device.add(after + " copies", (len(counted) + 1, 3), np.int64, [*counted, (0,) * 3])
                step = Launch(
                    STEP, "step", (), 3, 32, (now, after, begin, begin + size, devices * size, 3)
                )
                copies_of = {"copies": device.addresses[after + " copies"]}
                pair.append(
                    [bound(step, device.addresses), bound(plan, device.addresses | copies_of, edit)]
                )
            self._launches.append(pair)
            self.unit, self.blocks = dict(plan.defines)["UNIT"], plan.grid

    def meet(self, times, seed, absent=(), steps=True):
        """Change the vector, copy and meet, some times; the turns that it takes."""
        numbers = range(self.met, self.met + times)

        def launches(rank):
            pair = self._launches[rank]
            return [one for n in numbers for one in pair[n % 2][0 if steps else 1 :]]

        self.met += times
        every = range(len(self.devices))
        taken = run([[] if rank in absent else launches(rank) for rank in every], seed)
        assert not any(device.damaged() for device in self.devices)
        return taken

    @property
    def lost(self):
        return [bool(device.arrays["own"][LOST]) for device in self.devices]

    def right(self):
        """Whether all devices have the vector that they should have by now."""
        at, expected = np.arange(len(self.whole)), self.whole
        for _ in range(self.met):
            expected = 3 * expected + 5 * expected[(7 * at + 3) % len(at)] + 1
        return all(np.array_equal(d.arrays[f"state{self.met % 2}"], expected) for d in self.devices)


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize(
    ("size", "unit", "blocks"), [(2400, "int4", 3), (602, "int2", 2), (301, "int", 2)]
)
def test_devices_that_meet_have_all_values(devices, size, unit, blocks):
    """With two buffers in turn, though devices stop for a while, and some are slower."""
    meetings = Meetings(devices, size)
    assert (meetings.unit, meetings.blocks) == (unit, blocks)
    for seed, times in enumerate((5, 4)):
        meetings.meet(times, seed)
        assert not any(meetings.lost)
        assert meetings.right()


@pytest.mark.parametrize("devices", [2, 3])
def test_a_device_that_does_not_come(devices):
    """Others wait once for as long as they may; launches after it change nothing."""
    patience = 500
    meetings = Meetings(devices, 301, patience)
    meetings.meet(2, 0)
    assert not any(meetings.lost)
    assert patience < meetings.meet(1, 1, absent={1}) < 3 * patience
    assert meetings.lost == [rank != 1 for rank in range(devices)]
    before = [device.state() for device in meetings.devices]
    assert meetings.meet(3, 2, absent={1}, steps=False) < patience
    assert [device.state() for device in meetings.devices] == before
    meetings.meet(2, 3)
    assert all(meetings.lost)  # the late one, too, once it has to wait for others


# -- Planted mistakes ----------------------------------------------------------------------------


def replaced(old, new, text):
    assert text.count(old) == 1, old
    return text.replace(old, new)


def meetings_are_right(edit=None):
    for seed in range(4):
        meetings = Meetings(2, 301, edit=edit)
        try:
            meetings.meet(8, seed)
        except Failure:
            return False
        if any(meetings.lost) or not meetings.right():
            return False
    return True


AWAIT = "        await(own, thread, meeting, patience);\n"
FENCE = "        __threadfence_system();\n        is_last"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [(AWAIT, ""), (FENCE, "        is_last")],
    ids=["waits for nobody", "no fence after copies"],
)
def test_mistakes_show(right, wrong):
    assert meetings_are_right()
    assert not meetings_are_right(partial(replaced, right, wrong))
