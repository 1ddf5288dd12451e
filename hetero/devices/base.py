"""The contract of a device: what a kind must fulfil, what it may, and what all have from it.

A kind must describe itself, allocate, copy, build and launch, and order its work: the abstract
methods. The others have a default, for kinds with one queue, one context and memory of their own.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from hetero import kernels, locks
from hetero.arrays.operand import is_pinned
from hetero.devices import peers
from hetero.devices.storage import Storage
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.host.copying.staging import DOWNLOAD, UPLOAD, Copy, Ring, begin
from hetero.kernels.common.launch import Target

__all__ = ["Copy", "Device"]

_lock = locks.new()
_PROBE_BLOCK = 32  # threads, of the kernel that finds what a device can do
Defines = tuple[tuple[str, int | str], ...]  # macros of a kernel file


class Device(abc.ABC):
    """A place that computes, other than the CPU.

    Everything a backend reports comes as `hetero.errors.DeviceError`,
    `DeviceMemoryError` or `KernelCompileError`. A stream is a queue of the device's work; None
    stands for the default one.
    """

    kind: str
    name: str
    multiprocessors: int
    block_limit: int
    shared_limit: int = 32 << 10  # bytes of shared memory that a block can have
    capability: tuple[int, int] | None = None  # compute capability, of CUDA devices
    null: Any = 0  # in place of a kernel's buffer that is not there
    errors: tuple[type[Exception], ...] = ()  # of the backend's library, before they become ours
    stages: bool = False  # whether staged copies may be the faster ones

    # -- what it is

    @property
    def is_cuda(self) -> bool:
        """Whether it is NVIDIA's: events time its work, 32 threads run in step, CUDA's libraries
        take its arrays."""
        return self.kind == "cuda"

    @property
    def target(self) -> Target:
        """The limits that launches are planned by."""
        limits = self.shared_limit, self.capability
        return Target(self.multiprocessors, self.block_limit, self.is_cuda, *limits)

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """kind, name, memory_bytes, multiprocessors, driver, toolkit and the backend's own.

        ``is_host_cpu`` is true for this machine's CPU again, as OpenCL has it: such a device is not
        calibrated, and computes only where it is named.
        """

    @abc.abstractmethod
    def active(self) -> Any:
        """Context manager inside which the other methods may be called from this thread."""

    # -- its memory

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> tuple[Any, Any]:
        """Memory for ``nbytes`` bytes: (kernel argument, owner), freed with the owner, and counted
        for a memory limit by `hetero.devices.storage.allocated`."""

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, int]:
        """A new array of the backend's own type, and its address."""
        raise DeviceError(f"{self.kind} has no array type with an address")

    @abc.abstractmethod
    def fill(self, buffer: Any, nbytes: int, stream: Any = None) -> None:
        """Set bytes of device memory to zero."""

    @abc.abstractmethod
    def copy(
        self,
        target: Any,
        source: Any,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        """Copy within the device's memory, or from that of a peer to which `link` opened a path;
        offsets are in bytes."""

    def copy_from_peer(self, target: Any, peer: Device, source: Any, *where: Any) -> None:
        """`copy` from another device of the same kind; see `hetero.devices.peers.copy`."""
        peers.copy(self, target, peer, source, *where)

    def storage(self) -> Storage:
        """What the present context holds in the device's memory beyond a call."""
        return self.__dict__.setdefault("_storage", Storage())

    # -- copies from and to the host

    def upload(self, source: np.ndarray, target: Any, offset: int = 0) -> None:
        """Copy a host array of any strides, packed in C order, to byte ``offset`` of a buffer;
        returns when ``source`` may change."""
        begin(self, UPLOAD, source, target, offset, overlap=False).wait()

    def download(self, source: Any, target: np.ndarray, offset: int = 0) -> None:
        """Copy packed memory from byte ``offset`` of a buffer to a host array of any strides."""
        begin(self, DOWNLOAD, target, source, offset, overlap=False).wait()

    # (source, target, offset, after, overlap): begin what `upload` does; see `staging.begin`.
    begin_upload = functools.partialmethod(begin, UPLOAD)

    def begin_download(
        self, source: Any, target: np.ndarray, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin what `download` does."""
        return begin(self, DOWNLOAD, target, source, offset, after)

    @abc.abstractmethod
    def pinned(self, nbytes: int, purpose: str = "pinned arrays") -> np.ndarray:
        """Host memory (uint8) that the device copies from and to directly, counted by purpose."""

    # -- kernels

    @abc.abstractmethod
    def build(self, text: str, kernel: str, defines: Defines) -> Any:
        """Compile a kernel (remembered) to something that `launch` takes."""

    def compile_ahead(self, wanted: Iterable[tuple[str, Defines]]) -> None:
        """Compile (file, macros) that `build` will be asked for, at once where that helps."""
        return

    @abc.abstractmethod
    def launch(
        self,
        kernel: Any,
        grid: int,
        block: int,
        arguments: list[Any],
        shared_bytes: int = 0,
        stream: Any = None,
    ) -> None:
        """Start a kernel; arguments are buffers, 64-bit integers and doubles. Only CUDA's dialect
        has dynamic shared memory."""

    def bound(self, launch: kernels.Launch, buffers: dict[str, Any]) -> tuple[Any, ...]:
        """What `launch` takes for a launch of a plan on named buffers."""
        kernel = self.build(launch.source, launch.kernel, launch.defines)
        arguments = [buffers[a] if type(a) is str else a for a in launch.arguments]
        return kernel, launch.grid, launch.block, arguments, launch.shared_bytes

    def run_launches(
        self, launch_plan: kernels.LaunchPlan, buffers: dict[str, Any], itemsize: int
    ) -> None:
        """Run a launch plan on named buffers of elements of ``itemsize`` bytes."""
        if launch_plan.workspace:
            # The pool hands memory out again in the order of the queue, so no wait is needed here.
            buffers["partial"], _scratch = self.allocate(launch_plan.workspace * itemsize)
        for launch in launch_plan.launches:
            self.launch(*self.bound(launch, buffers))

    def constant_memory(
        self, text: str, kernel: str, defines: Defines, name: str, nbytes: int
    ) -> tuple[Any, Any, Any]:
        """A kernel; the constant memory that it has under a name, for one thread at a time, which
        `copy` writes and which is the kernel's argument; and that memory's owner."""
        return self.build(text, kernel, defines), *self.allocate(nbytes)

    def cooperative(
        self, text: str, kernel: str, defines: Defines, block: int, shared_bytes: int
    ) -> Any:
        """A kernel for cooperative launches (`devices.cuda.compiler`), None without those."""
        return None

    # -- what orders the work that was started

    @abc.abstractmethod
    def synchronize(self, stream: Any = None) -> None:
        """Wait until everything started, or one stream, has finished; errors show up here."""

    @abc.abstractmethod
    def new_stream(self) -> Any:
        """A queue that nothing orders with others but `record` and `wait`."""

    @abc.abstractmethod
    def record(self, stream: Any = None, timed: bool = False) -> Any:
        """An event that comes when all that the stream holds now is done. Where ``timed`` it is for
        `elapsed`, too."""

    @abc.abstractmethod
    def wait(self, event: Any, stream: Any = None) -> None:
        """Let a stream go on only after an event of this or another device of the same kind; where
        that cannot be, and without a stream, the host waits."""

    # -- for what stands around operations: copies, peers, memory, failures, measurements

    def same_in_threads(self) -> bool:
        """Whether another thread that makes the device active works where this one would."""
        return True

    def reopen(self) -> None:
        """Make the device usable again after failures, as far as its driver lets us."""
        return

    def probe(self) -> None:
        """Compile and run a small kernel; DeviceError if it fails, or makes other values."""
        x = np.arange(2 * _PROBE_BLOCK, dtype=np.float32)
        y = np.zeros_like(x)
        with self.active():
            (source, _first), (target, _second) = self.allocate(x.nbytes), self.allocate(x.nbytes)
            self.upload(x, source)
            self.upload(y, target)
            kernel = self.build("probe.cu", "probe", (("BLOCK", _PROBE_BLOCK),))
            self.launch(kernel, 2, _PROBE_BLOCK, [source, target, 2])
            self.download(target, y)
        if not np.array_equal(y.reshape(2, -1), 2 * x.reshape(2, -1)[:, ::-1]):
            raise DeviceError("a kernel ran without an error and made wrong values")

    def link(self, peer: Device) -> bool:
        """Open the direct path from a peer to this device; False if there is none."""
        return False

    def memory_held(self) -> dict[str, int]:
        """Purpose -> bytes of the device's memory that this process holds; asks no driver."""
        return self.storage().sizes()

    def trim(self) -> bool:
        """Give memory that is kept for later calls back to the driver, but for copies of operands;
        True if there was some."""
        return self.storage().drop()

    def clear(self) -> None:
        """`trim`, in every context that is in use, copies of operands and the buffers of staged
        copies included; opens none."""
        self.storage().let_go()
        self.trim()

    @abc.abstractmethod
    def enqueue(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int = 0,
        stream: Any = None,
    ) -> Any:
        """Let a stream copy a pinned array, by "upload" or "download"; the event of its end. By
        the default queue it is complete at once, and the array may be in ordinary memory. It is
        C-contiguous; CUDA's may be of rows that lie apart.
        """

    def is_pinned(self, array: np.ndarray) -> bool:
        """Whether an array lies in memory that the device copies from and to directly."""
        return is_pinned(array)

    def ring(self) -> Ring | None:
        """The pinned buffers of staged copies; None where their threads have another context."""
        if not self.same_in_threads():
            return None
        storage = self.storage()
        with _lock:
            storage.ring = storage.ring or Ring(self)
        return storage.ring

    def slice_calls(self, direction: str, stream: Any) -> dict[str, Any] | None:
        """What `slices.copy` takes of the driver; None where it is not for this device."""
        return None

    @abc.abstractmethod
    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds of device time between two timed events; waits for the second."""

    @abc.abstractmethod
    def passed(self, event: Any) -> bool:
        """Whether the device has come past an event; False where that is not known."""


def reraise(device: Device, error: Exception, is_short: bool) -> NoReturn:
    """Raise an error as one of ours that names the device; ``is_short`` where that has no
    memory."""
    if isinstance(error, DeviceError):
        error.device = error.device or device.name
        raise error
    made = DeviceError(str(error))
    if isinstance(error, MemoryError):  # of Python or NumPy
        made = DeviceMemoryError(f"out of host memory: {error}")
    elif is_short:
        made = DeviceMemoryError(f"out of device memory: {error}")
    made.device = "the host" if isinstance(error, MemoryError) else device.name
    raise made from error
