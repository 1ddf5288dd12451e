"""What an operand is: shape, strides, dtype and where it lies, without its data; and which arrays
lie in pinned memory that hetero allocated, by their addresses."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

HOST = "host"
UNKNOWN_STREAM = -1  # of an array from a library that does not report its stream
_ORDERED_STREAMS = (None, 0, 1, 2)
_LARGEST = 2**63 - 1  # bytes, and elements along an axis: what NumPy's own sizes hold
PINNED: list[tuple[int, int, str]] = []  # first address, the one behind the last, purpose


class Operand(NamedTuple):
    """Description of one operand, without its data.

    Attributes
    ----------
    shape : tuple of int
    strides : tuple of int
        In bytes.
    dtype : numpy.dtype
    location : str
        "host" or a device's name such as "cuda:0".
    pointer : int
        Device address, of an OpenCL device the buffer; 0 on the host and for a `Spec`.
    readonly : bool
    stream : int or None
        Stream to synchronise with before the data is read (CUDA array interface, v3);
        `UNKNOWN_STREAM` where there may be one, which the default stream already waits for.
    copies : tuple of str
        Devices that hold a copy of it, other than its own.
    kept : Kept or None
        What is known of an array on the host that does not change; see `hetero.arrays.kept`.
    pinned : bool
        Whether devices copy from and to it directly; see `hetero.empty_pinned`.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    location: str
    pointer: int = 0
    readonly: bool = False
    stream: int | None = None
    copies: tuple[str, ...] = ()
    kept: Any = None
    pinned: bool = False

    @property
    def memory(self) -> str:
        """The kind of host memory, as a link's name has it."""
        return "pinned" if self.pinned else "pageable"

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, each counted once for every index."""
        return prod(self.shape) * self.dtype.itemsize

    def unkept(self) -> Operand:
        """The same of an array that may change."""
        return self if self.kept is None else self._replace(copies=(), kept=None)

    def is_ordered(self) -> bool:
        """Whether the legacy default stream waits for all work on the data."""
        return self.stream in _ORDERED_STREAMS

    def is_dense(self) -> bool:
        """Whether the elements fill one block of memory, in whatever order of the axes."""
        axes = zip(self.strides, self.shape, strict=True)
        return self.is_c_contiguous() or self._has_no_gaps(sorted(axes))

    def is_c_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        return self._has_no_gaps(zip(self.strides[::-1], self.shape[::-1], strict=True))

    def _has_no_gaps(self, axes: Iterable[tuple[int, int]]) -> bool:
        """Whether each axis begins where the one before, given by (stride, extent), ends."""
        expected = self.dtype.itemsize
        for stride, extent in axes:
            if extent != 1:
                if stride != expected:
                    return False
                expected *= extent
        return True

    def span(self) -> tuple[int, int]:
        """First and last byte that the elements take, the last one excluded, from the pointer."""
        axes = zip(self.strides, self.shape, strict=True)
        ends = [stride * (extent - 1) for stride, extent in axes]
        return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0) + self.dtype.itemsize

    def staged_strides(self) -> tuple[int, ...] | None:
        """Strides in elements that the operand has on a device.

        A dense host array is moved as it lies; any other is packed in C order first; an array on
        a device stays as it is. None if those strides are no whole number of elements.
        """
        if self.is_c_contiguous() or (self.location == HOST and not self.is_dense()):
            return element_strides(self.shape)
        itemsize = self.dtype.itemsize
        if any(stride % itemsize for stride in self.strides):
            return None
        return tuple(stride // itemsize for stride in self.strides)


class Spec:
    """What `spec` makes: shape, dtype, ``on`` and ``order`` of an array, and no data."""

    def __init__(
        self, shape: Any, dtype: Any = "float64", *, on: str = HOST, order: str = "C"
    ) -> None:
        if order not in ("C", "F"):
            raise ValueError(f"order must be 'C' or 'F', got {order!r}")
        if on != HOST and ":" not in on:
            raise ValueError(f"on must be 'host' or a device such as 'cuda:0', got {on!r}")
        self.shape: tuple[int, ...] = (
            (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(map(int, shape))
        )
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"shape must not be negative, got {self.shape}")
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        if max(*self.shape, 0, prod(self.shape) * self.dtype.itemsize) > _LARGEST:
            raise ValueError(
                "shape is too large: an array has less than 2^63 elements along an axis, and less "
                "than 2^63 bytes"
            )
        self.on = on
        self.order = order

    def __repr__(self) -> str:
        return f"spec({self.shape}, {self.dtype.name!r}, on={self.on!r}, order={self.order!r})"

    def operand(self) -> Operand:
        """The operand this stands for."""
        return dense(self.shape, self.dtype, self.on, self.order)


def spec(shape: Any, dtype: Any = "float64", *, on: str = HOST, order: str = "C") -> Spec:
    """A stand-in for an array in `hetero.plan`: a shape and a dtype, no data.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype-like, default float64
    on : str
        Where the array would lie: "host" or a device such as "cuda:0".
    order : {"C", "F"}
        Row-major or column-major.

    Raises
    ------
    ValueError
        For a negative shape, one that no array can have (2^63 bytes or more), an unknown order,
        or an ``on`` that names no kind of device.

    Examples
    --------
    >>> import hetero
    >>> hetero.spec((4096, 4096), "float32")
    spec((4096, 4096), 'float32', on='host', order='C')
    """
    return Spec(shape, dtype, on=on, order=order)


def element_strides(shape: tuple[int, ...], order: str = "C") -> tuple[int, ...]:
    """Strides in elements of a dense array."""
    strides = []
    step = 1
    for extent in reversed(shape) if order == "C" else shape:
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides)) if order == "C" else tuple(strides)


def dense(
    shape: tuple[int, ...], dtype: np.dtype, location: str = HOST, order: str = "C"
) -> Operand:
    """A C-contiguous operand without data."""
    itemsize = dtype.itemsize
    strides = tuple([stride * itemsize for stride in element_strides(shape, order)])
    return Operand(shape, strides, dtype, location)


def of_numpy(array: np.ndarray, known: Any = None) -> Operand:
    """An array of NumPy's, with what is `kept` of it where it does not change."""
    facts, writeable = (array.shape, array.strides, array.dtype, HOST), array.flags.writeable
    if writeable and known is None and not PINNED:
        return Operand(*facts)
    copies = () if known is None else known.copies
    return Operand(*facts, 0, not writeable, None, copies, known, bool(PINNED) and is_pinned(array))


_NAMES = {dtype.char: dtype.name for dtype in map(np.dtype, "fdFD")}


def name_of(dtype: np.dtype) -> str:
    """``dtype.name``, which takes NumPy longer than a look-up of a call."""
    return _NAMES.get(dtype.char) or dtype.name


def overlap(a: Operand, b: Operand) -> bool:
    """Whether two operands on one device may share memory (their address ranges meet).

    Never so on the host, where NumPy takes care of it.
    """
    if a.location != b.location or a.location == HOST or not a.size or not b.size:
        return False
    if not isinstance(a.pointer, int):  # memory objects
        return a.pointer == b.pointer
    (a_low, a_high), (b_low, b_high) = a.span(), b.span()
    return a.pointer + a_low < b.pointer + b_high and b.pointer + b_low < a.pointer + a_high


def alignment(*buffers: Any) -> int:
    """Largest power of two up to 16 that divides every address; memory objects start aligned."""
    bits = 16
    for buffer in buffers:
        if isinstance(buffer, int):
            bits |= buffer
    return bits & -bits


def addresses(array: np.ndarray) -> tuple[int, int]:
    """Addresses of its first byte, and of that after its last one."""
    if not array.flags.forc:
        return np.lib.array_utils.byte_bounds(array)
    begin = array.__array_interface__["data"][0]
    return begin, begin + array.nbytes


def key_of(array: np.ndarray) -> tuple[Any, tuple[int, int]]:
    """What arrays have in common whose elements fill the same block, and the block's addresses."""
    low, high = addresses(array)
    if array.flags.forc:
        return (low, high), (low, high)
    return (low, array.shape, array.strides, array.itemsize), (low, high)


# -- Pinned memory ---------------------------------------------------------------------------------


def is_pinned(array: np.ndarray) -> bool:
    """Whether an array lies in pinned memory that was made here."""
    if not PINNED:
        return False
    address = array.__array_interface__["data"][0]
    return any(begin <= address < end for begin, end, _ in list(PINNED))  # finalizers remove some


def pinned_sizes() -> dict[str, int]:
    """Purpose -> bytes of the pinned memory that this process holds."""
    found: Counter[str] = Counter()
    for begin, end, purpose in list(PINNED):
        found[purpose] += end - begin
    return dict(found)


def known_pinned(array: np.ndarray, purpose: str) -> np.ndarray:
    """Register pinned memory for `is_pinned`, as long as the array or one of its views lives."""
    begin = array.__array_interface__["data"][0]
    entry = begin, begin + array.nbytes, purpose
    PINNED.append(entry)
    weakref.finalize(array, PINNED.remove, entry).atexit = False
    return array
