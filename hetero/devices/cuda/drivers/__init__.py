"""Which package calls the CUDA driver: PyCUDA, or NVIDIA's ``cuda-bindings`` by the same names.

PyCUDA is taken wherever it is installed; it is built from source, with a compiler and the CUDA
toolkit. Without it `bindings` is used, which needs wheels alone. The choice holds for the process.
"""

from __future__ import annotations

import functools
import os
import warnings
from importlib.metadata import version
from typing import Any, NamedTuple

from hetero.arrays.pycuda import DeviceArray
from hetero.devices.cuda import library
from hetero.imports import load

PYCUDA, BINDINGS = CHOICES = ("pycuda", "bindings")


class Chosen(NamedTuple):
    """What calls the driver.

    Attributes
    ----------
    driver : module
        ``pycuda.driver``, or `bindings`, which has the same names.
    name : str
        With its version, such as "PyCUDA 2026.1".
    refused : str or None
        Why PyCUDA, which is installed, cannot be used.
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
    if wish != BINDINGS:
        try:
            with warnings.catch_warnings():  # it warns before it raises
                warnings.simplefilter("ignore")
                return Chosen(load("pycuda.driver"), f"PyCUDA {version('pycuda')}")
        except Exception as error:
            if wish:
                raise
            missing = isinstance(error, ModuleNotFoundError) and error.name == "pycuda"
            refused = None if missing else str(error)
    library.driver()  # OSError without one; the bindings would say so at their first call
    driver = load("hetero.devices.cuda.drivers.bindings")
    return Chosen(driver, f"cuda-bindings {version('cuda-bindings')}", refused)


def array_type() -> Any:
    """What arrays on devices are made of, ``type(shape, dtype, allocator=allocate)``."""
    if chosen().driver.__name__ == "pycuda.driver":
        return load("pycuda.gpuarray").GPUArray
    return DeviceArray
