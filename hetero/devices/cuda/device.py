"""One NVIDIA GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays.pinned import known
from hetero.devices.base import Defines, Device
from hetero.devices.cuda import compiler, cooperative, copies, driver, libraries, pinned
from hetero.devices.cuda.compiler import Compiling
from hetero.devices.cuda.context import Active, Contexts, Lent, Local, State
from hetero.devices.storage import Storage, allocated, rounded
from hetero.host.copying import slices
from hetero.host.copying.copy_jobs import UPLOAD
from hetero.host.copying.staging import PURPOSE, Ring
from hetero.kernels.procedure import Card, of_attributes

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which PyCUDA has no name for
_COPY_BYTES = 1 << 30  # PyCUDA counts the bytes of a copy within a device in 32 bits


class CudaDevice(Compiling):
    """One NVIDIA GPU, called by ``package``: ``pycuda.driver``, or `hetero.devices.cuda.bindings`.

    Attributes
    ----------
    driver : module
        The package.
    arch : str
        Such as "sm_90".
    contexts : Contexts
        That work is done in.
    local : Local
        What each thread does with the device.
    """

    stages = True

    def __init__(self, ordinal: int, package: Any, package_name: str) -> None:
        self.driver = package
        self.errors = (package.Error,)
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.contexts, self.local, self._ahead = Contexts(self), Local(), set()
        self._device = package.Device(ordinal)
        attribute = package.device_attribute
        self.multiprocessors = self._device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
        self.block_limit = self._device.get_attribute(attribute.MAX_THREADS_PER_BLOCK)
        self.shared_limit = self._device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.capability = self._device.compute_capability()
        arch = "sm_{}{}".format(*self.capability)
        # Code for tensor cores by groups of warps is for this capability alone.
        self.arch = f"{arch}a" if self.capability == (9, 0) else arch
        version = package.get_driver_version()
        self._description = {
            "kind": self.kind,
            "name": self._device.name(),
            "pci_bus_id": self._device.pci_bus_id(),
            "memory_bytes": int(self._device.total_memory()),
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

    @property
    def clock_rate(self) -> float:
        """The highest clock of the multiprocessors, in Hz."""
        return 1e3 * self._device.get_attribute(self.driver.device_attribute.CLOCK_RATE)

    def card(self) -> Card:
        names = self.driver.device_attribute
        return of_attributes(self, lambda name: self._device.get_attribute(getattr(names, name)))

    def describe(self) -> dict[str, Any]:
        """kind, name, pci_bus_id, memory_bytes, multiprocessors, block_limit, shared_limit, arch,
        driver, driver_api, toolkit, library."""
        return dict(self._description)

    # -- where it works

    def active(self) -> Active:
        return Active(self)

    def state(self) -> State:
        """What belongs to the context that `active` made current in this thread."""
        return self.local.state

    def holds(self, wanted: State) -> bool:
        """Whether the context that something belongs to is still in use."""
        return any(state is wanted for state in self.contexts.states.values())

    def same_in_threads(self) -> bool:
        return self.contexts.is_usual()

    context_handle = staticmethod(driver.current_context)

    def reopen(self) -> None:
        self.contexts.renew()

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
        made, address = self.new_array(host.shape, host.dtype, "C" if is_c else "F")
        if host.size:
            with self.active():
                self.upload(host if is_c else host.T, address)
        return made

    def fill(self, buffer: int, nbytes: int, offset: int = 0, stream: Any = None) -> None:
        queue = stream and stream.raw
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
        to, begin, queue = target + target_offset, source + source_offset, stream and stream.raw
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

    def copy_directly(self, target: int, peer: Device, source: int, *where: Any) -> None:
        # Under unified addressing the driver tells from the addresses which devices they are on.
        self.copy(target, source, *where)

    def storage(self) -> Storage:
        return self.state().storage

    def memory_held(self) -> dict[str, int]:
        return self.contexts.memory()

    def trim(self) -> bool:
        with self.active():
            return self.state().trim()

    def clear(self) -> None:
        """`trim` the primary context and this thread's own; others let go of what they keep."""
        self.contexts.clear()

    # -- copies from and to the host

    def enqueue(
        self,
        direction: str,
        array: np.ndarray,
        buffer: int,
        offset: int = 0,
        stream: Any = None,
        awake: bool = False,
    ) -> Any:
        if stream is None:
            if direction == UPLOAD:
                return self.driver.memcpy_htod(buffer + offset, array)
            return self.driver.memcpy_dtoh(array, buffer + offset)
        return copies.enqueue(self, direction, array, buffer + offset, stream, awake)

    def await_event(self, event: Any) -> None:
        event.raw.synchronize()

    def pinned(self, nbytes: int, purpose: str = "pinned arrays") -> np.ndarray:
        if self.same_in_threads():
            made = pinned.cuda_pages(nbytes, self.ordinal, purpose != PURPOSE)
        else:
            made = self.driver.pagelocked_empty(max(nbytes, 1), np.uint8)
        return known(made, purpose)[:nbytes]

    def is_pinned(self, array: np.ndarray) -> bool:
        return super().is_pinned(array) or pinned.driver_knows(array)

    def copies_directly(self, array: np.ndarray) -> bool:
        is_taken = array.flags.c_contiguous or copies.can_take(array)
        return is_taken and self.is_pinned(array)

    def ring(self) -> Ring | None:
        return super().ring() if self.same_in_threads() else None

    def slice_copies(self, direction: str, stream: Any) -> copies.SliceCopies | None:
        return copies.SliceCopies(self.state(), direction, stream) if slices.library() else None

    def staging(self, nbytes: int) -> np.ndarray:
        state = self.state()
        if state.staging is None or state.staging.nbytes < nbytes:
            state.staging = self.pinned(nbytes, "pinned, between devices")
        return state.staging[:nbytes]

    # -- kernels

    def cooperative(
        self, text: str, kernel: str, defines: Defines, block: int, shared_bytes: int
    ) -> cooperative.CooperativeKernel | None:
        return cooperative.load(self, text, kernel, defines, block, shared_bytes)

    # -- what orders the work that was started

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

    def follow_stream(self, handle: int) -> None:
        driver.order(handle, driver.LEGACY)

    def precede_stream(self, handle: int) -> None:
        driver.order(driver.LEGACY, handle)


def _library_version() -> str | None:
    try:
        return libraries.cublas().version()
    except Exception:  # it is missing, or too old: there is no cuBLAS for us
        return None
