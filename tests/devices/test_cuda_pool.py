"""Memory of a CUDA context that is kept when it is freed: what threads may do at the same time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hetero.devices.cuda import driver, memory


@pytest.fixture
def pool(monkeypatch):
    """``beside[0]()`` is what another thread does while memory is given back, ``live`` that which
    the driver has given."""
    made, live, beside = [], set(), [lambda: None]

    def given(function, size):
        made.append(1 << 20 << len(made))
        live.add(made[-1])
        return made[-1]

    def twice(function, address):
        live.remove(address)
        beside[0]()

    monkeypatch.setattr(driver, "given", given)
    monkeypatch.setattr(driver, "twice", twice)
    monkeypatch.setattr(driver, "call", lambda function: None)
    monkeypatch.setattr(driver, "free_memory", lambda: 1 << 40)
    pool = memory.Pool(object, 0, SimpleNamespace())
    pool.beside, pool.live = beside, live
    return pool


def test_what_is_freed_or_given_back_meanwhile(pool):
    """Nothing is lost, and nothing that was given back is handed out."""
    blocks = [pool.allocate(size) for size in (1000, 1000, 5000, 5000, 20000)]
    del blocks
    pool.beside[0] = pool.trim
    assert pool.trim()
    assert pool.nbytes == pool.unused() == 0
    pool.beside[0] = lambda: None
    blocks = [pool.allocate(1000) for _ in range(4)]
    held = [blocks.pop()]
    del blocks
    pool.beside[0] = lambda: held and held.pop()
    pool.trim()
    assert pool.nbytes == pool.unused()
    assert pool.allocate(1000).address in pool.live
