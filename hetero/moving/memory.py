"""Memory of the devices that this process holds, by purpose, and pinned memory of the host."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hetero import devices
from hetero.arrays import pinned
from hetero.errors import DeviceError
from hetero.host import pages
from hetero.profile import inventory

log = logging.getLogger("hetero")
_state = {"warned": False}  # that there is no pinned memory


class Memory(dict[str, Any]):
    """A plain dict whose ``print`` is readable."""

    def __str__(self) -> str:
        lines = []
        for name, purposes in self.items():
            lines.append(f"{name}: {_readable(sum(purposes.values()))}")
            lines += [f"  {purpose}: {_readable(size)}" for purpose, size in purposes.items()]
        return "\n".join(lines) or "no device beside the CPU"


def _readable(nbytes: int) -> str:
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"


def memory() -> Memory:
    """How much memory of each device this process holds, and what for.

    Returns
    -------
    Memory
        Device name -> purpose -> bytes; a plain dict that prints readably. What is kept for later
        calls: "convolution filters", "multigrid", "sine transforms", "transforms' work areas"
        (cuFFT's); "kept operands", copies of those that do not change, see `hetero.keep`. What
        lasts as long as its object or call: "solves", "arrays and running calls"
        (results on CUDA devices that the caller holds are among them). What was
        freed and is kept for the next call: "free in the pool". Purposes without bytes are left
        out. The driver is not asked: what it takes for contexts and kernels, and what libraries
        allocate by themselves, such as cuBLAS its workspace, is not counted. Under "host", where
        there is some, is pinned memory of the host: "pinned buffers of copies", through which
        large arrays move, and "pinned arrays"; and memory "for results, used before", which large
        results left when they were dropped. The next ones take it.

    See Also
    --------
    hetero.clear_memory : gives it back.

    Examples
    --------
    >>> import hetero
    >>> for name, purposes in hetero.memory().items():
    ...     print(name, sum(purposes.values()))  # doctest: +SKIP
    cuda:0 419430400
    """
    found = Memory()
    for name, device in devices.available().items():
        held = {} if devices.inherited(name) else device.memory_held()
        found[name] = dict(sorted(held.items()))
    if held := pinned.sizes() | pages.sizes():
        found["host"] = dict(sorted(held.items()))
    return found


def clear_memory(device: str | None = None) -> None:
    """Give back all memory of devices that is not in use.

    Filters, transforms, buffers of solves, copies of operands that do not change (`hetero.keep`)
    and memory that was freed stay on a device for the next call, and on the host pinned buffers for
    the next large copy and memory for its result. The former are given back by themselves when a
    device runs short, of the latter no more than a sixteenth of the machine's memory is kept. This
    gives them back now, to make room for others, and forgets remembered calls, which hold some. The
    next calls work as ever and make what they need anew.

    Parameters
    ----------
    device : str, optional
        Such as "cuda:0". Default: all.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device; the message names those that are here.

    See Also
    --------
    hetero.memory : tells how much there is.

    Examples
    --------
    >>> import hetero
    >>> hetero.clear_memory()
    """
    names = [*devices.available()] if device is None else [devices.get(device).name]
    inventory.changed()
    pages.clear()
    for name in names:
        if devices.inherited(name):
            continue
        try:
            devices.get(name).clear()
        except DeviceError as error:
            log.warning("the memory of %s could not be given back: %s", name, error)


def empty_pinned(shape: int | Sequence[int], dtype: Any = np.float64) -> np.ndarray:
    """A new NumPy array, not initialized, in pinned memory of the host.

    GPUs copy from and to pinned memory at the speed of the bus, without the CPU. The array is an
    ordinary one in all else; operations find out by its address what memory it is in. So do they of
    its views. It is made slowly, at some GB/s, and the system cannot swap it out: make few, and use
    them again. The memory is given back when the array and all its views are gone.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : dtype, optional

    Returns
    -------
    numpy.ndarray
        C-contiguous. In ordinary memory where there is no GPU, or the system gives no pinned
        memory; a warning is logged, once.

    Raises
    ------
    TypeError
        For a dtype of Python objects.
    ValueError
        For a negative extent.

    See Also
    --------
    hetero.memory : tells under "host" how much there is.

    Notes
    -----
    In a forked child it is ordinary memory, with a copy of its content.

    Examples
    --------
    >>> import hetero
    >>> A = hetero.empty_pinned((1000, 1000), "float32")
    >>> A[...] = 1.0
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"dtype must be one of plain values, got {dtype}")
    shape = np.empty(shape, np.dtype((np.void, 0))).shape  # as NumPy takes it, and complains
    nbytes = prod(shape) * dtype.itemsize
    if nbytes:
        try:
            for name, device in devices.available().items():
                if device.stages and not devices.inherited(name) and devices.believed(name):
                    with device.active():
                        return device.pinned(nbytes).view(dtype).reshape(shape)
            raise DeviceError("there is no GPU here that can be used")
        except DeviceError as error:
            if not _state["warned"]:
                _state["warned"] = True
                log.warning("arrays are in ordinary memory instead of pinned: %s", error)
    return np.empty(shape, dtype)
