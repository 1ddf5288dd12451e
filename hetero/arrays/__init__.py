"""What an array is: one table of libraries, and operands, which are arrays without data."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from hetero.arrays import kept
from hetero.arrays.libraries import DLPACK, INTERFACE
from hetero.arrays.libraries import Access as Access
from hetero.arrays.libraries import cupy as cupy
from hetero.arrays.libraries import library_of as library_of
from hetero.arrays.libraries import release as release
from hetero.arrays.operand import HOST as HOST
from hetero.arrays.operand import UNKNOWN_STREAM as UNKNOWN_STREAM
from hetero.arrays.operand import Operand, Spec, key_of
from hetero.arrays.operand import alignment as alignment
from hetero.arrays.operand import dense as dense
from hetero.arrays.operand import element_strides as element_strides
from hetero.arrays.operand import name_of as name_of
from hetero.arrays.operand import of_numpy as of_numpy
from hetero.arrays.operand import overlap as overlap
from hetero.arrays.operand import pinned_sizes as pinned_sizes
from hetero.arrays.operand import spec as spec

Array = TypeVar("Array")  # an operand's type, which the result has too


def _on_host(array: np.ndarray, used: bool = False) -> Operand:
    return of_numpy(array, kept.find(array, used))


def is_device_array(array: Any) -> bool:
    """Whether the array lies on a device."""
    if type(array) is np.ndarray or array is None:
        return False
    library = library_of(array)
    return library is not None and library.on_device(array)


def describe_used(array: Any, other: Any = None) -> Operand:
    """As `describe`, for an input of a call that runs: an array of NumPy's that was used before is
    watched, so that devices may hold copies. With the same memory as another input it counts once.
    """
    if type(array) is not np.ndarray:
        return describe(array)
    same = type(other) is np.ndarray and other.nbytes == array.nbytes
    return _on_host(array, used=not (same and key_of(array) == key_of(other)))


def describe(array: Any) -> Operand:
    """Describe a NumPy array, a `Spec`, or a device array of any library.

    Raises
    ------
    TypeError
        For anything else, and for a device array without a usable description.
    """
    if isinstance(array, np.ndarray):
        return _on_host(array)
    if isinstance(array, Spec):
        return array.operand()
    library = library_of(array)
    if library is None:
        raise TypeError(
            f"an operand must be a NumPy array, have {INTERFACE}, or be exported from a CUDA "
            f"device by DLPack, got {type(array).__name__}"
        )
    return library.describe(array)


def as_array(x: Any) -> Any:
    """A device array as it is, everything else as NumPy array.

    Raises
    ------
    TypeError
        For an array on a device that is neither the host nor a CUDA device.
    """
    if type(x) is np.ndarray or is_device_array(x):
        return x
    if library_of(x) is DLPACK and not hasattr(x, "__array__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"{type(x).__name__}: {error}") from error
    return np.asarray(x)


def array_or_spec(x: Any) -> Any:
    """A stand-in without data as it is, everything else as `as_array`."""
    return x if isinstance(x, Spec) else as_array(x)
