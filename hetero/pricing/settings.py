"""What the enclosing `use` blocks say of a call."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple


class Settings(NamedTuple):
    """What the enclosing `use` blocks say; each field is None where they say nothing.

    Attributes
    ----------
    device, method : str or None
    results : {"host", "device"} or None
        Where results of operands on the host stay; see `hetero.moving.results`.
    memory_limit : int or None
        Bytes of a device's memory that a call may take.
    """

    device: str | None = None
    method: str | None = None
    results: str | None = None
    memory_limit: int | None = None


# What is remembered holds outside of `use` blocks only.
forced: ContextVar[Settings | None] = ContextVar("hetero_forced", default=None)


def besides() -> tuple[Any, ...] | None:
    """What `use` blocks say that a call's key has no place for; None where they say nothing."""
    outer = forced.get()
    if outer is None or outer.memory_limit is None:
        return None
    return (outer.memory_limit,)
