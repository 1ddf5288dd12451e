"""Threads that copy together, on a driver of the test's: sizes, rows, failures, sleep, the end."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

from hetero.host.copying import lane, lane_task, scheduling, staging, team

rng = np.random.default_rng(3)
WORD = ctypes.c_int64
NOT_READY, FAILED = 600, 719


def test_the_loops_are_those_of_the_source():
    """`make lane` was run when the source was edited."""
    folder = Path(lane.__file__).parent
    digest = hashlib.sha256((folder / "lane.c").read_bytes()).hexdigest()
    assert digest in (folder / "lane.ll").read_text("utf-8").partition("\n")[0]


class Driver:
    """Functions as a driver has them; a copy arrives when its event was asked for some times."""

    def __init__(self, late=2, fails=("", 0)):
        self.calls, self._late, self._fails = [], late, fails
        self._open = {}  # event -> how often it is still late
        self._flying = []  # copies that nobody has seen arrive
        self._kept = []

    def functions(self):
        found = {"send": 4, "record": 2, "query": 1, "await": 1, "drain": 1}
        return {name: self._function(name, count) for name, count in found.items()}

    def _function(self, name, count):
        def call(*arguments):
            self.calls.append(name)
            if self._fails == (name, self.calls.count(name)):
                return FAILED
            return getattr(self, f"_{name}")(*arguments) or 0

        made = ctypes.CFUNCTYPE(ctypes.c_int, *[WORD] * count)(call)
        self._kept.append(made)
        return lane.address(made)

    def _send(self, to, source, nbytes, stream):
        assert stream == 77
        assert nbytes > 0
        self._flying.append((to, source, nbytes, None))

    def _record(self, event, stream):
        self._flying[-1] = (*self._flying[-1][:3], event)
        self._open[event] = self._late

    def _query(self, event):
        self._open[event] -= 1
        if self._open[event] >= 0:
            return NOT_READY
        self._await(event)

    def _await(self, event):
        self._open[event] = 0
        while any(copy[3] == event for copy in self._flying):
            self._land()

    def _drain(self, stream):
        while self._flying:
            self._land()

    def _land(self):
        ctypes.memmove(*self._flying.pop(0)[:3])


def copied(made, direction, array, there, driver, region=1 << 15, cancel=None, **changed):
    """Run a task between an array and other memory; what it returned."""
    told = team.cut(direction, array, region) | changed
    memory = np.zeros(told["buffers"] * told["slice"], np.uint8)
    told |= {f"event {number}": 1000 + number for number in range(told["buffers"])}
    told |= driver.functions()
    told |= {"device": there.ctypes.data, "base": memory.ctypes.data, "stream": 77}
    cancel = WORD(0) if cancel is None else cancel
    told["cancel"] = ctypes.addressof(cancel)
    status = made.run(direction, told)
    if status <= 0 or "drain" in driver.calls:
        assert not driver._flying
    return status


@pytest.fixture(name="small", autouse=True)
def _small(monkeypatch):
    sizes = {"_SLICE": 1 << 12, "_LEAST_SLICE": 1 << 11, "_CHUNK": 1 << 10, "_LEAST_CHUNK": 1 << 8}
    for name, value in sizes.items():
        monkeypatch.setattr(team, name, value)


@pytest.fixture(name="made", params=[0, 3])
def _made(request):
    made = team.Team()
    made.start(request.param)
    yield made
    made.close()


def view(kind, nbytes):
    """Memory, of which a part is copied, and that part: contiguous, or rows with gaps."""
    if kind == "contiguous":
        memory = rng.integers(1, 255, nbytes, np.uint8)
        return memory, memory
    memory = rng.integers(1, 255, (5, nbytes + 7), np.uint8)
    memory = memory[::-1] if kind == "backwards" else memory
    return memory, memory[:, 3:-4]


@pytest.mark.parametrize("past", [64, 1 << 62])
@pytest.mark.parametrize("kind", ["contiguous", "rows", "backwards"])
def test_what_is_copied_is_right_and_nothing_else_is_written(made, kind, past):
    middles = (1, 1 << 8, 1 << 10, 1 << 12, 1 << 15, 70_000)
    for nbytes in {middle + step for middle in middles for step in (-1, 0, 1)} - {0}:
        memory, part = view(kind, nbytes)
        there = np.zeros(part.nbytes + 2, np.uint8)
        assert copied(made, "upload", part, there[1:], Driver(), past=past) == 0
        np.testing.assert_array_equal(there[1:-1], part.ravel())
        assert not there[[0, -1]].any()
        target, hole = np.zeros_like(memory), None
        hole = target if kind == "contiguous" else target[:, 3:-4]
        if kind == "backwards":
            target = np.zeros_like(memory)[::-1]
            hole = target[:, 3:-4]
        assert copied(made, "download", hole, there[1:], Driver(), past=past) == 0
        np.testing.assert_array_equal(hole, part)
        hole[...] = 0
        assert not target.any()


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_in_a_long_copy_the_leader_sleeps_and_does_what_nobody_else_does(
    made, direction, monkeypatch
):
    monkeypatch.setattr(team, "_ENOUGH", 0)
    naps = []

    @ctypes.CFUNCTYPE(ctypes.c_int, WORD)
    def nap(microseconds):
        naps.append(microseconds)
        return 0

    memory, there = rng.integers(1, 255, 70_000, np.uint8), np.zeros(70_000, np.uint8)
    if direction == "download":
        there[...] = rng.integers(1, 255, 70_000, np.uint8)
    for rest, patience in ((7, 0), (9, 3)):
        naps.clear()
        slept = {"rest": rest, "patience": patience, "nap": lane.address(nap)}
        assert copied(made, direction, memory, there, Driver(), **slept) == 0
        np.testing.assert_array_equal(memory, there)
        assert set(naps) <= {rest}
        if not made._threads:
            assert len(naps) >= patience  # and then it copies on, as nobody else does
    naps.clear()
    copied(made, direction, memory, there, Driver(), nap=lane.address(nap))
    assert not naps  # it is short
    monkeypatch.setattr(team, "_ENOUGH", 4)
    copied(made, direction, memory, there, Driver(), **slept)
    assert not naps  # nobody else would copy


def test_the_leader_of_long_copies_sleeps(monkeypatch):
    monkeypatch.setattr(team, "_LONG", 1000)
    rests = [team.cut("upload", np.empty(n, np.uint8), 1 << 15)["rest"] for n in (999, 1000)]
    assert rests == [0, team._REST]


@pytest.mark.skipif(team._mincore is None, reason="the system does not tell of pages")
def test_new_pages_and_what_is_long_to_go_up_are_not_stored_past_the_caches(monkeypatch):
    memory = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
    rows = memory.reshape(16, -1)[:, : 1 << 15]
    for array in (memory, rows):
        assert team.cut("download", array, 1 << 20)["past"] == team._NEVER
    memory[: 1 << 18] = memory[-(1 << 18) :] = 1  # as much as the begin tells nothing
    assert team.cut("download", memory, 1 << 20)["past"] == team._NEVER
    memory[...] = 1
    for array in (memory, rows):
        assert team.cut("download", array, 1 << 20)["past"] == team._PAST < team._NEVER
        assert team.cut("upload", array, 1 << 20)["past"] == team._PAST
    monkeypatch.setattr(team, "_LONG", 1 << 20)
    assert team.cut("upload", memory, 1 << 20)["past"] == team._NEVER
    assert team.cut("upload", rows, 1 << 20)["past"] == team._PAST, "half of it"
    assert team.cut("download", memory, 1 << 20)["past"] == team._PAST


@pytest.mark.skipif(team._mincore is None, reason="the system does not tell of pages")
def test_new_pages_are_touched_by_one_thread_each(monkeypatch):
    monkeypatch.setattr(team, "_SLICE", 4 << 20)
    memory = np.frombuffer(mmap.mmap(-1, 24 << 20), np.uint8)[4096 : 20 << 20]
    for nbytes, huge in ((16 << 20, True), ((16 << 20) - 1, False)):
        told = team.cut("download", memory[:nbytes], 32 << 20)
        assert (told["chunk"] == told["slice"] == 2 << 20) == huge
        assert told["lead"] == (memory.ctypes.data % (2 << 20) if huge else 0)
    memory[...] = 1
    assert team.cut("download", memory, 32 << 20)["chunk"] < 2 << 20


def test_slices_begin_where_pages_do(made, monkeypatch):
    monkeypatch.setattr(team, "_LARGE", 1)
    monkeypatch.setattr(team, "_HUGE_PAGE", 1 << 10)
    memory = np.zeros(40_000, np.uint8)
    there = rng.integers(1, 255, memory.nbytes, np.uint8)
    for begin in (0, 1, 500, 1023, 1024, 3000):
        part = memory[begin:]
        memory[...] = 0
        told = team.cut("download", part, 1 << 14)
        assert (part.ctypes.data - told["lead"]) % 1024 == 0
        assert told["slice"] % told["chunk"] == 0
        assert copied(made, "download", part, there, Driver(), 1 << 14) == 0
        np.testing.assert_array_equal(part, there[: part.nbytes])
        assert not memory[:begin].any()
    for region in (1 << 9, 700):  # what is left where the system gives little
        memory[...] = 0
        assert copied(made, "download", memory[1023:], there, Driver(), region) == 0
        np.testing.assert_array_equal(memory[1023:], there[:-1023])
    wide = np.zeros((50, 900), np.uint8)
    assert team.cut("download", wide[:, :300], 1 << 14)["chunk"] == 1 << 10


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_whichever_call_fails_its_status_is_returned_and_nothing_is_under_way(made, direction):
    array, there = rng.integers(1, 255, 30_000, np.uint8), np.zeros(30_000, np.uint8)
    for name in ("send", "record", "query"):
        told = 0
        for number in range(1, 20):
            driver = Driver(0, (name, number))
            status = copied(made, direction, array.copy(), there, driver, 1 << 14)
            if driver.calls.count(name) >= number:
                assert status == FAILED
                assert driver.calls[-1] == "drain"
                told += 1
            else:
                assert status == 0
        assert told > 4
    assert copied(made, direction, array, there, Driver()) == 0


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_a_copy_that_nobody_wants_ends_and_nothing_is_under_way(made, direction):
    array, there = np.ones(1 << 20, np.uint8), np.ones(1 << 20, np.uint8)
    cancel = WORD(0)

    class Impatient(Driver):
        def _send(self, *arguments):
            super()._send(*arguments)
            if self.calls.count("send") == 20:
                cancel.value = 1

    driver = Impatient()
    status = copied(made, direction, array, there, driver, cancel=cancel)
    assert status == lane_task.CANCELLED
    assert driver.calls[-1] == "drain"
    assert driver.calls.count("send") < 30


def test_a_driver_that_is_late_is_waited_for_asleep(made):
    array, there = rng.integers(1, 255, 30_000, np.uint8), np.zeros(30_000, np.uint8)
    for direction in ("upload", "download"):
        driver = Driver(late=1 << 40)
        assert copied(made, direction, array, there, driver, 1 << 14) == 0
        assert driver.calls.count("await") >= 2
    np.testing.assert_array_equal(there, array)


def test_many_copies_at_once():
    made, wrong = team.Team(), []
    made.start(3)

    def work(seed):
        draw = np.random.default_rng(seed)
        for _ in range(15):
            array = draw.integers(0, 255, draw.integers(1, 50_000), np.uint8)
            there, back = np.zeros_like(array), np.zeros_like(array)
            copied(made, "upload", array, there, Driver(1))
            copied(made, "download", back, there, Driver(1))
            wrong.extend(each for each in (there, back) if not np.array_equal(each, array))

    count = lane_task.TASKS + 2  # two of them without help
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.close()
    assert not wrong


@pytest.mark.parametrize("direction", ["upload", "download"])
@pytest.mark.parametrize("tasks", [1, 2])
def test_no_more_help_a_copy_than_gain_by_it_and_no_others_are_woken(monkeypatch, tasks, direction):
    """As many as for one card help one copy, also where another card's threads sleep."""
    made, helpers, most = team.Team(), 7, 2
    monkeypatch.setattr(team, "MOST", most)
    made.start(helpers)
    asleep = WORD.from_address(made._begin + 8 * lane_task.SHARED["asleep"])
    end = time.monotonic() + 5.0
    while asleep.value != helpers and time.monotonic() < end:
        time.sleep(0.001)
    assert asleep.value == helpers
    inside, seen, awake, lock = [0] * tasks, [0] * tasks, [], threading.Lock()
    arrays = [rng.integers(1, 255, 40_000, np.uint8) for _ in range(tasks)]
    others = [np.zeros_like(array) for array in arrays]
    kept, began = [], threading.Barrier(tasks)

    def memcpy(which):
        @ctypes.CFUNCTYPE(WORD, WORD, WORD, WORD)
        def call(to, source, nbytes):
            with lock:
                inside[which] += 1
                seen[which] = max(seen[which], inside[which])
                awake.append(helpers - asleep.value)
            ctypes.memmove(to, source, nbytes)
            time.sleep(5e-4)
            with lock:
                inside[which] -= 1
            return to

        kept.append(call)
        return lane.address(call)

    def copy(which):
        began.wait()
        ends = (arrays[which], others[which])
        array, there = ends if direction == "upload" else ends[::-1]
        own = memcpy(which)
        assert copied(made, direction, array, there, Driver(1), memcpy=own, past=1 << 62) == 0

    threads = [threading.Thread(target=copy, args=(which,)) for which in range(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.close()
    for array, other in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(array, other)
    assert max(seen) <= most + 1, "and the one who leads"
    assert max(seen) >= 2, "somebody helped"
    assert 1 <= max(awake) <= most * tasks


def test_helpers_sleep_and_are_woken_and_end():
    def asleep():
        return WORD.from_address(made._begin + 8 * lane_task.SHARED["asleep"]).value

    def slept():
        end = time.monotonic() + 5.0
        while asleep() != 3 and time.monotonic() < end:
            time.sleep(0.001)
        return asleep() == 3

    before = threading.active_count()
    made = team.Team()
    made.start(3)
    made.start(2)
    assert threading.active_count() == before + 3
    array, there = np.ones(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    for _ in range(20):
        assert slept()
        copied(made, "upload", array, there, Driver(0))
    assert slept()
    used = time.process_time()
    time.sleep(0.05)
    assert time.process_time() - used < 0.02
    assert made.is_usable()
    made.close()
    assert threading.active_count() == before
    assert not made.is_usable()
    there[...] = 0
    copied(made, "upload", array, there, Driver(0))  # it goes on alone
    assert there.all()


def test_helpers_that_a_nice_thread_starts_are_no_nicer(monkeypatch):
    found = []

    def serve(self):
        scheduling.be_nice()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def lead():
        scheduling.be_nice()
        team.Team().start(1)

    monkeypatch.setattr(team.Team, "_serve", serve)
    thread = threading.Thread(target=lead)
    thread.start()
    thread.join()
    while not found:
        time.sleep(0.001)
    assert found == [min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + scheduling._NICE, 19)]


def test_two_rings_have_more_helpers_where_there_are_cores(monkeypatch):
    busy, idle = (types.SimpleNamespace(is_idle=lambda idle=idle: idle) for idle in (False, True))
    ring = staging.Ring.__new__(staging.Ring)
    ring._helpers = None
    for cores, rings, expected in (
        (24, [busy, idle], 8),
        (24, [busy, busy, idle], 12),
        (64, [busy, busy], 16),
        (2, [busy], 1),
    ):
        monkeypatch.setattr(staging.cgroup, "cores", lambda cores=cores: cores)
        monkeypatch.setattr(staging, "_rings", rings)
        staging.usual_helpers.cache_clear()
        assert ring.helpers == expected
    staging.usual_helpers.cache_clear()


def test_a_team_is_made_anew_when_it_was_closed_and_in_a_forked_child(monkeypatch):
    first = team.current(1)
    assert team.current(1) is first
    team.close()
    assert not first.is_usable()
    second = team.current(0)
    assert second is not first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert team.current(0) is not second
    monkeypatch.undo()
    team.close()


def test_a_system_without_what_the_loops_call_does_without_them(monkeypatch):
    class Other:
        memcpy = ctypes.CDLL(None).memcpy

    monkeypatch.setattr(lane, "_compiled", {})
    monkeypatch.setattr(lane.ctypes, "CDLL", lambda name: Other())
    lane.compile_ahead()
    assert lane.ready("serve") is None
    monkeypatch.undo()
    before = sys.getswitchinterval()
    lane.settled.clear()
    lane.compile_ahead()
    assert lane.settled.is_set()
    assert lane.ready("serve") is not None
    assert sys.getswitchinterval() == before
