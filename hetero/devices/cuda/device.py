"""One NVIDIA GPU, pinned memory of the host, and copies between the two.

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
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays.operand import known_pinned
from hetero.devices.base import Device
from hetero.devices.cuda import compiler, driver, libraries
from hetero.devices.cuda.compiler import Compiling
from hetero.devices.cuda.context import Lent
from hetero.devices.storage import allocated, rounded
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.host.copying import slices
from hetero.host.copying.staging import DOWNLOAD, PURPOSE, UPLOAD, pieces, rows

_ATTRIBUTES = {  # CU_DEVICE_ATTRIBUTE_...
    "MAX_THREADS_PER_BLOCK": 1,
    "MAX_SHARED_MEMORY_PER_BLOCK": 8,
    "WARP_SIZE": 10,
    "MULTIPROCESSOR_COUNT": 16,
    "MAX_THREADS_PER_MULTIPROCESSOR": 39,
    "COMPUTE_CAPABILITY_MAJOR": 75,
    "COMPUTE_CAPABILITY_MINOR": 76,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 81,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 82,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 106,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 111,
}
_HUGE_PAGE = 2 << 20  # bytes of a huge page
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context
_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
_PART = 64 << 20  # bytes that are copied at once: both directions then share the bus better
_SEND = {UPLOAD: "cuMemcpyHtoDAsync_v2", DOWNLOAD: "cuMemcpyDtoHAsync_v2"}
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which PyCUDA has no name for
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: other threads may do what they like
# CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, _PEER_ACCESS_ALREADY_ENABLED, _NOT_READY
_NO_PATH, _IS_OPEN, _NOT_READY = 217, 704, 600


class CudaDevice(Compiling):
    """One NVIDIA GPU, called by ``package``: ``pycuda.driver``, or `hetero.devices.cuda.driver`.

    Attributes
    ----------
    arch : str
        Such as "sm_90".
    """

    stages = True

    def __init__(self, ordinal: int, package: Any, package_name: str) -> None:
        super().__init__(ordinal, package)
        self.name = f"cuda:{ordinal}"
        self.multiprocessors = self.attribute("MULTIPROCESSOR_COUNT")
        self.block_limit = self.attribute("MAX_THREADS_PER_BLOCK")
        self.shared_limit = self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        major, minor = (self.attribute(f"COMPUTE_CAPABILITY_{n}") for n in ("MAJOR", "MINOR"))
        self.capability, arch = (major, minor), f"sm_{major}{minor}"
        # Code for tensor cores by groups of warps is for this capability alone.
        self.arch = f"{arch}a" if self.capability == (9, 0) else arch
        version = driver.given("cuDriverGetVersion")
        self._description = {
            "kind": self.kind,
            "name": driver.text("cuDeviceGetName", self.number),
            "pci_bus_id": driver.text("cuDeviceGetPCIBusId", self.number),
            "memory_bytes": driver.given("cuDeviceTotalMem_v2", self.number),
            "multiprocessors": self.multiprocessors,
            "block_limit": self.block_limit,
            "shared_limit": self.shared_limit,
            "arch": arch,
            "driver": f"{version // 1000}.{version % 1000 // 10}",
            "driver_api": package_name,
            "toolkit": compiler.version(),
            "library": _library_version(),
        }

    # -- what it is

    def attribute(self, name: str) -> int:
        """What the driver says of the device, by the name that CUDA has for it."""
        return driver.given("cuDeviceGetAttribute", _ATTRIBUTES[name], self.number)

    def describe(self) -> dict[str, Any]:
        """kind, name, pci_bus_id, memory_bytes, multiprocessors, block_limit, shared_limit, arch,
        driver, driver_api, toolkit, library."""
        return dict(self._description)

    # -- its memory

    def allocate(self, nbytes: int) -> tuple[int, Any]:
        pool = self.state().pool
        owner = allocated(self.name, rounded(nbytes), lambda: pool.allocate(nbytes))
        return int(owner), owner

    def new_array(
        self, shape: tuple[int, ...], dtype: np.dtype, order: str = "C"
    ) -> tuple[Any, int]:
        """A dense array from the pool, PyCUDA's where that is used, and its address."""
        with self.active():
            allocate = self.state().pool.allocate
            made = driver.array_type(self.driver)(shape, dtype, allocator=allocate, order=order)
        return made, int(made.gpudata or 0)

    def array_of(self, host: np.ndarray) -> Any:
        """A copy of a host array as `new_array` gives it, in Fortran order if it is not in C."""
        is_c = host.flags.c_contiguous
        with self.active():
            made, address = self.new_array(host.shape, host.dtype, "C" if is_c else "F")
            self.upload(host if is_c else host.T, address)
        return made

    def fill(self, buffer: int, nbytes: int, stream: Any = None) -> None:
        driver.call("cuMemsetD8Async", buffer, 0, nbytes, _handle(stream))

    def copy(
        self,
        target: int,
        source: int,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        # Under unified addressing the driver tells from the addresses which devices they are on.
        ends = target + target_offset, source + source_offset
        driver.call("cuMemcpyDtoDAsync_v2", *ends, nbytes, _handle(stream))

    def link(self, peer: Device) -> bool:
        if not isinstance(peer, CudaDevice):
            return False
        with peer.active():
            other = driver.current_context() or 0
        with self.active():
            status = driver.status_of("cuCtxEnablePeerAccess", other, 0)
            if status not in (0, _NO_PATH, _IS_OPEN):
                raise driver.error_of("cuCtxEnablePeerAccess", status)
        return status != _NO_PATH

    # -- copies from and to the host

    def enqueue(
        self,
        direction: str,
        array: np.ndarray,
        buffer: int,
        offset: int = 0,
        stream: Any = None,
    ) -> Any:
        if stream is None:
            if direction == UPLOAD:
                return self.driver.memcpy_htod(buffer + offset, array)
            return self.driver.memcpy_dtoh(array, buffer + offset)
        for part, begin in pieces(array, _PART):
            here, there = part.__array_interface__["data"][0], buffer + offset + begin
            if part.flags.c_contiguous:
                ends = (there, here) if direction == UPLOAD else (here, there)
                driver.call(_SEND[direction], *ends, part.nbytes, stream.handle)
            else:
                number, nbytes, pitch = rows(part)
                # CUDA_MEMCPY2D: the side that is read, that which is written, width and height.
                host, own = (0, 0, _HOST, here, 0, 0, pitch), (0, 0, _DEVICE, 0, there, 0, nbytes)
                sides = host + own if direction == UPLOAD else own + host
                words = (ctypes.c_uint64 * 16)(*sides, nbytes, number)
                driver.call("cuMemcpy2DAsync_v2", words, stream.handle)
        # One event for all parts: the bus rests for 10 us where a stream comes past one.
        return self.record(stream)

    def pinned(self, nbytes: int, purpose: str = "pinned arrays") -> np.ndarray:
        self.primary()
        pages = Pages(max(nbytes, 1), self.number, purpose != PURPOSE)
        return known_pinned(np.frombuffer(pages, np.uint8, nbytes, pages.offset), purpose)

    def is_pinned(self, array: np.ndarray) -> bool:
        if super().is_pinned(array):
            return True
        return driver.is_pinned(array.__array_interface__["data"][0])

    def slice_calls(self, direction: str, stream: Any) -> dict[str, Any] | None:
        if not slices.library():
            return None
        events = [self._event(driver.UNTIMED) for _ in range(slices.BUFFERS)]
        found: dict[str, Any] = {"stream": stream, "events": events, "text": driver.error_text}
        functions = {"send": _SEND[direction], "record": "cuEventRecord", "query": "cuEventQuery"}
        for name, function in functions.items():
            found[name] = ctypes.cast(driver.libcuda()[function], ctypes.c_void_p).value
        return found

    # -- what orders the work that was started

    def _event(self, flags: int) -> Lent:
        return Lent(self.state().events[flags], lambda: driver.given("cuEventCreate", flags))

    def elapsed(self, start: Any, end: Any) -> float:
        self.wait(end)
        milliseconds = ctypes.c_float()
        ends = start.handle, end.handle
        driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), *ends)
        return milliseconds.value * 1e-3

    def passed(self, event: Any) -> bool:
        status = driver.status_of("cuEventQuery", event.handle)
        if status not in (0, _NOT_READY):
            raise driver.error_of("cuEventQuery", status)
        return not status

    def synchronize(self, stream: Any = None) -> None:
        if stream is None:
            driver.call("cuCtxSynchronize")
        else:
            driver.call("cuStreamSynchronize", stream.handle)

    def new_stream(self) -> Any:
        return Lent(self.state().streams, lambda: self.driver.Stream(_NON_BLOCKING))

    def graph(self, stream: Any, start: Callable[[], object]) -> Graph:
        return Graph(self, stream, start)

    def record(self, stream: Any = None, timed: bool = False) -> Any:
        event = self._event(driver.TIMED if timed else driver.UNTIMED)
        driver.call("cuEventRecord", event.handle, _handle(stream))
        return event

    def wait(self, event: Any, stream: Any = None) -> None:
        if stream is None:
            driver.call("cuEventSynchronize", event.handle)
        else:
            driver.call("cuStreamWaitEvent", stream.handle, event.handle, 0)

    order = staticmethod(driver.order)  # of two handles; 0 is the default queue's


class Graph:
    """What ``start()`` gives a stream, recorded and not done: `launch` starts all of it at once.

    Made and launched inside the device's `active`. What the launches use must outlive it.
    """

    def __init__(self, device: CudaDevice, stream: Any, start: Callable[[], object]) -> None:
        self._device, self._state, self._stream = device, device.state(), stream
        self._handle, recorded = 0, ctypes.c_uint64()
        driver.call("cuStreamBeginCapture_v2", stream.handle, _RELAXED)
        try:
            start()
        finally:  # else the stream would do nothing any more
            driver.call("cuStreamEndCapture", stream.handle, ctypes.byref(recorded))
        try:
            self._handle = driver.given("cuGraphInstantiateWithFlags", recorded.value, 0)
        finally:
            driver.call("cuGraphDestroy", recorded.value)

    def launch(self) -> None:
        """Start it in its stream."""
        driver.call("cuGraphLaunch", self._handle, self._stream.handle)

    def __del__(self) -> None:  # the driver waits for what still runs
        if self._handle and not sys.is_finalizing() and self._device.holds(self._state):
            with contextlib.suppress(Exception), self._device.active():
                driver.call("cuGraphExecDestroy", self._handle)


def _handle(stream: Any) -> int:
    return driver.LEGACY if stream is None else stream.handle


# -- Pinned memory ---------------------------------------------------------------------------------


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
        for advice in (mmap.MADV_HUGEPAGE, *(() if is_inherited else (mmap.MADV_DONTFORK,))):
            with contextlib.suppress(OSError):  # a kernel without it
                made.madvise(advice)
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


def _library_version() -> str | None:
    try:
        return libraries.cublas().version()
    except Exception:  # it is missing, or too old: there is no cuBLAS for us
        return None
