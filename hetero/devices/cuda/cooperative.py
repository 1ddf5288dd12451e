"""Cooperative launches on CUDA, which PyCUDA does not have.

In a cooperative launch all blocks are on the device at once and may wait for each other. The
kernel's binary is loaded for it a second time through `cuda.bindings`, in the context that PyCUDA
made current; both call the same driver.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, NamedTuple

from hetero import imports
from hetero.devices.base import Defines
from hetero.devices.cuda.compiler import cubin
from hetero.devices.cuda.driver import LEGACY
from hetero.errors import DeviceError, DeviceMemoryError, KernelCompileError
from hetero.kernels import kernel_text

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY, a code of the driver
# Invalid value, no binary for this card, PTX of another version, not found, too many blocks for a
# cooperative launch, not supported: the card or the driver cannot do what was asked, and is well.
_UNABLE = frozenset({1, 209, 218, 222, 500, 720, 801})
log = logging.getLogger("hetero")


def _check(result: tuple) -> Any:
    """The value of a call to the driver; its status as an error where it failed."""
    status, *values = result
    if (code := int(status)) != 0:
        kind = DeviceMemoryError if code == _OUT_OF_MEMORY else DeviceError
        raise (KernelCompileError if code in _UNABLE else kind)(f"CUDA driver: {status!r}")
    return values[0] if values else None


class CooperativeKernel(NamedTuple):
    """A kernel for cooperative launches of one block shape.

    Attributes
    ----------
    most_blocks : int
        That the device holds at once.
    """

    driver: Any
    function: Any
    block: int
    shared_bytes: int
    most_blocks: int

    def launch(self, grid: int, arguments: list[int | float], stream: Any = None) -> None:
        """Start the kernel, by default in the default queue; arguments as for `Device.launch`."""
        values = [
            ctypes.c_double(a) if type(a) is float else ctypes.c_int64(int(a)) for a in arguments
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        _check(
            self.driver.cuLaunchCooperativeKernel(
                self.function,
                *(grid, 1, 1),
                *(self.block, 1, 1),
                self.shared_bytes,
                LEGACY if stream is None else stream.handle,
                ctypes.addressof(addresses),
            )
        )


def load(
    device: Any, text: str, kernel: str, defines: Defines, block: int, shared_bytes: int
) -> CooperativeKernel | None:
    """A kernel for cooperative launches with a block's threads and bytes of dynamic shared memory,
    or None where there can be none. To be called inside the device's `active`.
    """
    kernels = device.state().handles.setdefault("cooperative", {})
    key = text, kernel, defines, block, shared_bytes
    if key not in kernels:
        try:
            kernels[key] = _load(device, *key)
        except Exception as error:  # no bindings, or too old a driver: there is another way
            if isinstance(error, DeviceError) and not isinstance(error, KernelCompileError):
                raise
            log.info("no cooperative launches on %s: %s", device.name, error)
            kernels[key] = None
    return kernels[key]


def _load(
    device: Any, text: str, kernel: str, defines: Defines, block: int, shared_bytes: int
) -> CooperativeKernel | None:
    driver = imports.load("cuda.bindings.driver")
    able = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
    if not _check(driver.cuDeviceGetAttribute(able, _check(driver.cuCtxGetDevice()))):
        return None
    code = cubin(kernel_text(text, device.kind), device.arch, defines)
    module = _check(driver.cuModuleLoadData(code))
    function = _check(driver.cuModuleGetFunction(module, kernel.encode()))
    allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _check(driver.cuFuncSetAttribute(function, allowed, shared_bytes))
    count = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
    resident = _check(count(function, block, shared_bytes))
    if not resident:
        raise KernelCompileError(f"a block of {kernel} does not fit on {device.name}")
    most_blocks = resident * device.multiprocessors
    return CooperativeKernel(driver, function, block, shared_bytes, most_blocks)
