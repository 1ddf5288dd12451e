"""Kernels by which several devices work together, run on the CPU, in many random orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cg_systems import recurrence
from devices_on_cpu import bound, run
from fakes import Memory, view

from hetero.kernels import Launch
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.cg.plan import GridShare
from hetero.kernels.common.launch import WORDS, Target, exchange
from hetero.ops.solvers.operators import Poisson
from hetero.ops.solvers.systems import Stencil

PATIENCE = 4000  # turns that a device waits for another one: no device stops for so long
LOST = 0  # place of a word: kernels/common/exchange.cu
RUNNING, CONVERGED = 0, 1
SPACING = (0.9, 1.2)


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


class Together:
    """Devices that run launches at once."""

    def run(self, launches, seed, absent):
        """Run the ``launches(rank)`` of each device that is there; the turns that it takes."""
        every = range(len(self.devices))
        taken = run([[] if rank in absent else launches(rank) for rank in every], seed)
        assert not any(device.damaged() for device in self.devices)
        return taken

    @property
    def lost(self):
        return [bool(device.arrays["own"][LOST]) for device in self.devices]


# -- Conjugate gradients in one launch -----------------------------------------------------------


class Solve(Together):
    """Conjugate gradients on devices that own the rows between ``cuts``."""

    def __init__(self, cuts, columns, dtype="float64", blocks=3, patience=PATIENCE):
        rows, self.cuts = cuts[-1], cuts
        how = {"dtype": dtype, "shared_limit": 1 << 16, "devices": len(cuts) - 1}
        self.devices = [Buffers() for _ in cuts[1:]]
        rng = np.random.default_rng(3)
        self.b, self.x0 = rng.standard_normal((2, rows, columns)).astype(dtype)
        self.A = Poisson(self.b.shape, SPACING, dtype).tocsr()
        r = self.b - (self.A @ self.x0.ravel()).reshape(self.b.shape)
        self.plans, box = [], Stencil(self.b.shape, SPACING).box
        for begin, end in itertools.pairwise(cuts):
            share = GridShare.of(*box, begin, end)
            self.plans.append(plan_cg.cooperative(share, Target(blocks, 16), above=begin, **how))
        grids = [plan.grid for plan in self.plans]
        for device, (begin, end) in zip(self.devices, itertools.pairwise(cuts), strict=True):
            device.add("x", (end - begin, columns), dtype, self.x0[begin:end])
            for name, halo in (("r", 1), ("p", 2)):
                device.add(name, self.b.shape, dtype)
                held = slice(max(0, begin - halo), end + halo)
                device.arrays[name][held] = r[held]
            device.add("edges", (2 * self.b.size, 2), np.uint64, 0)
            device.add("sums", (8 * sum(grids), 2), np.uint64, 0)
            device.add("own", WORDS, np.uint32, 0)
            for turn in (0, 1):
                device.add(f"record{turn}", 8, float, 0)
        names = ("edges", "sums", "r", "p")
        addresses = [[device.addresses[name] for name in names] for device in self.devices]
        for rank, device in enumerate(self.devices):
            device.add("peers", (len(self.devices), len(names)), np.int64, addresses)
            of_row_0 = device.addresses["x"] - cuts[rank] * self.b[0].nbytes
            device.addresses |= {
                "x": of_row_0, "rank": rank, "patience": patience, "all_rows": rows,
                "words": device.addresses["own"],
                "first_block": sum(grids[:rank]), "blocks_before": sum(grids),
            }  # fmt: skip
        self._turn = self._stamp = 0
        self.start(0.0)

    def start(self, target):
        """Begin from iterate 0, to stop where r.r is no more than this."""
        for device in self.devices:
            device.arrays["record0"][[1, 4]] = device.arrays["record1"][[1, 4]] = -1, target

    def advance(self, iterations, seed, absent=()):
        """One launch on each device that is there; the turns that it takes."""

        def launches(rank):
            at = self.devices[rank].addresses
            values = at | {
                "iterations": iterations, "stamp": self._stamp,
                "before": at[f"record{self._turn}"], "after": at[f"record{1 - self._turn}"],
            }  # fmt: skip
            return [bound(self.plans[rank], values)]

        taken = self.run(launches, seed, absent)
        self._stamp += iterations
        self._turn = 1 - self._turn
        return taken

    @property
    def x(self):
        return np.concatenate([device.arrays["x"] for device in self.devices])

    def record(self):
        """(status, count), the same on all devices."""
        records = [tuple(d.arrays[f"record{self._turn}"][:2].astype(int)) for d in self.devices]
        assert len(set(records)) == 1, records
        return records[0]


def error(solve, count):
    """Of the iterate, relative to the change from the start to it; NaN is infinitely wrong."""
    iterates = recurrence(solve.A, solve.b.ravel(), solve.x0.ravel(), 0.0, count)
    change = iterates[count] - iterates[0]
    found = np.linalg.norm(solve.x.ravel() - iterates[count]) / max(np.linalg.norm(change), 1e-300)
    return np.nan_to_num(found, nan=np.inf)


EPS = {"float64": 1e-11, "float32": 1e-3}
GRIDS = [  # rows of devices, columns, blocks of a device
    ((0, 2), 5, 3, "float64"),
    ((0, 7), 5, 3, "float64"),  # 3, 3 and 1 rows
    ((0, 11), 16, 4, "float32"),  # 3, 3, 3 and 2 rows, as many columns as threads
    ((0, 2, 4), 3, 2, "float64"),  # a row a block, and no rows but what a neighbour needs
    ((0, 5, 12), 7, 3, "float32"),
    ((0, 8, 10), 5, 3, "float64"),
    ((0, 2, 4, 6), 4, 1, "float64"),  # two rows in the middle, for both sides
    ((0, 7, 9, 14), 6, 3, "float64"),
    ((0, 3, 8, 12), 5, 3, "float32"),
]


@pytest.mark.parametrize(("cuts", "columns", "blocks", "dtype"), GRIDS, ids=str)
def test_iterates_of_cg(cuts, columns, blocks, dtype):
    """After several launches in a row; the same bits in every order of events."""
    states = []
    for seed in range(2):
        solve = Solve(cuts, columns, dtype, blocks)
        done = -1
        for iterations in (1, 2, 5):  # iterate 0, then odd and even ones
            solve.advance(iterations, seed)
            done += iterations
            assert solve.record() == (RUNNING, done)
            assert error(solve, done) < EPS[dtype]
        assert not any(solve.lost)
        states.append([device.state() for device in solve.devices])
    assert states[0] == states[1]


@pytest.mark.parametrize("cuts", [(0, 8), (0, 5, 9), (0, 3, 6, 9)], ids=str)
def test_an_iteration_that_stops_early_stops_everywhere(cuts):
    solve = Solve(cuts, 5)
    tolerance = 1e-5 * np.linalg.norm(solve.b)
    iterates = recurrence(solve.A, solve.b.ravel(), solve.x0.ravel(), tolerance, 100)
    solve.start(tolerance**2)
    solve.advance(3, 1)
    assert solve.record() == (RUNNING, 2)
    solve.advance(100, 2)
    assert solve.record() == (CONVERGED, len(iterates) - 1)
    assert error(solve, len(iterates) - 1) < EPS["float64"]
    before = solve.x.tobytes()
    assert solve.advance(100, 3) < PATIENCE / 4
    assert solve.record() == (CONVERGED, len(iterates) - 1)
    assert solve.x.tobytes() == before


RESULTS = ("x", "r", "p", "record0", "record1")


@pytest.mark.parametrize("absent", [0, 1, 2])
@pytest.mark.parametrize("when", [0, 1], ids=["first", "second"])
def test_a_device_that_takes_no_part_in_a_launch(absent, when):
    """Others wait for as long as they may, and store nothing, then or later."""
    patience = 500
    solve = Solve((0, 3, 6, 9), 5, blocks=2, patience=patience)
    if when:
        solve.advance(3, 0)

    def results():
        return [{n: d.state()[n] for n in RESULTS} for d in solve.devices]

    before = results()
    assert patience < solve.advance(5, 1, absent={absent}) < 3 * patience
    assert solve.lost == [rank != absent for rank in range(3)]
    assert results() == before
    everything = [device.state() for device in solve.devices]
    assert solve.advance(5, 2, absent={absent}) < patience / 2
    assert everything == [device.state() for device in solve.devices]
    solve.advance(5, 3)  # now it comes, and waits in vain in its turn
    assert solve.lost == [True] * 3
    assert results() == before


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


class Meetings(Together):
    """Devices that own ``size`` words of a vector each, and meet after each change of it."""

    def __init__(self, devices, size, patience=PATIENCE):
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
                given = now, after, begin, begin + size, devices * size, 3
                step = Launch(STEP, "step", (), 3, 32, given)
                copies_of = {"copies": device.addresses[after + " copies"]}
                meeting = bound(plan, device.addresses | copies_of)
                pair.append([bound(step, device.addresses), meeting])
            self._launches.append(pair)
            self.unit, self.blocks = dict(plan.defines)["UNIT"], plan.grid

    def meet(self, times, seed, absent=(), steps=True):
        """Change the vector, copy and meet, some times; the turns that it takes."""
        numbers = range(self.met, self.met + times)

        def launches(rank):
            pair = self._launches[rank]
            return [one for n in numbers for one in pair[n % 2][0 if steps else 1 :]]

        self.met += times
        return self.run(launches, seed, absent)

    def right(self):
        """Whether all devices have the vector that they should have by now."""
        at, expected = np.arange(len(self.whole)), self.whole
        for _ in range(self.met):
            expected = 3 * expected + 5 * expected[(7 * at + 3) % len(at)] + 1
        return all(np.array_equal(d.arrays[f"state{self.met % 2}"], expected) for d in self.devices)


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize(("size", "unit"), [(2400, "int4"), (602, "int2"), (301, "int")])
def test_devices_that_meet_have_all_values(devices, size, unit):
    """With two buffers in turn, though devices stop for a while, and some are slower."""
    meetings = Meetings(devices, size)
    assert (meetings.unit, meetings.blocks) == (unit, 3 if size == 2400 else 2)
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
