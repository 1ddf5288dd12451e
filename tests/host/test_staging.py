"""Copies through a ring of pinned buffers: interrupts, several at once, forks, pinned arrays."""

from __future__ import annotations

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

SLICE = 1000  # bytes


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
    monkeypatch.setattr(staging, "_REGION", 6 * SLICE)
    monkeypatch.setattr(staging, "usual_threads", lambda: 3)
    yield
    for ring in [*staging._rings]:  # the next copy of any test has larger buffers
        ring.close()


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


@pytest.mark.parametrize("direction", [staging.UPLOAD, staging.DOWNLOAD])
def test_an_interrupt_leaves_nothing_in_flight(ring, device, monkeypatch, direction):
    """Each slice takes 10 ms; the second interrupt comes while the first one's copy stops."""
    array = np.zeros(30 * SLICE, np.uint8)
    buffer, _owner = device.allocate(array.nbytes)
    flying, begun, interrupts = set(), [], [KeyboardInterrupt] * 2
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

    def interrupt(*_):
        if interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(device, "enqueue", slow_send)
    monkeypatch.setattr(device, "wait", slow_arrive)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        copy = ring.start(direction, array, buffer)
        signal.setitimer(signal.ITIMER_REAL, 0.03, 0.02)
        with pytest.raises(KeyboardInterrupt):
            copy.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not flying
    assert not interrupts
    assert len(begun) == 30
    array[:100] = 1  # whoever copies next finds all buffers free
    back = np.zeros_like(array)
    ring.start("upload", array, buffer).wait()
    ring.start("download", back, buffer).wait()
    np.testing.assert_array_equal(back, array)


def test_three_threads_and_both_directions_at_once(ring, device):
    def task(seed):
        draw = np.random.default_rng(seed)
        with device.active():
            for _ in range(20):
                array = draw.random((draw.integers(1, 40), 50))[:, :: draw.integers(1, 3)]
                one, two, three = (device.allocate(array.nbytes)[0] for _ in range(3))
                for copy in [ring.start("upload", array, buffer) for buffer in (one, two)]:
                    copy.wait()
                found, other = np.zeros_like(array), np.zeros_like(array)
                down = ring.start("download", found, one), ring.start("download", other, two)
                for copy in (*down, ring.start("upload", array, three)):
                    copy.wait()
                assert np.array_equal(found, array)
                assert np.array_equal(other, array)

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


def test_a_forked_child_has_no_ring(device):
    array = np.ones((500, 500))
    buffer, _owner = device.allocate(array.nbytes)
    copy = device.begin_upload(array, buffer)
    unfinished = device.begin_upload(np.ones(1 << 21), device.allocate(1 << 24)[0])

    def computes_alone():
        signal.alarm(60)
        assert threading.active_count() == 1
        with pytest.raises(hetero.errors.DeviceError, match="forked"):
            unfinished.wait()
        for name in (None, device.name):
            assert (hetero.matmul(array, array, device=name) == 500.0).all()
            hetero.reset(name)
        assert not hetero.memory()[device.name]
        hetero.clear_memory()
        return devices.inherited(device.name)

    assert processes.forked(computes_alone)
    copy.wait()
    found = np.zeros_like(array)
    device.begin_download(buffer, found).wait()
    np.testing.assert_array_equal(found, array)


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
