"""Links: copies are timed as calls make them, on one device and on all equal ones at once."""

from __future__ import annotations

import threading

import pytest
from fakes import FakeCuda, noting

from hetero.calibration import links as transfers
from hetero.calibration import measure as timing
from hetero.calibration.links import Copies
from hetero.calibration.sizes import Budget
from hetero.devices import peers
from hetero.host import cpu
from hetero.host.copying.staging import DOWNLOAD, UPLOAD
from hetero.profile import PAGEABLE, PINNED, STAGED, Profile

_RATE = 8e9


class Slowly(FakeCuda):
    """Copies at one rate, the first of a size three times as long; through a ring half as fast
    below 8 MB, and three times as fast above."""

    def __init__(self, stages):
        super().__init__()
        self.now, self.stages, self.rested = 0.0, stages, False
        self.asked, self.hasty, self.places = set(), [], {}
        self.record = lambda: None

    def allocate(self, nbytes):
        return 0, None

    def enqueue(self, direction, array, buffer, *where):
        is_first = (direction, array.nbytes) not in self.asked
        self.asked.add((direction, array.nbytes))
        self.now += array.nbytes / _RATE * (3.0 if is_first else 1.0)

    def ring(self):
        assert self.entered, "a device has its ring where it is active"
        return self

    def start(self, direction, array, buffer, offset, after):
        assert (buffer, offset, after) == (0, 0, None)
        self.hasty += [] if self.rested else [(direction, array.nbytes)]
        if direction == "download" and array.nbytes >= 1 << 26:
            place = array.__array_interface__["data"][0]
            assert self.places.setdefault(array.nbytes, place) == place, "its pages are there"
        self.rested = False
        self.now += array.nbytes / _RATE * (2.0 if array.nbytes < 1 << 23 else 1 / 3)
        return self

    def wait(self, *events):
        """Complete at once."""


@pytest.mark.parametrize("stages", [False, True])
def test_links_of_one_device(stages, monkeypatch):
    """A copy that was slow once does not count; those that are staged are not small ones."""
    device = Slowly(stages)

    def sleep(seconds):
        device.now += seconds
        device.rested = True

    monkeypatch.setattr(timing.time, "perf_counter", lambda: device.now)
    monkeypatch.setattr(timing.time, "sleep", sleep)
    links = transfers.links(device, Budget(0.005, 1 << 28))
    cpu.free_reused()
    hasty = max(map(device.hasty.count, device.hasty), default=0)
    assert hasty <= 3, "copies that are timed find those who help asleep, as beside computing"
    kinds = {PAGEABLE, PINNED, STAGED} if stages else {PAGEABLE, PINNED}
    assert {way: set(found) for way, found in links.items()} == {UPLOAD: kinds, DOWNLOAD: kinds}
    constants = Profile({"name": "", "devices": {}, "links": {"cuda:0": links}})
    for way in (UPLOAD, DOWNLOAD):
        assert links[way][PINNED]["samples"]["bytes"] == list(transfers.SIZES)
        for nbytes in (1 << 12, 1 << 20, 1 << 27):
            taken = nbytes / _RATE / (3 if stages and nbytes > 1 << 23 else 1)
            assert constants.link("cuda:0", way)(nbytes) == pytest.approx(taken)
    if stages:
        assert links[DOWNLOAD][STAGED]["samples"]["bytes"][0] == 1 << 18
        assert links[UPLOAD][PAGEABLE]["samples"]["bytes"][-1] == 1 << 26, "else staged"
        assert 1 << 22 < constants.least_staged("cuda:0", "upload") <= 1 << 23


# -- Several devices at once -----------------------------------------------------------------------


def test_copies_are_at_once(two, monkeypatch):
    """Each device's copies wait for one of the other."""
    monkeypatch.setattr(peers, "LEAST", 2**12)
    done, meeting = [], threading.Barrier(2, timeout=10)

    def copied(direction, *_):
        done.append(direction)
        meeting.wait()

    for device in two:
        noting(monkeypatch, device, "enqueue", copied)
    found = transfers.at_once_seconds(two, 2**13)
    assert tuple(found) == Copies.WAYS
    assert min(found.values()) > 0.0
    each = len(two) * 2 * transfers._SAMPLES
    assert sorted(done) == ["download"] * each + ["upload"] * each
