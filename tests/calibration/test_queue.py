"""Device time of short calls, on a device whose host is held up now and then."""

import random

import pytest

from hetero.calibration.measure import Queue

_COPY = 1.5e12  # bytes per second


class Timeline:
    """A host that queues and a device that works, each with its own time.

    ``stalls`` is the part of the launches at which the host is held up, for ``stall`` seconds.
    """

    def __init__(self, device_seconds, launch=5e-6, stalls=0.0, stall=0.0):
        self.device_seconds, self.launch_seconds = device_seconds, launch
        self.stalls, self.stall = stalls, stall
        self.host = self.device = 0.0
        self.random = random.Random(3)

    def allocate(self, nbytes):
        return 0, None

    def _queued(self, seconds):
        self.host += self.launch_seconds
        self.device = max(self.device, self.host) + seconds

    def copy_from_peer(self, target, peer, source, nbytes):
        self._queued(nbytes / _COPY)

    def call(self, turn):
        if self.random.random() < self.stalls:
            self.host += self.stall
        self._queued(self.device_seconds)

    def event(self, stream=None):
        return max(self.device, self.host)

    def passed(self, mark):
        return self.host >= mark

    def elapsed(self, start, end):
        self.host = max(self.host, end)
        return end - start

    def synchronize(self, stream=None):
        self.host = max(self.host, self.device)


@pytest.mark.parametrize("device_seconds", [2e-6, 3e-5, 2e-4, 5e-3])
def test_a_quiet_host_gives_the_device_s_own_time(device_seconds):
    device = Timeline(device_seconds)
    assert Queue(device).quickly(device.call) == pytest.approx(device_seconds)


@pytest.mark.parametrize("stall", [3e-4, 2e-3, 0.05])
@pytest.mark.parametrize("device_seconds", [2e-6, 3e-5, 2e-4, 5e-3])
def test_a_host_held_up_now_and_then_does_not_count(device_seconds, stall):
    right = 0
    for seed in range(40):
        device = Timeline(device_seconds, stalls=0.03, stall=stall)
        device.random.seed(seed)
        found = Queue(device).quickly(device.call)
        right += found == pytest.approx(device_seconds, rel=0.02)
    assert right >= 39
