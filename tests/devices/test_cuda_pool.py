"""Memory of a CUDA context that is kept when it is freed: what threads may do at the same time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hetero.devices.storage import Pool


class Allocation:
    """Memory of the driver; ``beside`` is what another thread does while it is given back."""

    def __init__(self, address, beside):
        self.address, self.beside, self.is_free = address, beside, False

    def __int__(self):
        return self.address

    def free(self):
        assert not self.is_free
        self.is_free = True
        self.beside()


@pytest.fixture
def pool():
    made = []

    def mem_alloc(size):
        made.append(Allocation(1 << 20 << len(made), lambda: beside[0]()))
        return made[-1]

    beside = [lambda: None]
    driver = SimpleNamespace(
        PointerHolderBase=object,
        MemoryError=MemoryError,
        mem_alloc=mem_alloc,
        mem_get_info=lambda: (1 << 40, 1 << 40),
        Context=SimpleNamespace(synchronize=lambda: None),
    )
    pool = Pool(driver, 0, lambda: None, lambda nbytes: False)
    pool.beside = beside
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
    assert not pool.allocate(1000).allocation.is_free
