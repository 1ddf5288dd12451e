"""Tasks of several devices at the same time: who does them, errors, interrupts and forks."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future

import processes
import pytest
from fakes import FakeCuda

import hetero
from hetero.devices import peers
from hetero.errors import DeviceError
from hetero.tables import forced


@pytest.mark.parametrize("failing", [(0,), (1,), (1, 2), (0, 2)])
def test_the_first_error_comes_when_all_are_done(failing):
    done = []

    def task(number):
        if number in failing:
            raise DeviceError(f"number {number}")
        done.append(number)

    used = [FakeCuda(n) for n in range(3)]
    with pytest.raises(DeviceError, match=f"number {failing[0]}"):
        peers.run(used, [lambda n=n: task(n) for n in range(3)], peers.LEAST)
    assert sorted(done) == [n for n in range(3) if n not in failing]


def test_an_interrupt_waits_for_all(monkeypatch):
    """What the others write to is the caller's again when it comes."""
    result, done, begun, goes_on = Future.result, [], threading.Event(), threading.Event()
    interrupts = [KeyboardInterrupt("first"), KeyboardInterrupt("second")]

    def interrupted(future):
        if interrupts:
            raise interrupts.pop(0)
        goes_on.set()
        return result(future)

    def slow():
        begun.set()
        assert goes_on.wait(20.0)
        done.append(1)

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt, match="first"):
        peers.run([FakeCuda(0), FakeCuda(1)], [lambda: begun.wait(20.0), slow], peers.LEAST)
    assert done == [1]


def test_settings_hold_in_the_threads():
    barrier, found = threading.Barrier(2, timeout=20.0), []

    def task():
        barrier.wait()
        found.append(forced.get() and forced.get().device)

    with hetero.use(device="cpu"):
        peers.side_by_side([task, task])
    peers.side_by_side([task, task])
    assert found == ["cpu", "cpu", None, None]


def test_a_forked_child_has_threads_of_its_own():
    def both():
        barrier = threading.Barrier(2, timeout=20.0)
        peers.side_by_side([barrier.wait, barrier.wait])
        return True

    assert both()
    assert processes.forked(lambda: signal.alarm(60) or both())  # it may wait for ever
    assert both()
