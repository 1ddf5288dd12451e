"""Plans are remembered until something changes that they depend on."""

from __future__ import annotations

import threading
import time

import numpy as np
from fakes import in_threads
from made_up import machine, roofline, square

import hetero
from hetero import profile, tables
from hetero.calling import planner
from hetero.ops import matmul
from hetero.profile import inventory


def test_calls_follow_the_profile(cuda):
    """A remembered call is forgotten with the plan behind it."""
    A = np.ones((64, 64), np.float32)
    profile.set_current(machine())
    hetero.matmul(A, A)
    hetero.matmul(A, A)
    assert "compute" not in cuda.log
    fast = machine().data["models"] | {"cpu|matmul|blas|float32|*": roofline(1.0, 1e10, 1e10)}
    profile.set_current(machine(models=fast))
    np.testing.assert_array_equal(hetero.matmul(A, A), A @ A)
    assert "compute" in cuda.log


def test_memory_is_bounded():
    A = np.ones((3, 3))
    for n in range(2 * tables._MOST // 100):
        planner.plan(square(n + 1))
    table = {}
    for n in range(tables._MOST + 10):
        tables.remember(table, n, A, tables.generation())
    assert len(table) <= tables._MOST
    # A plan made before a change is not kept.
    before = tables.generation()
    profile.set_current(machine())
    table = {}
    tables.remember(table, "key", "old", before)
    assert not table


def test_threads_that_need_the_profile_read_it_once(monkeypatch):
    read, found = [], []
    together = threading.Barrier(4)

    def slowly():
        read.append(1)
        time.sleep(0.05)
        return machine()

    def look():
        together.wait()
        found.append(profile.current())

    monkeypatch.setattr(profile.inventory, "_load", slowly)
    profile.set_current(None)
    in_threads(*[look] * 4)
    assert len(read) == 1
    assert all(one is found[0] for one in found)


def test_threads_that_plan_while_things_change():
    wrong, stop = [], threading.Event()
    rng = np.random.default_rng(0)
    pairs = [(rng.random((n, n + 1)), rng.random((n + 1, 3))) for n in range(1, 30)]

    def work():
        try:
            while not stop.is_set():
                for A, B in pairs:
                    if not np.array_equal(hetero.matmul(A, B), A @ B):
                        wrong.append("value")
                    planner.plan(matmul.problem(A, B))
        except Exception as error:
            wrong.append(error)

    def change():
        for _ in range(30):
            profile.set_current(profile.shipped("conservative"))
            inventory.changed()
        stop.set()

    in_threads(*[work] * 4, change)
    assert not wrong
