"""Timing that spikes do not move, shown with clocks that are made up."""

from __future__ import annotations

import random

import pytest

from hetero.calibration import measure as timing
from hetero.calibration.measure import in_turn, measure


class Clock:
    """A clock that only the measured call moves, with a share of disturbed samples."""

    def __init__(self, patch, seconds, disturbed=lambda number: 1.0, jitter=0.0):
        patch.setattr(timing.time, "perf_counter", lambda: self.now)
        self.now = 0.0
        self.seconds = seconds
        self.disturbed = disturbed
        self.calls = 0
        self._random = random.Random(0)
        self._jitter = jitter

    def call(self):
        noise = 1.0 + self._jitter * (2.0 * self._random.random() - 1.0)
        self.now += self.seconds * noise * self.disturbed(self.calls)
        self.calls += 1


@pytest.mark.parametrize("phase", range(5))
@pytest.mark.parametrize("jitter", [0.0, 0.03])
@pytest.mark.parametrize("budget", [0.002, 0.1, 10.0])
def test_a_fifth_of_the_samples_a_hundred_times_too_long(phase, jitter, budget, monkeypatch):
    spikes = Clock(monkeypatch, 1e-3, lambda n: 100.0 if n % 5 == phase else 1.0, jitter)
    found = measure(spikes.call, budget=budget)
    assert found == pytest.approx(1e-3, rel=jitter + 1e-9)


def test_short_calls_are_repeated_within_a_sample(monkeypatch):
    clock = Clock(monkeypatch, 1e-6)
    found = measure(clock.call, budget=0.01)
    assert found == pytest.approx(1e-6)
    assert clock.calls > 2 + 19 * timing._ENOUGH


@pytest.mark.parametrize(("seconds", "calls"), [(1e-3, 50), (0.03, 4), (1.0, 2)])
def test_the_time_is_kept_to(seconds, calls, monkeypatch):
    """Of long calls the first one counts."""
    clock = Clock(monkeypatch, seconds, jitter=0.5)
    measure(clock.call, budget=0.05)
    assert clock.calls == pytest.approx(calls, abs=0.1 * calls)


def test_stops_when_the_faster_ones_are_alike(monkeypatch):
    clock = Clock(monkeypatch, 1e-3, lambda n: 3.0 if n % 3 == 0 else 1.0, jitter=0.005)
    measure(clock.call, budget=10.0)
    assert clock.calls < 10


@pytest.mark.parametrize("begin", [0.0, 0.004, 0.009, 0.02])
def test_a_slow_spell_spoils_no_difference(begin, monkeypatch):
    """Ten milliseconds in which all takes three times as long, at whatever time they begin."""
    clock = Clock(monkeypatch, 0.0, lambda _: 3.0 if begin <= clock.now < begin + 0.01 else 1.0)

    def call(seconds):
        clock.seconds = seconds
        clock.call()

    few, more = in_turn([lambda: call(1e-3), lambda: call(2e-3)], budget=0.04)
    assert (few, more) == pytest.approx((1e-3, 2e-3))
