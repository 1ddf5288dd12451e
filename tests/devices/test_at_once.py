"""Tasks of several devices at the same time: who does them, errors, interrupts and forks."""

from __future__ import annotations

import threading

import processes
import pytest
from fakes import FakeCuda

import hetero
from hetero.devices import at_once
from hetero.devices.at_once import LEAST
from hetero.errors import DeviceError
from hetero.pricing.settings import forced


def meeting(number):
    """Tasks that end only if all of them run at the same time; and who did what."""
    barrier, done = threading.Barrier(number, timeout=20.0), []

    def task(which):
        barrier.wait()
        done.append((which, threading.current_thread().name))

    return [lambda which=which: task(which) for which in range(number)], done


@pytest.mark.parametrize("failing", [(0,), (1,), (1, 2), (0, 2)])
def test_the_first_error_comes_when_all_are_done(failing):
    done = []

    def task(number):
        if number in failing:
            raise DeviceError(f"number {number}")
        done.append(number)

    used = [FakeCuda(n) for n in range(3)]
    with pytest.raises(DeviceError, match=f"number {failing[0]}"):
        at_once.run(used, [lambda n=n: task(n) for n in range(3)], LEAST)
    assert sorted(done) == [n for n in range(3) if n not in failing]
    assert all_wait()


def all_wait():
    """Whether none of the threads has anything to do."""
    return {t for t in threading.enumerate() if t.name == at_once._NAME} == set(at_once._waiting)


def test_an_interrupt_waits_for_all(monkeypatch):
    """What the others write to is the caller's again when it comes."""
    wait, done, goes_on = at_once._Ended.wait, [], threading.Event()
    interrupts = [KeyboardInterrupt("first"), KeyboardInterrupt("second")]

    def interrupted(ended):
        if interrupts:
            raise interrupts.pop(0)
        goes_on.set()
        return wait(ended)

    def slow():
        assert goes_on.wait(20.0)
        done.append(1)

    monkeypatch.setattr(at_once._Ended, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt, match="first"):
        at_once.run([FakeCuda(0), FakeCuda(1)], [lambda: None, slow], LEAST)
    assert done == [1]


def test_where_no_thread_can_be_started(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    done = []
    used = [FakeCuda(0), FakeCuda(1)]
    at_once.run(used, [lambda n=n: done.append(n) for n in range(2)], LEAST)
    assert sorted(done) == [0, 1]


@pytest.fixture
def alone():
    """No thread waits before or after."""
    at_once.close()
    yield
    at_once.close()
    assert not [t for t in threading.enumerate() if t.name == at_once._NAME]


def ours(number=2):
    """Do tasks at once; the threads that did all but the first."""
    tasks, _ = meeting(number)
    found = []

    def task(which):
        tasks[which]()
        found.append(threading.current_thread())

    at_once.side_by_side([lambda n=n: task(n) for n in range(number)])
    return {thread for thread in found if thread is not threading.current_thread()}


def test_settings_hold_in_a_thread_that_waited(alone):
    ours()
    found = []
    with hetero.use(device="cpu"):
        at_once.side_by_side([lambda: None, lambda: found.append(forced.get().device)])
    at_once.side_by_side([lambda: None, lambda: found.append(forced.get())])
    assert found == ["cpu", None]


def test_a_thread_without_a_task_ends(alone, monkeypatch):
    monkeypatch.setattr(at_once, "_IDLE", 0.01)
    (thread,) = ours()
    thread.join(20.0)
    assert not thread.is_alive()
    assert not at_once._waiting
    assert ours() != {thread}


def test_a_forked_child_has_threads_of_its_own(alone):
    ours()
    script = """
import os, threading
from hetero.devices import at_once
def both():
    barrier = threading.Barrier(2, timeout=20.0)
    at_once.side_by_side([barrier.wait, barrier.wait])
both()
assert len(at_once._waiting) == 1
child = os.fork()
if not child:
    assert not at_once._waiting
    both()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
both()
"""
    processes.python("-W", "ignore", "-c", script, timeout=60)  # ends, though a thread waits
