"""Memory that CUDA devices compute in, pinned memory of the host, and copies between the two.

Pinned pages are our own, and the driver registers them (``cuMemHostRegister``). Memory that the
driver allocates is gone with its context, which a device that failed loses; these stay what they
are, only slower. They are huge pages where the system gives them. Of a pinned matrix the bus takes
row after row, the host nothing; slices of ordinary memory are copied by compiled loops.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import Any

import numpy as np

from hetero.devices.cuda import driver
from hetero.devices.storage import Storage, rounded
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.host.copying.staging import DOWNLOAD, UPLOAD, pieces, rows

_HUGE_PAGE = 2 << 20  # bytes of a huge page
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context
_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
_PART = 64 << 20  # bytes that are copied at once: both directions then share the bus better
_SEND = {UPLOAD: "cuMemcpyHtoDAsync_v2", DOWNLOAD: "cuMemcpyDtoHAsync_v2"}


class Pool:
    """Memory of one context. The driver's own allocation takes 100 us and waits, so freed memory is
    kept for the next call; freeing makes no call to the driver, in whatever thread and context a
    garbage collector does it.

    Where memory is short, what is only kept for later calls in ``storage`` goes; where it is short
    still, copies of operands. ``holder`` is PyCUDA's type of pointers.
    """

    def __init__(self, holder: type, ordinal: int, storage: Storage) -> None:
        self.nbytes = 0  # that were had from the driver and not given back
        self._storage = storage
        self._free: dict[int, list[int]] = {}  # size -> addresses

        class Block(holder):
            """Device memory that goes back to the pool when nobody holds it, in any thread."""

            def __init__(block, size: int, address: int) -> None:
                super().__init__()
                block.size, block.address, block.ordinal = size, address, ordinal

            def get_pointer(block) -> int:
                return block.address

            __int__ = __index__ = get_pointer

            def __del__(block) -> None:
                self._free.setdefault(block.size, []).append(block.address)

        self._block = Block

    def allocate(self, nbytes: int) -> Any:
        """Memory for ``nbytes`` bytes, as PyCUDA's pointer holder."""
        size = rounded(nbytes)
        try:
            return self._block(size, self._free[size].pop())
        except (KeyError, IndexError):
            pass
        if self.unused() + size > driver.free_memory() // 2:
            self.trim()
        try:
            address = driver.given("cuMemAlloc_v2", size)
        except DeviceMemoryError as error:
            address = self._when_short(size, error)
        self.nbytes += size
        return self._block(size, address)

    def _when_short(self, size: int, refused: Exception) -> int:
        """An allocation that was refused, once there is room; what is easily made anew goes first,
        and the error is raised where nothing is left to let go of."""
        self._storage.drop()
        while True:
            if self.trim():
                with contextlib.suppress(DeviceMemoryError):
                    return driver.given("cuMemAlloc_v2", size)
            if not self._storage.shed(size):
                raise refused

    def unused(self) -> int:
        """Bytes that are kept and in nobody's use."""
        return sum(size * len(free) for size, free in list(self._free.items()))

    def trim(self) -> bool:
        """Give unused memory back to the driver, once nothing that runs can still touch it; True
        if there was some."""
        driver.call("cuCtxSynchronize")
        found = False
        for size, free in list(self._free.items()):
            with contextlib.suppress(IndexError):  # other threads take and return blocks
                while True:
                    address = free.pop()
                    found = True
                    self.nbytes -= size
                    driver.twice("cuMemFree_v2", address)
        return found


class Pages(mmap.mmap):
    """Pages that are pinned until nobody holds them, by the primary context of a device, which the
    driver numbers so.

    A forked child gets a copy where they are ``is_inherited``, in memory that is not pinned; else
    it has none. DeviceMemoryError if the system or the driver refuses them.

    Attributes
    ----------
    offset : int
        Bytes before the first one that is pinned: large memory begins where a huge page does.
    """

    def __new__(cls, nbytes: int, device: int, is_inherited: bool) -> Pages:
        try:
            room = nbytes + _HUGE_PAGE if nbytes >= _HUGE_PAGE else nbytes
            made = super().__new__(cls, -1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as error:
            raise DeviceMemoryError(f"out of host memory: {error}") from error
        made._process, made._device, made._address = os.getpid(), device, 0
        for advice in ("MADV_HUGEPAGE", *(() if is_inherited else ("MADV_DONTFORK",))):
            if hasattr(mmap, advice):
                with contextlib.suppress(OSError):  # a kernel without it
                    made.madvise(getattr(mmap, advice))
        address = np.frombuffer(made, np.uint8).__array_interface__["data"][0]
        made.offset = -address % _HUGE_PAGE if room > nbytes else 0
        address += made.offset
        try:
            with driver.primary(device):
                driver.call("cuMemHostRegister_v2", address, nbytes, _PORTABLE)
                made._address = address
        except DeviceError as error:
            raise DeviceMemoryError(f"the driver does not pin {nbytes} bytes: {error}") from error
        return made

    def __del__(self) -> None:
        if getattr(self, "_address", 0) and os.getpid() == self._process:
            # Where that context is gone, they are no longer pinned.
            with contextlib.suppress(DeviceError), driver.primary(self._device):
                driver.twice("cuMemHostUnregister", self._address)


# -- Copies from and to the host


def address_of(array: np.ndarray) -> int:
    """Where an array's first element lies."""
    return array.__array_interface__["data"][0]


def start(direction: str, array: np.ndarray, address: int, stream: int) -> None:
    """Let a stream, which is the driver's handle, copy a pinned array, contiguous or of `rows`, to
    an address of packed device memory, or from there."""
    for part, begin in pieces(array, _PART):
        there = address + begin
        if part.flags.c_contiguous:
            ends = (there, address_of(part)) if direction == UPLOAD else (address_of(part), there)
            driver.call(_SEND[direction], *ends, part.nbytes, stream)
        else:
            copy_rows(direction, part, there, stream)


def copy_rows(direction: str, array: np.ndarray, address: int, stream: int) -> None:
    """`start` of a matrix of `rows`."""
    number, nbytes, pitch = rows(array)
    here = 0, 0, _HOST, address_of(array), 0, 0, pitch  # CUDA_MEMCPY2D: two sides, width and height
    there = 0, 0, _DEVICE, 0, address, 0, nbytes
    sides = here + there if direction == UPLOAD else there + here
    words = (ctypes.c_uint64 * 16)(*sides, nbytes, number)
    driver.call("cuMemcpy2DAsync_v2", words, stream)


def slice_calls(direction: str, stream: Any, events: list[Any]) -> dict[str, Any]:
    """What `hetero.host.copying.slices.copy` takes of the driver, to copy one way in a stream's
    order with these events (`hetero.devices.cuda.context.Lent`)."""
    functions = {"send": _SEND[direction], "record": "cuEventRecord", "query": "cuEventQuery"}
    found: dict[str, Any] = {"stream": stream, "events": events, "text": driver.error_text}
    for name, function in functions.items():
        found[name] = ctypes.cast(driver.libcuda()[function], ctypes.c_void_p).value
    return found
