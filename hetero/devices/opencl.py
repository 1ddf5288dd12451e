"""OpenCL devices through PyOpenCL: other vendors' GPUs, and any CPU that has a runtime.

OpenCL's loader learns of a runtime from an .icd file in a folder: /etc/OpenCL/vendors, or what
``OCL_ICD_VENDORS`` names. The package ``intel-opencl-rt`` puts its library where Python's other
data is, with an .icd file that names a place of the vendor's own making, so the loader never finds
it. For the moment in which the loader looks, it is shown a folder with the right file, and with
links to the machine's own. Where the user names a folder, that one alone counts.

PyOpenCL keeps the machine code of programs for the next process, in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from hetero import locks
from hetero.arrays.libraries import set_name
from hetero.arrays.operand import known_pinned
from hetero.devices.base import Defines, Device, reraise
from hetero.devices.storage import Storage, allocated
from hetero.errors import DeviceError, DeviceMemoryError, KernelCompileError
from hetero.host import cpu
from hetero.host.copying.staging import UPLOAD
from hetero.imports import INSTALL, load
from hetero.kernels import kernel_text

_MOST = 256  # programs that are kept: shapes without end have programs without end
_SCALARS = {int: np.int64, float: np.float64}
with contextlib.suppress(OSError):  # there may be none, and then none is needed
    tempfile.gettempdir()  # Python looks for it under a lock of its own; now, a fork waits for that
_FOLDERS = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")  # the user's word to the loader
_SYSTEM = Path("/etc/OpenCL/vendors")
log = logging.getLogger("hetero")


def find() -> tuple[list[Device], list[str]]:
    """The OpenCL devices here, and a sentence for each thing that is missing."""
    try:
        cl = load("pyopencl")
    except ImportError:
        return [], [f"opencl: PyOpenCL is not installed; {INSTALL['opencl']}"]
    except Exception as error:
        return [], [f"opencl: PyOpenCL cannot be imported ({error})"]
    brings = f"; {INSTALL['opencl']} brings one for x86-64 CPUs on Linux"
    found: list[Device] = []
    missing: list[str] = []
    try:
        brings = "" if installed() else brings
        found_here = platforms()
    except Exception as error:  # PyOpenCL's, or what a damaged runtime makes of it
        return [], [f"opencl: no runtime can be used ({error}){brings}"]
    for platform in found_here:
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
def _queue_type() -> type:
    """PyOpenCL's queue as a class of objects that can have weak references."""
    return type("Queue", (load("pyopencl").CommandQueue,), {})


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
                    self._opened = context, self._new_queue(context)
                    set_name(context, self.name)
        return self._opened

    def _forget(self) -> None:
        self._opened: tuple[Any, Any] | None = None
        self._programs: dict[Any, Any] = {}
        self._kernels: dict[Any, Any] = {}
        self._queues: weakref.WeakSet[Any] = weakref.WeakSet()
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
        except (DeviceError, MemoryError, self.cl.Error) as error:
            reraise(self, error, isinstance(error, self.cl.MemoryError))

    def allocate(self, nbytes: int) -> tuple[Any, Any]:
        context, flags = self._open()[0], self.cl.mem_flags.READ_WRITE
        owner = allocated(self.name, nbytes, lambda: self.cl.Buffer(context, flags, nbytes))
        return getattr(owner, "owner", owner), owner

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, Any]:
        """A C-contiguous array of PyOpenCL's, of the default queue, and its buffer."""
        array = load("pyopencl.array")
        made = array.Array(self._open()[1], shape, dtype)
        return made, made.base_data

    def fill(self, buffer: Any, nbytes: int, stream: Any = None) -> None:
        if nbytes:
            self.cl.enqueue_fill_buffer(self._queue(stream), buffer, np.uint8(0), 0, nbytes)

    def copy(
        self,
        target: Any,
        source: Any,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        where = {"byte_count": nbytes, "src_offset": source_offset, "dst_offset": target_offset}
        self.cl.enqueue_copy(self._queue(stream), target, source, **where)

    def build(self, text: str, kernel: str, defines: Defines) -> Any:
        key = (text, kernel, defines, threading.get_ident())  # a cl.Kernel holds its arguments
        try:
            return self._kernels[key]
        except KeyError:
            pass
        try:
            with self._lock:  # one compiles at a time; who has its kernels does not wait
                program = self._programs.get((text, defines))  # which all threads share
                if program is None:
                    if len(self._programs) >= _MOST:
                        self._programs, self._kernels = {}, {}
                    source = kernel_text(text, self.kind)
                    options = [f"-D{name}={value}" for name, value in defines]
                    with warnings.catch_warnings():  # of every compiler that says anything at all
                        warnings.simplefilter("ignore", self.cl.CompilerWarning)
                        program = self.cl.Program(self._open()[0], source).build(options)
                    self._programs[text, defines] = program
            made = self._kernels[key] = self.cl.Kernel(program, kernel)
        except (self.cl.MemoryError, MemoryError) as error:
            raise DeviceMemoryError(f"out of memory compiling {text}: {error}") from error
        except Exception as error:  # PyOpenCL's own, and whatever its Python code stumbles over
            log.debug("OpenCL compiler of %s, %s: %s", self.name, text, error)
            raise KernelCompileError(
                f"the OpenCL compiler of {self._device.platform.name} cannot build {text}: "
                f"{cause(error)}"
            ) from error
        return made

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

    def elapsed(self, start: Any, end: Any) -> float:
        end.wait()
        return (end.profile.end - start.profile.end) * 1e-9

    def passed(self, event: Any) -> bool:
        return event.command_execution_status == self.cl.command_execution_status.COMPLETE

    def synchronize(self, stream: Any = None) -> None:
        self._open()
        for each in list(self._queues) if stream is None else [stream]:
            each.finish()

    def _queue(self, stream: Any) -> Any:
        return self._open()[1] if stream is None else stream

    def new_stream(self) -> Any:
        return self._new_queue(self._open()[0])

    def _new_queue(self, context: Any) -> Any:
        profiling = self.cl.command_queue_properties.PROFILING_ENABLE
        queue = _queue_type()(context, properties=profiling)
        self._queues.add(queue)
        return queue

    def record(self, stream: Any = None, timed: bool = False) -> Any:
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
        return known_pinned(array, purpose)[:nbytes]

    def enqueue(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int = 0,
        stream: Any = None,
    ) -> Any:
        is_upload, queue = direction == UPLOAD, self._queue(stream)
        ends = (buffer, array) if is_upload else (array, buffer)
        at = {"dst_offset" if is_upload else "src_offset": offset}
        sent = self.cl.enqueue_copy(queue, *ends, **at, is_blocking=stream is None)
        queue.flush()
        return sent


# -- Runtimes --------------------------------------------------------------------------------------


def platforms() -> list[Any]:
    """Every OpenCL platform, as PyOpenCL gives them; the loader looks for them only once."""
    with _shown(installed()):
        return load("pyopencl").get_platforms()


def installed() -> Path | None:
    """The library of Intel's CPU runtime as pip installed it, None if it did not."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("intel-opencl-rt") or ():
            path = Path(str(file.locate())).resolve()
            if file.name.startswith("libintelocl.so.") and path.is_file():
                return path
    return None


@contextlib.contextmanager
def _shown(library: Path | None) -> Iterator[None]:
    """Let the loader find a library, unless the user names the folder to look in."""
    with contextlib.ExitStack() as stack:
        if library is not None and not any(os.environ.get(name) for name in _FOLDERS):
            with contextlib.suppress(OSError):  # nowhere to write: then without it
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hetero-icd-"))
                Path(folder, "intel.icd").write_bytes(os.fsencode(library) + b"\n")
                for file in _SYSTEM.glob("*.icd"):
                    Path(folder, f"system-{file.name}").symlink_to(file)
                os.environ[_FOLDERS[0]] = folder
                stack.callback(os.environ.pop, _FOLDERS[0])
        yield


def cause(error: Exception) -> str:
    """The line of a compiler's output that tells why, or what kind of error it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() and "BUILD_PROGRAM" not in line]
    return f"{type(error).__name__}: {[*telling, *lines, 'no message'][0][:160]}"
