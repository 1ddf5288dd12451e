"""Copies through a ring of pinned buffers: sizes around a slice, strides, failures, interrupts."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import processes
import pytest

import hetero
from hetero import devices
from hetero.arrays import describe, pinned_sizes
from hetero.calling import overview
from hetero.host.copying import staging

SLICE, REGION = 1000, 6000
rng = np.random.default_rng(5)
X = rng.random((37, 41, 13))


def threads_that_copy():
    """How many there are; those that pack stay."""
    names = [thread.name for thread in threading.enumerate()]
    return sum(name.startswith("hetero-copy") and "packer" not in name for name in names)


@pytest.fixture(name="device")
def _device(opencl):
    device = devices.get(opencl)
    with device.active():
        yield device


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(staging, "_SLICE", SLICE)
    monkeypatch.setattr(staging, "_REGION", REGION)
    monkeypatch.setattr(staging, "usual_threads", lambda: 3)


@pytest.fixture(name="ring")
def _ring(device):
    gc.collect()  # what other tests' failures refer to
    before = threads_that_copy(), pinned_sizes()
    ring = staging.Ring(device)
    yield ring
    ring.close()
    gc.collect()
    # Those of other rings may have ended meanwhile.
    assert threads_that_copy() <= before[0]
    assert sum(pinned_sizes().values()) <= sum(before[1].values())


def there_and_back(ring, device, array, offset=0):
    buffer, _owner = device.allocate(array.nbytes + offset + 16)
    ring.start("upload", array, buffer, offset, device.record()).wait()
    plain = np.empty(array.shape, array.dtype)
    device.enqueue("download", plain, buffer, offset)
    np.testing.assert_array_equal(plain, array)
    back = np.zeros_like(plain)
    ring.start("download", back, buffer, offset, device.record()).wait()
    np.testing.assert_array_equal(back, array)


# -- Failures --------------------------------------------------------------------------------------


@pytest.fixture(name="slow")
def _slow(device, monkeypatch):
    """A device on which each slice takes 10 ms; tells how many are under way, and how many were."""
    flying, begun = set(), []
    send, arrive = device.enqueue, device.wait

    def slow_send(*arguments):
        mark = send(*arguments)
        flying.add(id(mark))
        begun.append(True)
        return mark

    def slow_arrive(mark, stream=None):
        time.sleep(0.01 * (stream is None))
        arrive(mark, stream)
        flying.discard(id(mark))

    monkeypatch.setattr(device, "enqueue", slow_send)
    monkeypatch.setattr(device, "wait", slow_arrive)
    return flying, begun


@pytest.mark.parametrize("direction", [staging.UPLOAD, staging.DOWNLOAD])
def test_an_interrupt_leaves_nothing_in_flight(ring, device, slow, direction):
    flying, begun = slow
    array = np.zeros(30 * SLICE, np.uint8)
    buffer, _owner = device.allocate(array.nbytes)

    wanted = [True]

    def interrupt(*_):
        if wanted:
            raise KeyboardInterrupt

    def no_more():
        with contextlib.suppress(KeyboardInterrupt):  # one that comes just now
            wanted.clear()
        wanted.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def wait(copy):
        signal.setitimer(signal.ITIMER_REAL, 0.03, 0.02)  # and again while it stops
        try:
            copy.wait()
        finally:
            no_more()

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        copy = ring.start(direction, array, buffer)
        with pytest.raises(KeyboardInterrupt):
            wait(copy)
        assert not flying
        assert len(begun) == 30
        array[:100] = 1  # whoever copies next finds all buffers free
        there_and_back(ring, device, array[: 3 * SLICE])
    finally:
        no_more()  # or one that is under way would end the process
        signal.signal(signal.SIGALRM, before)


# -- Company ---------------------------------------------------------------------------------------


def test_two_threads_and_both_directions_at_once(ring, device):
    def task(seed):
        draw = np.random.default_rng(seed)
        with device.active():
            for _ in range(20):
                array = draw.random((draw.integers(1, 40), 50))[:, :: draw.integers(1, 3)]
                buffers = [device.allocate(array.nbytes)[0] for _ in range(2)]
                for copy in [ring.start("upload", array, buffer) for buffer in buffers]:
                    copy.wait()
                found = [np.zeros_like(array) for _ in buffers]
                copies = [
                    ring.start("download", target, buffer)
                    for target, buffer in zip(found, buffers, strict=True)
                ]
                copies.append(ring.start("upload", array, device.allocate(array.nbytes)[0]))
                for copy in copies:
                    copy.wait()
                assert all(np.array_equal(target, array) for target in found)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(task, range(3)))


def test_copies_begin_when_what_they_wait_for_has_come(device):
    array = np.arange(5000.0)
    buffer, _owner = device.allocate(array.nbytes)
    for number in range(20):
        device.enqueue("upload", array + number, buffer)
        device.fill(buffer, array.nbytes)  # in the default queue, which nobody waits for
        found = array.copy()
        device.begin_download(buffer, found).wait()
        assert not found.any()
        device.fill(buffer, array.nbytes)
        device.begin_upload(array, buffer).wait()
        device.enqueue("download", found, buffer)
        np.testing.assert_array_equal(found, array)
    device.clear()


FORKED = """
import os, sys, threading
import numpy as np
import hetero
from hetero import devices
device = devices.get(sys.argv[1])
array = np.ones((500, 500))
with device.active():
    buffer, owner = device.allocate(array.nbytes)
    copy = device.begin_upload(array, buffer)
    unfinished = device.begin_upload(np.ones(1 << 24), device.allocate(1 << 27)[0])
    child = os.fork()
    if child:
        copy.wait()
        found = np.zeros_like(array)
        device.begin_download(buffer, found).wait()
        assert (found == array).all()
if not child:
    assert threading.active_count() == 1
    assert devices.inherited(device.name)
    try:
        unfinished.wait()
    except hetero.errors.DeviceError as error:
        assert "forked" in str(error)
    del unfinished
    product = hetero.matmul(array, array)
    assert (product == 500.0).all()
    assert not hetero.memory()[device.name]
    hetero.clear_memory()
    os._exit(0)  # at exit() Intel's runtime may wait for ever for the queue that its parent has
assert os.waitpid(child, 0)[1] == 0
print("right")
"""


def test_a_forked_child_has_no_ring(opencl):
    done = processes.python("-c", FORKED, opencl, timeout=60, HETERO_PROFILE="/nowhere")
    assert done.stdout == "right\n", done.stderr


# -- empty_pinned ----------------------------------------------------------------------------------


def test_pinned_arrays_are_told_by_their_address(device, monkeypatch):
    monkeypatch.setattr(device, "stages", True)
    before = pinned_sizes()
    array = hetero.empty_pinned((300, 200), "float32")
    assert (array.shape, array.dtype, array.flags.c_contiguous) == ((300, 200), np.float32, True)
    assert type(array) is np.ndarray
    array[...] = 2.0
    for view in (array, array.T, array[7:, ::3]):
        assert describe(view).pinned
    frozen = array[:4]
    frozen.flags.writeable = False
    assert describe(frozen).pinned
    assert not describe(array.copy()).pinned
    assert hetero.memory()["host"]["pinned arrays"] == array.nbytes
    product = hetero.matmul(array, array.T, device=device.name)
    np.testing.assert_array_equal(product, np.full((300, 300), 800.0))
    del array, view, frozen
    gc.collect()
    assert pinned_sizes() == before


def test_without_a_gpu_pinned_arrays_are_ordinary_ones_and_one_warning_says_so(
    warnings_of, monkeypatch
):
    monkeypatch.setattr(overview, "_state", {"warned": False})
    monkeypatch.setattr(overview.devices, "available", dict)
    for shape in (5, (3, 4), [2], (), (0, 3)):
        assert hetero.empty_pinned(shape).shape == np.empty(shape).shape
    (text,) = warnings_of()
    assert "ordinary memory" in text
    wrong = [((-1,), "f4", ValueError), (2.5, "f4", TypeError), (2, "O", TypeError)]
    for shape, dtype, error in wrong:
        with pytest.raises(error):
            hetero.empty_pinned(shape, dtype)
