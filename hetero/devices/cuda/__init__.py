"""CUDA devices through PyCUDA, or through `cuda-bindings` where that is not installed (`drivers`).

The primary context is retained, never made current at import, pushed around each use and popped
after it, so that CuPy, torch, numba and cuBLAS share it and nothing is left on the stack at exit.
A thread that has a PyCUDA context of its own on the device (``pycuda.autoinit``) is served in that
one, because its arrays live there. Work goes to the legacy default stream, unless it is given one
made by `CudaDevice.new_stream`, which the legacy stream neither waits for nor holds up.

`device` has the device, whose parts are `context`, its contexts; `launch`, its kernels; `copies`,
what its copies from and to the host take. `state` is what belongs to one context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero.devices.cuda import drivers
from hetero.imports import INSTALL, load

if TYPE_CHECKING:
    from hetero.devices.base import Device


def find() -> tuple[list[Device], list[str]]:
    """The CUDA devices here, and a sentence for each thing that is missing."""
    try:
        driver, name, refused = drivers.chosen()
    except ValueError as error:
        return [], [f"cuda: {error}"]
    except ModuleNotFoundError as error:
        return [], [f"cuda: cuda-bindings is not installed; {INSTALL['cuda']} ({error})"]
    except Exception as error:
        return [], [f"cuda: there is no NVIDIA driver; for an NVIDIA GPU install it ({error})"]
    try:
        driver.init()
        count = driver.Device.count()
    except driver.Error as error:
        return [], [f"cuda: the driver finds no device ({error})"]
    if not count:
        return [], ["cuda: the driver finds no device"]
    missing = [f"cuda: PyCUDA does not load; {name} is used ({refused})"] if refused else []
    if load("hetero.devices.cuda.cubin").compiler() is None:
        missing.append(f"cuda: neither NVRTC nor nvcc to compile kernels with; {INSTALL['cuda']}")
    try:
        load("nvmath.bindings.cublas")
    except Exception:
        missing.append(f"cuda: nvmath-python or cuBLAS for method='library'; {INSTALL['library']}")
    device = load("hetero.devices.cuda.device")
    found: list[Device] = []
    for ordinal in range(count):
        try:
            found.append(device.CudaDevice(ordinal))
        except driver.Error as error:
            missing.append(f"cuda:{ordinal}: the driver does not describe it ({error})")
    return found, missing
