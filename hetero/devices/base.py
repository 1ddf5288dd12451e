"""The interface of a device: describe, allocate, build, launch.

Its base `host_copies.HostCopies` has the copies between host and device, and what orders them.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hetero import kernels
from hetero.devices import cards, kinds, peers
from hetero.devices.host_copies import HostCopies
from hetero.devices.storage import Storage
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.host.copying.copy_jobs import Copy
from hetero.kernels.procedure.card import Card

__all__ = ["Copy", "Device", "kernel_text", "short_host"]

_PROBE_BLOCK = 32  # threads


class Device(HostCopies):
    """A place that computes, other than the CPU.

    Everything a backend reports comes as `hetero.errors.DeviceError`,
    `DeviceMemoryError` or `KernelCompileError`.
    """

    kind: str
    name: str
    dialect: str
    multiprocessors: int
    block_limit: int
    shared_limit: int = 32 << 10  # bytes of shared memory that a block can have
    capability: tuple[int, int] | None = None  # compute capability, of CUDA devices
    null: Any = 0  # in place of a kernel's buffer that is not there
    has_arrays: bool = False  # whether `new_array` gives some, which operands may be
    errors: tuple[type[Exception], ...] = ()  # of the backend's library, before they become ours

    @property
    def traits(self) -> kinds.Traits:
        """What a device of this kind can do."""
        return kinds.traits(self.kind)

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """kind, name, memory_bytes, multiprocessors, driver, toolkit and the backend's own."""

    def card(self) -> Card:
        """What launch parameters are derived from."""
        return cards.of_limits(self)

    @abc.abstractmethod
    def active(self) -> Any:
        """Context manager inside which the other methods may be called from this thread."""

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> tuple[Any, Any]:
        """Memory for ``nbytes`` bytes: (kernel argument, owner). Freed with the owner."""

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, int]:
        """A new array of the backend's own type, and its address."""
        raise DeviceError(f"{self.kind} has no array type with an address")

    def fill(self, buffer: Any, nbytes: int, offset: int = 0, stream: Any = None) -> None:
        """Set bytes of device memory to zero."""
        self.upload(np.zeros(nbytes, np.uint8), buffer, offset, stream)

    def copy(
        self,
        target: Any,
        source: Any,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        """Copy within the device's memory; offsets are in bytes."""
        raise DeviceError(f"{self.kind} does not copy within its memory")

    def copy_from_peer(
        self,
        target: Any,
        peer: Device,
        source: Any,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        """Copy from another device of the same kind, in the order of a stream of this one.

        The stream must have waited for what writes the source, if that may still run.
        The bytes go through the host, and the host waits for them, where there is no direct path
        between the two, or `hetero.devices.peers` found that it damages data.
        """
        where = nbytes, target_offset, source_offset, stream
        if peer is self:
            self.copy(target, source, *where)
        elif peers.trusted(self, peer):
            self.copy_directly(target, peer, source, *where)
        else:
            peers.through_host(self, target, peer, source, *where)

    def link(self, peer: Device) -> bool:
        """Open the direct path from a peer to this device; False if there is none."""
        return False

    def copy_directly(
        self,
        target: Any,
        peer: Device,
        source: Any,
        nbytes: int,
        target_offset: int = 0,
        source_offset: int = 0,
        stream: Any = None,
    ) -> None:
        """What `copy_from_peer` does where `link` opened a path."""
        raise DeviceError(f"{self.kind} has no direct path to {peer.name}")

    @abc.abstractmethod
    def build(self, text: str, kernel: str, defines: tuple[tuple[str, int | str], ...]) -> Any:
        """Compile a kernel (remembered) to something that `launch` takes."""

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
        """Start a kernel; arguments are buffers, 64-bit integers and doubles.

        ``shared_bytes`` of dynamic shared memory are for CUDA's dialect alone: OpenCL's kernels
        give their local arrays a size.
        """

    @contextlib.contextmanager
    def constant_memory(
        self,
        text: str,
        kernel: str,
        defines: tuple[tuple[str, int | str], ...],
        name: str,
        nbytes: int,
    ) -> Iterator[tuple[Any, Any]]:
        """A kernel, and the constant memory that it has under a name, for this thread alone.

        It can be written by `copy`, and is the kernel's argument. What is started on the default
        queue in this context comes before what others put there.
        """
        buffer, owner = self.allocate(nbytes)
        yield self.build(text, kernel, defines), buffer
        del owner

    def place(self) -> Any:
        """What things that are kept on the device belong to: its context, where it has several."""
        return self

    def same_in_threads(self) -> bool:
        """Whether another thread that makes the device active works where this one would."""
        return True

    def context_handle(self) -> int | None:
        """The driver's handle of the context that is current in this thread, None without one."""
        return None

    def keep(self, *things: Any) -> None:
        """While a graph is captured: let what it uses live as long as it does."""
        return

    def abandon(self) -> None:
        """Never touch the device again, not even to give memory back: the process was forked.

        One reference too many keeps this and all it holds from ever being finalized.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def storage(self) -> Storage:
        """What the present context holds in the device's memory beyond a call."""
        return self.__dict__.setdefault("_storage", Storage())

    def memory_held(self) -> dict[str, int]:
        """Purpose -> bytes of the device's memory that this process holds; asks no driver."""
        return self.storage().sizes()

    def trim(self) -> bool:
        """Give memory that is kept for later calls back to the driver; True if there was some.

        Copies of operands stay, see `shed`.
        """
        return self.storage().drop()

    def shed(self, nbytes: int | None = None) -> bool:
        """Let go of copies of operands, as `Copies.shed`; True if there was one."""
        return self.storage().copies.shed(nbytes)

    def clear(self) -> None:
        """`trim`, in every context that is in use, copies of operands included; opens none."""
        self.storage().copies.shed()
        self.trim()

    def reopen(self) -> None:
        """Make the device usable again after failures, as far as its driver lets us."""
        return

    def probe(self) -> None:
        """Compile and run a small kernel.

        Raises
        ------
        DeviceError
            If it fails, or makes other values than it should.
        """
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

    def compile_ahead(self, wanted: Iterable[tuple[str, Any]]) -> None:
        """Compile kernel files that `build` will be asked for, several at a time where that helps.

        Parameters
        ----------
        wanted : iterable of (file, macros)
        """

    def cooperative(
        self,
        text: str,
        kernel: str,
        defines: tuple[tuple[str, int | str], ...],
        block: int,
        shared_bytes: int,
    ) -> Any:
        """A kernel for cooperative launches (`devices.cuda.cooperative`), None where there are
        none."""
        return None

    def transforms(self, layouts: Sequence[tuple[Any, ...]]) -> Any:
        """Plans of the device's library of Fourier transforms; see `hetero.devices.cuda.cufft`."""
        raise DeviceError(f"{self.kind} has no library of Fourier transforms")

    def run_launches(
        self, launch_plan: kernels.LaunchPlan, buffers: dict[str, Any], itemsize: int
    ) -> None:
        """Run a launch plan on named buffers of elements of ``itemsize`` bytes."""
        scratch = None
        if launch_plan.workspace:
            buffers["partial"], scratch = self.allocate(launch_plan.workspace * itemsize)
        for launch in launch_plan.launches:
            self.launch(
                self.build(launch.source, launch.kernel, launch.defines),
                launch.grid,
                launch.block,
                [buffers[a] if type(a) is str else a for a in launch.arguments],
                launch.shared_bytes,
            )
        # The pool hands memory out again in the order of the queue, so no wait is needed here.
        del scratch


def short_host(error: MemoryError) -> DeviceMemoryError:
    """The error for a MemoryError of Python's or NumPy's: the host is short, not the device."""
    made = DeviceMemoryError(f"out of host memory: {error}")
    made.device = "the host"
    return made


@functools.cache
def kernel_text(source: str, dialect: str) -> str:
    """A kernel file with the dialect's prelude in front."""
    return kernels.prelude(dialect) + "\n" + kernels.source(source)
