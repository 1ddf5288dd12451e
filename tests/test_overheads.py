"""Transfers are timed as often as it takes, by a device that is made up."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from hetero.calibration import fit_link, overheads
from hetero.calibration.overheads import Copies, transfers
from hetero.runtime import profile

_RATE = 8e9
_SIZES = [1 << 20, 1 << 26, 1 << 28]


class Slowly:
    """Copies at one rate, but some are slow: (direction, bytes, number of that copy) -> times."""

    def __init__(self, slow):
        self.now, self.slow, self.asked, self.is_active = 0.0, slow, [], 0

    stages = False

    @contextlib.contextmanager
    def active(self):
        self.is_active += 1
        yield
        self.is_active -= 1

    def copy_plainly(self, direction, array, buffer):
        self._copy(direction, array.nbytes)

    def _copy(self, direction, nbytes):
        self.asked.append((direction, nbytes))
        number = self.asked.count((direction, nbytes))
        self.now += nbytes / _RATE * self.slow.get((direction, nbytes, number), 1.0)

    def allocate(self, nbytes):
        return 0, None

    def pinned(self, nbytes):
        return np.empty(nbytes, np.uint8)

    def upload(self, source, target):
        self._copy("upload", source.nbytes)

    def download(self, source, target):
        self._copy("download", target.nbytes)


@pytest.fixture
def timed(monkeypatch):
    def timed(slow):
        device = Slowly(slow)
        monkeypatch.setattr(overheads.time, "perf_counter", lambda: device.now)
        monkeypatch.setattr(overheads.measure, "__kwdefaults__", _with(device))
        return transfers(device, _SIZES, 0.01), device.asked

    def _with(device):
        return {**overheads.measure.__kwdefaults__, "clock": lambda: device.now}

    return timed


def test_a_long_transfer_at_the_usual_rate_is_done_once(timed):
    found, asked = timed({})
    assert set(found) == set(Copies.WAYS)
    for seconds in found.values():
        assert seconds == pytest.approx({n: n / _RATE for n in _SIZES})
    for direction in ("upload", "download"):
        assert asked.count((direction, _SIZES[-1])) == 2, "pageable and pinned"


@pytest.mark.parametrize("times", [1, 2])
def test_a_long_transfer_that_was_slow_is_done_again(times, timed):
    slow = {("upload", _SIZES[-1], n): 3.0 for n in (1, 2, 3, 4)[: 2 * times]}
    found, asked = timed(slow)
    assert asked.count(("upload", _SIZES[-1])) == 2 * (1 + times)
    assert asked.count(("download", _SIZES[-1])) == 2
    assert found["upload", "pageable"] == pytest.approx({n: n / _RATE for n in _SIZES})


class Staging(Slowly):
    """Copies half as fast through a ring below 8 MB, and three times as fast above."""

    stages = True
    is_prepared = False

    def ring(self):
        assert self.is_active, "a device has its ring where it is active"
        return self

    def prepare(self):
        self.is_prepared = True

    def record(self):
        return None

    def start(self, direction, array, buffer, offset, after):
        assert (buffer, offset, after) == (0, 0, None)
        assert self.is_prepared, "while loops are compiled copies are slower"
        self.asked.append((direction, "staged", array.nbytes))
        self.now += array.nbytes / _RATE * (2.0 if array.nbytes < 1 << 23 else 1 / 3)
        return self

    def wait(self):
        """Complete at once."""


def test_staged_copies_are_measured_where_the_device_can_and_not_small_ones(monkeypatch):
    device = Staging({})
    monkeypatch.setattr(overheads.time, "perf_counter", lambda: device.now)
    clock = {**overheads.measure.__kwdefaults__, "clock": lambda: device.now}
    monkeypatch.setattr(overheads.measure, "__kwdefaults__", clock)
    sizes = [1 << n for n in range(12, 29)]
    with device.active():
        found = transfers(device, sizes, 0.01)
    assert set(found) == {*Copies.WAYS, ("upload", "staged"), ("download", "staged")}
    assert set(overheads.ways(device)) == set(found), "whether the device is active or not"
    assert list(found["download", "staged"]) == [n for n in sizes if n >= 1 << 18]
    assert list(found["download", "pinned"]) == sizes
    links = {
        way: {
            kind: fit_link.segments([*t], [*t.values()])
            for (w, kind), t in found.items()
            if w == way
        }
        for way in ("upload", "download")
    }
    data = {**profile.shipped("conservative").data, "links": {"cuda:0": links}}
    constants = profile.Profile(data)
    assert 1 << 22 < constants.least_staged("cuda:0", "upload") <= 1 << 23
    assert constants.link("cuda:0", "upload")(1 << 27) == pytest.approx((1 << 27) / _RATE / 3)
    assert constants.link("cuda:0", "upload")(1 << 20) == pytest.approx((1 << 20) / _RATE)
