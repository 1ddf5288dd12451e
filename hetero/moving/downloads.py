"""Arrays brought to the host: `hetero.to_host`, which need not wait for the copy."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from hetero import devices
from hetero.arrays import Operand, as_array, describe, is_device_array
from hetero.devices.base import Device
from hetero.host import pages
from hetero.moving import transfer


class Download:
    """A copy to the host that was begun by `to_host`; `wait` gives the array."""

    def __init__(
        self, array: Any, operand: Operand, device: Device, out: np.ndarray | None
    ) -> None:
        self._array, self._operand, self._device, self._out = array, operand, device, out
        direct = operand.is_c_contiguous()
        low, size = 0, operand.nbytes
        if direct:
            target = pages.empty(operand.shape, operand.dtype) if out is None else out
        else:  # with the gaps between the elements
            low, end = operand.span()
            target = np.empty(end - low, np.uint8)
        self._low, self._target, self._copy = low, target, None
        if not size:
            return
        with device.active():
            transfer.follow(device, transfer.of(device, [operand]))
            self._copy = device.begin_download(operand.pointer, target, low)

    def wait(self) -> np.ndarray:
        """The array on the host, once it is there; again, the same.

        Raises
        ------
        hetero.errors.DeviceError
            If the device fails.
        """
        if self._copy is not None:
            with self._device.active():
                self._copy.wait()
            self._copy = None
        if self._array is not None:
            self._array, operand = None, self._operand
            if not operand.is_c_contiguous():
                self._target = transfer.view(self._target, operand, self._low)
                if self._out is not None:
                    self._out[...] = self._target
                    self._target = self._out
        return self._target


class _There(Download):
    """What lay on the host already."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self._copy, self._target = None, None, array


@overload
def to_host(
    x: Any, out: np.ndarray | None = None, *, wait: Literal[True] = True
) -> np.ndarray[Any, np.dtype[Any]]: ...
@overload
def to_host(x: Any, out: np.ndarray | None = None, *, wait: bool) -> Any: ...
def to_host(x: Any, out: np.ndarray | None = None, *, wait: bool = True) -> Any:
    """Bring an array to the host, through pinned buffers that several threads empty.

    Parameters
    ----------
    x : array
        On a device, of any library; what lies on the host is returned as NumPy array.
    out : numpy.ndarray, optional
        Where to; of x's shape and dtype. Pages that were written to before take the values faster
        than those of a new array.
    wait : bool, default True
        False: return at once. What is called next on other arrays is computed while x is copied;
        x must not be written to until then.

    Returns
    -------
    numpy.ndarray
        ``out`` where it was given. With ``wait=False`` an object instead whose ``wait()`` gives the
        array when it is there. Dropped before, it gives the copy up.

    Raises
    ------
    ValueError
        For an ``out`` of another shape or dtype, or one that cannot be written to.
    TypeError
        For an ``out`` that is no NumPy array, and for sparse matrices.
    hetero.errors.DeviceError
        If the device fails twice, or once with ``wait=False``.

    See Also
    --------
    hetero.use : ``results="device"`` leaves results on devices.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> with hetero.use(results="device"):
    ...     C = hetero.matmul(np.eye(2), np.full((2, 2), 3.0))
    ...     C = hetero.matmul(C, C)
    >>> hetero.to_host(C)
    array([[18., 18.],
           [18., 18.]])
    """
    if hasattr(x, "tocsr"):
        raise TypeError(f"to_host takes dense arrays, got {type(x).__name__}")
    array = as_array(x)
    operand = describe(array)
    if out is not None:
        _check(out, operand)
    if not is_device_array(array):
        if out is not None:
            out[...] = array
            array = out
        return array if wait else _There(array)
    if wait:
        return transfer.to_host(array, operand, out)
    return Download(array, operand, devices.get(operand.location), out)


def _check(out: Any, operand: Operand) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.shape != operand.shape or out.dtype != operand.dtype:
        raise ValueError(
            f"out must have shape {operand.shape} and dtype {operand.dtype}, "
            f"got {out.shape} and {out.dtype}"
        )
    if not out.flags.writeable:
        raise ValueError("out must be writeable")
