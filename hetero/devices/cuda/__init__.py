"""CUDA devices by PyCUDA, or by NVIDIA's ``cuda-bindings`` under the same names (`driver`).

PyCUDA is taken wherever it is installed; it is built from source, with a compiler and the CUDA
toolkit. Without it `driver` does, which needs wheels alone. The choice holds for the process.

The primary context is retained, never made current at import, pushed around each use and popped
after it, so that CuPy, torch, numba and cuBLAS share it and nothing is left on the stack at exit.
A thread that has a PyCUDA context of its own on the device (``pycuda.autoinit``) is served in that
one, because its arrays live there. Work goes to the legacy default stream, unless it is given one
made by `CudaDevice.new_stream`, which the legacy stream neither waits for nor holds up.

`device` has the device, pinned memory of the host and copies between the two, on what works in
contexts with memory of their own (`context`) and compiles (`compiler`); `driver` the driver's own
functions, for all but contexts and launches.
"""

from __future__ import annotations

import functools
import os
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from hetero.devices.cuda import driver
from hetero.errors import DeviceError
from hetero.imports import INSTALL, load

if TYPE_CHECKING:
    from hetero.devices.base import Device


CHOICES = ("pycuda", "bindings")


class Chosen(NamedTuple):
    """What calls the driver: ``pycuda.driver`` or `driver`, which has the same names; its name
    with the version, such as "PyCUDA 2026.1"; why PyCUDA, which is installed, cannot be used, or
    None.
    """

    driver: Any
    name: str
    refused: str | None = None


@functools.cache
def chosen() -> Chosen:
    """What calls the driver in this process; HETERO_DRIVER, "pycuda" or "bindings", forces one.

    Raises
    ------
    ValueError
        If HETERO_DRIVER is something else.
    ImportError, OSError
        If neither package, or no driver, is here.
    """
    wish, refused = os.environ.get("HETERO_DRIVER"), None
    if wish and wish not in CHOICES:
        raise ValueError(f"HETERO_DRIVER must be one of {', '.join(CHOICES)}, got {wish!r}")
    if wish != "bindings":
        try:
            with warnings.catch_warnings():  # it warns before it raises
                warnings.simplefilter("ignore")
                return Chosen(load(driver.PYCUDA), f"PyCUDA {version('pycuda')}")
        except Exception as error:
            if wish:
                raise
            missing = isinstance(error, ModuleNotFoundError) and error.name == "pycuda"
            refused = None if missing else str(error)
    driver.libcuda()  # OSError without one; the bindings would say so at their first call
    load("cuda.bindings.driver")
    return Chosen(driver, f"cuda-bindings {version('cuda-bindings')}", refused)


def find() -> tuple[list[Device], list[str]]:
    """The CUDA devices here, and a sentence for each thing that is missing."""
    try:
        package, name, refused = chosen()
    except ValueError as error:
        return [], [f"cuda: {error}"]
    except ModuleNotFoundError as error:
        return [], [f"cuda: cuda-bindings is not installed; {INSTALL['cuda']} ({error})"]
    except Exception as error:
        return [], [f"cuda: there is no NVIDIA driver; for an NVIDIA GPU install it ({error})"]
    try:
        driver.call("cuInit", 0)
        count = driver.given("cuDeviceGetCount")
    except DeviceError as error:
        return [], [f"cuda: the driver finds no device ({error})"]
    if not count:
        return [], ["cuda: the driver finds no device"]
    missing = [f"cuda: PyCUDA does not load; {name} is used ({refused})"] if refused else []
    if load("hetero.devices.cuda.compiler").version() is None:
        missing.append(f"cuda: no NVRTC to compile kernels with; {INSTALL['cuda']}")
    try:
        load("hetero.devices.cuda.libraries").cublas()
    except Exception:
        missing.append(f"cuda: cuBLAS for method='library'; {INSTALL['library']}")
    device = load("hetero.devices.cuda.device")
    found: list[Device] = []
    for ordinal in range(count):
        try:
            found.append(device.CudaDevice(ordinal, package, name))
        except (package.Error, DeviceError) as error:
            missing.append(f"cuda:{ordinal}: the driver does not describe it ({error})")
    return found, missing
