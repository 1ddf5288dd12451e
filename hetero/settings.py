"""The settings of the enclosing `use` blocks."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Settings(NamedTuple):
    """The settings of the enclosing `use` blocks; fields that none of them sets are None.

    Attributes
    ----------
    device, method : str or None
    results : {"host", "device"} or None
        Where results of operands on the host stay; see `hetero.moving.results`.
    memory_limit : int or None
        Bytes of a device's memory that a call may take.
    watch : bool or None
        Whether arrays that are used again are watched; see `hetero.arrays.kept`.
    """

    device: str | None = None
    method: str | None = None
    results: str | None = None
    memory_limit: int | None = None
    watch: bool | None = None


# Remembered calls hold outside of `use` blocks only.
forced: ContextVar[Settings | None] = ContextVar("hetero_forced", default=None)


def placement(device: str | None, method: str | None) -> tuple[str | None, str | None]:
    """What a call's ``device=`` and ``method=`` mean inside the enclosing `use` blocks."""
    outer = forced.get()
    if outer is None:
        return device, method
    return device or outer.device, method or outer.method
