"""What counts as other load, by figures of a system that is made up."""

from __future__ import annotations

import types

import pytest

from hetero.calibration.measure import timing

CORES = 16
MINE = 12.0  # processors that this process keeps busy


class System:
    """16 processors; seconds pass by `spend`, at once or in ticks of the system's clock."""

    def __init__(self, monkeypatch):
        self.now = self.others = self.stolen = 0.0
        self.switches = 0
        self.known = True
        monkeypatch.setattr(timing, "switches", lambda: self.switches)
        monkeypatch.setattr(timing, "own_time", lambda: MINE * self.now)
        monkeypatch.setattr(timing, "processor_times", self.times)
        monkeypatch.setattr(timing, "os", types.SimpleNamespace(cpu_count=lambda: CORES))

    def __call__(self):
        return self.now

    def times(self):
        if not self.known:
            return None
        ticks = (round(value, 2) for value in (MINE * self.now + self.others, self.stolen))
        return timing.Times(*ticks)

    def spend(self, seconds, others=0.0, stolen=0.0, switches=0):
        """``others`` and ``stolen`` are numbers of processors."""
        self.now += seconds
        self.others += others * seconds
        self.stolen += stolen * seconds
        self.switches += switches


@pytest.fixture
def system(monkeypatch):
    return System(monkeypatch)


def marked(system, points, seconds=0.005, **load_beside):
    """How many points of so many are marked."""
    watch = timing.Watch(system)
    found = 0
    for _ in range(points):
        watch.begin()
        system.spend(seconds, **load_beside)
        found += watch.disturbed()
    return found


def test_own_threads_that_take_processors_from_one_another_are_no_other_load(system):
    assert marked(system, 100, switches=40) == 0


@pytest.mark.parametrize("busy", [2.5, 0.65 * CORES])
def test_switches_beside_others_are(system, busy):
    assert marked(system, 100, others=busy, switches=40) >= 80


def test_others_that_leave_this_process_alone_are_none(system):
    assert marked(system, 100, others=2.5) == 0


def test_switches_count_where_the_system_tells_nothing_else(system):
    system.known = False
    assert marked(system, 10, switches=40) == 10


@pytest.mark.parametrize(("processors", "points"), [(0.02, 0), (0.1, 0), (4.0, 80)])
def test_stolen_time_counts_by_how_much_it_is(system, processors, points):
    """One tick now and then, on any of many processors, is none."""
    found = marked(system, 100, stolen=processors)
    assert found >= points if points else found == 0


@pytest.mark.parametrize(("stolen", "loaded"), [(21.5, False), (200.0, True)])
def test_stolen_time_is_worth_a_word_by_its_share_of_all_processors(stolen, loaded):
    seen = {"seconds": 85.0, "cores": 32, "others": 0.0, "stolen": stolen}
    assert timing.is_loaded({**seen, "samples": 5444, "left": 0}) == loaded
