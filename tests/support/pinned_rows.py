"""Arrays in pinned memory, copied by the driver alone: in parts, and rows that lie apart.

Run by test_failing_driver.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from failing_driver import driver, install
from fakes import noting

import hetero
from hetero import devices
from hetero.devices.cuda import memory as cuda_copies
from hetero.errors import DeviceError

install()
device = devices.get("cuda:0")
sent = []
noting(pytest.MonkeyPatch(), cuda_copies, "copy_rows", lambda way, *_: sent.append(way))
whole = hetero.empty_pinned((60, 400))
whole[...] = np.random.default_rng(1).random((60, 400))
back = hetero.empty_pinned((70, 300))
back[...] = 5


def there_and_back(array):
    device.begin_upload(array, buffer).wait()
    packed = np.empty(array.shape)
    device.begin_download(buffer, packed).wait()
    np.testing.assert_array_equal(packed, array)


with device.active():
    buffer, owner = device.allocate(whole.nbytes)
    for part in (whole[3:50, 100:350], whole[None, ::2, :200], whole[:, 10:]):
        rows, length = part.shape[-2:]
        into = back[5 : 5 + rows, 20 : 20 + min(length, 250)]
        there_and_back(part)
        device.begin_upload(np.ascontiguousarray(part[..., : into.shape[1]]), buffer).wait()
        device.begin_download(buffer, into).wait()
        np.testing.assert_array_equal(into, part.reshape(rows, length)[:, : into.shape[1]])
        assert (back[:5] == 5).all()
        assert (back[:, :20] == 5).all()
        assert (back[5 + rows :] == 5).all()
        back[...] = 5
    assert sent == ["upload", "download"] * 3
    for other in (whole[:, ::2], whole.T[:, :9], whole[::-1, :300], whole[:, :20]):  # go otherwise
        there_and_back(other)
    assert len(sent) == 6
    driver.fail(1, "cuMemcpy2DAsync_v2", good=True)
    with pytest.raises(DeviceError, match="cuMemcpy2DAsync_v2 failed"):
        device.begin_upload(whole[:, 10:], buffer).wait()
    driver.fail(0)
    del owner


def in_parts(most: int) -> None:
    """Arrays of about as many bytes as go at once, and of several times as many."""
    rng = np.random.default_rng(2)
    flat = hetero.empty_pinned((4 * most + 9,), np.uint8)
    wide = hetero.empty_pinned((41, 400), np.uint8)
    buffer, _owner = device.allocate(flat.nbytes + wide.nbytes + 8)

    def there_and_back(array, offset):
        device.begin_upload(array, buffer, offset).wait()
        array[...] = 0
        device.begin_download(buffer, array, offset).wait()

    lengths = [0, 1, most - 1, most, most + 1, 2 * most, 4 * most + 1]
    moved = [flat[3 : 3 + n] for n in lengths]
    moved += [wide[:, 5:305], wide[::2, :300], wide[None, :, 9:], wide[:3, :257]]
    for array in moved:
        array[...] = expected = rng.integers(0, 255, array.shape, np.uint8)
        count = -(-array.nbytes // most)
        views = [part for part, _ in cuda_copies.pieces(array, most)]
        assert len(views) >= count, (array.shape, len(views))
        assert all(part.nbytes <= most for part in views)
        there_and_back(array, 5)
        np.testing.assert_array_equal(array, expected)
    for name in ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"):
        for k in range(1, 6):
            driver.fail(k, name, good=True)
            with pytest.raises((DeviceError, *device.errors), match="planted failure"):
                there_and_back(flat, 0)
    driver.fail(0)


with device.active():
    for cuda_copies._PART in (1000, 1024, 4096):
        in_parts(cuda_copies._PART)
print("right")
