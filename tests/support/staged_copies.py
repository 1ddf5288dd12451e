"""Staged copies through the compiled loop, whichever call fails; run by test_failing_driver.py."""

from __future__ import annotations

import gc
import os
import threading
import time

import fake_cuda
import numpy as np

driver = fake_cuda.Driver()

from hetero import devices  # noqa: E402  PyCUDA must find the fake driver loaded
from hetero.arrays import pinned  # noqa: E402
from hetero.errors import DeviceError  # noqa: E402
from hetero.host.copying import copy_jobs, lane, lanes, scheduling, staging, team  # noqa: E402

del devices.here.kinds["opencl"]
copy_jobs._LEAST_ROW = 8
SLICE, CHUNK, REGION = 1 << 13, 1 << 11, 1 << 15
team._SLICE, team._LEAST_SLICE, team._CHUNK, team._LEAST_CHUNK = SLICE, SLICE // 2, CHUNK, 1 << 9
rng = np.random.default_rng(0)
device = devices.get("cuda:0")
lane.compile_ahead()
assert lanes.takes_slices(device)


def ring(helpers=2):
    return staging.Ring(device, 3, 1 << 14, 1 << 12, helpers=helpers, region_bytes=REGION)


def there_and_back(used, array, offset=8):
    buffer, _owner = device.allocate(array.nbytes + 16)
    used.start("upload", array, buffer, offset, device.record()).wait()
    found = np.zeros_like(array)
    used.start("download", found, buffer, offset, device.record()).wait()
    np.testing.assert_array_equal(found, array)
    whole = np.zeros((*array.shape[:-1], array.shape[-1] + 5), array.dtype)
    target = whole[..., 3:-2]
    used.start("download", target, buffer, offset).wait()
    np.testing.assert_array_equal(target, array)
    target[...] = 0
    assert not whole.any()


def sizes_and_layouts() -> None:
    used = ring()
    for middle in (1, CHUNK, SLICE, REGION, REGION + SLICE, 1 << 19):
        for nbytes in (middle - 1, middle, middle + 1):
            there_and_back(used, rng.integers(0, 255, nbytes, np.uint8), 3)
    X, wide = rng.random((37, 41, 13)), rng.random((30, 4000))
    views = [X, X.T, X[::2], X[:, ::-3], X[..., 2:7], X[:, :, 0], X[5:6, ::-1], X[::-2, 3:4]]
    views += [np.broadcast_to(X[0], (3, 41, 13)), X.transpose(1, 0, 2)[::-1], wide[:, ::2]]
    views += [wide[:, 100:2148], wide[:, 100:2149], wide[::-1, :2047], wide[3:4]]
    rows = [copy_jobs.in_rows(view) for view in views]
    assert sum(map(len, rows)) >= 9
    for view, found in zip(views, rows, strict=True):
        for matrix in found:
            np.testing.assert_array_equal(matrix.ravel(), view.ravel())
        there_and_back(used, view)
    used.close()


def stores_past_the_caches() -> None:
    """Whole vectors, and what lies before and behind them, from any address."""
    usual, team._PAST = team._PAST, 256
    used, memory = ring(), rng.integers(0, 255, 1 << 15, np.uint8)
    for start in (*range(9), 31, 32, 63, 64, 65):
        for nbytes in (255, 256, 257, 319, 320, CHUNK, 2 * CHUNK + 63, SLICE + 1):
            there_and_back(used, memory[start : start + nbytes], start % 7)
    wide = memory[: 30 * 1000].reshape(30, 1000)
    for row in (255, 256, 257, 300, 321):
        there_and_back(used, wide[:, 7 : 7 + row])
    used.close()
    team._PAST = usual


def leaders_are_few() -> None:
    """Those who lead are two threads for each direction, whoever copied before; none is nicer."""
    used = ring()
    compiled, lane._compiled = lane._compiled, {}
    array = rng.random((40, 1000))
    there_and_back(used, array)
    lane._compiled = compiled
    before = pinned.sizes()[lanes.PURPOSE]
    for _ in range(30):
        there_and_back(used, array)
    assert pinned.sizes()[lanes.PURPOSE] - before <= 2 * 2 * REGION
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    found = [
        (way.leads, os.getpriority(os.PRIO_PROCESS, thread.native_id) - mine)
        for way, threads in used._threads.items()
        for thread in threads
    ]
    assert set(found) == {(True, 0), (False, scheduling._NICE)}, found
    assert 1 <= found.count((True, 0)) <= 4
    used.close()


def failures() -> None:
    """Let every call fail once: an error or the right result, and no harm."""
    array = rng.random((30, 400))
    cases = ("upload", array), ("download", array.copy()), ("upload", array[:, 7:300])
    for direction, moved in cases:
        told, k, failed = 0, 1, True
        while failed:
            used = ring(2)
            buffer, owner = device.allocate(array.nbytes)
            device.enqueue("upload", np.ascontiguousarray(moved), buffer)
            driver.fail(k)
            try:
                used.start(direction, moved, buffer).wait()
                is_right = True
            except DeviceError:
                is_right = False
            failed = driver.failures
            driver.fail(0)
            if is_right:
                found = np.zeros_like(moved)
                device.enqueue("download", found, buffer)
                np.testing.assert_array_equal(found, moved)
            told += not is_right
            used.close()
            del buffer, owner
            k += 1
        assert told > 20, (direction, told, k)
    there_and_back(ring(1), array)
    staging.close_all()
    gc.collect()


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(1e-3)


def in_a_fresh_process() -> None:
    """While the loops are compiled the driver copies, and then the rest of that copy is staged."""
    sliced, plain, kept = [], [], (lanes._PLAIN, lanes._PLAINER)
    lanes._PLAIN = lanes._PLAINER = 1 << 12
    really, enqueued = device.slices.copy, device.enqueue

    def noted(direction, array, *others):
        sliced.append((direction, array.nbytes))
        really(direction, array, *others)

    def uploaded(direction, view, *others):
        plain.append(view.nbytes)
        enqueued(direction, view, *others)
        if len(plain) == 3:
            lane._compiled = compiled
            lane.settled.set()
            until(lambda: not used.regions.is_coming("upload"))

    device.slices.copy = noted
    compiled = lane._compiled
    for array in (
        rng.random(5000),
        rng.random((50, 300))[::2, 3:200],
        rng.random((9, 2000))[:, 5:],
    ):
        lane._compiled = {}
        lane.settled.clear()
        sliced.clear(), plain.clear()
        used = staging.Ring(device, 3, 1 << 14, 1 << 12, helpers=2, region_bytes=REGION, ahead=True)
        buffer, _owner = device.allocate(array.nbytes)
        assert not used.is_worth_it("upload", array)
        if array.flags.c_contiguous:
            device.enqueue = uploaded
        else:
            lane._compiled = compiled
            lane.settled.set()
        copy = used.start("upload", array, buffer)
        copy.wait()
        device.__dict__.pop("enqueue", None)
        assert used.is_worth_it("upload", array)
        if array.flags.c_contiguous:
            assert plain == [1 << 12] * 3
            assert sliced == [("upload", array.nbytes - 3 * (1 << 12))]
        until(lambda used=used: not used.regions.is_coming("upload"))
        found = np.zeros(array.shape)
        device.enqueue("download", found, buffer)
        np.testing.assert_array_equal(found, array)
        before = len(sliced)
        used.start("upload", array, buffer).wait()
        assert sliced[before:] == [("upload", array.nbytes)]
        found[...] = 0
        used.start("download", found, buffer).wait()
        np.testing.assert_array_equal(found, array)
        used.close()
        gc.collect()
        assert not pinned.sizes()
    # Nobody copies any more when all is there: it is given back all the same.
    used = staging.Ring(device, 3, 1 << 14, 1 << 12, helpers=2, region_bytes=REGION, ahead=True)
    idle, lanes._IDLE = lanes._IDLE, 0.2
    for _ in range(2):
        used.regions.ask("download", 1, REGION)
        until(lambda: not used.is_idle())
        (leader,) = used._threads[lanes.Way("download", True)]
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, leader.native_id) == mine
        assert pinned.sizes()[lanes.PURPOSE] == REGION
        until(used.is_idle)
        until(lambda: not pinned.sizes())
    lanes._IDLE = idle
    used.regions.ask("upload", 1, REGION)
    used.close()
    gc.collect()
    assert not pinned.sizes(), pinned.sizes()
    # There is no pinned memory: the driver copies.
    used = staging.Ring(device, 3, 1 << 14, 1 << 12, helpers=2, region_bytes=REGION, ahead=True)
    driver.fail(1, "cuMemHostRegister_v2", good=True)
    there_and_back(used, rng.random((30, 400)))
    driver.fail(0)
    used.close()
    lanes._PLAIN, lanes._PLAINER = kept
    del device.slices.copy


def lost_context() -> None:
    """Pinned arrays stay what they are when their context is given up."""
    with device.active():
        array = device.pinned(1 << 16)
        device.begin_upload(rng.random(1000), device.allocate(8000)[0]).wait()
    array[:] = 7
    device.contexts.give_up()
    assert (array == 7).all()
    assert device.is_pinned(array)
    del array
    gc.collect()
    assert not pinned.sizes(), pinned.sizes()
    with device.active():
        buffer, _owner = device.allocate(8000)
        device.begin_upload(rng.random(1000), buffer).wait()


with device.active():
    sizes_and_layouts()
    stores_past_the_caches()
    leaders_are_few()
    failures()
    gc.collect()
    in_a_fresh_process()
    gc.collect()
    threads, before = threading.active_count(), driver.live()
    used = ring()
    for _ in range(200):
        there_and_back(used, rng.random((20, 300))[:, 5:205])
    used.close()
    gc.collect()
    after = driver.live()
    end = time.monotonic() + 60.0
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)  # what looks after results' memory ends by itself
    assert threading.active_count() <= threads
    assert after["pinned"] == before["pinned"], (before, after)  # what failed to be freed
    assert after["event"] - before["event"] < 20, (before, after)
lost_context()
devices.get("cuda:0").clear()
assert not pinned.sizes()
assert not driver.live()["pushed"]
print("right")
