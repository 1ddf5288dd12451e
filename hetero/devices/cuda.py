"""CUDA devices through PyCUDA.

The primary context is retained, never made current at import, pushed around each use and popped
after it, so that CuPy, torch, numba and cuBLAS share it and nothing is left on the stack at exit.
A thread that has a PyCUDA context of its own on the device (``pycuda.autoinit``) is served in that
one, because its arrays live there. Work goes to the legacy default stream, unless it is given one
made by `CudaDevice.new_stream`, which the legacy stream neither waits for nor holds up.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import struct
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices import cubin, install
from hetero.devices.base import Device, kernel_text
from hetero.devices.cuda_context import Active, Lent, Local, State
from hetero.devices.storage import Storage
from hetero.devices.workspace import Workspace
from hetero.errors import DeviceError, GraphError
from hetero.kernels import Launch, Steps

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, which PyCUDA has no name for
_UNASKED_SHARED_BYTES = 48 << 10  # more of it a kernel gets only after an attribute is set
_COPY_BYTES = 1 << 30  # PyCUDA counts the bytes of a copy within a device in 32 bits
log = logging.getLogger("hetero")


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


class CudaDevice(Device):
    """One NVIDIA GPU."""

    kind = "cuda"
    dialect = "cuda"

    def __init__(self, ordinal: int) -> None:
        import pycuda.driver as driver

        self.driver = driver
        self.errors = (driver.Error,)
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self._device = driver.Device(ordinal)
        self._primary: Any = None
        self._states: dict[Any, State] = {}
        self._lock = locks.new()
        self.local = Local()
        self._bus_id = self._device.pci_bus_id()
        attribute = driver.device_attribute
        self.multiprocessors = self._device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
        self.block_limit = self._device.get_attribute(attribute.MAX_THREADS_PER_BLOCK)
        self.shared_limit = self._device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.capability = self._device.compute_capability()
        self.arch = "sm_{}{}".format(*self.capability)
        self._description = self._describe()
        self._process = os.getpid()

    @property
    def clock_rate(self) -> float:
        """The highest clock of the multiprocessors, in Hz."""
        return 1e3 * self._device.get_attribute(self.driver.device_attribute.CLOCK_RATE)

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

    def primary(self) -> Any:
        """The primary context, retained on first use and given back at exit."""
        with self._lock:
            if self._primary is None:
                self._primary = self._device.retain_primary_context()
                atexit.register(self._close)
            return self._primary

    def owns(self, context: Any) -> bool:
        """Whether a current context belongs to this device."""
        return context.get_device().pci_bus_id() == self._bus_id

    def active(self) -> Active:
        return Active(self)

    def state(self) -> State:
        """What belongs to the context that `active` made current in this thread."""
        return self.local.state

    def place(self) -> State:
        return self.local.state

    def holds(self, place: State) -> bool:
        """Whether the context that something belongs to is still in use."""
        return any(state is place for state in self._states.values())

    @staticmethod
    def context_handle() -> int | None:
        handle = ctypes.c_void_p()
        _driver_library().cuCtxGetCurrent(ctypes.byref(handle))
        return handle.value

    def find_state(self) -> State:
        """What belongs to the current context."""
        context = self.driver.Context.get_current()
        try:
            return self._states[context]
        except KeyError:
            with self._lock:
                return self._states.setdefault(context, State(self.driver, self.ordinal))

    def _close(self) -> None:
        if os.getpid() != self._process or self._primary is None:
            return  # a forked child must not touch its parent's context
        try:
            with self.active():
                self.driver.Context.synchronize()
                for state in self._states.values():
                    state.close()
        except DeviceError:  # the process is ending; the driver frees the rest
            pass
        self.give_up_context()

    def give_up_context(self) -> None:
        """Give the primary context back, whatever state it is in; the next use gets a new one.

        From then on PyCUDA makes no call to the driver for what belongs to the old one.
        """
        with self._lock:
            primary, self._primary = self._primary, None
            if primary is None:
                return
            handle = primary.handle
            try:  # in another thread than its own PyCUDA detaches without a call, nor a complaint
                detach = threading.Thread(target=primary.detach)
                detach.start()
                detach.join()
            except RuntimeError:  # the interpreter is ending and starts no threads
                primary.detach()
            self.driver.Context.get_current()  # here PyCUDA forgets one that is detached
            library, ordinal = _driver_library(), ctypes.c_int()
            if self.context_handle() == handle:
                library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            library.cuDeviceGet(ctypes.byref(ordinal), self.ordinal)
            library.cuDevicePrimaryCtxRelease_v2(ordinal)
            lost = [s for c, s in self._states.items() if c == primary]
            self._states = {c: s for c, s in self._states.items() if c != primary}
            for state in lost:
                state.storage.drop()

    def reopen(self) -> None:
        try:
            with self.active():
                self.driver.Context.synchronize()
        except DeviceError as error:
            log.debug("%s gets a new context: %s", self.name, error)
            self.give_up_context()

    def storage(self) -> Storage:
        return self.state().storage

    def memory_held(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for state in list(self._states.values()):
            for purpose, nbytes in state.memory().items():
                found[purpose] = found.get(purpose, 0) + nbytes
        return found

    def trim(self) -> bool:
        with self.active():
            return self.state().trim()

    def clear(self) -> None:
        self._not_captured("giving memory back")
        for context, state in list(self._states.items()):
            state.storage.drop()
            try:
                context.push()
            except self.driver.Error as error:  # it is another thread's, and trimmed there in time
                log.debug("a context of %s is not trimmed: %s", self.name, error)
                continue
            try:
                self.trim()
            finally:
                context.pop()

    def allocate(self, nbytes: int) -> tuple[int, Any]:
        owner = self.state().pool.allocate(nbytes)
        self.keep(owner)
        return int(owner), owner

    def keep(self, *things: Any) -> None:
        if self.local.queue is not None:
            self.local.kept.extend(things)

    @property
    def capturing(self) -> bool:
        return self.local.queue is not None

    def begin_capture(self, queue: Any) -> None:
        """From now on this thread's work without a stream goes to one that is captured."""
        self.local.queue = queue

    def end_capture(self) -> Workspace:
        """Back to the default stream; holds what must live as long as the captured work."""
        kept, self.local.queue, self.local.kept = self.local.kept, None, []
        held = Workspace(self, "graphs")
        for thing in kept:
            ours = isinstance(thing, self.driver.PointerHolderBase)
            held.hold(thing, thing.size if ours else 0)
        return held

    def _not_captured(self, what: str) -> None:
        if self.local.queue is not None:
            raise GraphError(f"{what} cannot be part of a graph")

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, int]:
        """A C-contiguous PyCUDA GPUArray from the pool, and its address."""
        from pycuda import gpuarray

        with self.active():
            made = gpuarray.GPUArray(shape, dtype, allocator=self.state().pool.allocate)
        return made, int(made.gpudata or 0)

    def upload(self, source: np.ndarray, target: int, offset: int = 0, stream: Any = None) -> None:
        if stream is None:
            self.driver.memcpy_htod(target + offset, source)
        else:
            self.driver.memcpy_htod_async(target + offset, source, stream.raw)

    def download(
        self, source: int, target: np.ndarray, offset: int = 0, stream: Any = None
    ) -> None:
        if stream is None:
            self._not_captured("bringing results to the host")
            self.driver.memcpy_dtoh(target, source + offset)
        else:
            self.driver.memcpy_dtoh_async(target, source + offset, stream.raw)

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

    def _queue(self, stream: Any) -> Any:
        """PyCUDA's stream for one of ours; None for the default one."""
        queue = stream or self.local.queue
        return None if queue is None else queue.raw

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

    def compiled(self, text: str, defines: cubin.Defines) -> bytes:
        """Machine code of a kernel file, which stays in the cache on disk. Any thread may ask."""
        return cubin.cubin(kernel_text(text, self.dialect), self.arch, defines)

    def build(self, text: str, kernel: str, defines: cubin.Defines) -> Any:
        kernels = self.state().kernels
        key = (text, kernel, defines)
        try:
            return kernels[key]
        except KeyError:
            module = self.driver.module_from_buffer(self.compiled(text, defines))
            self.state().modules.append(module)
            kernels[key] = module.get_function(kernel)
            return kernels[key]

    def launch(
        self,
        kernel: Any,
        grid: int,
        block: int,
        arguments: list[int | float],
        shared_bytes: int = 0,
        stream: Any = None,
    ) -> None:
        if shared_bytes > _UNASKED_SHARED_BYTES:
            self._allow(kernel, shared_bytes)
        # What prepared_async_call does, less its inspection.
        kernel._launch_kernel(
            (grid, 1, 1),
            (block, 1, 1),
            _packed(arguments),
            shared_bytes,
            self._queue(stream),
        )

    def prepared(
        self, steps: Steps, names: tuple[str, str, str], itemsize: int, **numbers: float
    ) -> Callable[[int, int, int], None]:
        """A plan in the current context, as a function of the addresses of three named buffers.

        ``numbers`` are what else the launches name.
        """
        launches = [self._prepared(step, (*names, "partial"), numbers) for step in steps.launches]
        if not steps.workspace:
            (only,) = launches
            return only
        allocate, nbytes = self.state().pool.allocate, steps.workspace * itemsize

        def run(a: int, b: int, c: int) -> None:
            scratch = allocate(nbytes)
            for launch in launches:
                launch(a, b, c, scratch.address)

        return run

    def _prepared(
        self, step: Launch, names: tuple[str, ...], numbers: dict[str, float]
    ) -> Callable[..., None]:
        """A launch as a function of the named addresses; the numbers that follow are packed."""
        kernel = self.build(step.source, step.kernel, step.defines)
        if step.shared_bytes > _UNASKED_SHARED_BYTES:
            self._allow(kernel, step.shared_bytes)
        given = [numbers.get(a, a) if type(a) is str else a for a in step.arguments]
        used = [argument for argument in given if type(argument) is str]
        pack, rest = struct.Struct(f"{len(used)}q").pack, _packed(given[len(used) :])
        order = [names.index(name) for name in used]
        launch, grid, block = kernel._launch_kernel, (step.grid, 1, 1), (step.block, 1, 1)
        shared_bytes = step.shared_bytes
        if order == [0, 1, 2]:

            def as_given(a: int, b: int, c: int, scratch: int = 0) -> None:
                launch(grid, block, pack(a, b, c) + rest, shared_bytes, None)

            return as_given

        def run(*addresses: int) -> None:
            arguments = pack(*[addresses[i] for i in order]) + rest
            launch(grid, block, arguments, shared_bytes, None)

        return run

    def _allow(self, kernel: Any, shared_bytes: int) -> None:
        """Let a kernel have that much dynamic shared memory."""
        allowed = self.state().shared_bytes
        if allowed.get(kernel, 0) < shared_bytes:
            name = self.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            kernel.set_attribute(name, shared_bytes)
            allowed[kernel] = shared_bytes

    def event(self, stream: Any = None) -> Any:
        mark = Lent(self.state().marks, self.driver.Event)
        mark.raw.record(stream and stream.raw)
        return mark

    def elapsed(self, start: Any, end: Any) -> float:
        end.raw.synchronize()
        return end.raw.time_since(start.raw) * 1e-3

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

    def pinned(self, nbytes: int) -> np.ndarray:
        return self.driver.pagelocked_empty(nbytes, np.uint8)

    def staging(self, nbytes: int) -> np.ndarray:
        state = self.state()
        if state.staging is None or state.staging.nbytes < nbytes:
            state.staging = self.pinned(nbytes)
        return state.staging[:nbytes]


@functools.cache
def _driver_library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _packed(arguments: list[Any]) -> bytes:
    """Arguments of a launch; all of ours are 64-bit."""
    types = "".join(["d" if type(argument) is float else "q" for argument in arguments])
    return struct.pack(types, *arguments)


def _library_version() -> str | None:
    try:
        from nvmath.bindings import cublas

        return ".".join(str(cublas.get_property(part)) for part in range(3))
    except Exception:  # package or library missing, or too old: there is no cuBLAS for us
        return None
