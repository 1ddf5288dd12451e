"""What a launch plan is made of: launches, their order, and the names of element types."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "ELEMENT_BYTES",
    "REAL",
    "VECTOR_BYTES",
    "Launch",
    "LaunchPlan",
    "Target",
    "ceil_div",
    "check_dtype",
]

# The C name of each element type, and its bytes; those of the widest load and store in use.
REAL = {"float32": "float", "float64": "double"}
ELEMENT_BYTES = {"float32": 4, "float64": 8}
VECTOR_BYTES = 16


class Launch(NamedTuple):
    """One kernel launch, complete but for the buffers' addresses.

    Attributes
    ----------
    source : str
        File of this package that holds the kernel.
    kernel : str
        Name of the entry point.
    defines : tuple of (str, int or str)
        Macros to set with ``-D``. Launches with equal ``source`` and ``defines`` share a binary.
    grid : int
        Number of blocks, in one dimension.
    block : int
        Threads of a block, in one dimension.
    arguments : tuple of (str or int)
        In order. A string names a buffer, an integer is passed as a signed 64-bit integer.
    shared_bytes : int
        Dynamic shared memory of a block.
    """

    source: str
    kernel: str
    defines: tuple[tuple[str, int | str], ...]
    grid: int
    block: int
    arguments: tuple[str | int, ...]
    shared_bytes: int = 0


class LaunchPlan(NamedTuple):
    """The launches that do one operation, to be run in order on one stream.

    Attributes
    ----------
    launches : tuple of Launch
    workspace : int
        Elements (of the operands' dtype) of the scratch buffer named ``"partial"``; 0 if none.
        It needs no initial value, and must lie at an address that 16 divides.
    variant : str
        Short name of the variant chosen, for plans that are printed.
    seconds : float
        What it is expected to take; 0 where nothing is estimated.
    """

    launches: tuple[Launch, ...]
    workspace: int
    variant: str
    seconds: float = 0.0


class Target(NamedTuple):
    """The device that launches are planned for.

    Attributes
    ----------
    multiprocessors : int
    block_limit : int
        Most threads of a block.
    warps : bool
        Whether it is NVIDIA's: lanes exchange through registers.
    """

    multiprocessors: int
    block_limit: int = 1024
    warps: bool = False


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up, for positive integers."""
    return -(-a // b)


def check_dtype(dtype: str) -> int:
    """Return the bytes of one element of ``dtype``, or say which dtypes there are."""
    try:
        return ELEMENT_BYTES[dtype]
    except KeyError:
        valid = ", ".join(ELEMENT_BYTES)
        raise ValueError(f"dtype must be one of {valid}, got {dtype!r}") from None
