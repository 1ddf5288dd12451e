"""Movement between host and devices: staging operands, fetching results, the caller's types."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from hetero import devices, locks
from hetero.arrays import HOST, UNKNOWN_STREAM, Operand, cupy, describe, kept, library_of
from hetero.devices import storage
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceMemoryError, KeptOperandChanged
from hetero.host import cpu
from hetero.host.copying.staging import Copy
from hetero.moving import failures, keeping, pipeline

T = TypeVar("T")
_making = locks.new()  # one copy that stays at a time: they share the bus


def staged_copy(device: Device, array: np.ndarray, operand: Operand) -> tuple[Any, Any]:
    """(buffer, owner) of an operand that does not change: of the copy that the device holds for
    later calls, which is made where this context has none."""
    known, here = operand.kept, device.storage()
    copy = known.held.get(here)
    if copy is None:
        with _making:
            watch, copy = known.watch, known.held.get(here)
            if copy is None:
                buffer, owner, upload = _begin(device, array)
                upload.wait()
                copy = storage.Copy(device.name, buffer, owner, array.nbytes)
                keeping.hold(device, array, known, watch, copy)
    copy.used = time.monotonic()
    if os.environ.get("HETERO_CHECK_KEPT"):
        _check(array, known, copy)
    return copy.buffer, copy.owner


def _check(array: np.ndarray, known: kept.Kept, copy: storage.Copy) -> None:
    """Raise `KeptOperandChanged` if an operand is not what it was when it was copied."""
    found = hashlib.blake2b(np.ascontiguousarray(array if array.flags.c_contiguous else array.T))
    before, copy.checksum = copy.checksum, found.digest()
    if before not in (None, copy.checksum):
        known.held = {}
        raise KeptOperandChanged(
            f"an operand of shape {array.shape}, {array.dtype.name}{known.line}, was written to "
            f"after it was copied to {copy.device}; hetero.keep promises that it does not change"
        )


def _begin(device: Device, array: np.ndarray) -> tuple[Any, Any, Copy]:
    """(buffer, owner, copy that is under way) of a host array."""
    buffer, owner = device.allocate(max(array.nbytes, 1))
    return buffer, owner, device.begin_upload(as_dense(array), buffer, overlap=False)


def stage_all(
    device: Device, arrays: tuple[Any, ...], operands: tuple[Operand, ...]
) -> list[tuple[Any, Any]]:
    """(buffer, owner) of each operand in the device's memory, where it lies or a copy, of which
    `Operand.staged_strides` tells the strides.

    Copies are made at once; an operand that is given twice is moved once.
    """
    found: dict[int, tuple[Any, Any]] = {}
    under_way: list[Copy] = []
    try:
        for array, operand in zip(arrays, operands, strict=True):
            if id(array) in found:
                continue
            if operand.location == device.name:
                found[id(array)] = operand.pointer, array
            elif operand.kept is not None:
                found[id(array)] = staged_copy(device, array, operand)
            else:
                host = array if operand.location == HOST else to_host(array, operand)
                buffer, owner, copy = _begin(device, host)
                found[id(array)] = buffer, owner
                under_way.append(copy)
        for copy in under_way:
            copy.wait()
    except BaseException:  # before the buffers are somebody else's
        pipeline.settle([*(copy.wait for copy in under_way), device.synchronize])
        raise
    return [found[id(array)] for array in arrays]


def as_dense(array: np.ndarray) -> np.ndarray:
    """A C-contiguous view of the array's memory, or the array if its memory is not dense."""
    if array.flags.c_contiguous:
        return array
    axes = sorted(range(array.ndim), key=lambda axis: (-array.strides[axis], array.shape[axis]))
    turned = array.transpose(axes)
    return turned if turned.flags.c_contiguous else array


class Download:
    """A copy of an array on a device to the host, in ``out`` where given; `wait` gives the array.

    ``operand`` is None for what lies on the host already. Without ``overlap`` the copy is complete
    when this is made.
    """

    def __init__(
        self,
        array: Any,
        operand: Operand | None = None,
        out: np.ndarray | None = None,
        overlap: bool = True,
    ) -> None:
        self._array, self._copy, self._into = array, None, None
        if operand is None:
            return
        if operand.is_c_contiguous() or not operand.size:
            low, raw = 0, cpu.empty(operand.shape, operand.dtype) if out is None else out
            self._array = raw
        else:  # with the gaps between the elements
            low, raw = _span(operand)
            self._array, self._into = _view(raw, operand, low), out
        if operand.size:
            self._source, self._device = array, devices.get(operand.location)
            with self._device.active():
                follow(self._device, [operand])
                move = self._device.begin_download if overlap else self._device.download
                self._copy = move(operand.pointer, raw, low)

    def wait(self) -> np.ndarray:
        """The array on the host, once it is there; again, the same. `DeviceError` if the device
        fails."""
        if self._copy is not None:
            with self._device.active():
                self._copy.wait()
            self._copy = self._source = None
        if self._into is not None:
            self._into[...] = self._array
            self._array, self._into = self._into, None
        return self._array


def to_host(array: Any, operand: Operand, out: np.ndarray | None = None) -> np.ndarray:
    """A device array as NumPy array, with whatever strides it has, or in ``out``."""
    return _twice(operand, lambda: Download(array, operand, out, overlap=False).wait())


def from_host(values: np.ndarray, operand: Operand) -> None:
    """Write values into a device array, which the caller holds, of the same shape and dtype, with
    whatever strides."""

    def move(device: Device) -> None:
        low, raw = _span(operand)
        if not operand.is_dense():
            device.download(operand.pointer, raw, low)  # what lies in the gaps stays
        _view(raw, operand, low)[...] = values
        device.upload(raw, operand.pointer, low)

    if operand.size:
        _write(move, [operand])


def put(values: Any, operand: Operand, target: Operand) -> None:
    """Write an array's values into another one, both on devices; else as `from_host`."""
    contiguous = operand.is_c_contiguous() and target.is_c_contiguous()
    if operand.location == target.location and contiguous and target.size:
        given = target.pointer, operand.pointer, target.nbytes
        _write(lambda device: device.copy(*given), [operand, target])
    else:
        from_host(to_host(values, operand), target)


def _write(move: Callable[[Device], Any], operands: list[Operand]) -> None:
    """Do ``move(device)`` behind what the streams of the operands hold, and before what they get
    later; once more where the device fails."""

    def attempt() -> None:
        device = devices.get(operands[0].location)
        with device.active():
            follow(device, operands)
            move(device)
            precede(device, operands)

    _twice(operands[0], attempt)


def _twice(operand: Operand, attempt: Callable[[], T]) -> T:
    """Do what only an operand's device can do; where it fails, say so and try once more."""
    try:
        return attempt()
    except DeviceError as error:
        failures.report(operand.location, error, "it is tried once more")
    return attempt()


def _span(operand: Operand) -> tuple[int, np.ndarray]:
    """Offset of the lowest address the operand touches, and host bytes for the whole range."""
    low, high = operand.span()
    return low, np.empty(high - low, np.uint8)


def _view(raw: np.ndarray, operand: Operand, low: int) -> np.ndarray:
    """An operand's elements in host bytes that begin ``low`` bytes from its pointer."""
    return np.ndarray(operand.shape, operand.dtype, raw, -low, operand.strides)


def empty_like(
    array: Any, operand: Operand, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[Any, int]:
    """A new C-contiguous device array of ``array``'s type, on its device; its address.

    Where that type's library cannot make one, an array of the device's own type.
    """
    library = library_of(array)
    assert library is not None
    made = library.empty(array, shape, dtype)
    if made is None:
        device = devices.get(operand.location)
        return _twice(operand, lambda: device.new_array(shape, dtype))
    return made, library.describe(made).pointer


def new_array(device: Device, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, Operand]:
    """A new C-contiguous array on a device, of a library that is here, and its description: CuPy's
    on a CUDA device, else of the device's own library. DeviceError if there is no room, or the
    library fails."""
    library = cupy() if device.kind == "cuda" and device.same_in_threads() else None
    with device.active():
        if library is None:
            made, _ = device.new_array(shape, dtype)
        else:
            try:
                with library.cuda.Device(device.ordinal):
                    made = library.empty(shape, dtype)
            except MemoryError as error:
                raise DeviceMemoryError(f"out of device memory: {error}") from error
            except RuntimeError as error:
                raise DeviceError(str(error)) from error
    target = describe(made)
    assert target.location != HOST
    return made, target


def follow(device: Device, operands: Iterable[Operand]) -> None:
    """Let the device's default queue wait for what the operands' streams hold now.

    Where a library does not tell its stream, it was asked to order its work itself; see
    `hetero.arrays.libraries`. In a context that is not the primary one that is no order.
    """
    for stream in _streams(device, operands):
        if stream != UNKNOWN_STREAM:
            device.order(stream, 0)
        elif not device.same_in_threads():
            device.synchronize()


def precede(device: Device, operands: Iterable[Operand]) -> None:
    """Let the operands' streams wait for what the device's default queue holds now.

    The host waits where a library does not tell its stream.
    """
    for stream in _streams(device, operands):
        if stream != UNKNOWN_STREAM:
            device.order(0, stream)
        else:
            device.synchronize()


def _streams(device: Device, operands: Iterable[Operand]) -> set[int]:
    """The streams of operands on a device that its default queue is not ordered with."""
    return {o.stream for o in operands if o.location == device.name and not o.is_ordered()}
