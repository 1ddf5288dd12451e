"""Links: copies are timed as calls make them, on one device and on all equal ones at once."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeCuda
from made_up import link as straight

from hetero.calibration import fit
from hetero.calibration import links as transfers
from hetero.calibration import measure as timing
from hetero.calibration.links import Copies, alone
from hetero.devices import at_once
from hetero.host import pages
from hetero.host.copying.copy_jobs import DOWNLOAD, UPLOAD
from hetero.profile import PAGEABLE, PINNED, STAGED, Profile

_RATE = 8e9
_LENGTHS = [1 << 20, 1 << 26, 1 << 28]
SIZES = transfers._SIZES
WAYS = Copies.WAYS

# -- One device ------------------------------------------------------------------------------------


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


def by_its_clock(monkeypatch, device):
    """What passes is what copies and rests of a device take."""

    def sleep(seconds):
        device.now += seconds
        device.rested = True

    monkeypatch.setattr(timing.time, "perf_counter", lambda: device.now)
    monkeypatch.setattr(timing.time, "sleep", sleep)


@pytest.mark.parametrize("times", [0, 1])
def test_a_long_transfer_that_was_slow_once_does_not_count(times, monkeypatch):
    slow = {("upload", _LENGTHS[-1], n): 3.0 for n in range(1, 1 + times)}
    device = Slowly(slow)
    by_its_clock(monkeypatch, device)
    found = alone(device, _LENGTHS, 0.01)
    assert set(found) == set(WAYS)
    for seconds in found.values():
        assert seconds == pytest.approx({n: n / _RATE for n in _LENGTHS})


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
            assert not array.flags.owndata, "as results of calls"
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
        found = alone(device, sizes, 0.01)
    pages.clear()
    hasty = max(map(device.hasty.count, device.hasty))
    assert hasty <= 3, "copies that are timed find those who help asleep, as beside computing"
    assert set(found) == {*Copies.WAYS, ("upload", "staged"), ("download", "staged")}
    assert list(found["download", "staged"]) == [n for n in sizes if n >= 1 << 18]
    assert list(found["download", "pinned"]) == sizes
    assert found["download", "staged"][1 << 28] == pytest.approx((1 << 28) / _RATE / 3)
    assert list(found["upload", "pageable"]) == [n for n in sizes if n <= 1 << 26], "else staged"
    links = {
        way: {kind: fit.segments([*t], [*t.values()]) for (w, kind), t in found.items() if w == way}
        for way in ("upload", "download")
    }
    constants = Profile({"name": "", "devices": {}, "links": {"cuda:0": links}})
    assert 1 << 22 < constants.least_staged("cuda:0", "upload") <= 1 << 23
    assert constants.link("cuda:0", "upload")(1 << 27) == pytest.approx((1 << 27) / _RATE / 3)
    assert constants.link("cuda:0", "upload")(1 << 20) == pytest.approx((1 << 20) / _RATE)


def test_uploads_come_from_memory_that_no_cache_holds():
    places = []
    device = Slowly({})
    device.upload = lambda source, target: places.append(source.__array_interface__["data"][0])
    device.enqueue = lambda way, source, target: device.upload(source, target)
    found = Copies(device, 1 << 22)
    for _ in range(5):
        found("upload", "pageable", 1 << 20)
    assert len(set(places[:4])) == 4
    assert places[4] == places[0]


# -- Several devices at once -----------------------------------------------------------------------


def test_what_takes_longer_at_once_does_at_every_size():
    sizes = [2**n for n in range(10, 30)]
    link = fit.segments(sizes, [1e-5 + n / 5e9 for n in sizes])
    links = {way: {PINNED: link, STAGED: link} for way in (UPLOAD, DOWNLOAD)}
    alone = 1e-5 + SIZES[-1] / 5e9
    taken = {(UPLOAD, PINNED): 1.6 * alone, (DOWNLOAD, STAGED): 1.04 * alone}
    found = transfers.models_at_once(links, SIZES[-1], taken | {(UPLOAD, PAGEABLE): 1.0})
    constants = Profile({"name": "", "devices": {}, "links": {"cuda:0": links, "cuda*2": found}})
    assert found.keys() == {UPLOAD}
    assert found[UPLOAD].keys() == {PINNED}
    for n in (11_000_000, 400_000_000):
        predicted = constants.link("cuda*2", UPLOAD, PINNED)(n)
        assert predicted == pytest.approx(1.6 * (1e-5 + n / 5e9), rel=1e-3)


# -- On devices ------------------------------------------------------------------------------------


class Both(FakeCuda):
    """A device whose copies wait for one of the other, and are noted."""

    meeting = threading.Barrier(2, timeout=10)

    def __init__(self, ordinal, done):
        super().__init__(ordinal)
        self.done = done

    def same_in_threads(self):
        return True

    def enqueue(self, direction, *given):
        super().enqueue(direction, *given)
        self.done.append((direction, self.ordinal))
        self.meeting.wait()


def test_copies_are_at_once(monkeypatch):
    monkeypatch.setattr(at_once, "LEAST", 2**12)
    done = []
    found = transfers.at_once_seconds([Both(0, done), Both(1, done)], 2**13)
    assert tuple(found) == WAYS
    assert min(found.values()) > 0.0
    each = [(way, n) for way in ("upload", "download") for n in (0, 1)]
    assert sorted(done) == sorted(2 * transfers._SAMPLES * each)


def test_an_equal_device_that_copies_slower_is_found():
    fast, slow = (straight(0.0, rate) for rate in (1.0, 1e15))
    both = [FakeCuda(0), FakeCuda(1)]
    for link, expected in ((fast, []), (slow, both[1:])):
        first = {way: {PINNED: link["pageable"]} for way in (UPLOAD, DOWNLOAD)}
        assert transfers.of_others(both, first, 2**12) == expected


def test_what_is_never_copied_at_once_is_not_measured():
    place = SimpleNamespace(name="cuda*2", devices=(FakeCuda(), FakeCuda(1)))
    assert transfers.together(place, {}, at_once.LEAST - 1) == {}
