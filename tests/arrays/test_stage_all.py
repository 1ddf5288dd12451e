"""Operands that are staged go up at once, priced so; none is on its way behind a failure."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.arrays import describe
from hetero.errors import DeviceMemoryError
from hetero.host.copying.copy_jobs import Copy
from hetero.moving import transfer
from hetero.pricing import movement
from hetero.profile import Profile, shipped
from hetero.registry import problem


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


def test_behind_an_operand_without_room_none_is_on_its_way():
    device = Device(room=1)
    with pytest.raises(DeviceMemoryError, match="out of memory"):
        staged(device, 2000, 4000)
    assert device.said == ["2000 begun", "2000 there", "waited for"]


def curve(seconds, rate):
    one = {"below": None, "bytes_per_second": rate, "seconds_per_byte": 0.0, "seconds": seconds}
    return {"form": "segments", "constants": [one]}


def test_copies_at_once_take_less_than_one_after_the_other():
    data = shipped("h100").data
    known = {"pageable": curve(1e-5, 1e10), "pinned": curve(1e-5, 5e10)}
    known["staged"] = curve(4e-4, 4e10)
    links = {"cuda:0": {"upload": known, "download": known}}
    constants = Profile({**data, "links": links})
    link = constants.link("cuda:0", "upload")

    def upload(*operands):
        found = problem.Problem("matmul", (1, 1, 1), "float32", operands, operands[0])
        return movement.of(found, "cuda:0", constants)[0]["upload"]

    large, small = describe(np.empty((2048, 2048), "f")), describe(np.empty((8, 8), "f"))
    alone = link(large.nbytes)
    assert upload(large, small) == pytest.approx(alone + link(small.nbytes))
    assert link(2 * large.nbytes) < upload(large, large) < 2 * alone
    assert upload(large, large._replace(copies=("cuda:0",))) == pytest.approx(alone)
    pinned = large._replace(pinned=True)
    assert upload(large, pinned) == pytest.approx(
        alone + constants.link("cuda:0", "upload", "pinned")(large.nbytes)
    )
