"""Timing that spikes do not move, shown with clocks that are made up."""

from __future__ import annotations

import random

import pytest

from hetero.calibration import measure as timing
from hetero.calibration.measure import Queue, in_turn, measure

# -- By the host's clock ---------------------------------------------------------------------------


class Clock:
    """A clock that only the measured call moves, with a share of disturbed samples."""

    def __init__(self, patch, seconds, disturbed=lambda number: 1.0, jitter=0.0):
        patch.setattr(timing.time, "perf_counter", lambda: self.now)
        self.now, self.calls = 0.0, 0
        self.seconds, self.disturbed = seconds, disturbed
        self._random, self._jitter = random.Random(0), jitter

    def call(self):
        noise = 1.0 + self._jitter * (2.0 * self._random.random() - 1.0)
        self.now += self.seconds * noise * self.disturbed(self.calls)
        self.calls += 1


@pytest.mark.parametrize("phase", range(5))
@pytest.mark.parametrize("jitter", [0.0, 0.03])
@pytest.mark.parametrize("budget", [0.002, 0.1, 10.0])
def test_a_fifth_of_the_samples_a_hundred_times_too_long(phase, jitter, budget, monkeypatch):
    spikes = Clock(monkeypatch, 1e-3, lambda n: 100.0 if n % 5 == phase else 1.0, jitter)
    assert measure(spikes.call, budget=budget) == pytest.approx(1e-3, rel=jitter + 1e-9)


@pytest.mark.parametrize(("seconds", "calls"), [(1e-6, 125), (1e-3, 50), (0.03, 4), (1.0, 2)])
def test_the_time_is_kept_to(seconds, calls, monkeypatch):
    """Short calls are repeated within a sample; of long ones the first one counts."""
    clock = Clock(monkeypatch, seconds, jitter=0.0 if seconds < 1e-5 else 0.5)
    found = measure(clock.call, budget=0.05)
    assert clock.calls == pytest.approx(calls, rel=0.1)
    assert seconds > 1e-5 or found == pytest.approx(seconds)


@pytest.mark.parametrize("begin", [0.0, 0.004, 0.009, 0.02])
def test_a_slow_spell_spoils_no_difference(begin, monkeypatch):
    """Ten milliseconds in which all takes three times as long, at whatever time they begin."""
    clock = Clock(monkeypatch, 0.0, lambda _: 3.0 if begin <= clock.now < begin + 0.01 else 1.0)

    def call(seconds):
        clock.seconds = seconds
        clock.call()

    few, more = in_turn([lambda: call(1e-3), lambda: call(2e-3)], budget=0.04)
    assert (few, more) == pytest.approx((1e-3, 2e-3))


# -- By the device's clock -------------------------------------------------------------------------


class Timeline:
    """A host that queues and a device that works, each with its own time; at a few launches the
    host is held up for ``stall`` seconds."""

    def __init__(self, device_seconds, stall=0.0, seed=0):
        self.device_seconds, self.stall = device_seconds, stall
        self.host = self.device = 0.0
        self.random = random.Random(seed)

    def allocate(self, nbytes):
        return 0, None

    def _queued(self, seconds):
        self.host += 5e-6
        self.device = max(self.device, self.host) + seconds

    def copy(self, target, source, nbytes):
        self._queued(nbytes / 1.5e12)

    def call(self, turn):
        if self.random.random() < 0.03:
            self.host += self.stall
        self._queued(self.device_seconds)

    def record(self, timed=False):
        return max(self.device, self.host)

    def passed(self, mark):
        return self.host >= mark

    def elapsed(self, start, end):
        self.host = max(self.host, end)
        return end - start


@pytest.mark.parametrize("stall", [0.0, 3e-4, 2e-3, 0.05])
@pytest.mark.parametrize("device_seconds", [2e-6, 3e-5, 2e-4, 5e-3])
def test_a_host_held_up_now_and_then_does_not_count(device_seconds, stall):
    right = 0
    for seed in range(40):
        device = Timeline(device_seconds, stall, seed)
        found = Queue(device).quickly(device.call)
        right += found == pytest.approx(device_seconds, rel=0.02 if stall else 1e-6)
    assert right >= (39 if stall else 40)
