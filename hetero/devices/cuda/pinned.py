"""Pinned host memory of CUDA: pages that devices copy from and to directly.

The pages are our own, and the driver registers them (``cuMemHostRegister``). Memory that the driver
allocates is gone with its context, which a device that failed loses; these stay what they are, only
slower. They are huge pages where the system gives them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
from typing import Any

import numpy as np

from hetero.devices import at_once
from hetero.devices.cuda.driver import call, error_text, libcuda
from hetero.errors import DeviceMemoryError
from hetero.host import cpu

_HUGE_PAGE = 2 << 20  # bytes of a huge page
_TOUCHED = 4 << 20  # bytes for each thread that touches pages, at least
_MOST_THREADS = 8  # that touch pages: more wait for one another in the kernel
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, from Linux 5.14 on
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context
_BLOCKING_SYNC, _NO_TIMING = 1, 2  # the driver's CU_EVENT_BLOCKING_SYNC and _DISABLE_TIMING
_MEMORY_TYPE, _HOST = 2, 1  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_HOST


_advise = ctypes.CDLL(None).madvise


def driver_knows(array: np.ndarray) -> bool:
    """Whether the CUDA driver says that an array lies in pinned memory, whoever made it."""
    kind = ctypes.c_uint(0)
    address = ctypes.c_uint64(array.__array_interface__["data"][0])
    status = libcuda().cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, address)
    return status == 0 and kind.value == _HOST


def cuda_pages(nbytes: int, ordinal: int, is_inherited: bool) -> np.ndarray:
    """Pinned memory (uint8), by the primary context of a CUDA device, which must be current.

    A forked child gets a copy where it ``is_inherited``, in memory that is not pinned; else it has
    none. DeviceMemoryError if the system or the driver refuses it.
    """
    pages = _CudaPages(max(nbytes, 1), ordinal, is_inherited)
    return np.frombuffer(pages, np.uint8, nbytes, pages.offset)


class _CudaPages(mmap.mmap):
    """Pages that are pinned until nobody holds them.

    Attributes
    ----------
    offset : int
        Bytes before the first one that is pinned: large memory begins where a huge page does.
    """

    def __new__(cls, nbytes: int, ordinal: int, is_inherited: bool) -> _CudaPages:
        try:
            room = nbytes + _HUGE_PAGE if nbytes >= _HUGE_PAGE else nbytes
            made = super().__new__(cls, -1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as error:
            raise DeviceMemoryError(f"out of host memory: {error}") from error
        made._process, made._ordinal, made._address = os.getpid(), ordinal, 0
        for advice in ("MADV_HUGEPAGE", *(() if is_inherited else ("MADV_DONTFORK",))):
            if hasattr(mmap, advice):
                with contextlib.suppress(OSError):  # a kernel without it
                    made.madvise(getattr(mmap, advice))
        address = np.frombuffer(made, np.uint8).__array_interface__["data"][0]
        made.offset = -address % _HUGE_PAGE if room > nbytes else 0
        address += made.offset
        _touch(address, nbytes)
        status = libcuda().cuMemHostRegister_v2(
            ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _PORTABLE
        )
        if status:
            raise DeviceMemoryError(f"the driver does not pin {nbytes} bytes: {error_text(status)}")
        made._address = address
        return made

    def __del__(self) -> None:
        if not getattr(self, "_address", 0) or os.getpid() != self._process:
            return
        # In the primary context, if it is still there: any thread may be the last to hold them.
        library, device = libcuda(), ctypes.c_int()
        flags, active, context = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
        library.cuDeviceGet(ctypes.byref(device), self._ordinal)
        library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if not active.value or library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return
        if not library.cuCtxPushCurrent_v2(context):
            _twice(library.cuMemHostUnregister, ctypes.c_void_p(self._address))
            _twice(library.cuCtxPopCurrent_v2, ctypes.byref(ctypes.c_void_p()))
        _twice(library.cuDevicePrimaryCtxRelease_v2, device)


def _touch(address: int, nbytes: int) -> None:
    """Have the system find and clear pages, by several threads; the driver does what is left.

    It would do so with one, and nobody else could copy meanwhile.
    """
    count = min(nbytes // _TOUCHED, _MOST_THREADS, cpu.cores() // 2)
    if count < 2:
        return
    part = -(-nbytes // count // _HUGE_PAGE) * _HUGE_PAGE
    begins = range(0, nbytes, part)

    def touch(begin: int) -> None:
        size = min(part, nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        _advise(ctypes.c_void_p(address + begin), ctypes.c_size_t(size), _POPULATE_WRITE)

    at_once.side_by_side([functools.partial(touch, begin) for begin in begins])


def _twice(function: Any, argument: Any) -> None:
    """Call what gives something back again if it fails: nobody else would."""
    if function(argument):
        function(argument)


def sleeping_event() -> int:
    """A CUDA event of the current context's; who waits for it sleeps."""
    made = ctypes.c_void_p()
    call("cuEventCreate", ctypes.byref(made), _NO_TIMING | _BLOCKING_SYNC)
    return made.value or 0


def end_event(handle: int) -> None:
    """Give an event of `sleeping_event` back to the driver."""
    libcuda().cuEventDestroy_v2(ctypes.c_void_p(handle))
