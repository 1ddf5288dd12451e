"""CUDA devices through PyCUDA.

The primary context is retained, never made current at import, pushed around each use and popped
after it, so that CuPy, torch, numba and cuBLAS share it and nothing is left on the stack at exit.
A thread that has a PyCUDA context of its own on the device (``pycuda.autoinit``) is served in that
one, because its arrays live there. Work goes to the legacy default stream, unless it is given one
made by `CudaDevice.new_stream`, which the legacy stream neither waits for nor holds up.

`cuda_context` has the contexts, `cuda_launch` the kernels, `cuda_streams` the order with streams of
others, this file the memory and our own streams.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import warnings
from types import MappingProxyType
from typing import Any

import numpy as np

from hetero.arrays.pinned import holds, known
from hetero.devices import budget, cards, cubin, cuda_rows, install, pinned, team
from hetero.devices.base import Device
from hetero.devices.copy_jobs import DOWNLOAD, LONG_BYTES, UPLOAD, here
from hetero.devices.cuda_state import Lent
from hetero.devices.cuda_streams import CudaStreams
from hetero.devices.lanes import PURPOSE
from hetero.devices.staging import Ring, compile_ahead
from hetero.errors import DeviceError
from hetero.kernels.cpu import blas_spin, lane
from hetero.kernels.procedure.card import Card

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which PyCUDA has no name for
_COPY_BYTES = 1 << 30  # PyCUDA counts the bytes of a copy within a device in 32 bits
log = logging.getLogger("hetero")


def _undisturbed(array: np.ndarray) -> Any:
    """A context in which a BLAS leaves the cores to the copy of a host array, if that is long."""
    # The first one does not wait until that is possible: 50 ms, the copy of 64 MiB takes 8.
    return blas_spin.asleep(0.0) if array.nbytes >= LONG_BYTES else contextlib.nullcontext()


def find() -> tuple[list[Device], list[str]]:
    """The CUDA devices here, and a sentence for each thing that is missing."""
    try:
        with warnings.catch_warnings():  # it warns before it raises, and we report what it raises
            warnings.simplefilter("ignore")
            import pycuda.driver as driver
    except ModuleNotFoundError:
        return [], [f"cuda: PyCUDA is not installed; {install.CUDA}"]
    except Exception as error:
        return [], [f"cuda: PyCUDA finds no NVIDIA driver; install the driver ({error})"]
    try:
        driver.init()
        count = driver.Device.count()
    except driver.Error as error:
        return [], [f"cuda: the driver finds no device ({error})"]
    if not count:
        return [], ["cuda: the driver finds no device"]
    missing = []
    if cubin.compiler() is None:
        missing.append(f"cuda: neither NVRTC nor nvcc to compile kernels with; {install.CUDA}")
    try:
        import nvmath.bindings.cublas  # noqa: F401
    except Exception:
        missing.append(f"cuda: nvmath-python or cuBLAS for method='library'; {install.LIBRARY}")
    found: list[Device] = []
    for ordinal in range(count):
        try:
            found.append(CudaDevice(ordinal))
        except driver.Error as error:
            missing.append(f"cuda:{ordinal}: the driver does not describe it ({error})")
    return found, missing


class CudaDevice(CudaStreams):
    """One NVIDIA GPU."""

    kind = "cuda"
    dialect = "cuda"
    stages = True
    has_arrays = True
    enqueues = True
    least_staged = MappingProxyType({UPLOAD: 8 << 20, DOWNLOAD: 8 << 20})  # before calibration

    def __init__(self, ordinal: int) -> None:
        import pycuda.driver as driver

        super().__init__(driver, ordinal)
        attribute = driver.device_attribute
        self.multiprocessors = self._device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
        self.block_limit = self._device.get_attribute(attribute.MAX_THREADS_PER_BLOCK)
        self.shared_limit = self._device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.capability = self._device.compute_capability()
        self.arch = "sm_{}{}".format(*self.capability)
        self._description = self._describe()
        self._card: Card | None = None

    @property
    def clock_rate(self) -> float:
        """The highest clock of the multiprocessors, in Hz."""
        return 1e3 * self._device.get_attribute(self.driver.device_attribute.CLOCK_RATE)

    def card(self) -> Card:
        if self._card is None:
            attribute = self.driver.device_attribute
            self._card = cards.of_attributes(
                self, lambda name: self._device.get_attribute(getattr(attribute, name))
            )
        return self._card

    def describe(self) -> dict[str, Any]:
        """kind, name, pci_bus_id, memory_bytes, multiprocessors, block_limit, shared_limit, arch,
        driver, toolkit, library."""
        return dict(self._description)

    def _describe(self) -> dict[str, Any]:
        version = self.driver.get_driver_version()
        return {
            "kind": self.kind,
            "name": self._device.name(),
            "pci_bus_id": self._bus_id,
            "memory_bytes": int(self._device.total_memory()),
            "multiprocessors": self.multiprocessors,
            "block_limit": self.block_limit,
            "shared_limit": self.shared_limit,
            "arch": self.arch,
            "driver": f"{version // 1000}.{version % 1000 // 10}",
            "toolkit": cubin.compiler(),
            "library": _library_version(),
        }

    def allocate(self, nbytes: int) -> tuple[int, Any]:
        pool = self.state().pool
        owner = budget.allocated(self.name, budget.rounded(nbytes), lambda: pool.allocate(nbytes))
        self.keep(owner)
        return int(owner), owner

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, int]:
        """A C-contiguous PyCUDA GPUArray from the pool, and its address."""
        from pycuda import gpuarray

        with self.active():
            made = gpuarray.GPUArray(shape, dtype, allocator=self.state().pool.allocate)
        return made, int(made.gpudata or 0)

    def upload(self, source: np.ndarray, target: int, offset: int = 0, stream: Any = None) -> None:
        if stream is None:
            if not self.staged(UPLOAD, source, target, offset):
                with _undisturbed(source):
                    self.driver.memcpy_htod(target + offset, source)
        else:
            self.driver.memcpy_htod_async(target + offset, source, stream.raw)

    def download(
        self, source: int, target: np.ndarray, offset: int = 0, stream: Any = None
    ) -> None:
        if stream is None:
            self._not_captured("bringing results to the host")
            if not self.staged(DOWNLOAD, target, source, offset):
                with _undisturbed(target):
                    self.driver.memcpy_dtoh(target, source + offset)
        else:
            self.driver.memcpy_dtoh_async(target, source + offset, stream.raw)

    def enqueue_upload(self, source: np.ndarray, target: int) -> None:
        self.driver.memcpy_htod_async(target, source)

    def fill(self, buffer: int, nbytes: int, offset: int = 0, stream: Any = None) -> None:
        queue = self._queue(stream)
        for done in range(0, nbytes, _COPY_BYTES):
            size = min(_COPY_BYTES, nbytes - done)
            self.driver.memset_d8_async(buffer + offset + done, 0, size, queue)

    def copy(
        self,
        target: int,
        source: int,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        to, begin, queue = target + target_offset, source + source_offset, self._queue(stream)
        for done in range(0, nbytes, _COPY_BYTES):
            size = min(_COPY_BYTES, nbytes - done)
            self.driver.memcpy_dtod_async(to + done, begin + done, size, queue)

    def link(self, peer: Device) -> bool:
        if not isinstance(peer, CudaDevice) or not self._device.can_access_peer(peer._device):
            return False
        context = self.driver.Context
        with peer.active():
            other = context.get_current()
        with self.active():
            try:
                context.enable_peer_access(other)
            except self.driver.Error as error:
                if "already enabled" not in str(error).replace("_", " ").lower():
                    raise
        return True

    def copy_directly(
        self,
        target: int,
        peer: Device,
        source: int,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        # Under unified addressing the driver tells from the addresses which devices they are on.
        self.copy(target, source, nbytes, target_offset, source_offset, stream)

    def event(self, stream: Any = None) -> Any:
        mark = Lent(self.state().marks, self.driver.Event)
        mark.raw.record(stream and stream.raw)
        return mark

    def elapsed(self, start: Any, end: Any) -> float:
        end.raw.synchronize()
        return end.raw.time_since(start.raw) * 1e-3

    def passed(self, mark: Any) -> bool:
        return mark.raw.query()

    def synchronize(self, stream: Any = None) -> None:
        if stream is None:
            self._not_captured("waiting for the device")
            self.driver.Context.synchronize()
        else:
            stream.raw.synchronize()

    def new_stream(self) -> Any:
        return Lent(self.state().streams, lambda: self.driver.Stream(_NON_BLOCKING))

    def record(self, stream: Any = None, event: Any = None) -> Any:
        if event is None:
            untimed = self.driver.event_flags.DISABLE_TIMING
            event = Lent(self.state().events, lambda: self.driver.Event(untimed))
        event.raw.record(stream and stream.raw)
        return event

    def wait(self, event: Any, stream: Any = None) -> None:
        if stream is None:  # PyCUDA has no object for the default stream
            event.raw.synchronize()
        else:
            stream.raw.wait_for_event(event.raw)

    def pinned(self, nbytes: int, purpose: str = "pinned arrays") -> np.ndarray:
        if self.same_in_threads():
            made = pinned.cuda_pages(nbytes, self.ordinal, purpose != PURPOSE)
        else:
            made = self.driver.pagelocked_empty(max(nbytes, 1), np.uint8)
        return known(made, purpose)[:nbytes]

    def is_pinned(self, array: np.ndarray) -> bool:
        return holds(array) or pinned.driver_knows(array)

    def ring(self) -> Ring | None:
        if here.is_plain or self.capturing or not self.same_in_threads():
            return None
        state = self.state()
        if state.ring is None:
            with self._lock:
                if state.ring is None:
                    compile_ahead()
                    state.ring = Ring(self, ahead=True)
        return state.ring

    def send(
        self,
        direction: str,
        array: np.ndarray,
        buffer: int,
        offset: int,
        stream: Any,
        awake: bool = False,
    ) -> Any:
        # One mark for all parts: the bus rests for 10 us where a stream comes past one.
        for part, begin in cuda_rows.parts(array):
            to = buffer + offset + begin
            if not part.flags.c_contiguous:
                cuda_rows.send(direction, part, to, stream.handle)
            elif direction == UPLOAD:
                self.driver.memcpy_htod_async(to, part, stream.raw)
            else:
                self.driver.memcpy_dtoh_async(part, to, stream.raw)
        if awake:
            return self.record(stream)
        flags = self.driver.event_flags
        asleep = flags.DISABLE_TIMING | flags.BLOCKING_SYNC
        mark = Lent(self.state().copied, lambda: self.driver.Event(asleep))
        mark.raw.record(stream.raw)
        return mark

    def sends_rows(self, array: np.ndarray) -> bool:
        return cuda_rows.rows(array) is not None

    def sends_slices(self, direction: str) -> bool:
        return lane.ready("serve") is not None

    def will_send_slices(self, direction: str) -> bool:
        return lane.ready("serve") is not None or not lane.settled.is_set()

    def send_slices(
        self,
        direction: str,
        array: np.ndarray,
        buffer: int,
        offset: int,
        region: np.ndarray,
        stream: Any,
        cancel: Any,
        helpers: int,
    ) -> None:
        told = team.cut(direction, array, region.nbytes)
        marks = [self.state().handle_of_event() for _ in range(told["buffers"])]
        told |= lane.functions(pinned.driver())[direction]
        told |= {f"event {number}": mark for number, mark in enumerate(marks)}
        told |= {
            "device": buffer + offset,
            "base": region.__array_interface__["data"][0],
            "stream": stream.handle,
            "cancel": ctypes.addressof(cancel),
        }
        status = team.current(helpers).run(direction, told)
        self.state().handles_of_events.extend(marks)
        if status > 0:
            raise DeviceError(f"a staged {direction} failed: {pinned.error_text(status)}")

    def await_sent(self, mark: Any) -> None:
        mark.raw.synchronize()

    def staging(self, nbytes: int) -> np.ndarray:
        state = self.state()
        if state.staging is None or state.staging.nbytes < nbytes:
            state.staging = self.pinned(nbytes, "pinned, between devices")
        return state.staging[:nbytes]


def _library_version() -> str | None:
    try:
        from nvmath.bindings import cublas

        return ".".join(str(cublas.get_property(part)) for part in range(3))
    except Exception:  # package or library missing, or too old: there is no cuBLAS for us
        return None
