"""Which pages were written to, as the kernel tells it: each way to write, and what is no write."""

import ctypes
import errno
import mmap
import types

import numpy as np
import processes
import pytest

from hetero.arrays.operand import addresses
from hetero.host import write_tracking

OBSTACLE = write_tracking.obstacle()
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=OBSTACLE or "")
N = 1 << 20  # bytes
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


@pytest.fixture
def watched():
    """``watched(array)``; what was watched is let go of in the end."""
    watches = []

    def watch(array):
        watches.append(write_tracking.watch(*addresses(array)))
        return watches[-1]

    yield watch
    for each in filter(None, watches):
        each.close()


def bytes_of(nbytes=N):
    return np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)


def test_reading_and_neighbours_are_no_writes(watched):
    whole = bytes_of(3 * N)
    array = whole[N + 100 : 2 * N + 100]
    watch = watched(array)
    array.sum()
    array.copy()
    whole[: N + 100] = 1
    whole[2 * N + 100 :] = 1
    assert not watch.is_written()


def by_readinto(memory):
    with open("/dev/zero", "rb", buffering=0) as file:
        file.readinto(memoryview(memory)[5000:6000])


def by_dontneed(memory):
    memory.madvise(mmap.MADV_DONTNEED)


def by_mapping_anew(memory):
    begin, _ = addresses(np.frombuffer(memory, np.uint8))
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    assert libc.mmap(begin, 4096, 3, PRIVATE | 0x10, -1, 0) == begin


@pytest.mark.parametrize("write", [by_readinto, by_dontneed, by_mapping_anew])
def test_whoever_writes_is_seen(watched, write):
    memory = mmap.mmap(-1, 2 * N, flags=PRIVATE)
    memory[:] = b"x" * 2 * N
    watch = watched(np.frombuffer(memory, np.uint8))
    write(memory)
    assert watch.is_written()


@pytest.mark.parametrize("query", [write_tracking._QUERY, 0xC0686601], ids=["6.11", "6.7"])
@pytest.mark.parametrize("mode", ["r+", "c", "shared", "own"])
def test_what_others_may_write_to_is_not_watched(watched, tmp_path, monkeypatch, mode, query):
    """Not even where no page was touched yet."""
    monkeypatch.setattr(write_tracking, "_QUERY", query)
    if mode == "shared":
        array = np.frombuffer(mmap.mmap(-1, N), np.uint8)
    elif mode == "own":
        array = np.frombuffer(mmap.mmap(-1, N, flags=mmap.MAP_PRIVATE), np.uint8)
    else:
        file = tmp_path / "array"
        file.write_bytes(b"x" * N)
        array = np.memmap(file, np.uint8, mode)
        array[: 4096 * (mode == "c")] = 1  # a copy of this process's own
    assert (watched(array) is None) == (mode != "own")


def test_a_watch_of_the_same_pages_ends_the_one_before(watched):
    """Its marks are set anew, so that nobody could tell any longer what was written before."""
    array = bytes_of(4 * N)
    first, beside = watched(array[: 2 * N]), watched(array[3 * N :])
    array[N + 77] += 1
    second = watched(array[N : 3 * N])
    assert first.is_written()
    assert not second.is_written()
    first.close()
    assert not second.is_written(), "its own pages are watched yet"
    array[N + 50] += 1
    assert second.is_written()
    assert not beside.is_written()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("ends", ["in the middle of it", "whole"])
def test_a_signal_handler_that_comes_while_pages_are_protected(watched, monkeypatch, when, ends):
    """It watches some of them itself, and others write; the handler may raise, too."""
    array = bytes_of(2 * N)
    first = watched(array)
    scan, within = write_tracking._scan, []

    def interrupted(low, high, flags, most):
        if most or within:
            return scan(low, high, flags, most)
        found = scan(low, high, flags, most) if when == "after" else None
        within.append(None)
        within[0] = watched(array[8192:])
        array[N] += 1
        assert first.is_written()
        if ends != "whole":
            raise KeyboardInterrupt
        return scan(low, high, flags, most) if found is None else found

    monkeypatch.setattr(write_tracking, "_scan", interrupted)
    try:
        watched(array[4096:])
    except KeyboardInterrupt:
        assert ends != "whole"
    assert first.is_written()
    assert within[0].is_written()


WATCHES = ("watch", "_QUERY"), ("watch", "_REGISTER"), ("watch", "_SCAN")


@pytest.mark.parametrize(
    ("call", "asked"), [*WATCHES, ("is_written", "_SCAN"), ("close", "_UNREGISTER")]
)
def test_a_handlers_time_limit_is_no_error_of_the_kernels(watched, monkeypatch, call, asked):
    """`TimeoutError` is an `OSError`."""
    array, ioctl = bytes_of(), write_tracking.fcntl.ioctl
    calls = {"watch": lambda: write_tracking.watch(*addresses(array))}
    if call != "watch":
        first = watched(array)
        calls |= {"is_written": first.is_written, "close": first.close}

    def limited(file, request, *arguments):
        if request == getattr(write_tracking, asked):
            raise TimeoutError("late")
        return ioctl(file, request, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(write_tracking.fcntl, "ioctl", limited)
        with pytest.raises(TimeoutError, match="late"):
            calls[call]()
    assert watched(array) is not None


def test_a_forked_child_watches_its_own_memory(watched):
    array = bytes_of(2 * N)
    watch = watched(array)

    def its_own_is_seen():
        own = write_tracking.watch(*addresses(array))
        before = own.is_written()
        array[5000] += 1
        return not before and own.is_written()

    assert processes.forked(its_own_is_seen)
    assert not watch.is_written()
    array[5000] += 1
    assert watch.is_written()


def test_where_the_system_call_is_forbidden(monkeypatch):
    def refuse(*_):
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(write_tracking, "_libc", types.SimpleNamespace(syscall=refuse))
    for cached in (write_tracking._files, write_tracking.obstacle):
        monkeypatch.setattr(write_tracking, cached.__name__, cached.__wrapped__)
    assert "userfaultfd: Operation not permitted" in write_tracking.obstacle()
    assert write_tracking.watch(0, 1 << 20) is None
