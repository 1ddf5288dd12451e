"""Which pages of this process's memory were written to, as Linux tells: userfaultfd and pagemap.

A range is write-protected in asynchronous mode: the first write to a page lifts the protection of
that page, whoever writes, without a signal and without a wait. A scan of the page table tells
whether a page lost its protection, in 0.02 ms for a gigabyte of huge pages. The price is the first
write to each page, 1.5 to 4 us, after which the page is as before.

What cannot be seen are writes that do not go through this process's page table: by a device to
memory that was pinned before it was protected, and by another process to shared memory.

Source: Linux, Documentation/admin-guide/mm/userfaultfd.rst and pagemap.rst; kernel 6.7.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import platform
import struct
from typing import Any

from hetero import locks

_SYSCALL = {"x86_64": 323, "aarch64": 282}  # userfaultfd
_USER_MODE_ONLY = 1  # what needs no privilege
_API, _REGISTER, _UNREGISTER = 0xC018AA3F, 0xC020AA00, 0x8010AA01  # ioctls of userfaultfd
_VERSION = 0xAA  # of userfaultfd, UFFD_API
_FEATURES = 1 << 15 | 1 << 13 | 1  # WP_ASYNC, WP_UNPOPULATED, PAGEFAULT_FLAG_WP
_WRITE_PROTECT = 2  # a mode of registering, UFFDIO_REGISTER_MODE_WP
_SCAN = 0xC0606610  # the ioctl PAGEMAP_SCAN
_PROTECT, _CHECK = 1, 2  # PM_SCAN_WP_MATCHING, PM_SCAN_CHECK_WPASYNC
_WRITTEN, _PRESENT = 1 << 1, 1 << 3  # PAGE_IS_...
_QUERY, _NEXT, _OF_FILE = 0xC0686611, 0x10, 0x20  # the ioctl PROCMAP_QUERY
_REGIONS = 64  # that a scan reports at once
_ARGUMENT = struct.Struct("12Q")


class Unavailable(Exception):
    """Writes cannot be tracked here; the message says why."""


class Watch:
    """A range of memory that is write-protected.

    Attributes
    ----------
    begin, end : int
        Addresses of its first byte, and of that after its last one.
    """

    __slots__ = ("_edges", "_pages", "_written", "begin", "end")

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        page = mmap.PAGESIZE
        low, high = -(-begin // page) * page, end // page * page
        self._pages = (low, high) if low < high else None  # whole pages, which nobody else has
        self._written = False
        self._edges = self._read_edges()

    def _read_edges(self) -> bytes:
        """The bytes that share their pages with other data."""
        if self._pages is None:
            return ctypes.string_at(self.begin, self.end - self.begin)
        low, high = self._pages
        return ctypes.string_at(self.begin, low - self.begin) + ctypes.string_at(
            high, self.end - high
        )

    def is_gone(self) -> bool:
        """Whether its whole pages were written to or given back; asked of memory that may be freed:
        no byte of it is read."""
        return self._pages is not None and not (
            _tracker.is_mapped(*self._pages) and _tracker.is_clean(*self._pages)
        )

    def is_written(self) -> bool:
        """Whether anybody may have written there since it was protected; it must be mapped."""
        if self._written:
            return True
        if self._read_edges() != self._edges or (
            self._pages is not None and not _tracker.is_clean(*self._pages)
        ):
            self._written = True  # never False: another thread may have said so meanwhile
        return self._written

    def close(self) -> None:
        """Stop watching; pages that no other watch has are as they were before."""
        _tracker.remove(self)


class _Tracker:
    """This process's userfaultfd and page map, opened when they are needed first."""

    def __init__(self) -> None:
        self.lock = locks.new()
        self.watches: list[Watch] = []
        self._files: tuple[int, int] | None = None  # userfaultfd, page map
        self._nodes: list[tuple[int, int]] = []  # of the files: others may get their numbers
        self._adding = False
        self.obstacle: str | None = None  # one that stays
        self._regions = (ctypes.c_uint64 * (3 * _REGIONS))()

    def open(self) -> tuple[int, int]:
        """The files; raises `Unavailable`."""
        if self._files is None:
            number = _SYSCALL.get(platform.machine())
            if number is None:
                raise Unavailable("only Linux on x86-64 and arm64 reports written pages")
            tracked = _libc().syscall(number, os.O_CLOEXEC | _USER_MODE_ONLY)
            if tracked < 0:
                error = ctypes.get_errno()
                why = f"userfaultfd: {os.strerror(error)}; is it forbidden in this container?"
                self.obstacle = why if error in (errno.EPERM, errno.ENOSYS) else None
                raise Unavailable(why)
            try:
                _ioctl(tracked, _API, struct.pack("3Q", _VERSION, _FEATURES, 0))
                pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                os.close(tracked)
                what = "Linux 6.7 or newer" if error.errno == errno.EINVAL else error.strerror
                raise Unavailable(f"write tracking needs {what}") from error
            self._files, self._nodes = (tracked, pages), [_node(tracked), _node(pages)]
        return self._files

    def add(self, watch: Watch, low: int, high: int) -> None:
        """Protect whole pages; other watches of them keep what was written there before."""
        tracked, _ = self.open()
        with self.lock:
            if self._adding:
                raise Unavailable("a signal handler came while another one is added")
            if not _is_private(low, high):
                raise Unavailable("other processes may write there")
            _ioctl(tracked, _REGISTER, struct.pack("4Q", low, high - low, _WRITE_PROTECT, 0))
            self._adding = True
            self.watches.append(watch)
            try:
                others = [other for other in self.watches if other is not watch]
                self._protect(low, high, others)
            except BaseException:  # KeyboardInterrupt too: marks were set, and nobody heard why
                self._tell(self.watches, low, high)
                self.remove(watch)
                raise
            finally:
                self._adding = False

    def _protect(self, low: int, high: int, others: list[Watch]) -> None:
        """Protect pages, and tell other watches which of them were written to."""
        while low < high:
            number, low = self._scan(low, high, _PROTECT | _CHECK, _REGIONS)
            for i in range(number):
                self._tell(others, *self._regions[3 * i : 3 * i + 2])

    def _tell(self, watches: list[Watch], low: int, high: int) -> None:
        for watch in watches:
            if watch.begin < high and low < watch.end:
                watch._written = True

    def is_clean(self, low: int, high: int) -> bool:
        """Whether no page was written to, dropped or mapped anew."""
        with self.lock:
            if self._adding:  # by the code that a signal handler came into
                return False
            try:
                return self._scan(low, high, _CHECK, 1)[0] == 0
            except OSError:  # other memory lies there now
                return False

    def is_mapped(self, low: int, high: int) -> bool:
        """Whether the first and the last page belong to the process."""
        state, page = ctypes.create_string_buffer(1), mmap.PAGESIZE
        ends = ctypes.c_void_p(low), ctypes.c_void_p(high - page)
        return not any(_libc().mincore(end, ctypes.c_size_t(page), state) for end in ends)

    def _scan(self, low: int, high: int, flags: int, most: int) -> tuple[int, int]:
        """The number of regions of pages that were written to, or are not there, and where the scan
        ended."""
        address, pages = ctypes.addressof(self._regions), int(most == 1)
        request = bytearray(
            _ARGUMENT.pack(
                *(_ARGUMENT.size, flags, low, high, 0, address, most, pages),
                *(_PRESENT, 0, _WRITTEN | _PRESENT, _WRITTEN),
            )
        )
        number = fcntl.ioctl(self.open()[1], _SCAN, request, True)
        return number, _ARGUMENT.unpack(request)[4]

    def remove(self, watch: Watch) -> None:
        with self.lock:
            if watch not in self.watches:
                return
            self.watches.remove(watch)
            if watch._pages is None or self._files is None:
                return
            low, high = watch._pages
            others = sorted(w._pages for w in self.watches if w._pages is not None)
            for begin, end in [*others, (high, high)]:
                if low < min(begin, high):
                    self._unregister(low, min(begin, high))
                low = max(low, min(end, high))

    def _unregister(self, low: int, high: int) -> None:
        with contextlib.suppress(OSError):  # the memory is gone, or not all of it is registered
            _ioctl(self._files[0], _UNREGISTER, struct.pack("2Q", low, high - low))

    def forget(self) -> None:
        """In a forked child: the files are about the parent's memory. Or they were closed."""
        files, self._files, self.watches, self._adding = self._files, None, [], False
        for file, node in zip(files or (), self._nodes, strict=False):
            with contextlib.suppress(OSError):
                if _node(file) == node:
                    os.close(file)


def _is_private(low: int, high: int) -> bool:
    """Whether what lies there is no file's, and no other process's; shared memory counts as a file.

    Of pages that nobody has touched yet a scan does not tell that.
    """
    query = bytearray(struct.pack("3Q80x", 104, _NEXT | _OF_FILE, low))
    with open("/proc/self/maps", "rb", buffering=0) as maps:
        try:
            fcntl.ioctl(maps, _QUERY, query, True)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return True
            if error.errno != errno.ENOTTY:
                raise
            return not any(_is_of_file(line, low, high) for line in maps.readall().splitlines())
    return struct.unpack_from("Q", query, 24)[0] >= high


def _is_of_file(line: bytes, low: int, high: int) -> bool:
    """Whether a line of the list of mappings is a file's memory in a range: before Linux 6.11."""
    span, _, _, _, inode = line.split(maxsplit=5)[:5]
    begin, end = (int(address, 16) for address in span.split(b"-"))
    return begin < high and low < end and inode != b"0"


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _node(file: int) -> tuple[int, int]:
    """What tells an open file from another one that got its number."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _ioctl(file: int, request: int, argument: bytes) -> Any:
    return fcntl.ioctl(file, request, argument)


_tracker = _Tracker()


def obstacle() -> str | None:
    """Why writes cannot be tracked in this process; None where they can."""
    try:
        if _tracker.obstacle is None:
            _tracker.open()
    except Unavailable as error:
        return str(error)
    return _tracker.obstacle


def watch(begin: int, end: int) -> Watch | None:
    """Watch a range of private memory; copy what lies there only after this.

    Returns
    -------
    Watch or None
        None where it cannot be watched: shared memory, files, another userfaultfd's memory.
    """
    made = Watch(begin, end)
    try:
        if made._pages is not None:
            _tracker.add(made, *made._pages)
    except (OSError, Unavailable) as error:
        if isinstance(error, OSError) and error.errno in (errno.EBADF, errno.ENOTTY):
            _tracker.forget()  # somebody closed all files of the process: the next one opens them
        return None
    return made


os.register_at_fork(after_in_child=_tracker.forget)
