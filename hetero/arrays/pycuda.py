"""PyCUDA's GPUArrays."""

from __future__ import annotations

from typing import Any

from hetero.arrays.interface import Interface, ordinal_of_address
from hetero.arrays.library import Access, each, layouts
from hetero.imports import load


class PyCuda(Interface):
    """PyCUDA's GPUArrays, and what hetero makes itself."""

    modules = frozenset({"pycuda"})
    pickles = True

    def on_device(self, array: Any) -> bool:
        return True

    def ordinal(self, array: Any, pointer: int) -> int | None:
        ordinal = getattr(getattr(array, "gpudata", None), "ordinal", None)  # from our own pool
        if ordinal is None:
            ordinal = ordinal_of_address(pointer)
        return _ordinal_of_context() if ordinal is None else ordinal

    def access(self, kind: type, several: bool) -> Access | None:
        if kind.__name__ != "GPUArray":
            return None
        gpuarray = load("pycuda.gpuarray")
        make = gpuarray.GPUArray

        def facts(array: Any) -> tuple[Any, ...]:
            return array.shape, array.strides, array.dtype, array.gpudata.ordinal

        def usable(array: Any) -> bool:  # not every pointer of PyCUDA knows its device
            return array.gpudata is not None and hasattr(array.gpudata, "ordinal")

        def maker(device: Any) -> Any:
            allocate = device.state().pool.allocate
            return lambda shape, dtype, like: make(shape, dtype, allocator=allocate)

        return Access(
            each(facts) if several else layouts,
            lambda array: int(array.gpudata),
            usable if several else None,
            maker,
            lambda: True,
            None,
        )


def _ordinal_of_context() -> int | None:
    driver = load("pycuda.driver")
    if driver.Context.get_current() is None:
        return None
    bus_id = driver.Context.get_device().pci_bus_id()
    for ordinal in range(driver.Device.count()):
        if driver.Device(ordinal).pci_bus_id() == bus_id:
            return ordinal
    return None
