"""Copies of several devices at the same time, and solves that load and fetch their parts so."""

from __future__ import annotations

import threading

import numpy as np
import processes
import pytest
from cg_systems import solve, system_of, vectors
from fakes import FakeCuda

import hetero
from hetero import devices
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


def test_large_copies_meet():
    tasks, done = meeting(3)
    at_once.run([FakeCuda(n) for n in range(3)], tasks, LEAST)
    assert sorted(which for which, _ in done) == [0, 1, 2]
    here = threading.current_thread().name
    assert {name for which, name in done if which == 0} == {here}
    assert all(name.startswith("hetero-") for which, name in done if which), "known as ours"


class Elsewhere(FakeCuda):
    """A device on which this thread has a context of its own."""

    def same_in_threads(self):
        return False


ONE = FakeCuda(0)
ALONE = {
    "one device": ([ONE], LEAST),
    "the same one twice": ([ONE, ONE], LEAST),
    "little to copy": ([ONE, FakeCuda(1)], LEAST - 1),
    "a context of this thread's own": ([ONE, Elsewhere(1)], LEAST),
}


@pytest.mark.parametrize("case", ALONE)
def test_one_after_the_other_in_this_thread(case):
    used, nbytes = ALONE[case]
    done = []
    tasks = [lambda n=n: done.append((n, threading.get_ident())) for n in range(len(used))]
    at_once.run(used, tasks, nbytes)
    assert done == [(n, threading.get_ident()) for n in range(len(used))]


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


def test_threads_are_used_again(alone):
    (first,) = ours()
    assert ours() == {first} == set(at_once._waiting)
    more = ours(3)
    assert first in more
    assert ours(3) == more, "and no more of them are made"
    assert all(thread.daemon for thread in more), "the interpreter's end waits for none"


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


# -- Solves ---------------------------------------------------------------------------------------


@pytest.fixture
def two(opencl):
    """Two devices that cannot see each other's memory."""
    from hetero.devices.opencl import OpenCLDevice

    one = devices.get(opencl)
    return [one, OpenCLDevice(99, one._device)]


@pytest.fixture
def threads_of(monkeypatch):
    """The threads that uploads and downloads were made in."""
    from hetero.devices.opencl import OpenCLDevice

    found = set()

    def watched(name):
        method = getattr(OpenCLDevice, name)

        def call(self, *arguments, **options):
            found.add((name, threading.current_thread().name))
            return method(self, *arguments, **options)

        monkeypatch.setattr(OpenCLDevice, name, call)

    watched("upload")
    watched("download")
    monkeypatch.setattr(at_once, "LEAST", 0)
    return found


AT_ONCE = {("upload", at_once._NAME), ("download", at_once._NAME)}


@pytest.mark.parametrize("kind", ["stencil2", "csr"])
def test_conjugate_gradients(two, threads_of, kind, monkeypatch):
    system, A = system_of(kind, "float64")
    b, x0 = vectors(A.shape[0], "float64")
    _, at_once_too = solve(two, system, b, x0, maxiter=20)
    assert threads_of >= AT_ONCE
    monkeypatch.setattr(at_once, "LEAST", 1 << 60)
    _, one_by_one = solve(two, system, b, x0, maxiter=20)
    np.testing.assert_array_equal(at_once_too, one_by_one)


def test_sweeps(two, threads_of, monkeypatch):
    from hetero.ops.linear_systems.types import Stencil
    from hetero.ops.poisson import jacobi

    f, found = np.random.default_rng(0).random((24, 17)), []
    for least in (0, 1 << 60):
        monkeypatch.setattr(at_once, "LEAST", least)
        u = np.zeros_like(f)
        jacobi.solve(two, Stencil(f.shape, (0.1, 0.1)), f, u, sweeps=9)
        assert threads_of >= AT_ONCE
        found.append(u)
    np.testing.assert_array_equal(*found)
