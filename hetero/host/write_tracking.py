"""Which pages of this process's memory were written to, as Linux tells: userfaultfd and pagemap.

Pages are write-protected in asynchronous mode: the first write to one, whoever writes, lifts its
protection in 1.5 to 4 us, without a signal. A scan of the page table tells whether one lost it, in
0.02 ms for a gigabyte of huge pages.

What cannot be seen are writes that do not go through this process's page table: by a device to
memory that was pinned before it was protected, and by another process to shared memory.

Source: Linux, Documentation/admin-guide/mm/userfaultfd.rst and pagemap.rst; kernel 6.7.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import re
import struct

_SYSCALL = {"x86_64": 323, "aarch64": 282}  # userfaultfd
_USER_MODE_ONLY = 1  # what needs no privilege
_API, _REGISTER, _UNREGISTER = 0xC018AA3F, 0xC020AA00, 0x8010AA01  # ioctls of userfaultfd
_VERSION = 0xAA  # of userfaultfd, UFFD_API
_FEATURES = 1 << 15 | 1 << 13 | 1  # WP_ASYNC, WP_UNPOPULATED, PAGEFAULT_FLAG_WP
_PROTECTS = 2  # a mode of registering, UFFDIO_REGISTER_MODE_WP
_SCAN = 0xC0606610  # the ioctl PAGEMAP_SCAN
_PROTECT, _CHECK = 1, 2  # PM_SCAN_WP_MATCHING, PM_SCAN_CHECK_WPASYNC
_WRITTEN, _PRESENT = 1 << 1, 1 << 3  # PAGE_IS_...
_QUERY, _NEXT, _OF_FILE = 0xC0686611, 0x10, 0x20  # the ioctl PROCMAP_QUERY, from Linux 6.11 on
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ [1-9]", re.MULTILINE)  # of a file
PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)
_region = (ctypes.c_uint64 * 3)()  # where a scan puts what nobody reads
_watches: list[Watch] = []  # changed by one thread at a time


class Watch:
    """Memory that is write-protected from now on; `watch` makes it, for one thread at a time."""

    def __init__(self, begin: int, end: int) -> None:
        self._pages = low, high = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
        self._ends = (begin, low - begin), (high, end - high)  # which other data has a part of
        self._written, self._bytes = False, self._read_ends()
        if not _is_private(low, high):
            raise OSError("other processes may write there")
        fcntl.ioctl(_files()[0], _REGISTER, struct.pack("4Q", low, high - low, _PROTECTS, 0))
        for other in self._others():  # before their marks are set anew
            other._written = True
        _scan(low, high, _PROTECT | _CHECK, 0)
        for other in self._others():  # of a signal handler that came meanwhile
            other._written = True
        _watches.append(self)

    def _others(self) -> list[Watch]:
        low, high = self._pages
        return [w for w in list(_watches) if w._pages[0] < high and low < w._pages[1]]

    def _read_ends(self) -> list[bytes]:
        return [ctypes.string_at(*end) for end in self._ends]

    def is_written(self) -> bool:
        """Whether anybody may have written there since, or the pages were dropped, mapped or
        watched anew, or are not watched any longer; the memory must be mapped."""
        try:
            is_same = not self._written and self._read_ends() == self._bytes
            if is_same and not _scan(*self._pages, _CHECK, 1):
                return self._written  # another thread may have set it meanwhile
        except OSError as error:  # other memory lies there now
            _raise_if_handlers(error)
        self._written = True
        return True

    def close(self) -> None:
        """Stop watching; the pages are as they were before unless another watch has some."""
        self._written, (low, high) = True, self._pages
        try:
            _watches.remove(self)
            if not self._others():
                fcntl.ioctl(_files()[0], _UNREGISTER, struct.pack("2Q", low, high - low))
        except (ValueError, OSError) as error:  # closed already; the memory is gone
            _raise_if_handlers(error)


def _scan(low: int, high: int, flags: int, most: int) -> int:
    """The number of regions, up to ``most``, of pages that were written to or are not there."""
    address = ctypes.addressof(_region) if most else 0
    sizes, matching = (address, most, most), (_PRESENT, 0, _WRITTEN | _PRESENT, _WRITTEN)
    request = bytearray(struct.pack("12Q", 96, flags, low, high, 0, *sizes, *matching))
    return fcntl.ioctl(_files()[1], _SCAN, request, True)


def _is_private(low: int, high: int) -> bool:
    """Whether what lies there is no file's and no other process's: shared memory counts as a file.
    A scan does not tell that of pages that nobody has touched."""
    query = bytearray(struct.pack("3Q80x", 104, _NEXT | _OF_FILE, low))
    with open("/proc/self/maps", "rb", buffering=0) as maps:
        try:
            fcntl.ioctl(maps, _QUERY, query, True)
            return struct.unpack_from("Q", query, 24)[0] >= high
        except OSError as error:
            _raise_if_handlers(error)
            if error.errno != errno.ENOTTY:
                return error.errno == errno.ENOENT
        of_files = [(int(m[1], 16), int(m[2], 16)) for m in _MAPPING.finditer(maps.readall())]
        return all(end <= low or high <= begin for begin, end in of_files)


@functools.cache
def _files() -> tuple[int, int]:
    """userfaultfd and the page map of this process; OSError where there are none, and why."""
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        raise OSError("only Linux on x86-64 and arm64 reports written pages")
    tracked = _libc.syscall(number, os.O_CLOEXEC | _USER_MODE_ONLY)
    if tracked < 0:
        why = os.strerror(ctypes.get_errno()) + "; is it forbidden in this container?"
        raise OSError(f"userfaultfd: {why}")
    try:
        fcntl.ioctl(tracked, _API, struct.pack("3Q", _VERSION, _FEATURES, 0))
        return tracked, os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        os.close(tracked)
        what = "Linux 6.7 or newer" if error.errno == errno.EINVAL else error.strerror
        raise OSError(f"write tracking needs {what}") from error


@functools.cache
def obstacle() -> str | None:
    """Why writes cannot be tracked in this process; None where they can."""
    try:
        _files()
    except OSError as error:
        _raise_if_handlers(error)
        return str(error)
    return None


def watch(begin: int, end: int) -> Watch | None:
    """Watch private memory between two addresses, of which copies are made after this only; None
    where it cannot be watched: shared memory, files, another userfaultfd's memory."""
    try:
        return Watch(begin, end)
    except OSError as error:
        _raise_if_handlers(error)
        return None


def _raise_if_handlers(error: Exception) -> None:
    """Raise a TimeoutError again: nothing here does, but handlers of signals do."""
    if isinstance(error, TimeoutError):
        raise error


for clear in (_files.cache_clear, _watches.clear):  # they are about the parent's memory
    os.register_at_fork(after_in_child=clear)
