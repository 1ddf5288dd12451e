"""Copies through a ring of pinned buffers: sizes around a slice, strides, failures, interrupts."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from hetero import devices
from hetero.devices import pinned, staging

SLICE, LEAST = 1000, 64
rng = np.random.default_rng(5)
X = rng.random((37, 41, 13))
VIEWS = {
    "C": X,
    "F": X.T,
    "every second": X[::2],
    "backwards": X[:, ::-3],
    "narrow": X[..., 2:7],
    "a column": X[:, :, 0],
    "one row": X[5:6, ::-1],
    "other order": X.transpose(1, 0, 2)[::-1],
    "repeated": np.broadcast_to(X[0], (3, *X.shape[1:])),
    "no axes": X[1, 2, 3:4].reshape(()),
    "nothing": X[:0],
}


@pytest.fixture(name="device")
def _device(opencl):
    device = devices.get(opencl)
    with device.active():
        yield device


@pytest.fixture(name="ring")
def _ring(device):
    before = threading.active_count(), pinned.sizes()
    ring = staging.Ring(device, lanes=3, slice_bytes=SLICE, least_bytes=LEAST)
    yield ring
    ring.close()
    gc.collect()
    assert (threading.active_count(), pinned.sizes()) == before


def there_and_back(ring, device, array, offset=0):
    buffer, _owner = device.allocate(array.nbytes + offset + 16)
    ring.start("upload", array, buffer, offset, device.record()).wait()
    plain = np.empty(array.shape, array.dtype)
    device.copy_plainly("download", plain, buffer, offset)
    np.testing.assert_array_equal(plain, array)
    back = np.zeros_like(plain)
    ring.start("download", back, buffer, offset, device.record()).wait()
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("offset", [0, 5])
def test_sizes_around_a_slice(ring, device, offset):
    slices = SLICE * ring.lanes * ring.buffers
    for middle in (1, LEAST, SLICE, slices, 2 * slices):
        for nbytes in (middle - 1, middle, middle + 1):
            array = rng.integers(0, 255, nbytes, np.uint8)
            there_and_back(ring, device, array, offset)


@pytest.mark.parametrize("name", VIEWS)
def test_layouts_are_packed_on_the_way(ring, device, name):
    there_and_back(ring, device, VIEWS[name])


def test_into_a_strided_array_and_nowhere_else(ring, device):
    buffer, _owner = device.allocate(X.nbytes)
    device.upload(X, buffer)
    whole = np.zeros((80, 50, 30))
    target = whole[3:77:2, 48:7:-1, 1:27:2]
    ring.start("download", target, buffer).wait()
    np.testing.assert_array_equal(target, X)
    target[...] = 0
    assert not whole.any()


@pytest.mark.parametrize("most", [1, 8, 100, 104, 10**6])
@pytest.mark.parametrize("name", VIEWS)
def test_pieces_follow_each_other_and_leave_nothing_out(name, most):
    array = VIEWS[name]
    count, piece = staging.pieces(array, most)
    end, packed = 0, b""
    for number in range(count):
        view, begin = piece(number)
        assert begin == end
        assert 0 < view.nbytes <= max(most, array.itemsize)
        packed += view.tobytes()
        end += view.nbytes
    assert packed == array.tobytes()
