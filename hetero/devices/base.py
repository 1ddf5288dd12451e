"""The interface of a device: describe, allocate, upload, download, build, launch, wait."""

from __future__ import annotations

import abc
import ctypes
import functools
from typing import Any

import numpy as np

from hetero import kernels
from hetero.errors import DeviceError


class Device(abc.ABC):
    """A place that computes, other than the CPU.

    Everything a backend reports comes as `hetero.errors.DeviceError`,
    `DeviceMemoryError` or `KernelCompileError`.
    """

    kind: str
    name: str
    dialect: str
    multiprocessors: int
    block_limit: int
    tensor_cores: bool  # for float64, as kernels/matmul_tensor.cu uses them

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """kind, name, memory_bytes, multiprocessors, driver, toolkit and the backend's own."""

    @abc.abstractmethod
    def active(self) -> Any:
        """Context manager inside which the other methods may be called from this thread."""

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> tuple[Any, Any]:
        """Memory for ``nbytes`` bytes: (kernel argument, owner). Freed with the owner."""

    def new_array(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, int]:
        """A new array of the backend's own type, and its address."""
        raise DeviceError(f"{self.kind} has no array type with an address")

    @abc.abstractmethod
    def upload(self, source: np.ndarray, target: Any) -> None:
        """Copy a C-contiguous host array to device memory; returns when ``source`` may change."""

    @abc.abstractmethod
    def download(self, source: Any, target: np.ndarray) -> None:
        """Copy device memory to a C-contiguous host array; returns when it is there."""

    @abc.abstractmethod
    def copy_from_peer(self, target: Any, peer: Device, source: Any, nbytes: int) -> None:
        """Copy from another device of the same kind, through the host where they share no link."""

    @abc.abstractmethod
    def build(self, text: str, kernel: str, defines: tuple[tuple[str, int | str], ...]) -> Any:
        """Compile a kernel (remembered) to something that `launch` takes."""

    @abc.abstractmethod
    def launch(self, kernel: Any, grid: int, block: int, arguments: list[Any]) -> None:
        """Start a kernel; arguments are buffers, 64-bit integers and doubles."""

    @abc.abstractmethod
    def event(self) -> Any:
        """Mark this point of the device's queue."""

    @abc.abstractmethod
    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds of device time between two marks; waits for the second."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until everything started has finished; errors of the device show up here."""

    def abandon(self) -> None:
        """Never touch the device again, not even to give memory back: the process was forked.

        One reference too many keeps this and all it holds from ever being finalized.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    @abc.abstractmethod
    def pinned(self, nbytes: int) -> np.ndarray:
        """Host memory (uint8) that the device copies from and to directly."""

    def run_steps(self, steps: kernels.Steps, buffers: dict[str, Any], itemsize: int) -> None:
        """Launch a kernel plan on named buffers of elements of ``itemsize`` bytes."""
        scratch = None
        if steps.workspace:
            buffers["partial"], scratch = self.allocate(steps.workspace * itemsize)
        for step in steps.launches:
            self.launch(
                self.build(step.source, step.kernel, step.defines),
                step.grid,
                step.block,
                [buffers[a] if type(a) is str else a for a in step.arguments],
            )
        # The pool hands memory out again in the order of the queue, so no wait is needed here.
        del scratch


@functools.cache
def kernel_text(source: str, dialect: str) -> str:
    """A kernel file with the dialect's prelude in front."""
    return kernels.prelude(dialect) + "\n" + kernels.source(source)
