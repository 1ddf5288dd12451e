"""Memory of results that is used again: when it comes back, how much is kept, who gives it back."""

from __future__ import annotations

import gc
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import processes
import pytest

import hetero
from hetero.host import cpu

pytestmark = pytest.mark.optimised  # large products
SHAPE = (1025, 1024)  # of float32: more than 4 MiB
PAGE = cpu._HUGE_PAGE


@pytest.fixture(name="kept", autouse=True)
def _kept():
    """The memory that is kept; at first none."""
    gc.collect()
    cpu.free_reused()
    yield cpu._reused
    cpu.free_reused()


def test_the_memory_of_an_array_that_is_gone_is_that_of_the_next_one(kept):
    array = cpu.empty(SHAPE, np.float32)
    assert (array.shape, array.dtype, type(array)) == (SHAPE, np.float32, np.ndarray)
    assert array.flags.carray
    assert array.ctypes.data % PAGE == 0
    array[...] = 7.0
    other = cpu.empty(SHAPE, np.float32)
    other[...] = 8.0
    assert (array == 7.0).all()
    place = array.ctypes.data
    view = array[5:, ::2].T
    del array
    assert not kept
    assert (view == 7.0).all()
    del view
    assert cpu.reused_sizes() == {cpu.REUSED: 4 * PAGE}  # with one before the first huge page
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    again = cpu.empty((1024, 513), np.complex64)
    again[...] = 9.0
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 99, "its pages are there"
    assert again.ctypes.data == place
    assert not cpu.reused_sizes()
    assert (other == 8.0).all()


def test_the_last_ones_are_kept_and_no_more_than_a_share_of_the_memory(kept, monkeypatch):
    limits = dict.fromkeys(cpu._LIMITS, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], -1))
    arrays = [cpu.empty((2 * PAGE,), np.uint8) for _ in range(10)]
    places = [array.ctypes.data for array in arrays]
    while arrays:
        arrays.pop(0)
    assert len(kept) == cpu._BLOCKS == 8
    lent = [cpu.empty((2 * PAGE,), np.uint8) for _ in range(8)]
    assert [array.ctypes.data for array in lent] == places[:1:-1], "the last one first"
    for which in limits:
        limits[which] = 7 * PAGE / cpu._SHARE  # for two of three pages, with that for their begin
        arrays = [cpu.empty((2 * PAGE,), np.uint8) for _ in range(3)]
        del arrays
        assert len(kept) == 2
        limits[which] = resource.RLIM_INFINITY


def test_memory_is_never_that_of_two(kept):
    def work(value):
        for _ in range(200):
            array = cpu.empty((2 * PAGE,), np.uint8)
            array[::4096] = value
            assert (array[::4096] == value).all()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len({id(block) for block in kept}) == len(kept) <= cpu._BLOCKS


def test_a_forked_child_has_its_own(kept):
    array, gone = (cpu.empty(SHAPE, np.float32) for _ in range(2))
    array[...] = 3.0
    del gone

    def has_its_own():
        nothing, array[...] = not cpu.reused_sizes(), 4.0
        return nothing and (array == 4.0).all()

    assert processes.forked(has_its_own)
    assert (array == 3.0).all()
    assert cpu.reused_sizes()


def test_results_of_devices_use_it_and_it_is_told_and_given_back(opencl):
    A = np.ones((1100, 1000), np.float32)
    product = hetero.matmul(A, A.T, device=opencl, method="tiled")
    place = product.ctypes.data
    assert (product == 1000.0).all()
    del product
    assert hetero.memory()["host"][cpu.REUSED] >= 1100 * 1100 * 4
    assert cpu.REUSED in str(hetero.memory())
    product = hetero.matmul(A, A.T, device=opencl, method="tiled")
    assert product.ctypes.data == place
    del product
    hetero.clear_memory()
    assert "host" not in hetero.memory()


def test_results_of_calls_on_the_cpu_use_it(kept):
    image, taps = np.ones((1100, 1000), np.float32), np.ones((3, 3), np.float32)
    with hetero.use(device="cpu"):
        hetero.convolve2d(image, taps)  # compiles
        place = hetero.convolve2d(image, taps).ctypes.data
        assert len(kept) == 1
        for _ in range(3):  # also when it is remembered
            assert hetero.convolve2d(image, taps).ctypes.data == place
