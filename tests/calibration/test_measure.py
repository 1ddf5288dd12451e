"""Timing that spikes do not move, shown with clocks that are made up."""

from __future__ import annotations

import random
import time

import pytest

from hetero.calibration.measure.timing import in_turn, is_seen_twice, measure


class Clock:
    """A clock that only the measured call moves, with a share of disturbed samples."""

    def __init__(self, seconds, disturbed=lambda number: 1.0, jitter=0.0):
        self.now = 0.0
        self.seconds = seconds
        self.disturbed = disturbed
        self.calls = 0
        self._random = random.Random(0)
        self._jitter = jitter

    def __call__(self):
        return self.now

    def call(self):
        noise = 1.0 + self._jitter * (2.0 * self._random.random() - 1.0)
        self.now += self.seconds * noise * self.disturbed(self.calls)
        self.calls += 1


def timed(clock, budget=10.0, **options):
    return measure(clock.call, budget=budget, clock=clock, **options)


@pytest.mark.parametrize("phase", range(5))
@pytest.mark.parametrize("jitter", [0.0, 0.03])
@pytest.mark.parametrize("budget", [0.002, 0.1, 10.0])
def test_a_fifth_of_the_samples_a_hundred_times_too_long(phase, jitter, budget):
    spikes = Clock(1e-3, lambda n: 100.0 if n % 5 == phase else 1.0, jitter)
    found = timed(spikes, budget)
    assert found.seconds == pytest.approx(1e-3, rel=jitter + 1e-9)


def test_short_calls_are_repeated_within_a_sample():
    clock = Clock(1e-6)
    found = timed(clock)
    assert found.seconds == pytest.approx(1e-6)
    per_sample = (clock.calls - 2) / len(found.samples)
    assert per_sample * 1e-6 >= 1.9e-5


def test_stops_when_the_spread_is_small():
    steady, noisy = Clock(1e-3, jitter=0.001), Clock(1e-3, jitter=0.5)
    assert len(timed(steady).samples) < 10
    assert len(timed(noisy).samples) == 200, "the most there may be"
    assert len(timed(Clock(1e-3, jitter=0.5), budget=0.05).samples) <= 60


def test_a_long_call_takes_no_longer_than_the_processor_time_of_this_process():
    found = measure(lambda: time.sleep(0.02), budget=0.05, own=time.process_time)
    assert 0.0 <= found.seconds < 0.01


# -- Calls in turn, of which the least counts ------------------------------------------------------


def in_turns(clock, lengths, budget=0.01, **options):
    def call(seconds):
        clock.seconds = seconds
        clock.call()

    calls = [lambda one=one: call(one) for one in lengths]
    return in_turn(calls, budget=budget, clock=clock, **options)


def test_a_slow_spell_spoils_no_difference():
    """Ten milliseconds in which all takes three times as long, at whatever time they begin."""
    for begin in (0.0, 0.004, 0.009, 0.02):
        clock = Clock(0.0)
        clock.disturbed = lambda _, c=clock, b=begin: 3.0 if b <= c.now < b + 0.01 else 1.0
        few, more = in_turns(clock, [1e-3, 2e-3])
        assert (few.seconds, more.seconds) == pytest.approx((1e-3, 2e-3)), begin


def test_a_least_that_was_seen_once_is_looked_for_again():
    clock = Clock(0.0, lambda number: (3.0, 1.0, 2.5, 2.0, 1.6, 1.0)[number] if number < 6 else 1.0)
    (found,) = in_turns(clock, [1e-3], budget=4e-3)
    assert len(found.samples) == 6, "none of the others is near it"
    assert is_seen_twice(found.samples)
