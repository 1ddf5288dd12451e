"""CUDA devices through PyCUDA.

The primary context is retained, never made current at import, pushed around each use and popped
after it, so that CuPy, torch, numba and cuBLAS share it and nothing is left on the stack at exit.
A thread that has a PyCUDA context of its own on the device (``pycuda.autoinit``) is served in that
one, because its arrays live there. Work goes to the legacy default stream, unless it is given one
made by `CudaDevice.new_stream`, which the legacy stream neither waits for nor holds up.

`context` has the contexts, `launch` the kernels, `streams` the order with streams of others,
`copies` the copies from and to the host, this file the memory and our own streams.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from hetero.devices import budget, cards, install
from hetero.devices.base import Device
from hetero.devices.cuda import cubin
from hetero.devices.cuda.copies import CudaCopies
from hetero.devices.cuda.state import Lent
from hetero.imports import load
from hetero.kernels.procedure.card import Card

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which PyCUDA has no name for
_COPY_BYTES = 1 << 30  # PyCUDA counts the bytes of a copy within a device in 32 bits


def find() -> tuple[list[Device], list[str]]:
    """The CUDA devices here, and a sentence for each thing that is missing."""
    try:
        with warnings.catch_warnings():  # it warns before it raises, and we report what it raises
            warnings.simplefilter("ignore")
            driver = load("pycuda.driver")
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
        load("nvmath.bindings.cublas")
    except Exception:
        missing.append(f"cuda: nvmath-python or cuBLAS for method='library'; {install.LIBRARY}")
    found: list[Device] = []
    for ordinal in range(count):
        try:
            found.append(CudaDevice(ordinal))
        except driver.Error as error:
            missing.append(f"cuda:{ordinal}: the driver does not describe it ({error})")
    return found, missing


class CudaDevice(CudaCopies):
    """One NVIDIA GPU."""

    kind = "cuda"
    dialect = "cuda"
    has_arrays = True

    def __init__(self, ordinal: int) -> None:
        driver = load("pycuda.driver")
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
        gpuarray = load("pycuda.gpuarray")
        with self.active():
            made = gpuarray.GPUArray(shape, dtype, allocator=self.state().pool.allocate)
        return made, int(made.gpudata or 0)

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


def _library_version() -> str | None:
    try:
        cublas = load("nvmath.bindings.cublas")
        return ".".join(str(cublas.get_property(part)) for part in range(3))
    except Exception:  # package or library missing, or too old: there is no cuBLAS for us
        return None
