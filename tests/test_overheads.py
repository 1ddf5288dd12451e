"""Transfers are timed as often as it takes, by a device that is made up."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.calibration import overheads
from hetero.calibration.overheads import Copies, transfers

_RATE = 8e9
_SIZES = [1 << 20, 1 << 26, 1 << 28]


class Slowly:
    """Copies at one rate, but some are slow: (direction, bytes, number of that copy) -> times."""

    def __init__(self, slow):
        self.now, self.slow, self.asked = 0.0, slow, []

    stages = False

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
