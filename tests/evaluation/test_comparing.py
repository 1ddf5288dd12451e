"""Candidates are timed as a program's calls are, not by what the one before them left behind."""

import time

import pytest

from hetero.evaluation import comparing


class Host:
    """What calls take here: each is slow at first after another one, and loops while BLAS spins."""

    def __init__(self, monkeypatch):
        self.now = self.used = 0.0
        self.until, self.last = 0.0, ""  # when BLAS's threads go to sleep
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.used)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.used += min(seconds, max(self.until - self.now, 0.0))
        self.now += seconds

    def call(self, name, seconds, spins=False, cold=8.0):
        def run():
            slow = cold if self.last != name else 1.0
            slow *= 5.0 if self.until > self.now and not spins else 1.0
            self.now += seconds * slow
            self.used += seconds * slow
            self.until, self.last = self.now + 0.1 if spins else self.until, name

        return run


def test_what_ran_before_counts_for_nobody(monkeypatch):
    host = Host(monkeypatch)
    calls = {
        "product": host.call("product", 2e-4, spins=True),
        "loop": host.call("loop", 1e-4),
        "device": host.call("device", 1.5e-4),
    }
    failed = {}
    found = comparing.timed(calls, failed=failed)
    assert found == pytest.approx({"product": 2e-4, "loop": 1e-4, "device": 1.5e-4})
    assert not failed
    assert host.until < host.now
