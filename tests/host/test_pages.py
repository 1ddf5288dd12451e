"""Memory of results that is used again: when it comes back, how much is kept, who gives it back."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import processes
import pytest

import hetero
from hetero import devices
from hetero.arrays.kept import find as described
from hetero.host import pages
from hetero.host.copying import staging

pytestmark = pytest.mark.optimised  # large products
SHAPE = (1025, 1024)  # of float32: more than 4 MiB
PAGE = pages._PAGE


@pytest.fixture(name="kept", autouse=True)
def _kept():
    """As if large copies were being made, and nothing else; the memory that is kept."""
    gc.collect()
    pages.users.clear()  # other tests' calls are users for a minute
    pages.close()
    until(lambda: pages._state["thread"] is None)
    pages._state["asked"] = 0.0
    pages.open_()
    yield pages._kept
    pages.users.clear()
    pages.close()
    until(lambda: pages._state["thread"] is None)


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def address(array):
    return array.__array_interface__["data"][0]


def test_the_memory_of_an_array_that_is_gone_is_that_of_the_next_one(kept):
    array = pages.empty(SHAPE, np.float32)
    assert (array.shape, array.dtype, type(array)) == (SHAPE, np.float32, np.ndarray)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert address(array) % PAGE == 0
    array[...] = 7.0
    other = pages.empty(SHAPE, np.float32)
    other[...] = 8.0
    assert (array == 7.0).all()
    place = address(array)
    view = array[5:, ::2].T
    del array
    assert not kept
    assert (view == 7.0).all()
    del view
    assert pages.sizes() == {pages.PURPOSE: 3 * PAGE}
    again = pages.empty((1024, 513), np.complex64)
    assert address(again) == place
    assert not pages.sizes()
    assert (other == 8.0).all()


def test_no_more_is_kept_than_a_share_of_what_the_process_may_have(kept, monkeypatch):
    limits = dict.fromkeys(pages._LIMITS, pages.resource.RLIM_INFINITY)
    monkeypatch.setattr(pages.resource, "getrlimit", lambda which: (limits[which], -1))
    assert pages._most() == pages._SHARE * pages._physical()
    for limit in limits:
        limits[limit] = 64 * PAGE
        assert pages._most() == 4 * PAGE
        arrays = [pages.empty((2 * PAGE,), np.uint8) for _ in range(3)]
        del arrays
        assert len(kept) == 2
        limits[limit] = pages.resource.RLIM_INFINITY


def test_a_result_that_is_kept_is_forgotten_when_its_memory_is_lent_again(kept):
    array = pages.empty(SHAPE, np.float32)
    promised = hetero.keep(array)
    found = described(promised)
    assert found is not None
    assert described(promised.T) is found
    place = address(array)
    del array, promised
    array = pages.empty(SHAPE, np.float32)
    assert address(array) == place
    assert described(hetero.keep(array)) is not found


def test_where_nothing_is_copied_nothing_is_kept(kept):
    array = pages.empty(SHAPE, np.float32)
    pages.close()
    del array
    assert not kept
    assert pages.empty(SHAPE, np.float32).flags.owndata


def test_without_memory_what_is_kept_is_given_back_and_numpy_says_so(kept, monkeypatch):
    def refused(*_):
        raise OSError("none")

    array = pages.empty((8 * PAGE,), np.uint8)
    del array
    assert kept
    monkeypatch.setattr(pages, "_Block", refused)
    assert pages.empty(SHAPE, np.float32).flags.owndata
    assert not kept
    with pytest.raises(MemoryError):
        pages.empty((1 << 55,), np.float64)


def test_the_system_may_have_what_lies_unused_for_a_moment_and_not_sooner(kept, monkeypatch):
    monkeypatch.setattr(pages, "_REST", 0.2)
    rested = []

    def rest(block):
        assert block not in kept, "nobody takes it meanwhile"
        rested.append(block)

    monkeypatch.setattr(pages._Block, "rest", rest)
    begin = time.monotonic()
    array, other = pages.empty((2 * PAGE,), np.uint8), pages.empty((9 * PAGE,), np.uint8)
    place = address(array)
    while time.monotonic() < begin + 0.8:  # a program that uses the same memory again and again
        del array
        array = pages.empty((2 * PAGE,), np.uint8)
        assert address(array) == place
        time.sleep(0.01)
    assert not rested
    del other
    released = time.monotonic()
    (large,) = kept
    until(lambda: rested)
    assert time.monotonic() - released >= 0.2
    until(lambda: pages._state["sleeps"])  # there is nothing left to look at
    assert rested == [large]
    assert kept == [large]
    del array  # wakes it
    until(lambda: len(rested) == 2)
    until(lambda: len(kept) == 2)
    assert rested[1].address == place
    again = pages.empty((9 * PAGE,), np.uint8)
    assert again.base is not None
    del again
    until(lambda: len(rested) == 3)  # each time anew
    assert rested[2] is large


def test_very_large_memory_the_system_may_have_at_once(kept, monkeypatch):
    monkeypatch.setattr(pages, "_VERY_LARGE", 4 * PAGE)
    rested = []
    monkeypatch.setattr(pages._Block, "rest", lambda block: rested.append(block.nbytes))
    arrays = [pages.empty((n * PAGE,), np.uint8) for n in (3, 4)]
    del arrays
    assert rested == [4 * PAGE]


def test_what_the_system_may_have_is_whole_until_it_is_taken_again(kept):
    """Memory that rests while others take theirs is never that of two."""

    def work(value):
        for _ in range(200):
            array = pages.empty((2 * PAGE,), np.uint8)
            array[::4096] = value
            pages._rest()
            assert (array[::4096] == value).all()
            del array
            pages._rest()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert len({id(block) for block in kept}) == len(kept) <= 6


ENDING = """
import os, sys
import numpy as np
from hetero.host import pages
pages.open_()
if os.fork() == 0:
    np.last = pages.empty((1025, 1024), np.float32)  # lives longer than hetero's modules
    sys.exit(0)
assert os.wait()[1] == 0
pages.close()
"""


def test_a_forked_child_ends_quietly_with_an_array():
    assert not processes.python("-c", ENDING, timeout=60).stderr


def test_results_of_devices_use_it_and_it_is_told_and_given_back(opencl):
    device = devices.get(opencl)
    pages.close()
    A = np.ones((1100, 1000), np.float32)
    with device.active():
        device.begin_upload(A, device.allocate(A.nbytes)[0]).wait()  # a large copy
    product = hetero.matmul(A, A.T, device=opencl, method="tiled")
    place = address(product)
    assert (product == 1000.0).all()
    del product
    assert hetero.memory()["host"][pages.PURPOSE] >= 1100 * 1100 * 4
    assert pages.PURPOSE in str(hetero.memory())
    product = hetero.matmul(A, A.T, device=opencl, method="tiled")
    assert address(product) == place
    again = hetero.matmul(A, A.T, device=opencl, method="streamed")
    assert address(again) != place
    del product
    np.testing.assert_array_equal(again, hetero.matmul(A, A.T, device=opencl, method="streamed"))
    hetero.clear_memory()
    assert "host" not in hetero.memory()
    del again
    staging.close_all()  # as the last thread that copies does when it ends
    assert not pages.sizes()


# -- Results of the CPU ----------------------------------------------------------------------------


@pytest.fixture(name="results")
def _results(monkeypatch):
    """Results from 4 MiB on, which are kept for half a second; nothing is copied."""
    monkeypatch.setattr(pages, "_MALLOC", 4 << 20)
    monkeypatch.setattr(pages, "_IDLE", 0.5)
    pages.close()
    until(lambda: pages._state["thread"] is None)
    yield
    until(lambda: pages._state["thread"] is None)
    assert not pages.users


def result(shape, dtype):
    return pages.maker(np.prod(shape) * np.dtype(dtype).itemsize)(shape, dtype)


@pytest.mark.parametrize(
    ("nbytes", "is_ours"), [(0, False), ((32 << 20) - 4096, False), (32 << 20, True)]
)
def test_results_that_malloc_does_not_keep_are_ours(nbytes, is_ours):
    """A matrix of 2048 x 2048 float64 is 32 MiB, for which malloc asks the system each time."""
    assert (pages.maker(nbytes) is not np.empty) == is_ours


def test_memory_of_results_of_the_cpu_is_kept_until_there_were_none_for_long(results, kept):
    others = threading.enumerate()  # those of other tests end by themselves
    assert result((4, 1 << 20), np.uint8).flags.owndata
    assert not pages.users
    first = result(SHAPE, np.float32)
    place = address(first)
    del first
    assert address(result(SHAPE, np.float32)) == place
    pages.open_()
    pages.close()  # copies have ended
    assert len(kept) == 1
    until(lambda: not kept)
    assert pages._state["thread"] is None
    assert not result((5, 5), np.float32).base
    again = result(SHAPE, np.float32)
    begun = [thread.name for thread in threading.enumerate() if thread not in others]
    assert begun == ["hetero-results"]
    until(lambda: pages._state["thread"] is None)
    again[...] = 1.0
    del again
    assert not kept


def test_without_another_thread_results_are_new(results, monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert result(SHAPE, np.float32).flags.owndata


def test_a_forked_child_keeps_its_own(results):
    array = result(SHAPE, np.float32)
    child = os.fork()
    if child == 0:
        right = pages._state["thread"] is None and not pages.users
        del array
        array = result(SHAPE, np.float32)
        os._exit(0 if right and pages._state["thread"] is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    del array


def test_results_of_calls_on_the_cpu_use_it(results, kept):
    image, taps = np.ones((1100, 1000), np.float32), np.ones((3, 3), np.float32)
    with hetero.use(device="cpu"):
        hetero.convolve2d(image, taps)  # compiles
        place = address(hetero.convolve2d(image, taps))
        assert len(kept) == 1
        for _ in range(3):  # also when it is remembered
            found = hetero.convolve2d(image, taps)
            assert address(found) == place
            assert found[5, 5] == 9.0
            del found
