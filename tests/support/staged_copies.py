"""Staged copies through the compiled loop, whichever call fails, and copies of pinned memory; run
by test_failing_driver.py."""

from __future__ import annotations

import gc
import time
import weakref

import fake_cuda
import numpy as np
import pytest

driver = fake_cuda.Driver()

from hetero import devices  # noqa: E402  PyCUDA must find the fake driver loaded
from hetero.arrays import pinned_sizes  # noqa: E402
from hetero.devices.cuda import device as cuda_device  # noqa: E402
from hetero.errors import DeviceError  # noqa: E402
from hetero.host.copying import slices, staging  # noqa: E402

devices.kinds.remove("opencl")
staging._LEAST_ROW = 8
SLICE, CHUNK, REGION = 1 << 13, 1 << 11, 1 << 15
staging._SLICE, staging._REGION = SLICE, REGION
slices._SLICE, slices._LEAST_SLICE, slices._SHARE = SLICE, SLICE // 2, 1
slices._CHUNK, slices._LEAST_CHUNK, slices._LONG = CHUNK, 1 << 9, 1 << 17
slices.helpers = lambda: 6
slices._LARGE, slices._HUGE_PAGE = 1 << 17, 1 << 12
rng = np.random.default_rng(0)
device = devices.get("cuda:0")
assert slices.library()


def ring(threads=3):
    staging.usual_threads = lambda: threads
    return staging.Ring(device)


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


def sizes(used) -> None:
    for middle in (1, CHUNK, SLICE, REGION, REGION + SLICE, 1 << 19):
        for nbytes in (middle - 1, middle, middle + 1):
            there_and_back(used, rng.integers(0, 255, nbytes, np.uint8), 3)


def layouts(used) -> None:
    X, wide = rng.random((37, 41, 13)), rng.random((30, 4000))
    views = [X, X.T, X[::2], X[:, ::-3], X[..., 2:7], X[:, :, 0], X[5:6, ::-1], X[::-2, 3:4]]
    views += [np.broadcast_to(X[0], (3, 41, 13)), X.transpose(1, 0, 2)[::-1], wide[:, ::2]]
    views += [wide[:, 100:2148], wide[:, 100:2149], wide[::-1, :2047], wide[3:4]]
    rows = [staging.rows(view) for view in views]
    assert len(rows) - rows.count(None) >= 9
    for view, found in zip(views, rows, strict=True):
        if found is not None and view.flags.writeable:
            number, row, pitch = found
            matrix = np.lib.stride_tricks.as_strided(view, (number, row // 8), (pitch, 8))
            np.testing.assert_array_equal(matrix.ravel(), view.ravel())
        there_and_back(used, view)


def stores_past_the_caches(used) -> None:
    """Whole vectors, and what lies before and behind them, from any address."""
    values = rng.integers(0, 255, 1 << 16, np.uint8)
    for start in (*range(9), 15, 16, 31, 63, 64, 65):
        for nbytes in (4095, 4096, 4097, 4159, 4160, SLICE, SLICE + 1):
            there_and_back(used, values[start : start + nbytes], start % 7)
    wide = values[: 10 * 6000].reshape(10, 6000)
    for row in (4095, 4096, 4097, 4300):
        there_and_back(used, wide[:, 7 : 7 + row])


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
    gc.collect()


def helpers_sleep_between_copies() -> None:
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.15


def nothing_is_kept(used) -> None:
    array = rng.random((30, 400))
    there_and_back(used, array)
    held = weakref.ref(array)
    del array
    gc.collect()
    assert held() is None


def without_pinned_memory(used) -> None:
    """The driver copies."""
    driver.fail(1, "cuMemHostRegister_v2", good=True)
    there_and_back(used, rng.random((30, 400)))
    driver.fail(0)


def pinned_memory() -> None:
    """The driver copies it in parts, also rows that lie apart; others are staged."""
    whole = device.pinned(60 * 400 * 8).view(float).reshape(60, 400)
    whole[...] = rng.random(whole.shape)
    before, (buffer, _owner) = whole.copy(), device.allocate(whole.nbytes + 8)
    rows = [whole[3:50, 100:350], whole[None, ::2, :200], whole[:, 10:]]
    others = [whole.ravel()[1:n] for n in (1, 2, 126, 127, 24000)]
    others += [whole, whole[:, ::2], whole.T[:, :9], whole[::-1, :300], whole[:, :20]]

    def there_and_back(array):
        driver.fail(0)
        device.begin_upload(array, buffer, 5).wait()
        expected = array.copy()
        array[...] = 0
        device.begin_download(buffer, array, 5).wait()
        np.testing.assert_array_equal(array, expected)
        np.testing.assert_array_equal(whole, before)
        return [name for name in driver.names() if name.startswith("cuMemcpy")]

    for cuda_device._PART in (1 << 26, 1000, 8000):
        for array in rows + others:
            sent, apart = there_and_back(array), any(array is x for x in rows)
            if apart or array.flags.c_contiguous:
                assert len(sent) >= 2 * -(-array.nbytes // cuda_device._PART)
            assert ("cuMemcpy2DAsync_v2" in sent) == (apart and cuda_device._PART > 2000)
    for array, name in ((whole, "cuMemcpyHtoDAsync_v2"), (rows[0], "cuMemcpy2DAsync_v2")):
        for k in (1, 3):
            driver.fail(k, name, good=True)
            with pytest.raises((DeviceError, *device.errors), match="planted failure"):
                device.begin_upload(array, buffer).wait()
    driver.fail(0)


def check(*functions, threads=3) -> None:
    for function in functions:
        used = ring(threads)
        function(used)
        used.close()
    gc.collect()


def without_compiled_code() -> None:
    """NumPy packs what compiled code would copy."""
    library, slices.library = slices.library, lambda: None
    check(lambda used: there_and_back(used, rng.random((30, 4000))))
    slices.library = library


def lost_context() -> None:
    """Pinned arrays stay what they are when their context is given up."""
    with device.active():
        array = device.pinned(1 << 16)
        device.begin_upload(rng.random(1000), device.allocate(8000)[0]).wait()
    array[:] = 7
    device.give_up()
    assert (array == 7).all()
    assert device.is_pinned(array)
    del array
    gc.collect()
    assert not pinned_sizes(), pinned_sizes()
    with device.active():
        buffer, _owner = device.allocate(8000)
        device.begin_upload(rng.random(1000), buffer).wait()


with device.active():
    check(sizes, threads=6)
    check(layouts, stores_past_the_caches, nothing_is_kept)
    without_compiled_code()
    failures()
    helpers_sleep_between_copies()
    pinned_memory()
    gc.collect()
    check(without_pinned_memory)
lost_context()
devices.get("cuda:0").clear()
assert not pinned_sizes()
assert not driver.live()["pushed"]
print("right")
