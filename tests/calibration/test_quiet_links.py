"""Transfers are timed as often as it takes, by a device that is made up."""

from __future__ import annotations

import contextlib
from collections import Counter

import numpy as np
import pytest

from hetero import profile
from hetero.calibration.environment import copies, quiet_links
from hetero.calibration.environment.copies import Copies
from hetero.calibration.environment.quiet_links import transfers
from hetero.calibration.fit import fit_link
from hetero.calibration.measure import timing
from hetero.host import pages

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

    def enqueue(self, direction, array, buffer):
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
        monkeypatch.setattr(timing.time, "perf_counter", lambda: device.now)
        monkeypatch.setattr(quiet_links.measure, "__kwdefaults__", _with(device))
        return transfers(device, _SIZES, 0.01), device.asked

    def _with(device):
        return {**quiet_links.measure.__kwdefaults__, "clock": lambda: device.now}

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


def by_its_clock(monkeypatch, device):
    """What passes is what copies and rests of a device take."""

    def sleep(seconds):
        device.now += seconds
        device.rested = True

    monkeypatch.setattr(timing.time, "perf_counter", lambda: device.now)
    monkeypatch.setattr(timing.time, "sleep", sleep)
    clock = {**quiet_links.measure.__kwdefaults__, "clock": lambda: device.now}
    monkeypatch.setattr(quiet_links.measure, "__kwdefaults__", clock)


def test_the_pass_between_the_others_counts(monkeypatch):
    """Of short copies; a long one that is as fast has one pass."""
    passes = Counter()

    def timed(copies, way, nbytes, budget):
        passes[way, nbytes] += 1
        return (1.08, 1.0, 1.04)[passes[way, nbytes] - 1] * nbytes / _RATE

    monkeypatch.setattr(quiet_links, "_timed", timed)
    for seconds in transfers(Slowly({}), _SIZES, 0.01).values():
        factors = [seconds[n] * _RATE / n for n in _SIZES]
        assert factors == pytest.approx([1.04, 1.04, 1.08])


class Staging(Slowly):
    """Copies half as fast through a ring below 8 MB, and three times as fast above."""

    stages = True
    rested = False

    def __init__(self, slow):
        super().__init__(slow)
        self.places, self.hasty = {}, []

    def ring(self):
        assert self.is_active, "a device has its ring where it is active"
        return self

    def record(self):
        return None

    def start(self, direction, array, buffer, offset, after):
        assert (buffer, offset, after) == (0, 0, None)
        self.hasty += [] if self.rested else [(direction, array.nbytes)]
        if direction == "download" and array.nbytes >= 1 << 26:
            place = array.__array_interface__["data"][0]
            assert isinstance(array.base, pages.Lent), "as results of calls"
            if array.nbytes not in self.places:
                self.now += 0.1  # its pages are made
            assert self.places.setdefault(array.nbytes, place) == place, "its pages are there"
        self.asked.append((direction, "staged", array.nbytes))
        self.rested = False
        self.now += array.nbytes / _RATE * (2.0 if array.nbytes < 1 << 23 else 1 / 3)
        return self

    def wait(self):
        """Complete at once."""


def test_staged_copies_are_measured_where_the_device_can_and_not_small_ones(monkeypatch):
    device = Staging({})
    by_its_clock(monkeypatch, device)
    sizes = [1 << n for n in range(12, 29)]
    with device.active():
        found = transfers(device, sizes, 0.01)
    pages.clear()
    hasty = max(map(device.hasty.count, device.hasty))
    assert hasty <= 3, "copies that are timed find those who help asleep, as beside computing"
    assert set(found) == {*Copies.WAYS, ("upload", "staged"), ("download", "staged")}
    assert set(copies.ways(device)) == set(found), "whether the device is active or not"
    assert list(found["download", "staged"]) == [n for n in sizes if n >= 1 << 18]
    assert list(found["download", "pinned"]) == sizes
    assert found["download", "staged"][1 << 28] == pytest.approx((1 << 28) / _RATE / 3)
    assert list(found["upload", "pageable"]) == [n for n in sizes if n <= 1 << 26], "else staged"
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


def test_uploads_come_from_memory_that_no_cache_holds(monkeypatch):
    monkeypatch.setattr(copies, "_UNCACHED", 1 << 22)
    places = []
    device = Slowly({})
    device.upload = lambda source, target: places.append(source.__array_interface__["data"][0])
    device.enqueue = lambda way, source, target: device.upload(source, target)
    found = Copies(device, 1 << 23)
    found.renew(1 << 20)  # less than a cache
    for _ in range(5):
        found("upload", "pageable", 1 << 20)
    assert len(set(places[:4])) == 4
    assert places[4] == places[0]
    found.renew(1 << 23)
    assert len(found._pageable) == 1 << 23
