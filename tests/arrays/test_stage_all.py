"""Operands that are staged go up at once, priced so; none is on its way behind a failure."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.arrays import describe
from hetero.errors import DeviceMemoryError
from hetero.host.copying.copy_jobs import Copy
from hetero.moving import transfer


class Under:
    """A copy that is under way."""

    def __init__(self, device, name, fails):
        self.device, self.name, self.fails, self.done = device, name, fails, False

    def wait(self):
        if not self.done:
            self.done = True
            self.device.said.append(f"{self.name} there")
            if self.fails:
                raise self.fails


class Device:
    """Stages what has 1000 bytes and more; says what it does."""

    name = "fake:0"

    def __init__(self, fails=None, room=9):
        self.said, self.fails, self.room, self.begun = [], fails or {}, room, []

    def allocate(self, nbytes):
        if len(self.said) >= self.room:
            raise DeviceMemoryError("out of memory")
        return nbytes, object()

    def begin_upload(self, array, buffer, overlap):
        assert not overlap
        if array.nbytes < 1000:
            self.said.append(f"{array.nbytes} plainly")
            return Copy()
        self.said.append(f"{array.nbytes} begun")
        self.begun.append(Under(self, array.nbytes, self.fails.get(array.nbytes)))
        return self.begun[-1]

    def synchronize(self):
        self.said.append("waited for")


def staged(device, *sizes):
    arrays = tuple(np.ones(size, np.uint8) for size in sizes)
    arrays += arrays[:1]  # given twice: moved once
    return transfer.stage_all(device, arrays, tuple(map(describe, arrays)))


def test_staged_operands_go_up_at_once():
    device = Device()
    buffers = [buffer for buffer, _ in staged(device, 2000, 300, 4000)]
    assert buffers == [2000, 300, 4000, 2000]
    begun = ["2000 begun", "300 plainly", "4000 begun"]
    assert device.said == [*begun, "2000 there", "4000 there"]


@pytest.mark.parametrize("error", [DeviceMemoryError("of the copy"), KeyboardInterrupt()])
def test_behind_a_copy_that_fails_none_is_on_its_way(error):
    device = Device({2000: error})
    with pytest.raises(type(error)):
        staged(device, 2000, 4000)
    assert all(copy.done for copy in device.begun)
    assert device.said[-1] == "waited for"
