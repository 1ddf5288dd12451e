"""What threads of ours ask of the system's scheduler, and that they go on where it refuses."""

from __future__ import annotations

import ctypes
import os
import platform
import threading

import pytest

from hetero.host.copying import scheduling

GET_TIMER_SLACK = 30
GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}.get(platform.machine())


def in_a_thread(function):
    """What a function gives in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def attributes():
    """Of the calling thread, as the system has them."""
    if GET_ATTRIBUTES is None:
        pytest.skip("no number of sched_getattr for this machine")
    found, number = scheduling._Attributes(), ctypes.c_long(GET_ATTRIBUTES)
    size = ctypes.sizeof(found)
    assert not ctypes.CDLL(None).syscall(number, 0, ctypes.byref(found), size, 0)
    return found


def test_a_nice_thread_has_short_slices_and_the_program_is_as_it_was():
    before = attributes().nice, attributes().runtime

    def nice():
        scheduling.be_nice(3)
        return attributes()

    found = in_a_thread(nice)
    assert (found.policy, found.nice) == (os.SCHED_OTHER, min(before[0] + 3, 19))
    release = tuple(int(x) for x in platform.release().split(".")[:2])
    if release >= (6, 12):
        assert found.runtime == scheduling._SLICE
    assert (attributes().nice, attributes().runtime) == before


def test_a_thread_of_another_policy_keeps_it():
    def idle():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        scheduling.be_nice()
        return os.sched_getscheduler(0)

    assert in_a_thread(idle) == os.SCHED_IDLE


def test_other_machines_go_without(monkeypatch):
    monkeypatch.setattr(scheduling.platform, "machine", lambda: "another")
    assert in_a_thread(lambda: (scheduling.be_nice(2), attributes().nice)[1]) >= 2


def test_a_punctual_thread_oversleeps_by_little():
    def slack():
        scheduling.be_punctual()
        return ctypes.CDLL(None).prctl(GET_TIMER_SLACK, 0, 0, 0, 0)

    assert in_a_thread(slack) == scheduling._SLACK
    assert in_a_thread(lambda: ctypes.CDLL(None).prctl(GET_TIMER_SLACK, 0, 0, 0, 0)) > 1000
