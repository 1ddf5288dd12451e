"""OpenCL devices through PyOpenCL: other vendors' GPUs, and any CPU that has a runtime."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero import locks
from hetero.arrays.libraries import set_name
from hetero.arrays.pinned import known
from hetero.devices.base import Defines, Device, short_host
from hetero.devices.opencl import runtime
from hetero.devices.storage import Storage, allocated
from hetero.errors import DeviceError, DeviceMemoryError, KernelCompileError
from hetero.host import cpu
from hetero.host.copying.staging import UPLOAD
from hetero.imports import INSTALL, load
from hetero.kernels import kernel_text

_MOST = 256  # programs that are kept: shapes without end have programs without end
_SCALARS = {int: np.int64, float: np.float64}
log = logging.getLogger("hetero")


def find() -> tuple[list[Device], list[str]]:
    """The OpenCL devices here, and a sentence for each thing that is missing."""
    try:
        cl = runtime.pyopencl()
    except ImportError:
        return [], [f"opencl: PyOpenCL is not installed; {INSTALL['opencl']}"]
    except Exception as error:
        return [], [f"opencl: PyOpenCL cannot be imported ({error})"]
    brings = f"; {INSTALL['opencl']} brings one for x86-64 CPUs on Linux"
    found: list[Device] = []
    missing: list[str] = []
    try:
        library = runtime.installed()
        brings = "" if library else brings
        if " " in str(library):
            why = f"does not work in a folder with a space in its path: {library}"
            missing.append(f"opencl: Intel's runtime {why}")
        platforms = runtime.platforms()
    except Exception as error:  # PyOpenCL's, or what a damaged runtime makes of it
        return [], [f"opencl: no runtime can be used ({error}){brings}"]
    for platform in platforms:
        # NVIDIA's are the cuda devices again; the simulator is for tests, which open it alone.
        if "NVIDIA" in platform.name or "Oclgrind" in platform.name:
            continue
        try:
            here = platform.get_devices()
            if not cpu.makes_code() and any(d.type & cl.device_type.CPU for d in here):
                raise DeviceError(cpu.NO_CODE)  # some runtimes end the process
            found += [OpenCLDevice(len(found) + i, d) for i, d in enumerate(here)]
        except Exception as error:  # of one runtime; another may still do
            missing.append(f"opencl: no device of {platform.name} can be used ({error})")
    if not found and not missing:
        missing.append(f"opencl: no runtime has a device{brings}")
    return found, missing


@functools.cache
def _stream_type() -> type:
    """PyOpenCL's queue as a class to whose objects there can be weak references."""
    cl = load("pyopencl")
    return type("Stream", (cl.CommandQueue,), {})


class OpenCLDevice(Device):
    """One OpenCL device, with a context and in-order queues of its own."""

    kind = "opencl"
    null = None

    def __init__(self, ordinal: int, device: Any) -> None:
        cl = load("pyopencl")
        self.cl = cl
        self.name = f"opencl:{ordinal}"
        self._device = device
        self._lock = locks.new()
        self._taken: set[Any] = set()  # kernels that are being given arguments
        self.multiprocessors = max(device.max_compute_units, 1)  # 0: the runtime may not count
        self.block_limit = device.max_work_group_size
        self.shared_limit = int(device.local_mem_size)
        self._forget()
        self.stages = not device.type & cl.device_type.CPU  # whose buffers are ordinary memory

    def describe(self) -> dict[str, Any]:
        """kind, name, memory_bytes, multiprocessors, block_limit, shared_limit, driver, platform,
        toolkit, is_host_cpu."""
        device = self._device
        return {
            "kind": self.kind,
            "name": device.name.strip(),
            "memory_bytes": int(device.global_mem_size),
            "multiprocessors": self.multiprocessors,
            "block_limit": self.block_limit,
            "shared_limit": self.shared_limit,
            "driver": device.driver_version,
            "platform": device.platform.name,
            "toolkit": device.version.strip(),
            "is_host_cpu": bool(device.type & self.cl.device_type.CPU),
        }

    def _open(self) -> tuple[Any, Any]:
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    context = self.cl.Context([self._device])
                    profiling = self.cl.command_queue_properties.PROFILING_ENABLE
                    self._opened = context, self.cl.CommandQueue(context, properties=profiling)
                    set_name(context, self.name)
        return self._opened

    def _forget(self) -> None:
        self._opened: tuple[Any, Any] | None = None
        self._programs: dict[Any, Any] = {}
        self._kernels: dict[Any, Any] = {}
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._storage = Storage()

    def reopen(self) -> None:
        self._storage.let_go()
        with self._lock:
            if self._opened is not None:
                set_name(self._opened[0], None)
            self._forget()

    @contextlib.contextmanager
    def active(self) -> Iterator[OpenCLDevice]:
        """Turns PyOpenCL's errors into ours; OpenCL has no current context."""
        try:
            yield self
        except DeviceError as error:
            error.device = error.device or self.name
            raise
        except MemoryError as error:
            raise short_host(error) from error
        except self.cl.Error as error:
            is_short = isinstance(error, self.cl.MemoryError)
            text = f"out of device memory: {error}" if is_short else str(error)
            made = (DeviceMemoryError if is_short else DeviceError)(text)
            made.device = self.name
            raise made from error

    def allocate(self, nbytes: int) -> tuple[Any, Any]:
        context, flags = self._open()[0], self.cl.mem_flags.READ_WRITE
        owner = allocated(self.name, nbytes, lambda: self.cl.Buffer(context, flags, nbytes))
        return getattr(owner, "owner", owner), owner

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, Any]:
        """A C-contiguous array of PyOpenCL's, of the default queue, and its buffer."""
        array = load("pyopencl.array")
        made = array.Array(self._open()[1], shape, dtype)
        return made, made.base_data

    def fill(self, buffer: Any, nbytes: int, offset: int = 0, stream: Any = None) -> None:
        if nbytes:
            self.cl.enqueue_fill_buffer(
                self._queue(stream), buffer, np.zeros(1, np.uint8), offset, nbytes
            )

    def copy(
        self,
        target: Any,
        source: Any,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        self.cl.enqueue_copy(
            self._queue(stream),
            target,
            source,
            byte_count=nbytes,
            src_offset=source_offset,
            dst_offset=target_offset,
        )

    def build(self, text: str, kernel: str, defines: Defines) -> Any:
        key = (text, kernel, defines, threading.get_ident())  # a cl.Kernel holds its arguments
        try:
            return self._kernels[key]
        except KeyError:
            pass
        try:
            program = self._programs.get((text, defines))  # which all threads share
            if program is None:
                with self._lock:  # one compiles at a time; who has its programs does not wait
                    program = self._programs.get((text, defines))
                    if program is None:
                        if len(self._programs) >= _MOST:
                            self._programs, self._kernels = {}, {}
                        program = self._programs[text, defines] = self._built(text, defines)
            made = self._kernels[key] = self.cl.Kernel(program, kernel)
        except (self.cl.MemoryError, MemoryError) as error:
            raise DeviceMemoryError(f"out of memory compiling {text}: {error}") from error
        except Exception as error:  # PyOpenCL's own, and whatever its Python code stumbles over
            log.debug("OpenCL compiler of %s, %s: %s", self.name, text, error)
            raise KernelCompileError(
                f"the OpenCL compiler of {self._device.platform.name} cannot build {text}: "
                f"{runtime.cause(error)}"
            ) from error
        return made

    def _built(self, text: str, defines: Defines) -> Any:
        options = [f"-D{name}={value}" for name, value in defines]
        source = kernel_text(text, self.kind)
        return runtime.built(self._open()[0], self._device, source, options)

    def launch(
        self,
        kernel: Any,
        grid: int,
        block: int,
        arguments: list[Any],
        shared_bytes: int = 0,
        stream: Any = None,
    ) -> None:
        if kernel in self._taken:  # a signal handler's call, in the middle of its own thread's
            kernel = self.cl.Kernel(kernel.program, kernel.function_name)
        try:
            self._taken.add(kernel)
            for position, argument in enumerate(arguments):
                scalar = _SCALARS.get(type(argument))
                kernel.set_arg(position, argument if scalar is None else scalar(argument))
            self.cl.enqueue_nd_range_kernel(self._queue(stream), kernel, (grid * block,), (block,))
        finally:
            self._taken.discard(kernel)

    def event(self, stream: Any = None) -> Any:
        return self.cl.enqueue_marker(self._queue(stream))

    def elapsed(self, start: Any, end: Any) -> float:
        end.wait()
        return (end.profile.end - start.profile.end) * 1e-9

    def passed(self, mark: Any) -> bool:
        return mark.command_execution_status == self.cl.command_execution_status.COMPLETE

    def synchronize(self, stream: Any = None) -> None:
        if stream is not None:
            stream.finish()
            return
        self._open()[1].finish()
        for each in list(self._streams):
            each.finish()

    def _queue(self, stream: Any) -> Any:
        return self._open()[1] if stream is None else stream

    def new_stream(self) -> Any:
        profiling = self.cl.command_queue_properties.PROFILING_ENABLE
        stream = _stream_type()(self._open()[0], properties=profiling)
        self._streams.add(stream)
        return stream

    def record(self, stream: Any = None, event: Any = None) -> Any:
        queue = self._queue(stream)
        made = self.cl.enqueue_marker(queue)
        queue.flush()  # or who waits for it from another queue might wait for ever
        return made

    def wait(self, event: Any, stream: Any = None) -> None:
        if stream is not None and event.context == self._open()[0]:
            self.cl.enqueue_barrier(stream, wait_for=[event])
        else:
            event.wait()

    def pinned(self, nbytes: int, purpose: str = "pinned arrays") -> np.ndarray:
        cl = self.cl
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        context, queue = self._open()
        buffer = cl.Buffer(context, flags, max(nbytes, 1))
        array, _ = cl.enqueue_map_buffer(
            queue, buffer, cl.map_flags.READ | cl.map_flags.WRITE, 0, (max(nbytes, 1),), np.uint8
        )
        return known(array, purpose)[:nbytes]

    def enqueue(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int = 0,
        stream: Any = None,
        awake: bool = False,
    ) -> Any:
        copy, wait = self.cl.enqueue_copy, stream is None
        queue = self._open()[1] if wait else stream
        if direction == UPLOAD:
            sent = copy(queue, buffer, array, dst_offset=offset, is_blocking=wait)
        else:
            sent = copy(queue, array, buffer, src_offset=offset, is_blocking=wait)
        if not wait:
            queue.flush()
        return sent
