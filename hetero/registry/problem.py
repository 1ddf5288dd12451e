"""A `Problem`: one call without its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hetero.arrays import HOST, Operand

DEVICE_DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Problem:
    """A call of an operation: dimensions, dtype, options, where each operand and the result lie.

    Attributes
    ----------
    operation : str
    dims : tuple of int
        Extents as the operation counts them, such as (m, n, k).
    batch : int
        How many such products.
    dtype : str
        Name of the dtype that is computed in.
    inputs : tuple of Operand
    output : Operand
        Its location says where the result must go.
    strides : tuple of tuple of int
        Strides in elements as a kernel needs them once everything lies on its device, batch
        first, for operands and result.
    layout : str
        What besides dims decides the speed; selects the constants.
    function : str
        The NumPy function with the call's semantics.
    device_obstacle : str or None
        Why no device (but the CPU) can do it.
    options : NamedTuple or None
        The operation's own, as far as a price can depend on them; they must be hashable.
    next_device : str or None
        The device that is expected to use the result next, which then stays where it is computed;
        None: it goes to the output's location. See `hetero.use`.
    shown : tuple of str
        How the operands are printed, where that is not by the shapes of the inputs.
    """

    operation: str
    dims: tuple[int, ...]
    dtype: str
    inputs: tuple[Operand, ...]
    output: Operand
    batch: int = 1
    strides: tuple[tuple[int, ...], ...] = ()
    layout: str = "*"
    function: str = ""
    device_obstacle: str | None = None
    options: Any = None
    next_device: str | None = None
    shown: tuple[str, ...] = ()

    @property
    def device(self) -> str | None:
        """The device that operands or result lie on; None when all are on the host."""
        for operand in self.inputs:
            if operand.location != HOST:
                return operand.location
        return None if self.output.location == HOST else self.output.location

    def __str__(self) -> str:
        shapes = ", ".join(self.shown or shapes_of(self.inputs))
        stays = self.next_device is not None
        place = "where it is computed" if stays else f"on {self.output.location}"
        result = f"{self.output.shape} {place}"
        return f"{self.function or self.operation} {self.dtype}: {shapes} -> {result}"


def shapes_of(operands: tuple[Operand, ...]) -> tuple[str, ...]:
    """What is printed of arrays."""
    return tuple([f"{operand.shape} on {operand.location}" for operand in operands])


def compressed(shape: tuple[int, int], entries: int) -> str:
    """What is printed of a sparse matrix, which lies on the host."""
    return f"CSR {shape[0]} x {shape[1]}, {entries} entries on host"


def check_dims(operation: str, dims: tuple[int, ...], *forms: str) -> None:
    """Raise ValueError unless the dimensions fit one of the forms and are at least 1 each.

    Parameters
    ----------
    operation : str
    dims : tuple of int
    *forms : str
        The dimensions' names, such as "M N K", one form for each number that there may be.
    """
    if all(len(dims) != len(form.split()) for form in forms):
        number = "/".join(str(len(form.split())) for form in forms)
        names = " or ".join(forms)
        raise ValueError(f"{operation} takes {number} dimensions, {names}, got {len(dims)}")
    if min(dims) < 1:
        raise ValueError(f"a dimension must be at least 1, got {min(dims)}")


def dtype_obstacle(*operands: Operand) -> str | None:
    """Why the devices cannot compute with these dtypes, None where they can."""
    first = operands[0].dtype
    for operand in operands:
        dtype = operand.dtype
        if not dtype.isnative:
            return f"byte order of {dtype.str!r} is not this machine's"
        if dtype.char not in "fd":
            return f"dtype {dtype.name}: devices compute in {' and '.join(DEVICE_DTYPES)}"
        if dtype is not first and dtype != first:
            return f"mixed dtypes {first.name} and {dtype.name}"
        if 0 in operand.shape:
            return "nothing to compute: an operand has no elements"
        if not operand.is_c_contiguous() and operand.staged_strides() is None:
            return "strides are no whole number of elements"
    return None
