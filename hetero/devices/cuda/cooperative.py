"""Cooperative launches on CUDA, which PyCUDA does not have.

In a cooperative launch all blocks are on the device at once and may wait for each other. The
kernel's binary is loaded for it a second time by the driver's own function, in the context that
PyCUDA made current.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, NamedTuple

from hetero.devices.base import Defines
from hetero.devices.cuda import driver
from hetero.devices.cuda.compiler import cubin
from hetero.devices.cuda.driver import DriverError
from hetero.errors import KernelCompileError
from hetero.kernels import kernel_text

# Invalid value, no binary for this card, PTX of another version, not found, too many blocks for a
# cooperative launch, not supported: the card or the driver cannot do what was asked, and is well.
_UNABLE = frozenset({1, 209, 218, 222, 500, 720, 801})
_COOPERATIVE = 95  # CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
log = logging.getLogger("hetero")


class CooperativeKernel(NamedTuple):
    """A kernel for cooperative launches of one block shape.

    Attributes
    ----------
    most_blocks : int
        That the device holds at once.
    """

    function: int
    block: int
    shared_bytes: int
    most_blocks: int

    def launch(self, grid: int, arguments: list[int | float], stream: Any = None) -> None:
        """Start the kernel, by default in the default queue; arguments as for `Device.launch`."""
        values = [
            ctypes.c_double(a) if type(a) is float else ctypes.c_int64(int(a)) for a in arguments
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = grid, 1, 1, self.block, 1, 1, self.shared_bytes
        queue = driver.LEGACY if stream is None else stream.handle
        driver.call("cuLaunchCooperativeKernel", self.function, *shape, queue, addresses)


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
        except (AttributeError, KernelCompileError, DriverError) as error:
            if getattr(error, "status", 1) not in _UNABLE:
                raise
            # Too old a driver, or another card: there is another way.
            log.info("no cooperative launches on %s: %s", device.name, error)
            kernels[key] = None
    return kernels[key]


def _load(
    device: Any, text: str, kernel: str, defines: Defines, block: int, shared_bytes: int
) -> CooperativeKernel | None:
    if not driver.given("cuDeviceGetAttribute", _COOPERATIVE, device.number):
        return None
    code = cubin(kernel_text(text, device.kind), device.arch, defines)
    module = driver.given("cuModuleLoadData", code)
    function = driver.given("cuModuleGetFunction", module, kernel.encode())
    driver.call("cuFuncSetAttribute", function, _SHARED_BYTES, shared_bytes)
    count = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    resident = driver.given(count, function, block, shared_bytes)
    if not resident:
        raise KernelCompileError(f"a block of {kernel} does not fit on {device.name}")
    most_blocks = resident * device.multiprocessors
    return CooperativeKernel(function, block, shared_bytes, most_blocks)
