"""Results that stay on the device that computed them, and `hetero.to_host`, which brings them back.

Inside ``hetero.use(results="device")`` a call on operands in host memory leaves its result where it
was computed, as an array of a library that is here; the next call takes it as it is. Calls on
arrays of a device leave their results there in any case, so what is decided here is the first call
of a chain.

The rule by which staying is priced: the next call is expected on the device that was named, or else
on the first one. A result that stays on a device costs no download. What is computed on the host is
charged its upload to that device. Devices that bring a result to the host, several together or in
blocks, are taken by name only, or where no other can: each of the next calls would move it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np

from hetero import tables
from hetero.arrays import HOST, Operand, as_array, cupy, describe, is_device_array
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.moving import transfer
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry.problem import Problem

# ``look(device, dtype, buffer, count)`` may enqueue a look at packed values of a host call's result
# where a device has computed them, before they are downloaded.
look: ContextVar[Callable[[Device, str, Any, int], None] | None] = ContextVar("look", default=None)


def wanted() -> bool:
    """Whether the enclosing `use` blocks let results stay."""
    outer = tables.forced.get()
    return outer is not None and outer.results == "device"


def staying(problem: Problem, device: str | None) -> Problem:
    """The problem, its result to stay where it is computed, if the `use` blocks say so.

    ``device`` is the one that the caller named, and the call has no ``out``. Unchanged where an
    operand lies on a device, and where the next call is expected on one that keeps no arrays.
    """
    if not wanted() or problem.device is not None:
        return problem
    for name, info in inventory.devices().items():
        named = device in (name, info["kind"], f"{info['kind']}:*")
        is_next = named or (device is None and not info.get("is_host_cpu"))
        if is_next and info["kind"] != CPU and not info.get("set_aside"):
            return replace(problem, next_device=name)
    return problem


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
        return array if wait else transfer.Download(array)
    if wait:
        return transfer.to_host(array, operand, out)
    return transfer.Download(array, operand, out)


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
