"""Links of several devices at once: what single copies on all take."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import pytest
from fakes import FakeCuda

from hetero.calibration.environment import copies, links_at_once
from hetero.calibration.environment.links_at_once import Together, is_made, measured, times
from hetero.calibration.fit import fit_link
from hetero.calibration.progress import Failure
from hetero.devices import at_once
from hetero.host.copying.copy_jobs import DOWNLOAD, UPLOAD
from hetero.profile import PAGEABLE, PINNED, STAGED, Profile

SIZES = links_at_once._SIZES
WAYS = copies.Copies.WAYS
RATE = 4e10


class Timed(FakeCuda):
    """A device that notes what was done to it."""

    def __init__(self, ordinal, done):
        super().__init__(ordinal)
        self.done = done

    def enqueue(self, direction, array, *where):
        super().enqueue(direction, array, *where)
        if direction == "upload":
            self.done.append(f"upload to {self.ordinal}")
            self.largest = max(getattr(self, "largest", 0), array.nbytes)
        else:
            self.done.append(f"download from {self.ordinal}")


class Bus:
    """Two devices whose copies take ``ratio`` times as long while both copy; a clock of its own."""

    ways = (*WAYS, (UPLOAD, STAGED), (DOWNLOAD, STAGED))

    def __init__(self, ratio=1.0, noise=0.0, spikes=0.0, rate=RATE):
        self.ratio, self.noise, self.spikes, self.rate = ratio, noise, spikes, rate
        self.draw, self.now = random.Random(0), 0.0
        self.renewed = 0

    def renew(self):
        self.renewed += 1

    def alone(self, nbytes):
        return 1e-5 + nbytes / self.rate

    def once(self, way, nbytes):
        far = self.draw.uniform(3.0, 10.0) if self.draw.random() < self.spikes else 1.0
        seconds = self.ratio * self.alone(nbytes) * far * self.draw.uniform(1.0, 1.0 + self.noise)
        self.now += seconds
        return seconds


def any_way(way, nbytes):
    return way in ((UPLOAD, PINNED), (DOWNLOAD, STAGED))


@pytest.mark.parametrize("spikes", [0.0, 0.1])
@pytest.mark.parametrize("ratio", [1.0, 1.3, 1.9])
def test_single_copies_are_predicted(ratio, spikes):
    bus = Bus(ratio, noise=0.03, spikes=spikes)
    found = measured(bus, SIZES, any_way, clock=lambda: bus.now)
    assert bus.renewed == links_at_once._ROUNDS - 1, "each round has other memory"
    quiet, sharp = Bus(), Bus(ratio)
    for way in ((UPLOAD, PINNED), (DOWNLOAD, STAGED)):
        assert tuple(found[way]) == SIZES
        for n in SIZES:
            whole = sharp.once(way, n)
            assert found[way][n] == pytest.approx(whole, rel=0.05)
    assert found[UPLOAD, PAGEABLE] == {}
    samples = [2**n for n in range(10, 31)]
    model = {"samples": {"bytes": samples, "seconds": [quiet.alone(n) for n in samples]}}
    links = {way: {PINNED: model, STAGED: model} for way in (UPLOAD, DOWNLOAD)}
    kept = links_at_once.curves(links, times(links, found))
    constants = Profile(
        {"name": "", "devices": {}, "links": {"cuda:0": _drawn(links), "cuda*2": kept}}
    )
    for n in (11_000_000, 45_000_000, 100_000_000, 180_000_000, 400_000_000):
        predicted = constants.link("cuda*2", UPLOAD, PINNED)(n)
        assert predicted == pytest.approx(sharp.once((UPLOAD, PINNED), n), rel=0.1)


def _drawn(links):
    """Link models of samples."""
    return {
        way: {
            memory: fit_link.segments(*model["samples"].values()) for memory, model in kinds.items()
        }
        for way, kinds in links.items()
    }


@pytest.mark.parametrize("rate", [1e8, 1e9, 5e9, 4e10])
def test_the_time_is_kept_to(rate):
    """Slow links are measured at fewer sizes, and in fewer rounds."""
    bus = Bus(ratio=1.2, rate=rate)
    found = measured(bus, SIZES, lambda way, nbytes: True, clock=lambda: bus.now)
    sizes = tuple(found[UPLOAD, PAGEABLE])
    assert sizes == SIZES[: len(sizes)]
    fewest = links_at_once._SAMPLES * len(Bus.ways)
    smallest = fewest * 1.2 * bus.alone(SIZES[0])  # which has to be measured
    assert bus.now <= max(1.3 * links_at_once.SECONDS, 1.01 * smallest)
    assert (sizes == SIZES) == (rate > 1e10)


def segments(floor, rate):
    """A curve, as a profile has it."""
    sizes = [2**n for n in range(10, 30)]
    return fit_link.segments(sizes, [floor + n / rate for n in sizes])


def test_what_calls_copy_is_measured():
    plain, staged = segments(1e-5, 5e9), segments(1e-3, 2e10)  # from 6.6 MB on
    late = segments(1e-2, 2e10)  # from 66 MB on
    kinds = {PAGEABLE: plain, PINNED: segments(1e-5, 5e10)}
    asked = is_made({UPLOAD: kinds | {STAGED: staged}, DOWNLOAD: kinds | {STAGED: late}})
    for n in SIZES:
        assert asked((UPLOAD, PINNED), n)
        assert asked((DOWNLOAD, PINNED), n)
        assert asked((UPLOAD, STAGED), n) == (n > 6.6e6)
        assert asked((UPLOAD, PAGEABLE), n) == (n < 6.6e6)
        assert asked((DOWNLOAD, STAGED), n) == (n > 66e6)
        assert asked((DOWNLOAD, PAGEABLE), n) == (n < 66e6)
    asked = is_made({UPLOAD: kinds, DOWNLOAD: kinds})
    assert asked((UPLOAD, PAGEABLE), 2**28)
    assert not asked((UPLOAD, STAGED), 2**28)


# -- On devices ------------------------------------------------------------------------------------


class Both(Timed):
    """A device whose copies wait for one of the other."""

    meeting = threading.Barrier(2, timeout=10)

    def same_in_threads(self):
        return True

    def enqueue(self, *given):
        super().enqueue(*given)
        self.meeting.wait()


def test_copies_are_at_once(monkeypatch):
    monkeypatch.setattr(at_once, "LEAST", 2**12)
    done = []
    found = Together([Both(0, done), Both(1, done)], 2**13)
    assert found.ways == WAYS
    assert all(found.once(way, 2**13) > 0.0 for way in WAYS)
    assert sorted(done) == sorted(
        2 * ["upload to 0", "upload to 1", "download from 0", "download from 1"]
    )


class Broken(FakeCuda):
    def pinned(self, nbytes):
        raise RuntimeError("no memory")


def test_a_device_that_fails_is_named():
    place = SimpleNamespace(name="cuda*2", devices=(Broken(), Broken(1)))
    failures: list[Failure] = []
    budget = SimpleNamespace(largest_transfer=2**28)
    assert links_at_once.together(place, {}, budget, failures) == {}
    assert [(f.place, f.what) for f in failures] == [("cuda*2", "at once")]
    budget.largest_transfer = at_once.LEAST - 1  # which is never copied at once
    assert links_at_once.together(place, {}, budget, []) == {}
